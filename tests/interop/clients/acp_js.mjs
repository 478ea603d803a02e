// What both JavaScript clients share: how they reach turnwire, what they note down, and the tour they take.
//
// Takes on the command line, as JSON: `transport` (stdio, http or websocket), `command` or `url` and `token`,
// `cwd`, and three `prompts`: one that asks for a permission, one that says `waiting` and waits, and one for the second
// connection. Prints JSON at the end: for each connection, the frames in both directions and how many updates the SDK
// handed to the client.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { Readable, Writable } from "node:stream";

import { createHttpStream } from "@agentclientprotocol/sdk/experimental/http-client";
import { createWebSocketStream } from "@agentclientprotocol/sdk/experimental/ws-client";
import { WebSocket } from "ws";

const given = JSON.parse(process.argv[2]);

// The option that a user would take.
export const chosen = (options) => ({
  outcome: { outcome: "selected", optionId: options.find(({ kind }) => kind === "allow_once").optionId },
});

// An update of a kind that the SDK knows. It logs and drops any other.
const isKnown = ({ method, params }) =>
  method === "session/update" && params.update.sessionUpdate !== "turn_complete";

// What one connection said and heard.
class Noted {
  frames = [];
  texts = [];
  handled = 0;
  ends = 0;
  // How many turns had ended when each message began.
  messages = new Map();
  waiting = new Set();

  handle(update) {
    this.handled += 1;
    if (update.content?.text !== undefined) this.texts.push(update.content.text);
    if (update.state === "idle" && update.stopReason) this.ends += 1;
    if (update.messageId && !this.messages.has(update.messageId)) this.messages.set(update.messageId, this.ends);
    this.wake();
  }

  // The turn of this message has ended. An end that is replayed stands before it.
  isOver(messageId) {
    return this.messages.has(messageId) && this.ends > this.messages.get(messageId);
  }

  note(isReceived, message) {
    this.frames.push([isReceived, message]);
    this.wake();
  }

  wake() {
    for (const each of [...this.waiting]) each();
  }

  until(found) {
    if (found()) return Promise.resolve();
    return new Promise((resolve) => {
      const look = () => {
        if (!found()) return;
        this.waiting.delete(look);
        resolve();
      };
      this.waiting.add(look);
    });
  }

  // Every update that came was handed over, but for the one that the SDK does not know.
  isSettled() {
    return this.handled === this.frames.filter(([came, message]) => came && isKnown(message)).length;
  }
}

// The stream, with everything that passes noted down.
const watched = (stream, noted) => {
  const tap = (isReceived) =>
    new TransformStream({
      transform(message, controller) {
        noted.note(isReceived, message);
        controller.enqueue(message);
      },
    });
  const out = tap(false);
  void out.readable.pipeTo(stream.writable).catch(() => {});
  return { readable: stream.readable.pipeThrough(tap(true)), writable: out.writable };
};

const open = (ndJsonStream) => {
  const headers = { Authorization: `Bearer ${given.token}` };
  if (given.transport === "http") return [createHttpStream(given.url, { headers })];
  if (given.transport === "websocket") return [createWebSocketStream(given.url, { headers, WebSocket })];
  const [program, ...rest] = given.command;
  const child = spawn(program, rest, { stdio: ["pipe", "pipe", "inherit"] });
  return [ndJsonStream(Writable.toWeb(child.stdin), Readable.toWeb(child.stdout)), child];
};

// The tour. `connected` opens a client on a stream and shakes hands.
export const tour = async (ndJsonStream, connected) => {
  const noted = [];
  const dial = async (work) => {
    noted.push(new Noted());
    const mine = noted.at(-1);
    const [stream, child] = open(ndJsonStream);
    const client = await connected(mine, watched(stream, mine));
    await work(client, mine);
    await mine.until(() => mine.isSettled());
    client.connection.close();
    if (child) {
      child.stdin.end();
      if (child.exitCode === null) await once(child, "exit");
    }
  };

  let sessionId;
  await dial(async (client, mine) => {
    sessionId = await client.new(given.cwd);
    await client.prompt(sessionId, given.prompts[0]);
    const waiting = client.prompt(sessionId, given.prompts[1]);
    await mine.until(() => mine.texts.includes("waiting"));
    await client.cancel(sessionId);
    await waiting;
  });
  await dial(async (client) => {
    await client.restore(sessionId, given.cwd);
    await client.prompt(sessionId, given.prompts[2]);
  });
  process.stdout.write(JSON.stringify(noted.map(({ frames, handled }) => ({ frames, handled }))), () => process.exit(0));
};
