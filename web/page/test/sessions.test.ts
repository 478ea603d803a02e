/** The list of sessions: groups, badges, names, marked words. */

import assert from "node:assert/strict";
import { test } from "node:test";

import type { SessionEntry } from "@turnwire/client";

import { BADGES, badgeWords, folderOf, titleOf } from "../src/sessions/badge.js";
import { foundParts, markedParts, rowsOf } from "../src/sessions/groups.js";
import type { Badge, ListedSession } from "../src/state/session_list.js";

// Noon, in whatever zone the test runs.
const NOW = new Date(2026, 10, 17, 12).getTime();
const HOUR = 3_600_000;

function listed(sessionId: string, badge: Badge, hoursAgo: number, more: Partial<SessionEntry> = {}): ListedSession {
  const entry = {
    sessionId,
    updatedAt: new Date(NOW - hoursAgo * HOUR).toISOString(),
    permissionCount: 0,
    queuedCount: 0,
    backgroundCount: 0,
    runningChildCount: 0,
    ...more,
  } as SessionEntry;
  return { entry, badge };
}

function shown(...sessions: ListedSession[]): string[] {
  return rowsOf(sessions, NOW).map((row) => (row.row === "heading" ? `${row.words} ${row.count}` : row.listed.entry.sessionId));
}

test("sessions with requests come first, then working ones, then the others by day", () => {
  const rows = shown(listed("a", "idle", 1), listed("b", "working", 2), listed("c", "needs_you", 30), listed("d", "closed", 20));
  assert.deepEqual(rows, ["Needs you 1", "c", "Working 1", "b", "Today 1", "a", "Yesterday 1", "d"]);
});

test("groups keep the order", () => {
  assert.deepEqual(shown(listed("a", "working", 1), listed("b", "queued", 2), listed("c", "stalled", 3)), [
    "Working 3",
    "a",
    "b",
    "c",
  ]);
});

test("days begin at midnight, not a day ago", () => {
  assert.deepEqual(shown(listed("a", "idle", 11.9), listed("b", "idle", 12.1), listed("c", "idle", 36.1)), [
    "Today 1",
    "a",
    "Yesterday 1",
    "b",
    "Sunday 1",
    "c",
  ]);
});

test("older ones are grouped by month", () => {
  assert.deepEqual(shown(listed("a", "idle", 24 * 20), listed("b", "idle", 24 * 25)), ["October 2026 2", "a", "b"]);
});

test("an empty list has no rows", () => {
  assert.deepEqual(shown(), []);
});

test("every badge has a word, a colour, a shape and a reason, and no two the same word or shape", () => {
  const all = Object.values(BADGES);
  for (const each of all) assert.ok(each.word && each.tone && each.shape && each.why);
  assert.equal(new Set(all.map((each) => each.word)).size, all.length);
  assert.equal(new Set(all.map((each) => each.shape)).size, all.length);
});

test("a badge has a count if there are several", () => {
  assert.equal(badgeWords(listed("a", "needs_you", 0, { permissionCount: 1 }), true), "Needs you");
  assert.equal(badgeWords(listed("a", "needs_you", 0, { permissionCount: 3 }), true), "Needs you (3)");
  assert.equal(badgeWords(listed("a", "background", 0, { backgroundCount: 1, runningChildCount: 1 }), true), "In background (2)");
  assert.equal(badgeWords(listed("a", "working", 0, { queuedCount: 4 }), true), "Working");
});

test("a session is named by its title, its first prompt or its id", () => {
  assert.equal(titleOf({ sessionId: "s_0123456789", title: " Mend it " }), "Mend it");
  assert.equal(titleOf({ sessionId: "s_0123456789" }), "Untitled 012345");
  assert.equal(titleOf({ sessionId: "s_0123456789", firstPrompt: "List files" }), "List files");
  assert.equal(titleOf({ sessionId: "s_0123456789", title: "Chores", firstPrompt: "List files" }), "Chores");
  assert.equal(titleOf({ sessionId: "s_0123456789", title: " " }), "Untitled 012345");
});

test("a folder is named by the last part of its path", () => {
  assert.equal(folderOf("/srv/projects/turnwire/"), "turnwire");
  assert.equal(folderOf("C:\\work\\page"), "page");
  assert.equal(folderOf("/"), "/");
});

test("the words of a search are marked, in any case and with special characters", () => {
  const marked = (text: string, search: string) => markedParts(text, search).map((part) => (part.isMarked ? `[${part.text}]` : part.text));
  assert.deepEqual(marked("The Parser parses", "pars"), ["The ", "[Pars]", "er ", "[pars]", "es"]);
  assert.deepEqual(marked("a.b (c)", "( ."), ["a", "[.]", "b ", "[(]", "c)"]);
  assert.deepEqual(marked("nothing", ""), ["nothing"]);
});

test("a snippet starts shortly before its first match, in one line", () => {
  const shown = (snippet: string, ...marks: [number, number][]) =>
    foundParts({ role: "agent", snippet, marks }).map((part) => (part.isMarked ? `[${part.text}]` : part.text));
  assert.deepEqual(shown("the\nparser fails", [4, 10]), ["the ", "[parser]", " fails"]);
  const long = "So I looked at all of it again, and found that the parser fails";
  assert.deepEqual(shown(long, [51, 57]), ["… and found that the ", "[parser]", " fails"]);
  assert.deepEqual(shown("nothing marked"), ["nothing marked"]);
});
