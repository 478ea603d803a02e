/** A session as a reader shows it: what each rule of the fold makes of events, without a daemon. */

import assert from "node:assert/strict";
import { test } from "node:test";
import type { AnyEvent, Transcript } from "../src/index.js";
import { type Item, type Message, SessionView, type ToolCall, emptyTranscript } from "../src/view/index.js";

/** Events of one session, numbered in order. */
class Log {
  #next: number;

  constructor(after = 0) {
    this.#next = after + 1;
  }

  event(type: string, data: object = {}, more: object = {}): AnyEvent {
    const promptId = (data as { promptId?: string }).promptId;
    const id = this.#next++;
    const _meta = { serverTimestamp: id * 1000, ...(more as { _meta?: object })._meta };
    const whole = { id, v: 1, type, ...(promptId === undefined ? {} : { promptId }), ...more };
    return { ...whole, data: { sessionId: "s", ...data }, _meta } as unknown as AnyEvent;
  }

  says(sessionUpdate: string, members: object, data: object = {}, promptId: string | null = "p"): AnyEvent {
    const event = this.event("session_update", { update: { sessionUpdate, ...members }, ...data });
    return (promptId === null ? event : { ...event, promptId }) as AnyEvent;
  }

  text(text: string, members: object = {}, data: object = {}, promptId: string | null = "p"): AnyEvent {
    return this.says("agent_message_chunk", { content: { type: "text", text }, ...members }, data, promptId);
  }

  agent(protocolVersion: number, agentSessionId = "a", how = "new"): AnyEvent {
    return this.event("agent_started", { agentSessionId, protocolVersion, how, offers: {} });
  }

  turn(promptId = "p"): AnyEvent[] {
    const update = { sessionUpdate: "user_message_chunk", content: { type: "text", text: "go" }, messageId: "u" };
    return [
      this.event("prompt_accepted", { promptId, afterOffset: 0, author: "ann" }),
      this.event("session_update", { update }, { promptId, author: "ann", _meta: { event: "user_message" } }),
      this.event("state_changed", { promptId, state: "running" }, { _meta: { event: "turn_started" } }),
    ];
  }

  end(promptId = "p"): AnyEvent {
    return this.event("turn_complete", { promptId, stopReason: "end_turn", ending: "response" });
  }
}

function folded(...events: (AnyEvent | AnyEvent[])[]): SessionView {
  const view = new SessionView(emptyTranscript("s"));
  for (const each of events.flat()) view.apply(each);
  return view;
}

const textOf = (item: Item | undefined): string =>
  ((item as Message).content ?? []).map((each) => (each.type === "text" ? each.text : `<${each.type}>`)).join("|");
const calls = (view: SessionView): ToolCall[] => view.items.filter((each) => each.item === "tool_call");

test("text chunks form one block of one message; the echo of a prompt adds nothing", () => {
  const log = new Log();
  const view = folded(
    log.agent(1),
    log.turn(),
    log.says("user_message_chunk", { content: { type: "text", text: "go" }, messageId: "x" }, { echo: true }),
    log.text("one "),
    log.text("two"),
    log.says("plan", { entries: [] }),
    log.text(" three"),
  );
  assert.deepEqual(view.items.map(textOf), ["go", "one two three"]);
  assert.equal((view.items[0] as Message).author, "ann");
});

test("an event that is not newer than the page changes nothing, and a missing one throws", () => {
  const log = new Log();
  const events = [log.agent(1), ...log.turn(), log.text("word")];
  const view = folded(events, events, events);
  assert.equal(textOf(view.items[1]), "word");
  log.text("lost");
  assert.throws(() => view.apply(log.text("late")), /6 was due, 7 came/);
  assert.equal(view.lastEventId, 5);
});

test("a changed item is a new object, the old one is unchanged, and the change is reported once", () => {
  const log = new Log();
  const view = folded(log.agent(1), log.turn(), log.text("one"));
  assert.deepEqual(view.drain(), [0, 1]);
  const before = view.items[1];
  view.apply(log.text(" two"));
  assert.notEqual(view.items[1], before);
  assert.equal(textOf(before), "one");
  assert.deepEqual(view.drain(), [1]);
  assert.deepEqual(view.drain(), []);
  view.apply(log.event("usage_changed"));
  assert.deepEqual(view.drain(), []);
});

test("null clears members of a v2 agent's tool call, and counts as absent for a v1 agent", () => {
  const titles = [1, 2].map((version) => {
    const log = new Log();
    const said = { toolCallId: "t", title: "Look", rawInput: { a: 1 } };
    const cleared = { toolCallId: "t", title: null, rawInput: null, status: "completed" };
    const view = folded(log.agent(version), log.turn(), log.says("tool_call", said), log.says("tool_call_update", cleared));
    const [call] = calls(view);
    return [call?.title, call?.rawInput, call?.status];
  });
  assert.deepEqual(titles, [
    ["Look", { a: 1 }, "completed"],
    [undefined, undefined, "completed"],
  ]);
});

