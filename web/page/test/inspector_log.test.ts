/** The log as far as it is loaded, what a filter leaves of it, and the list of turns. */

import assert from "node:assert/strict";
import { test } from "node:test";

import type { AnyEvent, LogPart, TurnStatus } from "@turnwire/client";

import { EventLog, Shown } from "../src/inspector/event_log.js";
import { EVERYTHING, type Filter, rowOf, summaryOf, toneOf } from "../src/inspector/rows.js";
import { foldTurns, turnsOf } from "../src/inspector/turns.js";
import { Made } from "./inspector_events.js";

/** A daemon with this many events, one millisecond apart. */
class FakeDaemon {
  readonly asked: [number, number][] = [];
  readonly events: AnyEvent[];
  epoch = "e1";
  first = 1;
  most = 1000;

  constructor(count: number) {
    const made = new Made();
    for (let at = 0; at < count; at++) made.says(at, `word ${at + 1}`);
    this.events = made.events;
  }

  read = async (after: number, limit: number): Promise<LogPart> => {
    this.asked.push([after, limit]);
    const lost = after < this.first - 1;
    const from = lost ? this.first - 1 : after;
    const events = this.events.slice(from, from + Math.min(limit, this.most));
    const data = { sessionId: "s_1", reason: "ring_evicted", lastDeliveredId: after, earliestAvailableId: this.first };
    const frame = { v: 1, type: "state_resync_required", data } as unknown as AnyEvent;
    return {
      sessionId: "s_1",
      eventEpoch: this.epoch,
      lastEventId: this.events.length,
      nextAfter: from + events.length,
      events: lost ? [frame, ...events] : events,
    };
  };
}

async function begun(count: number): Promise<[EventLog, FakeDaemon]> {
  const daemon = new FakeDaemon(count);
  const log = new EventLog(daemon.read);
  await log.begin();
  return [log, daemon];
}

function shownBy(log: EventLog, filter: Partial<Filter>): Shown {
  return new Shown(log, { ...EVERYTHING, ...filter }).refresh();
}

function ids(shown: Shown): number[] {
  return Array.from({ length: shown.length }, (_, index) => shown.id(index)!);
}

test("the newest part of a long log is loaded, and the rest has its place", async () => {
  const [log, daemon] = await begun(100_000);
  assert.equal(log.last, 100_000);
  assert.ok(log.at(100_000) && log.at(99_600));
  assert.equal(log.at(50_000), undefined);
  assert.ok(daemon.asked.length <= 3);
  const shown = shownBy(log, {});
  assert.equal(shown.length, 100_000);
  assert.equal(shown.id(49_999), 50_000);
  assert.equal(shown.place(50_000), 49_999);
});

test("viewed events are loaded once, a thousand at a time", async () => {
  const [log, daemon] = await begun(10_000);
  daemon.asked.length = 0;
  await Promise.all([log.load(4_990, 5_010), log.load(5_000, 5_000)]);
  assert.deepEqual(daemon.asked, [
    [5000, 1000],
    [4000, 1000],
  ]);
  assert.ok(log.has(4_001, 6_000));
  await log.load(4_500, 5_500);
  assert.equal(daemon.asked.length, 2);
});

test("a page of large events comes in several parts", async () => {
  const daemon = new FakeDaemon(900);
  daemon.most = 100;
  const log = new EventLog(daemon.read);
  await log.begin();
  assert.ok(log.has(1, 900));
  assert.equal(log.count, 900);
});

test("a log whose oldest part was deleted starts at the oldest stored event", async () => {
  const daemon = new FakeDaemon(3_000);
  daemon.first = 1_501;
  const log = new EventLog(daemon.read);
  await log.begin();
  await log.load(1, 3_000);
  assert.equal(log.first, 1_501);
  assert.equal(log.count, 1_500);
  assert.equal(shownBy(log, {}).id(0), 1_501);
});

test("a log that was created again replaces all loaded events", async () => {
  const [log, daemon] = await begun(1_500);
  daemon.epoch = "e2";
  daemon.events.length = 3;
  await log.begin();
  assert.equal(log.last, 3);
  assert.equal(log.count, 3);
});

test("an event that arrives twice is stored once, and a gap is loaded later", async () => {
  const [log, daemon] = await begun(10);
  const more = new Made();
  for (let at = 0; at < 20; at++) more.says(at);
  daemon.events.push(...more.events.slice(10, 15));
  log.hear(more.events.slice(8, 11));
  assert.equal(log.count, 11);
  const shown = shownBy(log, { text: "words" });
  log.hear(more.events.slice(14, 15));
  assert.equal(log.last, 15);
  assert.equal(log.has(1, 15), false);
  assert.deepEqual(ids(shown.refresh()), [11, 15]);
  log.hear(more.events.slice(12, 13));
  assert.deepEqual(ids(shown.refresh()), [11, 13, 15]);
  await log.load(1, 15);
  assert.equal(log.count, 15);
});

