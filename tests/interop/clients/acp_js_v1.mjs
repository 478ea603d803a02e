// A client on the official TypeScript SDK, ACP v1. Runs from `.peers/node`, as a program.
import * as acp from "@agentclientprotocol/sdk";

import { chosen, tour } from "./acp_js.mjs";

const { agent, client } = acp.methods;

const connected = async (noted, stream) => {
  const connection = acp
    .client({ name: "acp_js_v1" })
    .onNotification(client.session.update, ({ params }) => noted.handle(params.update))
    .onRequest(client.session.requestPermission, ({ params }) => chosen(params.options))
    .connect(stream);
  const ask = (method, params) => connection.agent.request(method, params);
  await ask(agent.initialize, {
    protocolVersion: 1,
    clientCapabilities: {},
    clientInfo: { name: "acp_js_v1", version: "1" },
  });
  return {
    connection,
    new: async (cwd) => (await ask(agent.session.new, { cwd, mcpServers: [] })).sessionId,
    prompt: (sessionId, text) => ask(agent.session.prompt, { sessionId, prompt: [{ type: "text", text }] }),
    cancel: (sessionId) => connection.agent.notify(agent.session.cancel, { sessionId }),
    restore: (sessionId, cwd) => ask(agent.session.load, { sessionId, cwd, mcpServers: [] }),
  };
};

await tour(acp.ndJsonStream, connected);
