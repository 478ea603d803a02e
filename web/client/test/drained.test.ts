/** Turns: one end, drained when awaited, whatever handlers do meanwhile. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { type Client, ClientClosed, type Session, SessionClosed, type Turn, TurnError } from "../src/index.js";
import { FakeDaemon, FakeSource, answer, settled, turn as of } from "./fakes.js";

interface Rig {
  readonly daemon: FakeDaemon;
  readonly source: FakeSource;
  readonly client: Client;
  readonly session: Session;
  readonly errors: unknown[];
}

/** A session whose prompts are called p1, p2 … and accepted at once. */
async function rig(): Promise<Rig> {
  const daemon = new FakeDaemon();
  const source = new FakeSource();
  const errors: unknown[] = [];
  let prompts = 0;
  daemon.on("POST /session/s/prompt", () =>
    answer({ promptId: `p${++prompts}`, lastEventId: 0, eventEpoch: "e" }, 202),
  );
  const client = await daemon.connect({ source: () => source, onHandlerError: (error) => void errors.push(error) });
  const session = await client.attach("s", { after: 0 });
  return { daemon, source, client, session, errors };
}

class Gate {
  open!: () => void;
  readonly passed = new Promise<void>((resolve) => {
    this.open = resolve;
  });
}

/** Whether it is over, without waiting for it. */
async function isOver(turn: Turn): Promise<boolean> {
  let over = false;
  turn.then(
    () => (over = true),
    () => (over = true),
  );
  await settled();
  return over;
}

/** A prompt that is accepted. In a list, because a turn that an `async` function gives back is awaited. */
async function started(session: Session): Promise<[Turn]> {
  const turn = session.prompt("x");
  await turn.accepted;
  return [turn];
}

test("await returns after the last handler call has finished", async () => {
  const { source, session } = await rig();
  const gate = new Gate();
  const done: string[] = [];
  session.on("session_update", async (event) => {
    await gate.passed;
    done.push(event.data.update.sessionUpdate);
  });
  const [turn] = await started(session);
  source.tell(of.accepted("p1"), of.says("p1", "he"), of.says("p1", "llo"), of.ends("p1"));
  assert.equal(await isOver(turn), false);
  gate.open();
  const result = await turn;
  assert.equal(done.length, 2);
  assert.deepEqual(
    [result.text, result.stopReason, result.ending, result.promptId],
    ["hello", "end_turn", "response", "p1"],
  );
});

test("handlers are called in log order, one after the other, those of a type before `*`", async () => {
  const { source, session } = await rig();
  const calls: string[] = [];
  session.on("session_update", async (event) => {
    calls.push(`begin ${event.id}`);
    await settled();
    calls.push(`end ${event.id}`);
  });
  session.on("*", (event) => void calls.push(`all ${event.id}`));
  const [turn] = await started(session);
  source.tell(of.says("p1", "a"), of.says("p1", "b"), of.ends("p1"));
  await turn;
  assert.deepEqual(calls, ["begin 1", "end 1", "all 1", "begin 2", "end 2", "all 2", "all 3"]);
});

test("a throwing handler does not block others, and the turn's result has its error", async () => {
  const { source, session, errors } = await rig();
  const heard: number[] = [];
  session.on("session_update", () => {
    throw new Error("plain");
  });
  session.on("session_update", () => Promise.reject(new Error("later")));
  session.on("session_update", (event) => void heard.push(event.id ?? 0));
  const [turn] = await started(session);
  source.tell(of.says("p1", "a"), of.ends("p1"));
  const { handlerErrors } = await turn;
  assert.deepEqual(handlerErrors.map(String), ["Error: plain", "Error: later"]);
  assert.deepEqual(errors, handlerErrors);
  assert.deepEqual(heard, [1]);
});

test("a turn that ends before its 202 is read is found by its key", async () => {
  const { daemon, source, session } = await rig();
  daemon.on("POST /session/s/prompt", async (got) => {
    source.tell(of.accepted("p9", got.headers.get("idempotency-key") ?? ""), of.says("p9", "quick"), of.ends("p9"));
    await settled();
    return answer({ promptId: "p9", lastEventId: 0, eventEpoch: "e" }, 202);
  });
  session.on("session_update", () => {
    throw new Error("of this turn");
  });
  const turn = session.prompt("x");
  const { text, handlerErrors } = await turn;
  assert.deepEqual([text, handlerErrors.map(String)], ["quick", ["Error: of this turn"]]);
  const looped = [];
  for await (const update of turn) looped.push(update.id);
  assert.deepEqual(looped, [2]);
});

