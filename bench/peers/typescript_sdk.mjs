// The stdio measurement with the official TypeScript SDK's client. Runs from `.peers/node`; takes the agent's command.
import { spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import { Readable, Writable } from "node:stream";

import * as acp from "@agentclientprotocol/sdk";

const { methods } = acp;
const chunks = Number(process.argv.at(-1));
const agent = spawn(process.argv[2], process.argv.slice(3), { stdio: ["pipe", "pipe", "inherit"] });

let heard = 0;
let allHeard;
const everything = new Promise((resolve) => (allHeard = resolve));

const peakMb = () => {
  const found = /VmHWM:\s+(\d+)/.exec(readFileSync("/proc/self/status", "utf8"));
  return Number(found[1]) / 1024;
};

await acp
  .client({ name: "counter" })
  .onNotification(methods.client.session.update, () => {
    heard += 1;
    if (heard === chunks) allHeard();
  })
  .connectWith(acp.ndJsonStream(Writable.toWeb(agent.stdin), Readable.toWeb(agent.stdout)), async (ctx) => {
    await ctx.request(methods.agent.initialize, { protocolVersion: 1, clientCapabilities: {} });
    const { sessionId } = await ctx.request(methods.agent.session.new, { cwd: "/", mcpServers: [] });
    const prompt = (text) => ctx.request(methods.agent.session.prompt, { sessionId, prompt: [{ type: "text", text }] });
    await prompt("ready?");
    const begun = performance.now();
    const cpu = process.cpuUsage();
    await prompt("go");
    // Its prompt may return before the last handler has run.
    await everything;
    const seconds = (performance.now() - begun) / 1000;
    const spent = process.cpuUsage(cpu);
    console.log(JSON.stringify({ heard, seconds, cpu: (spent.user + spent.system) / 1e6, rss_mb: peakMb() }));
  });
agent.stdin.end();
process.exit(0);
