/** What a turn spent its time with. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { type Bar, type LaneName, type Lanes, lanesOf } from "../src/inspector/lanes.js";
import { Made, since } from "./inspector_events.js";

function lanes(made: Made, now?: number): Lanes {
  const found = lanesOf(made.events, made.turn, now);
  assert.ok(found);
  return found;
}

/** Bars as [name, from, to, end]. */
function bars(of: Lanes, lane: LaneName): [string, number, number, Bar["end"]][] {
  return of.lanes[lane].map((each) => [each.name, since(each.from), since(each.to), each.end]);
}

test("queue, model, tool and permission times are separate lanes", () => {
  const made = new Made()
    .accepted(0)
    .started(100)
    .sent(110)
    .says(160)
    .tool(300, "t", "pending", { title: "Edit" })
    .add(350, "permission_request", { requestId: "q", method: "m", toolCall: { toolCallId: "t", title: "Edit it" } })
    .add(850, "permission_resolved", { requestId: "q", end: "answered", answer: {} })
    .tool(900, "t", "completed")
    .says(950)
    .ends(1000);
  const found = lanes(made);
  assert.deepEqual(bars(found, "queue"), [
    ["in the queue", 0, 100, "done"],
    ["until the agent was asked", 100, 110, "done"],
  ]);
  assert.deepEqual(bars(found, "model"), [
    ["model", 110, 300, "done"],
    ["model", 900, 1000, "done"],
  ]);
  assert.deepEqual(
    found.lanes.model.map((each) => each.eventId),
    [3, 8],
  );
  assert.deepEqual(bars(found, "tools"), [["Edit it", 300, 900, "done"]]);
  assert.deepEqual(bars(found, "permission"), [["Edit it", 350, 850, "done"]]);
  assert.deepEqual(bars(found, "cancel"), []);
  assert.deepEqual(found.ended, { reason: "end_turn", isError: false });
  const { totalMs, queueMs, firstUpdateMs, toolsMs, permissionMs, toolCount } = found;
  assert.deepEqual(
    { totalMs, queueMs, firstUpdateMs, toolsMs, permissionMs, toolCount },
    { totalMs: 1000, queueMs: 100, firstUpdateMs: 50, toolsMs: 600, permissionMs: 500, toolCount: 1 },
  );
});

test("a running turn extends to now, and unfinished bars are open", () => {
  const made = new Made().accepted(0).started(0).sent(0).says(10).tool(100, "t", "pending");
  const begin = made.events[0]!._meta!.serverTimestamp;
  const found = lanes(made, begin + 400);
  assert.equal(found.ended, undefined);
  assert.equal(found.totalMs, 400);
  assert.deepEqual(bars(found, "tools"), [["t", 100, 400, "open"]]);
  assert.deepEqual(bars(found, "model"), [["model", 0, 100, "done"]]);
  assert.equal(lanes(made).totalMs, 100, "without a clock it goes as far as its events");
});

test("a queued turn has only queue time", () => {
  const made = new Made().accepted(0).add(0, "pending_prompt_added", { position: 0, text: "x" });
  const begin = made.events[0]!._meta!.serverTimestamp;
  const found = lanes(made, begin + 50);
  assert.deepEqual(bars(found, "queue"), [["in the queue", 0, 50, "open"]]);
  assert.deepEqual(bars(found, "model"), []);
  assert.equal(found.firstUpdateMs, undefined);
});

test("a cancelled turn shows the cancel and each escalation", () => {
  const made = new Made()
    .accepted(0)
    .started(0)
    .sent(0)
    .tool(50, "t", "in_progress")
    .add(100, "prompt_cancelled")
    .add(300, "cancel_escalated", { rung: "cancel_request" })
    .ends(500, "cancelled");
  const found = lanes(made);
  assert.deepEqual(bars(found, "cancel"), [
    ["cancel asked", 100, 300, "done"],
    ["cancel request", 300, 500, "done"],
  ]);
  assert.deepEqual(bars(found, "tools"), [["t", 50, 500, "open"]]);
  assert.deepEqual(found.ended, { reason: "cancelled", isError: false });
});

test("a turn that failed says why, and what failed in it is marked", () => {
  const made = new Made()
    .accepted(0)
    .started(0)
    .sent(5)
    .tool(10, "t", "pending")
    .tool(20, "t", "failed")
    .add(40, "turn_error", { code: "agent_exited", message: "it is gone" });
  const found = lanes(made);
  assert.deepEqual(found.ended, { reason: "agent_exited", isError: true });
  assert.deepEqual(bars(found, "tools"), [["t", 10, 20, "failed"]]);
});

test("a turn that the agent started has no queue time", () => {
  const found = lanes(new Made().started(0, "agent").says(20).ends(100));
  assert.deepEqual(bars(found, "queue"), []);
  assert.deepEqual(bars(found, "model"), [["model", 0, 100, "done"]]);
  assert.equal(found.queueMs, 0);
  assert.equal(found.firstUpdateMs, 20);
});

test("overlapping tool calls are on separate levels, and their time counts once", () => {
  const made = new Made()
    .accepted(0)
    .started(0)
    .sent(0)
    .tool(10, "a", "pending")
    .tool(20, "b", "pending")
    .tool(30, "b", "completed")
    .tool(40, "c", "pending")
    .tool(50, "a", "completed")
    .tool(70, "c", "completed")
    .ends(100);
  const found = lanes(made);
  assert.deepEqual(
    found.lanes.tools.map((each) => [each.name, each.level]),
    [
      ["a", 0],
      ["b", 1],
      ["c", 1],
    ],
  );
  assert.equal(found.toolsMs, 60);
  assert.deepEqual(bars(found, "model"), [
    ["model", 0, 10, "done"],
    ["model", 70, 100, "done"],
  ]);
});

test("a tool call without an end extends to the end of its turn, and is open", () => {
  const found = lanes(new Made().accepted(0).started(0).sent(0).tool(10, "a", "in_progress").ends(60));
  assert.deepEqual(bars(found, "tools"), [["a", 10, 60, "open"]]);
});

test("late updates do not extend a turn", () => {
  const made = new Made().accepted(0).started(0).sent(0).ends(50);
  const update = { sessionUpdate: "tool_call", toolCallId: "t", status: "pending" };
  made.add(500, "session_update", { update, after: made.turn }, { turn: undefined, late: true });
  const found = lanes(made);
  assert.equal(found.totalMs, 50);
  assert.equal(found.firstUpdateMs, undefined);
  assert.deepEqual(found.lanes.tools, []);
});

test("a prompt that was merged into another turn is shown as joined", () => {
  const made = new Made().accepted(0).add(30, "prompt_injected", { into: "p_0" }).add(90, "turn_complete", {
    stopReason: "end_turn",
    ending: "joined",
  });
  const found = lanes(made);
  assert.deepEqual(bars(found, "queue"), [["in the queue", 0, 30, "done"]]);
  assert.deepEqual(bars(found, "model"), [["in the turn that it joined", 30, 90, "done"]]);
});

test("tool calls of a child session are distinct from those of the session", () => {
  const made = new Made().accepted(0).started(0).sent(0).tool(10, "t", "pending");
  made.update(20, { sessionUpdate: "tool_call", toolCallId: "t", status: "pending", title: "Look" }, { child: "s.1" });
  assert.deepEqual(
    lanes(made.ends(40)).lanes.tools.map((each) => each.name),
    ["t", "Look (child 1)"],
  );
});

test("a turn without events has no lanes", () => {
  assert.equal(lanesOf(new Made().accepted(0).events, "p_other"), undefined);
});
