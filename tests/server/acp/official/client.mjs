// A conversation as a client on the official TypeScript SDK over Streamable HTTP, ACP v1. Runs inside `.peers/node`.
//
// Takes the address of `/acp`, a token and a working directory; prints what it heard as one line of JSON.
import * as acp from "@agentclientprotocol/sdk";
import { createHttpStream } from "@agentclientprotocol/sdk/experimental/http-client";

const { methods } = acp;
const { session } = methods.agent;
const [url, token, cwd] = process.argv.slice(2);
const words = (text) => [{ type: "text", text }];

class Client {
  texts = [];
  #waiting = [];

  async open() {
    const app = acp
      .client()
      .onNotification(methods.client.session.update, ({ params }) => this.#take(params.update))
      .onRequest(methods.client.session.requestPermission, ({ params }) => ({
        outcome: { outcome: "selected", optionId: params.options[0].optionId },
      }));
    this.stream = createHttpStream(url, { headers: { Authorization: `Bearer ${token}` } });
    this.agent = app.connect(this.stream).agent;
    await this.agent.request(methods.agent.initialize, { protocolVersion: 1, clientCapabilities: {} });
    return this;
  }

  async prompt(sessionId, text) {
    this.texts = [];
    const { stopReason } = await this.agent.request(session.prompt, { sessionId, prompt: words(text) });
    return [stopReason, ...this.texts];
  }

  until(text) {
    return new Promise((resolve) => (this.texts.includes(text) ? resolve() : this.#waiting.push({ text, resolve })));
  }

  #take(update) {
    if (update.sessionUpdate !== "agent_message_chunk") return;
    this.texts.push(update.content.text);
    for (const { text, resolve } of this.#waiting) if (text === update.content.text) resolve();
  }
}

const heard = {};
const first = await new Client().open();
const { sessionId } = await first.agent.request(session.new, { cwd, mcpServers: [] });
heard.turn = await first.prompt(sessionId, "say 2 hi\nask t1 allow_once,reject_once");
const running = first.prompt(sessionId, "say 1 running\nnever");
await first.until("running");
await first.agent.notify(session.cancel, { sessionId });
heard.cancelled = await running;

const second = await new Client().open();
await second.agent.request(session.load, { sessionId, cwd, mcpServers: [] });
await second.until("running");
heard.loaded = second.texts;
heard.again = await second.prompt(sessionId, "say 2 again");
process.stdout.write(JSON.stringify(heard) + "\n", () => process.exit(0));
