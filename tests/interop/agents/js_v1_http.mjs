// An agent behind the Streamable HTTP server of the official TypeScript SDK, ACP v1. Prints its port.
//
// Runs from `.peers/node`, as a program. Keeps its sessions in memory, so a new connection can load what an old one
// heard. Does what the first word of a prompt says, as in `words.md`.
import { randomUUID } from "node:crypto";
import { createServer } from "node:http";

import * as acp from "@agentclientprotocol/sdk";
import { createNodeHttpHandler } from "@agentclientprotocol/sdk/experimental/node";
import { AcpServer } from "@agentclientprotocol/sdk/experimental/server";

const { methods } = acp;
const sessions = new Map();
const stops = new Map();

const chunk = (role, text) => ({ sessionUpdate: `${role}_message_chunk`, content: { type: "text", text } });
const notify = (client, sessionId, update) => client.notify(methods.client.session.update, { sessionId, update });

async function say(client, sessionId, ...pieces) {
  for (const piece of pieces) {
    sessions.get(sessionId).push(["agent", piece]);
    await notify(client, sessionId, chunk("agent", piece));
  }
}

async function ask(client, sessionId) {
  await notify(client, sessionId, { sessionUpdate: "tool_call", toolCallId: "edit-1", title: "Edit a file", kind: "edit", status: "pending" });
  const { outcome } = await client.request(methods.client.session.requestPermission, {
    sessionId,
    toolCall: { toolCallId: "edit-1" },
    options: [
      { optionId: "yes", name: "Do it", kind: "allow_once" },
      { optionId: "no", name: "Leave it", kind: "reject_once" },
    ],
  });
  await say(client, sessionId, outcome.optionId === "yes" ? "edited" : "left alone");
}

async function run(client, sessionId, text) {
  const stopped = new Promise((resolve) => stops.set(sessionId, resolve));
  if (text === "edit") await ask(client, sessionId);
  else if (text === "count") await say(client, sessionId, `${sessions.get(sessionId).filter(([role]) => role === "user").length} prompts`);
  else if (text === "wait") {
    await say(client, sessionId, "waiting");
    await stopped;
    return "cancelled";
  } else await say(client, sessionId, "You said: ", text, ".");
  return "end_turn";
}

const app = () => acp
  .agent({ name: "js-v1-http" })
  .onRequest(methods.agent.initialize, () => ({
    protocolVersion: acp.PROTOCOL_VERSION,
    agentCapabilities: { loadSession: true },
    agentInfo: { name: "js-v1-http", version: "1" },
  }))
  .onRequest(methods.agent.session.new, () => {
    const sessionId = randomUUID();
    sessions.set(sessionId, []);
    return { sessionId };
  })
  .onRequest(methods.agent.session.load, async ({ params, client }) => {
    if (!sessions.has(params.sessionId)) throw acp.RequestError.resourceNotFound(params.sessionId);
    for (const [role, text] of sessions.get(params.sessionId)) await notify(client, params.sessionId, chunk(role, text));
    return {};
  })
  .onRequest(methods.agent.session.prompt, async ({ params, client }) => {
    const text = params.prompt.filter((block) => block.type === "text").map((block) => block.text).join("");
    sessions.get(params.sessionId).push(["user", text]);
    return { stopReason: await run(client, params.sessionId, text) };
  })
  .onNotification(methods.agent.session.cancel, ({ params }) => stops.get(params.sessionId)?.());

const server = createServer(createNodeHttpHandler(new AcpServer({ createAgent: app })));
server.listen(0, "127.0.0.1", () => console.log(server.address().port));