test("ids of an earlier incarnation are not found; a v2 agent that resumes keeps its ids", () => {
  for (const [version, how, count] of [
    [1, "load", 2],
    [2, "resume", 1],
    [2, "lost", 2],
  ] as const) {
    const log = new Log();
    const view = folded(log.agent(version), log.turn(), log.says("tool_call_update", { toolCallId: "t" }));
    view.apply(log.agent(version, "a", how));
    view.apply(log.says("tool_call_update", { toolCallId: "t" }));
    assert.equal(calls(view).length, count);
  }
});

test("late chunks do not change the text of a turn", () => {
  const log = new Log();
  const view = folded(log.agent(1), log.turn(), log.text("in time", { messageId: "m" }), log.end());
  view.apply(log.text(", too late", { messageId: "m" }, { after: "p" }, null));
  view.apply(log.text("another", {}, { after: "p" }, null));
  const [, first, second] = view.items as Message[];
  assert.equal(textOf(first), "in time, too late");
  assert.deepEqual(first?.inTime, [{ type: "text", text: "in time" }]);
  assert.deepEqual([first?.after, first?.promptId, second?.after, second?.promptId], ["p", "p", "p", undefined]);
  assert.equal(view.turns.get("p")?.place.answer, 1);
});

test("a turn ends by its own event only, and an ended turn ignores further events", () => {
  const log = new Log();
  const view = folded(log.agent(2), log.turn(), log.says("state_update", { state: "idle" }), log.says("turn_complete", {}));
  assert.deepEqual([view.state, view.activePromptId], ["running", "p"]);
  view.apply(log.event("state_changed", { promptId: "p", state: "requires_action" }, { _meta: { event: "turn_blocked" } }));
  assert.equal(view.state, "requires_action");
  view.apply(log.event("prompt_cancelled", { promptId: "p", author: "bob" }));
  assert.equal(view.state, "cancelling");
  view.apply(log.event("turn_error", { promptId: "p", code: "agent_exited", message: "gone" }));
  view.apply(log.end());
  const record = view.turns.get("p");
  assert.deepEqual([view.state, record?.state, record?.outcome?.error?.code], ["idle", "ended", "agent_exited"]);
  assert.equal(record?.cancelledBy, "bob");
});

test("a call that its turn left unfinished is marked, unless its agent lists it as background work", () => {
  const log = new Log();
  const view = folded(
    log.agent(2),
    log.turn(),
    log.says("tool_call_update", { toolCallId: "left" }),
    log.says("tool_call_update", { toolCallId: "goes on", content: [{ type: "terminal", terminalId: "x" }] }),
    log.says("state_update", { state: "idle", background: [{ type: "terminal", terminalId: "x" }] }),
    log.event("prompt_cancelled", { promptId: "p" }),
    log.end(),
  );
  assert.deepEqual(
    calls(view).map((each) => [each.cancelledLocally, each.openAtEnd]),
    [
      [true, true],
      [true, undefined],
    ],
  );
  assert.deepEqual(view.background, [{ type: "terminal", terminalId: "x" }]);
  view.apply(log.event("agent_exited", { reason: "agent_exited" }));
  assert.equal(view.background, undefined);
});

test("messages inside a tool call are separate, and unknown updates are stored", () => {
  const log = new Log();
  const inside = { _meta: { claude: { parentToolUseId: "t" } } };
  const view = folded(log.agent(1), log.turn(), log.text("own"), log.text("nested", inside), log.text("own"));
  assert.deepEqual(view.items.slice(1).map(textOf), ["own", "nested", "own"]);
  view.apply(log.says("made_up", { x: 1 }));
  view.apply(log.says("agent_message_chunk", { content: 7 }));
  assert.deepEqual(
    view.items.slice(4).map((each) => each.item),
    ["unknown", "unknown"],
  );
});

test("the output of a terminal grows, and parts that were read stay unchanged", () => {
  const log = new Log();
  const chunk = (data: string) => log.says("terminal_output_chunk", { terminalId: "x", data });
  const view = folded(log.agent(2), log.turn(), chunk("YQ=="));
  const before = view.terminals.get("x");
  view.apply(chunk("w6Q="));
  view.apply(chunk("no base64"));
  assert.deepEqual([...(before?.output ?? [])], [97]);
  assert.equal(new TextDecoder().decode(view.terminals.get("x")?.output), "aä");
  view.apply(log.says("terminal_update", { terminalId: "x", output: { data: "Yg==" }, exitStatus: { exitCode: 0 } }));
  assert.equal(new TextDecoder().decode(view.terminals.get("x")?.output), "b");
});

