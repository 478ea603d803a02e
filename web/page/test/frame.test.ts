/** The pure parts of the frame: fuzzy matching, keys, notifications, relative times. */

import assert from "node:assert/strict";
import { test } from "node:test";

import type { AnyEvent } from "@turnwire/client";

import { offer, commands } from "../src/frame/commands.js";
import { fuzzyMatch } from "../src/frame/fuzzy.js";
import { notesOf, twoOptions } from "../src/frame/notes.js";
import { SHORTCUTS, keysInWords, keysOf, shortcutOf } from "../src/frame/shortcuts.js";
import { ago } from "../src/frame/time.js";

const NOBODY: ReadonlySet<string> = new Set();

function best(query: string, ...texts: string[]): string | undefined {
  const found = texts.flatMap((text) => {
    const match = fuzzyMatch(query, text);
    return match ? [{ text, score: match.score }] : [];
  });
  return found.sort((a, b) => b.score - a.score)[0]?.text;
}

function pressed(key: string, more: object = {}) {
  return { key, ctrlKey: false, metaKey: false, altKey: false, ...more };
}

function event(type: string, data: object): AnyEvent {
  return { id: 1, v: 1, type, data: { sessionId: "s1", ...data } } as AnyEvent;
}

const asked = (requestId: string, sessionId = "s1") =>
  event("permission_request", { sessionId, requestId, method: "session/request_permission", params: {}, title: "Run it" });
const ended = (more: object = {}) => event("turn_complete", { promptId: "p1", stopReason: "end_turn", ending: "response", ...more });

// -- finding -------------------------------------------------------------------------------------------------

test("letters match in order only", () => {
  assert.ok(fuzzyMatch("nse", "New session"));
  assert.equal(fuzzyMatch("esn", "New"), undefined);
  assert.equal(fuzzyMatch("xyz", "New session"), undefined);
});

test("starts of words match before letters inside words", () => {
  assert.equal(best("ns", "Answers", "New session"), "New session");
  assert.equal(best("th", "Fix the path", "Theme: dark"), "Theme: dark");
});

test("the words of a query match in any order", () => {
  assert.ok(fuzzyMatch("session new", "New session"));
  assert.equal(fuzzyMatch("session old", "New session"), undefined);
});

test("of two equal matches the shorter one comes first", () => {
  assert.equal(best("inbox", "Go to inbox of everything", "Go to inbox"), "Go to inbox");
});

test("the positions of the letters are returned in order, each once", () => {
  assert.deepEqual(fuzzyMatch("ses new", "New session")?.places, [0, 1, 2, 4, 5, 6]);
  assert.deepEqual(fuzzyMatch("", "New session")?.places, []);
});

// -- commands and keys ---------------------------------------------------------------------------------------

test("commands are offered until they are withdrawn, the newest offer first", () => {
  const command = (words: string) => ({ words, group: "", run: () => {} });
  const withdrawFirst = offer([command("first")]);
  const withdrawSecond = offer([command("second"), command("third")]);
  assert.deepEqual(commands.value.map((each) => each.words), ["second", "third", "first"]);
  withdrawSecond();
  withdrawSecond();
  assert.deepEqual(commands.value.map((each) => each.words), ["first"]);
  withdrawFirst();
});

test("no two shortcuts have the same keys or the same action, and each has words", () => {
  assert.equal(new Set(SHORTCUTS.map((each) => each.keys)).size, SHORTCUTS.length);
  assert.equal(new Set(SHORTCUTS.map((each) => each.action)).size, SHORTCUTS.length);
  for (const each of SHORTCUTS) assert.ok(each.words, each.keys);
});

test("every shortcut is in the notation of key events", () => {
  for (const each of SHORTCUTS) {
    const key = each.keys.replace(/^mod\+/, "");
    assert.equal(keysOf(pressed(key, { ctrlKey: each.keys.startsWith("mod+") })), each.keys);
  }
});

test("single keys are ignored in fields; keys with Ctrl or Cmd are not", () => {
  assert.equal(shortcutOf(pressed("n"), "page", true)?.action, "new_session");
  assert.equal(shortcutOf(pressed("n"), "field", true), undefined);
  assert.equal(shortcutOf(pressed("n"), "dialog", true), undefined);
  assert.equal(shortcutOf(pressed("k", { metaKey: true }), "field", true)?.action, "palette");
  assert.equal(shortcutOf(pressed("k", { ctrlKey: true, isComposing: true }), "field", true), undefined);
});

test("single-key shortcuts can be turned off, and the others stay", () => {
  assert.equal(shortcutOf(pressed("j"), "page", false), undefined);
  assert.equal(shortcutOf(pressed("k", { ctrlKey: true }), "page", false)?.action, "palette");
});

test("Ctrl with the key of a single-key shortcut does nothing", () => {
  assert.equal(shortcutOf(pressed("n", { ctrlKey: true }), "page", true), undefined);
  assert.equal(shortcutOf(pressed("n", { altKey: true }), "page", true), undefined);
});

