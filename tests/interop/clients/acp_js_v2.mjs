// A client on the official TypeScript SDK, ACP v2. Runs from `.peers/node`, as a program.
import * as acp from "@agentclientprotocol/sdk/experimental/v2";

import { chosen, tour } from "./acp_js.mjs";

const { agent, client } = acp.methods;

const connected = async (noted, stream) => {
  const connection = acp
    .client({ name: "acp_js_v2" })
    .onNotification(client.session.update, ({ params }) => noted.handle(params.update))
    .onRequest(client.session.requestPermission, ({ params }) => chosen(params.options))
    .connect(stream);
  const ask = (method, params) => connection.agent.request(method, params);
  await ask(agent.initialize, { protocolVersion: 2, info: { name: "acp_js_v2", version: "1" }, capabilities: {} });
  return {
    connection,
    new: async (cwd) => (await ask(agent.session.new, { cwd, mcpServers: [] })).sessionId,
    // The answer to a prompt is not the end of its turn.
    prompt: async (sessionId, text) => {
      const { messageId } = await ask(agent.session.prompt, { sessionId, prompt: [{ type: "text", text }] });
      await noted.until(() => noted.isOver(messageId));
    },
    cancel: (sessionId) => connection.agent.notify(agent.session.cancel, { sessionId }),
    restore: (sessionId, cwd) =>
      ask(agent.session.resume, { sessionId, cwd, mcpServers: [], replayFrom: { type: "start" } }),
  };
};

await tour(acp.ndJsonStream, connected);