test("open permission requests, their answers, and the queue in order", () => {
  const log = new Log();
  const add = (promptId: string, position: number) => [
    log.event("prompt_accepted", { promptId, afterOffset: 0 }),
    log.event("pending_prompt_added", { promptId, content: [{ type: "text", text: promptId }], position, steering: false }),
  ];
  const view = folded(log.agent(1), log.turn(), add("q1", 0), add("q2", 1), add("q3", 0));
  assert.deepEqual(view.queue.map((each) => each.promptId), ["q3", "q1", "q2"]);
  view.apply(log.event("pending_prompt_updated", { promptId: "q2", position: 0 }));
  view.apply(log.event("turn_complete", { promptId: "q3", stopReason: "cancelled", ending: "removed" }));
  view.apply(log.event("queue_held", { reason: "user" }));
  assert.deepEqual([view.queue.map((each) => each.promptId), view.queueHeld], [["q2", "q1"], "user"]);
  view.apply(log.event("permission_request", { requestId: "r", promptId: "p", params: { toolCall: { toolCallId: "t" } } }));
  assert.deepEqual([view.permissions.length, calls(view).length], [1, 1]);
  view.apply(log.event("permission_resolved", { requestId: "r", end: "answered", answer: {}, author: "bob" }));
  assert.deepEqual([view.permissions, view.answered.get("r")?.author], [[], "bob"]);
});

test("a child is shown where it was announced, with a separate conversation", () => {
  const log = new Log();
  const names = { c: "s.1" };
  const view = folded(
    log.agent(2),
    log.turn(),
    log.says("subagent_update", { sessionId: "c", title: "Search", state: { state: "running" } }, { names }),
    log.text("inside", {}, { child: "s.1" }),
    log.text("outside"),
  );
  const child = view.children.get("s.1");
  assert.deepEqual(view.items.map((each) => each.item), ["message", "child", "message"]);
  assert.deepEqual([child?.record.title, child?.record.state], ["Search", "running"]);
  assert.equal(textOf(child?.conversation?.items[0]), "inside");
  view.apply(log.says("state_update", { state: "idle" }, { child: "s.1" }));
  assert.deepEqual([child?.record.state, view.state], ["idle", "running"]);
});

// -- pages -----------------------------------------------------------------------------------------------------

const call = (toolCallId: string, lastEventId: number, more: object = {}): Item =>
  ({ item: "tool_call", toolCallId, at: 1, life: 1, firstEventId: lastEventId, lastEventId, ...more }) as Item;

function page(lastEventId: number, first: number, items: Item[], more: Partial<Transcript> = {}): Transcript {
  const speaker = { agentSessionId: "a", protocolVersion: 2, life: 1 };
  return { ...emptyTranscript("s"), lastEventId, first, items, speaker, ...more };
}
const more = (log: Log, toolCallId: string) =>
  log.says("tool_call_content_chunk", { toolCallId, content: { type: "x" } }, {}, null);

test("updates of an unfinished call before the page add no second call, and appear in the older page", () => {
  const log = new Log(10);
  const view = new SessionView(page(10, 1, [call("new", 9)], { earlier: { toolCalls: ["old"] } }));
  view.apply(more(log, "old"));
  assert.equal(view.items.length, 1);
  assert.deepEqual([view.hasOlder, view.before], [true, 1]);
  assert.equal(view.prepend(page(11, 0, [call("old", 11, { content: [{ type: "x" }] })])), true);
  view.apply(more(log, "old"));
  assert.deepEqual([calls(view)[0]?.content?.length, view.hasOlder], [2, false]);
  assert.deepEqual([...view.drain()].sort(), [0]);
});

test("an older page may be ahead of the events or behind them", () => {
  for (const [asOf, held] of [
    [12, 2],
    [11, 1],
    [10, 0],
  ] as const) {
    const log = new Log(10);
    const view = new SessionView(page(10, 1, [call("new", 9)], { earlier: { toolCalls: ["old"] } }));
    const events = [more(log, "old"), more(log, "old"), more(log, "old")];
    view.apply(events[0] as AnyEvent);
    const content = Array.from({ length: held }, () => ({ type: "x" }));
    assert.equal(view.prepend(page(asOf, 0, [call("old", asOf, { content })])), true);
    for (const event of events) view.apply(event);
    assert.equal(calls(view)[0]?.content?.length, 3);
  }
});

test("a page that does not fit or is too old is rejected", () => {
  const view = new SessionView(page(10, 5, [call("new", 9)]));
  assert.equal(view.prepend(page(10, 0, [call("odd", 1)])), false);
  assert.equal(view.prepend(page(9, 4, [call("old", 1)])), false);
  assert.equal(view.prepend(page(10, 4, [call("old", 1)])), true);
  assert.equal(view.prepend(page(10, 4, [call("old", 1)])), true, "it is here");
  assert.equal(view.items.length, 2);
});

test("a hundred thousand chunks of a megabyte message are folded quickly", () => {
  const log = new Log();
  const view = folded(log.agent(1), log.turn(), log.text("x".repeat(1 << 20)));
  const events = Array.from({ length: 100_000 }, () => log.text("word "));
  const began = process.cpuUsage().user;
  for (const each of events) view.apply(each);
  assert.ok(process.cpuUsage().user - began < 5_000_000, "some microseconds each, whatever the length");
  assert.equal(textOf(view.items[1]).length, (1 << 20) + 500_000);
});