test("keys are named as on the user's system", () => {
  assert.equal(keysInWords("mod+k", false), "Ctrl K");
  assert.equal(keysInWords("mod+k", true), "⌘ K");
  assert.equal(keysInWords("?", false), "?");
});

// -- notifications -------------------------------------------------------------------------------------------

test("a finished turn and an open request raise notifications", () => {
  const { raised } = notesOf([asked("r1"), ended()], NOBODY);
  assert.deepEqual(raised.map((each) => each.about), ["asked", "ended"]);
  assert.equal(raised[0]?.text, "Run it");
});

test("a notification offers to allow only a command that it shows completely", () => {
  const options = [
    { optionId: "yes", name: "Allow", kind: "allow_once" },
    { optionId: "no", name: "Reject", kind: "reject_once" },
  ];
  const offered = (command: string, more: object = {}) => {
    const request = { requestId: "r1", method: "m", params: {}, options, subject: { type: "command", command }, ...more };
    const [note] = notesOf([event("permission_request", request)], NOBODY).raised;
    return [note?.text, ...(note?.options ?? []).map((each) => each.optionId)];
  };
  assert.deepEqual(offered("make test"), ["make test", "yes", "no"]);
  assert.deepEqual(offered(`echo ${"a".repeat(96)}; rm -rf ~`, { title: "Echo" }), ["Echo", "no"]);
  assert.deepEqual(offered("ls\nrm -rf ~", { title: "List" }), ["List", "no"]);
  assert.deepEqual(offered("ls \u202E", { title: "List" }), ["List", "no"]);
  assert.deepEqual(notesOf([asked("r1")], NOBODY).raised[0]?.options, [], "no command, and nothing that rejects");
});

test("a visible session raises no notification, others do", () => {
  const { raised } = notesOf([asked("r1"), asked("r2", "s2"), ended()], new Set(["s1"]));
  assert.deepEqual(raised.map((each) => each.sessionId), ["s2"]);
});

test("an answered request raises no notification, and closes a shown one", () => {
  const resolved = event("permission_resolved", { requestId: "r1", end: "answered", answer: {} });
  const { raised, over } = notesOf([asked("r1"), resolved], NOBODY);
  assert.deepEqual(raised, []);
  assert.deepEqual(over, notesOf([asked("r1")], NOBODY).raised.map((each) => each.tag));
});

test("a turn that a user ended raises no notification", () => {
  for (const ending of ["cancelled", "removed", "joined", "settled"]) {
    assert.deepEqual(notesOf([ended({ ending })], NOBODY).raised, []);
  }
  assert.deepEqual(notesOf([ended({ stopReason: "cancelled" })], NOBODY).raised, []);
});

test("a failed turn has its reason", () => {
  const failed = event("turn_error", { promptId: "p1", code: "agent_exited", message: "the agent ended" });
  const [note] = notesOf([failed], NOBODY).raised;
  assert.equal(note?.about, "failed");
  assert.equal(note?.text, "the agent ended");
});

test("silence and chunks raise nothing", () => {
  const chunk = event("session_update", { update: { sessionUpdate: "agent_message_chunk", content: { type: "text", text: "" } } });
  assert.deepEqual(notesOf([chunk, event("state_changed", { promptId: "p1", state: "running" })], NOBODY), { raised: [], over: [] });
});

test("notifications about the same thing have the same tag in every tab", () => {
  assert.equal(notesOf([ended()], NOBODY).raised[0]?.tag, notesOf([ended()], NOBODY).raised[0]?.tag);
  assert.notEqual(notesOf([asked("r1")], NOBODY).raised[0]?.tag, notesOf([asked("r2")], NOBODY).raised[0]?.tag);
});

test("a notification has the first option, and the first that rejects", () => {
  const option = (optionId: string, kind: string) => ({ optionId, kind, name: optionId });
  const all = [option("once", "allow_once"), option("always", "allow_always"), option("no", "reject_once")];
  assert.deepEqual(twoOptions(all).map((each) => each.optionId), ["once", "no"]);
  assert.deepEqual(twoOptions(all.slice(0, 2)).map((each) => each.optionId), ["once", "always"]);
  assert.deepEqual(twoOptions(all.slice(0, 1)).map((each) => each.optionId), ["once"]);
});

// -- time ----------------------------------------------------------------------------------------------------

test("relative times are short", () => {
  const now = Date.parse("2026-11-17T12:00:00Z");
  const before = (minutes: number) => ago(now - minutes * 60_000, now);
  assert.equal(before(0.5), "now");
  assert.equal(before(-5), "now");
  assert.equal(before(59), "59 min");
  assert.equal(before(60), "1 h");
  assert.equal(before(60 * 24 * 2), "2 d");
  assert.match(before(60 * 24 * 30), /^\d+ Oct$/);
  assert.match(before(60 * 24 * 400), /^\d+ Oct 2025$/);
});
