// An agent on the official TypeScript SDK, ACP v2. Runs from `.peers/node`, as a program.
//
// Takes the folder where it keeps its sessions, so that a second process can resume what the first one heard. Does
// what the first word of a prompt says; `words.md` beside it lists the words. A prompt is answered once it is
// inserted, and its work goes on.
import { randomUUID } from "node:crypto";
import { appendFileSync, existsSync, readFileSync, writeFileSync, writeSync } from "node:fs";
import { join } from "node:path";
import { Readable, Writable } from "node:stream";

import * as acp from "@agentclientprotocol/sdk/experimental/v2";

const { methods } = acp;
const folder = process.argv[2];
const stops = new Map();

const file = (sessionId) => join(folder, sessionId);
const history = (sessionId) => readFileSync(file(sessionId), "utf8").split("\n").filter(Boolean).map((line) => JSON.parse(line));
const block = (text) => ({ type: "text", text });

const remember = (sessionId, role, text) => {
  const messageId = randomUUID();
  appendFileSync(file(sessionId), JSON.stringify([role, messageId, text]) + "\n");
  return messageId;
};

class Turn {
  constructor(client, sessionId) {
    this.client = client;
    this.sessionId = sessionId;
    this.stopped = new Promise((resolve) => stops.set(sessionId, resolve));
  }

  update(update) {
    return this.client.notify(methods.client.session.update, { sessionId: this.sessionId, update });
  }

  state(state, stopReason) {
    return this.update({ sessionUpdate: "state_update", state, ...(stopReason && { stopReason }) });
  }

  async say(...pieces) {
    const messageId = remember(this.sessionId, "agent", pieces.join(""));
    for (const piece of pieces) await this.update({ sessionUpdate: "agent_message_chunk", messageId, content: block(piece) });
  }

  async edit() {
    await this.update({ sessionUpdate: "tool_call_update", toolCallId: "edit-1", title: "Edit a file", kind: "edit", status: "pending" });
    await this.state("requires_action");
    const { outcome } = await this.client.request(methods.client.session.requestPermission, {
      sessionId: this.sessionId,
      title: "Edit a file?",
      subject: { type: "tool_call", toolCall: { toolCallId: "edit-1" } },
      options: [
        { optionId: "yes", name: "Do it", kind: "allow_once" },
        { optionId: "no", name: "Leave it", kind: "reject_once" },
      ],
    });
    if (outcome.outcome !== "selected") return "cancelled";
    await this.state("running");
    const isAllowed = outcome.optionId === "yes";
    await this.update({ sessionUpdate: "tool_call_update", toolCallId: "edit-1", status: isAllowed ? "completed" : "failed" });
    await this.say(isAllowed ? "edited" : "left alone");
    return "end_turn";
  }

  async wait() {
    await this.say("waiting");
    await this.stopped;
    return "cancelled";
  }

  async work(text) {
    const [word, argument] = text.split(" ");
    if (word === "edit") return this.edit();
    if (word === "wait") return this.wait();
    if (word === "exit") {
      writeSync(2, "js-v2 gives up\n");
      process.exit(Number(argument));
    }
    if (word === "count") await this.say(`${history(this.sessionId).filter(([role]) => role === "user").length} prompts`);
    else if (word === "pid") await this.say(String(process.pid));
    else await this.say("You said: ", text, ".");
    return "end_turn";
  }

  async run(text) {
    await this.state("running");
    await this.state("idle", await this.work(text));
  }
}

const app = acp
  .agent({ name: "js-v2" })
  .onRequest(methods.agent.initialize, () => ({
    protocolVersion: acp.PROTOCOL_VERSION,
    info: { name: "js-v2", version: "1" },
    capabilities: { session: {} },
  }))
  .onRequest(methods.agent.session.new, () => {
    const sessionId = randomUUID();
    writeFileSync(file(sessionId), "");
    return { sessionId, configOptions: [], availableCommands: [] };
  })
  .onRequest(methods.agent.session.resume, async ({ params, client }) => {
    if (!existsSync(file(params.sessionId))) throw acp.RequestError.resourceNotFound(params.sessionId);
    const turn = new Turn(client, params.sessionId);
    for (const [role, messageId, text] of params.replayFrom ? history(params.sessionId) : []) {
      await turn.update({ sessionUpdate: `${role}_message`, messageId, content: [block(text)] });
    }
    await turn.state("idle");
    return { configOptions: [], availableCommands: [] };
  })
  .onRequest(methods.agent.session.prompt, async ({ params, client }) => {
    const text = params.prompt.filter((each) => each.type === "text").map((each) => each.text).join("");
    const messageId = remember(params.sessionId, "user", text);
    const turn = new Turn(client, params.sessionId);
    await turn.update({ sessionUpdate: "user_message", messageId, content: params.prompt });
    void turn.run(text);
    return { messageId };
  })
  .onNotification(methods.agent.session.cancel, ({ params }) => stops.get(params.sessionId)?.());

const connection = app.connect(acp.ndJsonStream(Writable.toWeb(process.stdout), Readable.toWeb(process.stdin)));
await connection.closed;
process.exit(0);
