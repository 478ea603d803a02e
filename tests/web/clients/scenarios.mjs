// Programs that use the TypeScript client against a real daemon: one function each, started by its name. What happened
// is told as lines of JSON; the test decides what should have.

import { createInterface } from "node:readline";

const [, , module, name, url, token] = process.argv;
const { connect } = await import(module);
const input = createInterface({ input: process.stdin });
const lines = input[Symbol.asyncIterator]();

const tell = (what) => process.stdout.write(`${JSON.stringify(what)}\n`);
const told = async () => (await lines.next()).value;
const open = (options = {}) => connect(url, { token, ...options });

/** The numbers of all events of a session, as a handler of everything hears them. */
function numbers(session) {
  const heard = [];
  session.on("*", (event) => {
    if (event.id !== undefined) heard.push(event.id);
  });
  return heard;
}

const scenarios = {
  async cuts() {
    const client = await open({ acp: await told() });
    const session = await client.create();
    const ids = numbers(session);
    const blocks = [];
    session.on("session_update", (event) => {
      if (event._meta.event === "user_message")
        blocks.push([event.data.update.content].flat().map((each) => each.text));
    });
    const turn = session.prompt("flood 1000");
    const looped = [];
    for await (const { data } of turn) looped.push(data.update.content?.text);
    const { stopReason } = await turn;
    // Of several blocks: one event that may be told as several envelopes.
    for (let round = 0; round < 20; round++) {
      await session.prompt(["a", "b", "c"].map((each) => ({ type: "text", text: `${round}${each}` })));
    }
    tell({ ids, looped, stopReason, blocks: blocks.flat().slice(-60), head: session.position.id });
    client.close();
  },

  async instantaneous() {
    const client = await open();
    const sessions = await Promise.all([0, 1, 2, 3].map(() => client.create()));
    const all = await Promise.all(
      sessions.map(async (session) => {
        const ids = numbers(session);
        const ends = [];
        session.on("turn_complete", (event) => void ends.push(event.promptId));
        const results = [];
        for (let round = 0; round < 250; round++) results.push(await session.prompt("say 1 x"));
        return {
          ids,
          isEachOnce: new Set(ends).size === ends.length,
          isOurs: results.every((each, at) => each.promptId === ends[at] && each.text === "x"),
          turns: results.length,
        };
      }),
    );
    tell(all);
    client.close();
  },

  async killed() {
    const client = await open({ onConnection: ({ state }) => tell({ state }) });
    const session = await client.create();
    const ids = numbers(session);
    const ends = [];
    for (const type of ["turn_complete", "turn_error"])
      session.on(type, (event) => void ends.push([event.promptId, type]));
    const running = session.prompt("say 1 before\nnever");
    const waiting = session.prompt("say 1 after");
    await waiting.accepted;
    const seen = [];
    const looping = (async () => {
      for await (const { data } of running) {
        seen.push(data.update.content.text);
        tell({ running: running.promptId });
      }
    })();
    await told();
    client.reconnect();
    const reason = await running.result().catch((error) => error.reason);
    await looping;
    const after = await waiting;
    tell({ reason, after: after.text, ids, seen, ends, prompts: [running.promptId, waiting.promptId] });
    client.close();
  },

  async elsewhere() {
    const client = await open();
    const session = await client.create();
    const resolved = [];
    let closed;
    session.on("permission_resolved", ({ data }) => void resolved.push(data.outcome.optionId));
    session.onPermission((request, signal) => {
      tell({ session: session.sessionId, request: request.requestId, title: request.title });
      closed = [request, signal];
      return new Promise(() => {});
    });
    const { text } = await session.prompt("ask t1 allow_once,reject_once");
    const [request, signal] = closed;
    const { won } = await session.answer(request, "reject");
    tell({ text, resolved, isAborted: signal.aborted, won });
    client.close();
  },

  async slow() {
    const client = await open();
    const session = await client.create();
    let finished = 0;
    session.on("session_update", async () => {
      for (let round = 0; round < 3; round++) await new Promise((resolve) => setImmediate(resolve));
      finished++;
    });
    let looped = 0;
    const turn = session.prompt("flood 2000");
    for await (const _ of turn) looped++;
    const finishedAtEnd = finished;
    await turn;
    tell({ looped, finishedAtEnd, finished });
    client.close();
  },

  async lost() {
    const lost = new Set();
    const losing = async (input, init) => {
      const response = await fetch(input, init);
      const key = init.headers["Idempotency-Key"];
      if (key === undefined || lost.has(key)) return response;
      lost.add(key);
      await response.text();
      throw new TypeError("terminated");
    };
    const client = await open({ fetch: losing });
    const session = await client.create();
    const texts = [];
    for (let round = 0; round < 10; round++) texts.push((await session.prompt(`say 1 ${round}`)).text);
    const again = session.prompt("say 1 0", { key: "same" });
    const first = await again;
    const second = session.prompt("say 1 0", { key: "same" });
    const looped = [];
    for await (const { data } of second) looped.push(data.update.content.text);
    const { repeated } = await second.accepted;
    const isSame = (await second).promptId === first.promptId;
    tell({ session: session.sessionId, texts, lost: lost.size, isSame, repeated, looped });
    client.close();
  },

  async many() {
    const client = await open();
    const sessions = await Promise.all([client.create(), client.create()]);
    const heard = Object.fromEntries(sessions.map((each) => [each.sessionId, []]));
    let after;
    const named = { sessions: sessions.map((each) => each.sessionId) };
    const listen = async (wanted) => {
      let ended = 0;
      for await (const { events, place } of client.events(wanted)) {
        if (after === undefined) for (const each of sessions) each.prompt("flood 300");
        for (const event of events) {
          if (event.id !== undefined) heard[event.data.sessionId]?.push(event.id);
          if (event.type === "turn_complete") ended++;
        }
        after = place;
        if (ended === sessions.length) return;
      }
    };
    await listen(named);
    await Promise.all(sessions.map((each) => each.prompt("say 3 late")));
    await listen({ ...named, after });
    tell({ heard: Object.values(heard), heads: sessions.map((each) => each.position.id) });
    client.close();
  },

  async texts() {
    const client = await open({ acp: await told() });
    const session = await client.create();
    const prompts = [
      "hello there",
      "say 2 a\ntool t1\nsay 2 b",
      "say 1 a\nthink hm\nsay 1 b\nusage 1 2\nsay 1 c",
      "tool t2",
      "say 1 x\nchild kid say 2 inner\nsay 1 y",
      'update {"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"no id"}}',
    ];
    const pairs = [];
    for (const prompt of prompts) {
      const { text, promptId } = await session.prompt(prompt);
      pairs.push([text, (await session.turn(promptId)).resultText ?? ""]);
    }
    tell(pairs);
    client.close();
  },

  async control() {
    const client = await open();
    const session = await client.create({ title: "mine" });
    const running = session.prompt("never");
    await running.accepted;
    const refused = await session
      .prompt("x", { whenBusy: "reject" })
      .result()
      .catch((error) => error.code);
    const [first, second, third] = ["say 1 a", "say 1 b", "say 1 c"].map((text) => session.prompt(text));
    await third.accepted;
    await first.edit("say 1 edited");
    await third.move(0);
    await second.remove();
    const queue = (await session.queue()).prompts.map((each) => each.text);
    const steered = await session.steer("say 1 word").accepted;
    await running.cancel();
    const cancelled = await running;
    const results = await Promise.all([first, second, third].map((each) => each.result()));
    await session.setMode("code");
    await session.rename("renamed");
    const stuck = session.prompt("never");
    await stuck.accepted;
    await stuck.settle();
    const settled = await stuck;
    const { mode, title } = await session.snapshot();
    const listed = (await client.sessions({ state: "open" })).find((each) => each.sessionId === session.sessionId);
    await session.close();
    const closed = await session
      .prompt("x")
      .result()
      .catch((error) => error.code);
    tell({
      refused,
      queue,
      outcome: steered.outcome,
      reason: steered.reason,
      cancelled: [cancelled.stopReason, Boolean(cancelled.cancelledBy)],
      results: results.map((each) => [each.text, each.stopReason]),
      settled: settled.ending,
      mode,
      title,
      listed: listed?.title,
      closed,
    });
    client.close();
  },
};

await scenarios[name]();
input.close();
