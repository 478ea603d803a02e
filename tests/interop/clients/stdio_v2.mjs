// An editor on the official TypeScript SDK, ACP v2. Runs from `.peers/node`. Does what `stdio_v1.py` beside it does.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { Readable, Writable } from "node:stream";

import * as acp from "@agentclientprotocol/sdk/experimental/v2";

const { methods } = acp;
const [cwd, given, ...command] = process.argv.slice(2);
const agent = spawn(command[0], command.slice(1), { cwd, stdio: ["pipe", "pipe", "inherit"] });
const found = { session: given, stops: [], asked: 0, text: "" };
let heardWaiting, ended, awaited;
const waits = new Promise((resolve) => (heardWaiting = resolve));

const hear = (update) => {
  if (update.sessionUpdate === "agent_message_chunk") found.text += update.content.text;
  if (update.sessionUpdate === "agent_message") found.text += update.content.map((each) => each.text).join("");
  if (found.text.includes("waiting")) heardWaiting();
  // Updates are handled beside the program: an end that comes before the turn's words is of an earlier one.
  const isEnd = update.sessionUpdate === "state_update" && update.stopReason;
  if (isEnd && ended && found.text.includes(awaited)) ended(update.stopReason);
};

await acp
  .client({ name: "js-v2" })
  .onNotification(methods.client.session.update, ({ params }) => hear(params.update))
  .onRequest(methods.client.session.requestPermission, ({ params }) => {
    found.asked += 1;
    return { outcome: { outcome: "selected", optionId: params.options[0].optionId } };
  })
  .connectWith(acp.ndJsonStream(Writable.toWeb(agent.stdin), Readable.toWeb(agent.stdout)), async (ctx) => {
    // Gives the turn's end as a promise of its own: the prompt is answered long before.
    const prompt = async (text, word) => {
      awaited = word;
      const end = new Promise((resolve) => (ended = resolve));
      await ctx.request(methods.agent.session.prompt, { sessionId: found.session, prompt: [{ type: "text", text }] });
      return { end };
    };
    const hello = await ctx.request(methods.agent.initialize, {
      protocolVersion: 2,
      info: { name: "js-v2", version: "1" },
      capabilities: {},
    });
    found.version = hello.protocolVersion;
    if (given === "-") {
      found.session = (await ctx.request(methods.agent.session.new, { cwd, mcpServers: [] })).sessionId;
      found.stops.push(await (await prompt("ask edit allow_once,reject_once", "selected")).end);
      const turn = await prompt("say 1 waiting\nnever", "waiting");
      await waits;
      await ctx.notify(methods.agent.session.cancel, { sessionId: found.session });
      found.stops.push(await turn.end);
    } else {
      const replayFrom = { type: "start" };
      await ctx.request(methods.agent.session.resume, { sessionId: given, cwd, mcpServers: [], replayFrom });
      found.stops.push(await (await prompt("say 1 more", "more")).end);
    }
  });
const exited = agent.exitCode === null ? once(agent, "exit") : undefined;
agent.stdin.end();
await exited;
console.log(JSON.stringify(found));
process.exit(0);