test("a prompt that was accepted before this client connected is read from its beginning", async () => {
  for (const ending of ["before", "after"]) {
    const { daemon, source, session } = await rig();
    source.tell(of.accepted("p9", "mine"), of.says("p9", "old "));
    if (ending === "before") source.tell(of.says("p9", "words"), of.ends("p9"));
    session.on("*", () => {});
    await settled();
    daemon.on("POST /session/s/prompt", () =>
      answer({ promptId: "p9", lastEventId: 0, eventEpoch: "e", repeated: true }, 202),
    );
    const turn = session.prompt("x", { key: "mine" });
    await turn.accepted;
    await settled();
    if (ending === "after") source.tell(of.says("p9", "words"), of.ends("p9"));
    assert.equal((await turn).text, "old words", ending);
  }
});

test("a prompt whose answer was lost is sent again with the same key and body", async () => {
  const { daemon, source, session } = await rig();
  let tries = 0;
  daemon.on("POST /session/s/prompt", () => {
    if (++tries < 3) return Promise.reject(new TypeError("terminated"));
    return answer({ promptId: "p1", lastEventId: 0, eventEpoch: "e", repeated: true }, 202);
  });
  const blocks = [{ type: "text" as const, text: "x" }];
  const turn = session.prompt(blocks);
  blocks[0] = { type: "text", text: "changed" };
  await daemon.clock.advance(2_000);
  source.tell(of.ends("p1"));
  await turn;
  const sent = daemon.named("POST /session/s/prompt");
  assert.equal(sent.length, 3);
  assert.equal(new Set(sent.map((each) => each.headers.get("idempotency-key"))).size, 1);
  assert.deepEqual(
    new Set(sent.map((each) => JSON.stringify(each.body))),
    new Set(['{"prompt":[{"type":"text","text":"x"}]}']),
  );
});

test("prompts are sent in the order of the calls", async () => {
  const { daemon, session } = await rig();
  let prompts = 0;
  let onTheWay = 0;
  daemon.on("POST /session/s/prompt", async () => {
    assert.equal(++onTheWay, 1, "two at once may overtake each other");
    await settled();
    onTheWay--;
    return answer({ promptId: `p${++prompts}`, lastEventId: 0, eventEpoch: "e" }, 202);
  });
  const turns = ["a", "b", "c"].map((text) => session.prompt(text));
  const accepted = await Promise.all(turns.map((each) => each.accepted));
  assert.deepEqual(
    accepted.map((each) => each.promptId),
    ["p1", "p2", "p3"],
  );
  const sent = daemon
    .named("POST /session/s/prompt")
    .map((each) => (each.body as { prompt: { text: string }[] }).prompt[0]?.text);
  assert.deepEqual(sent, ["a", "b", "c"]);
});

test("a loop may start late, run twice, and run in parallel with a slow handler", async () => {
  const { source, session } = await rig();
  const gate = new Gate();
  session.on("session_update", () => gate.passed);
  const [turn] = await started(session);
  source.tell(of.says("p1", "a"), of.says("p1", "b"), of.says("other", "x"), of.ends("p1"));
  for (let round = 0; round < 2; round++) {
    const ids: unknown[] = [];
    for await (const update of turn) ids.push(update.id);
    assert.deepEqual(ids, [1, 2]);
  }
  assert.equal(await isOver(turn), false);
  gate.open();
  await turn;
});

test("a handler may wait for a turn of its own session, and its own turn waits for the handler", async () => {
  const { source, session } = await rig();
  const gate = new Gate();
  const answers: string[] = [];
  session.on("session_update", async (event, call) => {
    if (event.promptId !== "p1") return;
    answers.push((await call.wait(session.prompt("again"))).text);
    await gate.passed;
  });
  const [turn] = await started(session);
  source.tell(of.says("p1", "ping"), of.ends("p1"));
  await settled();
  source.tell(of.says("p2", "pong"), of.ends("p2"));
  await settled();
  assert.deepEqual(answers, ["pong"]);
  assert.equal(await isOver(turn), false);
  gate.open();
  await turn;
});

test("handlers that wait for each other's turns, or for their own, do not deadlock", async () => {
  const { source, session } = await rig();
  const turns: Turn[] = [];
  const returned: string[] = [];
  session.on("session_update", async (event, call) => {
    const wanted = event.promptId === "p1" ? turns[1] : turns[0];
    if (wanted) returned.push(`${event.promptId} ${(await call.wait(wanted)).promptId}`);
  });
  turns.push(...(await started(session)), ...(await started(session)));
  source.tell(of.says("p1", "a"), of.says("p2", "b"), of.ends("p1"), of.ends("p2"));
  await Promise.all(turns);
  assert.deepEqual(returned.sort(), ["p1 p2", "p2 p1"]);
  const [own] = await started(session);
  turns[0] = own;
  source.tell(of.says("p3", "c"), of.ends("p3"));
  assert.equal((await own).text, "c");
});