test("a response without new events changes nothing, so that readers do not retry forever", async () => {
  const [log, daemon] = await begun(2_500);
  daemon.events.splice(300, 1);
  daemon.events.push(daemon.events[0]!);
  await log.load(1, 1_000);
  const changes = log.changed.value;
  await log.load(1, 1_000);
  assert.equal(log.has(1, 1_000), false);
  assert.equal(log.changed.value, changes);
});

test("the event at a time is found without loading all events", async () => {
  const [log, daemon] = await begun(100_000);
  daemon.asked.length = 0;
  const at = log.at(100_000)!.at - 66_000;
  assert.equal(await log.find(at), 34_000);
  assert.ok(daemon.asked.length <= 8, `${daemon.asked.length} pages`);
  assert.equal(await log.find(0), 1);
  assert.equal(await log.find(Infinity), 100_000);
});

test("a filter keeps matching events, including new ones", async () => {
  const made = new Made().accepted(0).started(0).sent(5).says(100, "Hello there").tool(700, "t", "pending").ends(701);
  made.says(702, "hello again");
  const log = new EventLog(new FakeDaemon(0).read);
  log.hear(made.events.slice(0, 6));
  assert.deepEqual(ids(shownBy(log, { turn: "p_2" })), []);
  assert.deepEqual(ids(shownBy(log, { turn: "p_1" })), [1, 2, 3, 4, 5, 6]);
  assert.deepEqual(ids(shownBy(log, { kinds: new Set(["tool_call", "turn_started"]) })), [2, 5]);
  assert.deepEqual(ids(shownBy(log, { gapMs: 90 })), [4, 5]);
  const shown = shownBy(log, { text: " HELLO " });
  assert.deepEqual(ids(shown), [4]);
  log.hear(made.events.slice(6));
  assert.deepEqual(ids(shown.refresh()), [4, 7]);
  assert.equal(shown.place(5), 1, "the next that is shown");
  assert.equal(shown.countBefore(Infinity), 2);
  assert.equal(log.longestMs, 600);
});

test("a row has the event's type in the log and a summary in one line", () => {
  const made = new Made()
    .started(0)
    .says(1, "two\nlines")
    .tool(2, "t", "in_progress", { title: "Read it" })
    .add(3, "turn_error", { code: "agent_exited", message: "gone" })
    .add(4, "session_update", { update: { sessionUpdate: "new_thing", colour: "red" }, after: "p_0" }, {
      turn: undefined,
      late: true,
    })
    .add(5, "unheard_of", { count: 3 });
  const rows = made.events.map((each) => rowOf(each)!);
  assert.deepEqual(
    rows.map((each) => each.kind),
    ["turn_started", "agent_message_chunk", "tool_call_update", "turn_error", "new_thing", "unheard_of"],
  );
  assert.deepEqual(
    made.events.map(summaryOf),
    ["running", "two lines", "Read it · in_progress", "agent_exited · gone", "late · colour red", "count 3"],
  );
  assert.equal(rows[4]!.turn, "p_0");
  assert.equal(toneOf("turn_error"), "bad");
  assert.equal(toneOf("unheard_of"), "other");
  assert.equal(rowOf({ v: 1, type: "replay_complete", data: { replayedCount: 1 } } as AnyEvent), undefined);
});

// -- turns -------------------------------------------------------------------------------------------------------

test("events update the list of turns, and an old event changes nothing", () => {
  const told = { sessionId: "s_1", promptId: "p_0", state: "completed", stopReason: "end_turn", endedAt: 9 };
  let turns = turnsOf([told as TurnStatus]);
  const made = new Made().accepted(10);
  made.add(11, "session_update", { update: { sessionUpdate: "user_message_chunk", content: { text: "Do it" } } }, {
    event: "user_message",
  });
  made.started(20).ends(90, "max_tokens");
  for (const each of made.events) turns = foldTurns(turns, each);
  const { number, text, author, end, isError, queuedAt, endedAt } = turns.get("p_1")!;
  assert.deepEqual(
    { number, text, author, end, isError, ms: endedAt! - queuedAt! },
    { number: 2, text: "Do it", author: "ann", end: "max_tokens", isError: false, ms: 80 },
  );
  for (const each of made.events) assert.equal(foldTurns(turns, each), turns);
  assert.equal(foldTurns(turns, made.says(100).events.at(-1)!), turns);
});

test("a blocked, cancelled or failed turn has that state", () => {
  const made = new Made().started(0, "agent");
  let turns = foldTurns(new Map(), made.events[0]!);
  assert.equal(turns.get("p_1")!.byAgent, true);
  const ends = ["running"];
  made
    .add(1, "state_changed", { state: "requires_action" }, { event: "turn_blocked" })
    .add(2, "prompt_cancelled")
    .add(3, "turn_error", { code: "agent_exited", message: "gone" });
  for (const each of made.events.slice(1)) {
    turns = foldTurns(turns, each);
    ends.push(turns.get("p_1")!.end);
  }
  assert.deepEqual(ends, ["running", "requires_action", "cancelling", "agent_exited"]);
  assert.equal(turns.get("p_1")!.isError, true);
});
