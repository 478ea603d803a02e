// An agent on the official TypeScript SDK, ACP v1. Runs from `.peers/node`, as a program.
//
// Takes the folder where it keeps its sessions, so that a second process can load what the first one heard. Does
// what the first word of a prompt says; `words.md` beside it lists the words.
import { randomUUID } from "node:crypto";
import { appendFileSync, existsSync, readFileSync, writeFileSync, writeSync } from "node:fs";
import { join } from "node:path";
import { Readable, Writable } from "node:stream";

import * as acp from "@agentclientprotocol/sdk";

const { methods } = acp;
const folder = process.argv[2];
const stops = new Map();

const file = (sessionId) => join(folder, sessionId);
const remember = (sessionId, role, text) => appendFileSync(file(sessionId), JSON.stringify([role, text]) + "\n");
const history = (sessionId) => readFileSync(file(sessionId), "utf8").split("\n").filter(Boolean).map((line) => JSON.parse(line));
const chunk = (role, text) => ({ sessionUpdate: `${role}_message_chunk`, content: { type: "text", text } });

class Turn {
  constructor(client, sessionId) {
    this.client = client;
    this.sessionId = sessionId;
    this.stopped = new Promise((resolve) => stops.set(sessionId, resolve));
  }

  update(update) {
    return this.client.notify(methods.client.session.update, { sessionId: this.sessionId, update });
  }

  async say(...pieces) {
    for (const piece of pieces) {
      remember(this.sessionId, "agent", piece);
      await this.update(chunk("agent", piece));
    }
  }

  async edit() {
    await this.update({ sessionUpdate: "tool_call", toolCallId: "edit-1", title: "Edit a file", kind: "edit", status: "pending" });
    const { outcome } = await this.client.request(methods.client.session.requestPermission, {
      sessionId: this.sessionId,
      toolCall: { toolCallId: "edit-1" },
      options: [
        { optionId: "yes", name: "Do it", kind: "allow_once" },
        { optionId: "no", name: "Leave it", kind: "reject_once" },
      ],
    });
    if (outcome.outcome === "cancelled") return "cancelled";
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

  async run(text) {
    const [word, argument] = text.split(" ");
    if (word === "edit") return this.edit();
    if (word === "wait") return this.wait();
    if (word === "exit") {
      writeSync(2, "js-v1 gives up\n");
      process.exit(Number(argument));
    }
    if (word === "count") await this.say(`${history(this.sessionId).filter(([role]) => role === "user").length} prompts`);
    else if (word === "pid") await this.say(String(process.pid));
    else await this.say("You said: ", text, ".");
    return "end_turn";
  }
}

const app = acp
  .agent({ name: "js-v1" })
  .onRequest(methods.agent.initialize, () => ({
    protocolVersion: acp.PROTOCOL_VERSION,
    agentCapabilities: { loadSession: true, sessionCapabilities: { resume: {} } },
    agentInfo: { name: "js-v1", version: "1" },
  }))
  .onRequest(methods.agent.session.new, () => {
    const sessionId = randomUUID();
    writeFileSync(file(sessionId), "");
    return { sessionId };
  })
  .onRequest(methods.agent.session.load, async ({ params, client }) => {
    if (!existsSync(file(params.sessionId))) throw acp.RequestError.resourceNotFound(params.sessionId);
    for (const [role, text] of history(params.sessionId)) {
      await client.notify(methods.client.session.update, { sessionId: params.sessionId, update: chunk(role, text) });
    }
    return {};
  })
  .onRequest(methods.agent.session.resume, ({ params }) => {
    if (!existsSync(file(params.sessionId))) throw acp.RequestError.resourceNotFound(params.sessionId);
    return {};
  })
  .onRequest(methods.agent.session.prompt, async ({ params, client }) => {
    const text = params.prompt.filter((block) => block.type === "text").map((block) => block.text).join("");
    remember(params.sessionId, "user", text);
    return { stopReason: await new Turn(client, params.sessionId).run(text) };
  })
  .onNotification(methods.agent.session.cancel, ({ params }) => stops.get(params.sessionId)?.());

const connection = app.connect(acp.ndJsonStream(Writable.toWeb(process.stdout), Readable.toWeb(process.stdin)));
await connection.closed;
process.exit(0);