test("an error ends a turn once and is thrown by await; a loop just ends", async () => {
  const { source, session } = await rig();
  const [turn] = await started(session);
  source.tell(of.says("p1", "a"), of.fails("p1"));
  let looped = 0;
  for await (const _ of turn) looped++;
  assert.equal(looped, 1);
  await assert.rejects(turn.result(), (error) => {
    assert.ok(error instanceof TurnError);
    assert.deepEqual([error.reason, error.promptId, error.context["exitCode"]], ["agent_exited", "p1", 3]);
    return true;
  });
});

test("the error of a rejected prompt is thrown by await, accept or a loop, and nowhere else", async () => {
  const { daemon, session } = await rig();
  daemon.on("POST /session/s/prompt", () => answer({ code: "busy", error: "a turn runs" }, 409));
  const turn = session.prompt("x", { whenBusy: "reject" });
  await settled();
  await assert.rejects(turn.result(), { code: "busy", message: "a turn runs" });
  await assert.rejects(turn.accepted, { code: "busy" });
  await assert.rejects(
    async () => {
      for await (const _ of turn);
    },
    { code: "busy" },
  );
});

test("pending calls fail when the client or the session is closed", async () => {
  for (const [end, expected] of [
    [({ client }: Rig) => client.close(), ClientClosed],
    [({ session }: Rig) => session.leave(), ClientClosed],
    [({ source }: Rig) => source.end(), SessionClosed],
  ] as const) {
    const each = await rig();
    const [turn] = await started(each.session);
    each.source.tell(of.says("p1", "a"));
    await settled();
    end(each);
    await assert.rejects(turn.result(), expected);
    await assert.rejects(async () => {
      for await (const _ of turn);
    }, expected);
  }
});

test("events before the end of a session are handled before pending calls fail", async () => {
  const { source, session } = await rig();
  const heard: unknown[] = [];
  session.on("*", async (event) => {
    await settled();
    heard.push(event.id);
  });
  const [turn] = await started(session);
  source.tell(of.says("p1", "a"), of.ends("p1"), { type: "session_closed", data: { reason: "closed" } });
  source.end();
  assert.equal((await turn).text, "a");
  await settled();
  assert.deepEqual(heard, [1, 2, 3]);
});

test("a loop does not wait for a slow handler with ten thousand pending updates", async () => {
  const { source, session } = await rig();
  const gate = new Gate();
  session.on("session_update", () => gate.passed);
  const [turn] = await started(session);
  for (let batch = 0; batch < 25; batch++) {
    source.tell(...Array.from({ length: 1_000 }, (_, each) => of.says("p1", String(each))));
    await settled();
  }
  source.tell(of.ends("p1"));
  let looped = 0;
  for await (const _ of turn) looped++;
  assert.equal(looped, 25_000);
  gate.open();
  await turn;
});

test("the last message is the agent's own, as the daemon folds it", async () => {
  const { source, session } = await rig();
  const [turn] = await started(session);
  const update = (members: object, more: object = {}) => ({
    type: "session_update",
    promptId: "p1",
    data: { update: members, ...more },
  });
  const chunk = (text: string, more: object = {}) => ({
    sessionUpdate: "agent_message_chunk",
    content: { type: "text", text },
    ...more,
  });
  source.tell(
    update(chunk("first ")),
    update({ sessionUpdate: "usage_update", used: 1, size: 2 }),
    update(chunk("message")),
    update({ sessionUpdate: "tool_call", toolCallId: "t", title: "t" }),
    update(chunk("second ")),
    update({ sessionUpdate: "tool_call_update", toolCallId: "t", status: "completed" }),
    update(chunk("of a child"), { child: "s.1" }),
    update(chunk("one")),
    of.ends("p1"),
  );
  assert.equal((await turn).text, "second one");
});

test("completed() uses the newest prompt with exactly that id, even while it is being submitted", async () => {
  const { source, session } = await rig();
  for (const [number, requestId] of (["x", "x", 5, "5"] as const).entries()) {
    session.prompt("x", { requestId });
    const ended = session.completed(requestId);
    const promptId = `p${number + 1}`;
    await settled();
    source.tell(of.accepted(promptId), of.says(promptId, `answer ${number}`), of.ends(promptId));
    assert.equal((await ended).text, `answer ${number}`);
  }
});

test("completed() waits for a prompt of another client, and fails when the session ends", async () => {
  const { source, session } = await rig();
  const ended = session.completed(7);
  const never = session.completed("7");
  await settled();
  source.tell({ ...of.accepted("q"), data: { ...of.accepted("q").data, promptRequestId: 7 } }, of.says("q", "theirs"), of.ends("q"));
  assert.equal((await ended).text, "theirs");
  session.leave();
  await assert.rejects(never, ClientClosed);
});
