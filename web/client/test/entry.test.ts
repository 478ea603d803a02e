/** An entry of a list, updated by events: counts with and without known ids. */

import assert from "node:assert/strict";
import { test } from "node:test";
import type { AnyEvent, SessionEntry } from "../src/index.js";
import { concernsEntry, foldEntry } from "../src/view/index.js";

let next = 1;

function event(type: string, data: object = {}, more: object = {}): AnyEvent {
  const id = next++;
  const promptId = (data as { promptId?: string }).promptId;
  const _meta = { serverTimestamp: id * 1000, ...(more as { _meta?: object })._meta };
  const whole = { id, v: 1, type, ...(promptId === undefined ? {} : { promptId }), ...more };
  return { ...whole, data: { sessionId: "s", ...data }, _meta } as unknown as AnyEvent;
}
const says = (sessionUpdate: string, members: object, data: object = {}, promptId?: string) =>
  event("session_update", { update: { sessionUpdate, ...members }, ...data }, promptId ? { promptId } : {});
const started = (promptId: string) =>
  event("state_changed", { promptId, state: "running" }, { _meta: { event: "turn_started" } });
const ends = (promptId: string) => event("turn_complete", { promptId, stopReason: "end_turn", ending: "response" });

function folded(entry: SessionEntry | undefined, ...events: AnyEvent[]): SessionEntry {
  let found = entry;
  for (const each of events) found = foldEntry(found, each);
  for (const each of events) assert.equal(foldEntry(found, each), found, "nothing twice");
  return found as SessionEntry;
}
const begun = () => folded(undefined, event("session_created", { cwd: "/w" }), event("agent_started", { how: "new" }));
/** Return the entry as listed, whose counted ids are unknown. */
const listed = (entry: SessionEntry): SessionEntry => ({ ...entry });

test("only session_created creates an entry", () => {
  assert.equal(foldEntry(undefined, event("turn_complete")), undefined);
  const entry = folded(undefined, event("session_created", { cwd: "/w", title: "Mine" }));
  assert.deepEqual([entry.cwd, entry.title, entry.named, entry.state], ["/w", "Mine", true, "idle"]);
  assert.equal(entry.updatedAt, entry.createdAt);
});

test("a turn takes its prompt out of the queue, and only its own end makes the session idle", () => {
  const entry = begun();
  const accepted = ["p", "q"].map((promptId) => event("prompt_accepted", { promptId }));
  const running = folded(entry, ...accepted, started("p"));
  assert.deepEqual([running.state, running.activePromptId, running.queuedCount], ["running", "p", 1]);
  for (const known of [running, listed(running)]) {
    const after = folded(known, event("turn_complete", { promptId: "q", stopReason: "cancelled", ending: "removed" }));
    assert.deepEqual([after.state, after.queuedCount, after.hasActivePrompt], ["running", 0, true]);
    const ended = folded(after, ends("p"));
    assert.deepEqual([ended.state, ended.hasActivePrompt, ended.activePromptId], ["idle", false, undefined]);
  }
});

test("permission requests are counted, including those that were open when the entry was listed", () => {
  const asked = folded(begun(), event("permission_request", { requestId: "r" }));
  assert.deepEqual([asked.permissionCount, asked.isWaitingForPermission], [1, true]);
  const more = folded(listed(asked), event("permission_request", { requestId: "r2" }));
  const answered = folded(more, event("permission_resolved", { requestId: "r", end: "answered" }));
  assert.equal(answered.permissionCount, 1);
  assert.equal(folded(answered, event("permission_resolved", { requestId: "r2", end: "answered" })).permissionCount, 0);
});

test("a user's title replaces the agent's, whose latest title returns when the user removes theirs", () => {
  const titled = folded(begun(), says("session_info_update", { title: "One" }));
  assert.equal(titled.title, "One");
  const named = folded(titled, event("session_metadata_updated", { title: "Mine" }));
  const later = folded(listed(named), says("session_info_update", { title: "Two" }));
  assert.deepEqual([later.title, later.agentTitle], ["Mine", "Two"]);
  const again = folded(listed(later), event("session_metadata_updated", { title: null }));
  assert.deepEqual([again.title, again.displayName, again.named], ["Two", "Two", undefined]);
});

test("calls in progress at the end of a turn count as background work until they finish or the agent exits", () => {
  const going = { toolCallId: "t", status: "in_progress" };
  const entry = folded(begun(), started("p"), says("tool_call", going, {}, "p"), ends("p"));
  assert.equal(entry.backgroundCount, 1);
  const over = says("tool_call_update", { toolCallId: "t", status: "completed" }, { after: "p" });
  assert.equal(folded(entry, over).backgroundCount, 0);
  assert.equal(folded(entry, event("agent_exited", { reason: "agent_exited" })).backgroundCount, 0);
});

test("the agent's list of background work is used, and working children are counted", () => {
  const work = [{ type: "terminal", terminalId: "x" }, { type: "own" }];
  const names = { c: "s.1" };
  const entry = folded(
    begun(),
    says("state_update", { state: "idle", background: work }),
    says("subagent_update", { sessionId: "c", state: { state: "running" } }, { names }),
  );
  assert.deepEqual([entry.backgroundCount, entry.runningChildCount], [2, 1]);
  for (const known of [entry, listed(entry)]) {
    const rests = folded(known, says("state_update", { state: "idle" }, { child: "s.1" }));
    assert.equal(rests.runningChildCount, 0);
    assert.equal(folded(known, says("state_update", { state: "idle", background: [] })).backgroundCount, 0);
    assert.equal(folded(known, event("agent_exited", { reason: "x" })).runningChildCount, 0);
  }
  const back = event("agent_started", { how: "new", agentSessionId: "other" });
  assert.equal(folded(entry, back).runningChildCount, 0);
});

test("other members of an entry follow events, and an event of the turn clears `suspectedComplete`", () => {
  const entry = folded(
    { ...begun(), suspectedComplete: true },
    event("queue_held", { reason: "user" }),
    event("session_archived"),
    event("agent_exited", { reason: "agent_exited" }),
    event("client_attached", { clientId: "c" }),
  );
  assert.deepEqual([entry.queueHeld, entry.archived, entry.agentGone], ["user", true, "agent_exited"]);
  assert.deepEqual([entry.clientCount, entry.suspectedComplete], [1, true]);
  const after = folded(entry, event("queue_released"), event("session_unarchived"), event("agent_started"), started("p"));
  assert.deepEqual([after.queueHeld, after.archived, after.agentGone], [undefined, undefined, undefined]);
  assert.equal(after.suspectedComplete, false);
  const closed = folded(after, ends("p"), event("session_closed", { reason: "client" }));
  assert.deepEqual([closed.state, closed.closed, closed.clientCount], ["closed", true, 0]);
});

test("an agent's chunks in a turn may be left out", () => {
  assert.equal(concernsEntry(says("agent_message_chunk", { content: { type: "text", text: "x" } }, {}, "p")), false);
  assert.equal(concernsEntry(says("tool_call_update", { toolCallId: "t" }, {}, "p")), true);
  assert.equal(concernsEntry(says("session_info_update", {})), true);
  assert.equal(concernsEntry(ends("p")), true);
});
