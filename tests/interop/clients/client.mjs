// What the client programs share: a connection, a line to the test that runs them, and one reader of events.
//
// Takes the daemon's address, token and a working directory from the environment; gives JSON, one line each, on
// standard output. A program has several scenarios; its first argument says which one runs.
import { createInterface } from "node:readline";

import { DaemonClient, DaemonHttpError, DaemonSessionClient } from "@qwen-code/sdk/daemon";

export { DaemonClient, DaemonSessionClient };

export const workspaceCwd = process.env.TURNWIRE_CWD;

// The SDK knows a turn's end by the id in the 202, and waits for ever if the end is dispatched first. The two travel on
// two connections, and a busy machine may read them in either order, so events wait while a prompt's answer is read.
const answersOnTheWay = new Set();

const orderedFetch = async (url, options) => {
  if (options?.method !== "POST" || !String(url).endsWith("/prompt")) {
    const response = await fetch(url, options);
    if (!response.headers.get("content-type")?.startsWith("text/event-stream")) return response;
    const transform = async (chunk, controller) => {
      while (answersOnTheWay.size) await Promise.all(answersOnTheWay);
      controller.enqueue(chunk);
    };
    return new Response(response.body.pipeThrough(new TransformStream({ transform })), response);
  }
  let isRead;
  const answer = new Promise((resolve) => (isRead = resolve));
  answersOnTheWay.add(answer);
  // The SDK registers the prompt in the microtasks after its `json()`, all of which run before an immediate.
  const release = () => setImmediate(() => (answersOnTheWay.delete(answer), isRead()));
  try {
    const response = await fetch(url, options);
    const body = await response.text();
    const buffered = new Response(body, response);
    buffered.json = async () => (release(), JSON.parse(body));
    if (response.status !== 202) release();
    return buffered;
  } catch (error) {
    release();
    throw error;
  }
};

export const connect = (options = {}) =>
  new DaemonClient({
    baseUrl: process.env.TURNWIRE_URL,
    token: process.env.TURNWIRE_TOKEN,
    fetch: orderedFetch,
    ...options,
  });

// A session of its own, with room for as many prompts as the daemon takes.
export const newSession = (options = {}) =>
  DaemonSessionClient.createOrAttach(connect({ maxPendingPromptsPerSession: null, ...options }), { workspaceCwd });

export const words = (text) => ({ prompt: [{ type: "text", text }] });

export const isEnd = (event) => event.type === "turn_complete" || event.type === "turn_error";

export const textOf = (events) =>
  events
    .filter(({ type, data }) => type === "session_update" && data.update.sessionUpdate === "agent_message_chunk")
    .map(({ data }) => data.update.content.text)
    .join("");

// What went wrong, as far as a program would look at it.
export const failure = (error) =>
  error instanceof DaemonHttpError
    ? { status: error.status, body: error.body, message: error.message }
    : { ...error, name: error.name, message: error.message };

// Reads a session's events from the moment it is made, and keeps them.
export class Reader {
  #waiting = [];
  #stop = new AbortController();

  constructor(session, options = {}) {
    this.events = [];
    this.opened = new Promise((opened) => {
      const onEpoch = (epoch) => {
        this.epoch = epoch;
        opened();
      };
      this.ended = this.#read(session.events({ signal: this.#stop.signal, onEpoch, ...options }));
    });
  }

  get ids() {
    return this.events.filter(({ id }) => id !== undefined).map(({ id }) => id);
  }

  // The first event of which this is true, also if it has come already.
  until(isIt) {
    const found = this.events.find(isIt);
    if (found) return Promise.resolve(found);
    return new Promise((resolve) => this.#waiting.push({ isIt, resolve }));
  }

  async stop() {
    this.#stop.abort();
    await this.ended;
  }

  async #read(events) {
    try {
      for await (const event of events) {
        this.events.push(event);
        for (const waiting of this.#waiting.filter(({ isIt }) => isIt(event))) {
          this.#waiting.splice(this.#waiting.indexOf(waiting), 1);
          waiting.resolve(event);
        }
      }
      return null;
    } catch (error) {
      return failure(error);
    }
  }
}

// -- the test that runs the program --------------------------------------------------------------------------

const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();

export const tell = (fact) => process.stdout.write(`${JSON.stringify(fact)}\n`);

// Wait until the test has done its part; gives what it says about it.
export const hear = async () => JSON.parse((await lines.next()).value);

export const run = async (scenarios) => {
  const [name, ...given] = process.argv.slice(2);
  try {
    const result = await scenarios[name](...given.map((each) => JSON.parse(each)));
    // Connections that are open would keep the program alive.
    process.stdout.write(`${JSON.stringify(result ?? {})}\n`, () => process.exit(0));
  } catch (error) {
    console.error(JSON.stringify(failure(error)), error.stack);
    process.exit(1);
  }
};
