// An editor on the official TypeScript SDK, ACP v1. Runs from `.peers/node`. Does what `stdio_v1.py` beside it does.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { Readable, Writable } from "node:stream";

import * as acp from "@agentclientprotocol/sdk";

const { methods } = acp;
const [cwd, given, ...command] = process.argv.slice(2);
const agent = spawn(command[0], command.slice(1), { cwd, stdio: ["pipe", "pipe", "inherit"] });
const found = { session: given, stops: [], asked: 0, text: "" };
let heardWaiting;
const waits = new Promise((resolve) => (heardWaiting = resolve));

await acp
  .client({ name: "js-v1" })
  .onNotification(methods.client.session.update, ({ params: { update } }) => {
    if (update.sessionUpdate === "agent_message_chunk") found.text += update.content.text;
    if (found.text.includes("waiting")) heardWaiting();
  })
  .onRequest(methods.client.session.requestPermission, ({ params }) => {
    found.asked += 1;
    return { outcome: { outcome: "selected", optionId: params.options[0].optionId } };
  })
  .connectWith(acp.ndJsonStream(Writable.toWeb(agent.stdin), Readable.toWeb(agent.stdout)), async (ctx) => {
    const prompt = async (text) => {
      const answer = await ctx.request(methods.agent.session.prompt, {
        sessionId: found.session,
        prompt: [{ type: "text", text }],
      });
      found.stops.push(answer.stopReason);
    };
    const hello = await ctx.request(methods.agent.initialize, { protocolVersion: 1, clientCapabilities: {} });
    found.version = hello.protocolVersion;
    if (given === "-") {
      found.session = (await ctx.request(methods.agent.session.new, { cwd, mcpServers: [] })).sessionId;
      await prompt("ask edit allow_once,reject_once");
      const turn = prompt("say 1 waiting\nnever");
      await waits;
      await ctx.notify(methods.agent.session.cancel, { sessionId: found.session });
      await turn;
    } else {
      await ctx.request(methods.agent.session.load, { sessionId: given, cwd, mcpServers: [] });
      await prompt("say 1 more");
    }
  });
const exited = agent.exitCode === null ? once(agent, "exit") : undefined;
agent.stdin.end();
await exited;
console.log(JSON.stringify(found));
process.exit(0);
