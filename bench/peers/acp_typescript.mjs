// The `/acp` measurement with the server of the official TypeScript SDK. Runs from `.peers/node`; prints its port.
//
// One agent inside of the server: a prompt `burst N` is N chunks. Both transports are on one port, as the SDK's own
// adapters for Node give them.
import { randomUUID } from "node:crypto";
import { createServer } from "node:http";

import * as acp from "@agentclientprotocol/sdk";
import { createNodeHttpHandler, createNodeWebSocketUpgradeHandler } from "@agentclientprotocol/sdk/experimental/node";
import { AcpServer } from "@agentclientprotocol/sdk/experimental/server";
import { WebSocketServer } from "ws";

const { methods } = acp;

const piece = (number) => `piece ${String(number).padStart(8, "0")} of an answer`;

const app = () => acp
  .agent({ name: "bench" })
  .onRequest(methods.agent.initialize, () => ({ protocolVersion: acp.PROTOCOL_VERSION, agentCapabilities: {} }))
  .onRequest(methods.agent.session.new, () => ({ sessionId: randomUUID() }))
  .onRequest(methods.agent.session.prompt, async ({ params: { sessionId, prompt }, client }) => {
    const chunks = Number(prompt[0].text.split(" ")[1]);
    for (let number = 0; number < chunks; number += 1) {
      const update = { sessionUpdate: "agent_message_chunk", content: { type: "text", text: piece(number) } };
      await client.notify(methods.client.session.update, { sessionId, update });
    }
    return { stopReason: "end_turn" };
  });

const acpServer = new AcpServer({ createAgent: app });
const server = createServer(createNodeHttpHandler(acpServer));
// Nobody here offers compression, so leaving it on would change nothing.
server.on("upgrade", createNodeWebSocketUpgradeHandler(acpServer, new WebSocketServer({ noServer: true })));
server.listen(0, "127.0.0.1", () => console.log(server.address().port));
