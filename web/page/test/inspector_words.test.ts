/** Texts of the inspector: a conversation as Markdown, an explanation of a session. */

import assert from "node:assert/strict";
import { test } from "node:test";

import type { Transcript } from "@turnwire/client";

import { evidenceOf, findingsOf } from "../src/inspector/explanation.js";
import { assembled, markdownOf } from "../src/inspector/markdown.js";

const AT = 1_700_000_000_000;
const said = (role: string, text: string, more: object = {}) => ({
  item: "message",
  at: AT,
  promptId: "p_1",
  role,
  content: [{ type: "text", text }],
  ...more,
});

function transcript(items: object[], more: object = {}): Transcript {
  const turn = { promptId: "p_1", state: "ended", author: "ann", acceptedAt: AT, place: {} };
  return { sessionId: "s_1", title: "A talk", items, turns: [turn], terminals: {}, ...more } as unknown as Transcript;
}

/** Without times, which are in the reader's time zone. */
function parts(markdown: string): string[] {
  return markdown.replace(/ · \d{4}-\d\d-\d\d [\d:.]+/g, "").trimEnd().split("\n\n");
}

test("each turn has a heading, words are as they are, and thoughts are left out unless they are asked for", () => {
  const items = [said("user", "Do *it*"), said("thought", "how?\n\nso"), said("agent", "Done.")];
  assert.deepEqual(parts(markdownOf(transcript(items))), [
    "# A talk",
    "## Turn 1 · ann",
    "### User",
    "Do *it*",
    "### Agent",
    "Done.",
  ]);
  assert.match(markdownOf(transcript(items), { thoughts: true }), /### Thought\n\n> how\?\n>\n> so\n/);
});

test("a tool call has what it printed and changed in fences that its content cannot end", () => {
  const call = {
    item: "tool_call",
    at: AT,
    promptId: "p_1",
    toolCallId: "t",
    title: "Edit\nit",
    status: "completed",
    content: [
      { type: "content", content: { type: "text", text: "# no heading\n```\nx\n" } },
      { type: "diff", path: "a.py", oldText: "1\n2\n3\n4\n5\n6\n7\n8\n", newText: "1\n2\n3\n4\n5\n6\nseven\n8\n" },
      { type: "terminal", terminalId: "k" },
    ],
  };
  const terminals = { k: { terminalId: "k", at: AT, command: "ls", output: btoa("\x1b[31mred\x1b[0m\n") } };
  const markdown = markdownOf(transcript([call], { terminals }));
  assert.match(markdown, /### Tool: Edit it \(completed\)\n\n````\n# no heading\n```\nx\n````\n/);
  assert.match(markdown, /```diff\n--- a\.py\n\+\+\+ a\.py\n@@ -4,5 \+4,5 @@\n 4\n 5\n 6\n-7\n\+seven\n 8\n```/);
  assert.match(markdown, /```console\n\$ ls\nred\n```/);
});

test("a new file, and a change of which only the name is known", () => {
  const call = {
    item: "tool_call",
    at: AT,
    toolCallId: "t",
    content: [
      { type: "diff", path: "new.txt", oldText: null, newText: "x\n" },
      { type: "diff", changes: [{ operation: "delete", path: "/old.txt" }] },
    ],
  };
  const markdown = markdownOf(transcript([call]));
  assert.match(markdown, /--- \/dev\/null\n\+\+\+ new\.txt\n@@ -0,0 \+1,1 @@\n\+x\n/);
  assert.match(markdown, /- delete `\/old\.txt`/);
});

test("how a turn ended is told if it did not end by itself, and late words are marked", () => {
  const turns = [
    { promptId: "p_1", place: {}, outcome: { stopReason: "cancelled" } },
    { promptId: "p_2", place: {}, origin: "agent", outcome: { error: { code: "agent_exited", message: "it is\ngone" } } },
  ];
  const items = [
    said("agent", "one"),
    said("agent", "two", { promptId: "p_2" }),
    said("agent", "three", { promptId: undefined, after: "p_2" }),
  ];
  assert.deepEqual(parts(markdownOf(transcript(items, { turns, title: undefined }))), [
    "# s_1",
    "## Turn 1",
    "### Agent",
    "one",
    "*Ended: cancelled*",
    "## Turn 2 · begun by the agent",
    "### Agent",
    "two",
    "### Agent (late)",
    "three",
    "*Failed: agent_exited, it is gone*",
  ]);
});

test("blocks that are no text stand by themselves", () => {
  const content = [
    { type: "text", text: "Look: " },
    { type: "image", data: "AAAA", mimeType: "image/png" },
    { type: "resource_link", uri: "file:///a b", name: "a b" },
  ];
  assert.deepEqual(parts(markdownOf(transcript([said("user", "", { content })]))).slice(3), [
    "Look: ",
    "*(image, image/png)*",
    "",
    "[a b](<file:///a b>)",
  ]);
});

test("pages that were read from the newest to the oldest are one transcript in order", () => {
  const turn = (promptId: string) => ({ promptId, place: {} });
  const newest = transcript([said("agent", "3", { promptId: "p_2" })], { turns: [turn("p_1"), turn("p_2")] });
  const oldest = transcript([said("user", "1"), said("agent", "2")], { turns: [turn("p_1")] });
  const whole = assembled([newest, oldest]);
  assert.deepEqual(
    whole.turns.map((each) => each.promptId),
    ["p_1", "p_2"],
  );
  assert.deepEqual(parts(markdownOf(whole)).filter((each) => /^\d$/.test(each)), ["1", "2", "3"]);
});

// -- why it waits ------------------------------------------------------------------------------------------------

test("an idle session is not stuck, and neither is one whose agent works", () => {
  assert.deepEqual(findingsOf({ state: "idle" }), [{ words: "Nothing is stuck: no turn runs.", tone: "good" }]);
  const works = { state: "running", promptId: "p", agent: { connected: true } };
  assert.equal(findingsOf(works)[0]!.words, "Nothing looks stuck: the agent works.");
});

test("what people can do something about comes first", () => {
  const known = {
    state: "requires_action",
    promptId: "p",
    waitingFor: ["q_1"],
    toolsInFlight: ["t"],
    queued: ["p_2", "p_3"],
    queueHeld: "a user held it",
    agent: { connected: true, openRequests: 1 },
  };
  assert.deepEqual(
    findingsOf(known).map((each) => each.words),
    [
      "The agent waits for an answer: 1 permission request.",
      "The queue is held (a user held it); 2 prompts in it.",
    ],
  );
});

test("a turn that may be over, a cancel, an agent that is gone and a tool call are told", () => {
  const words = (more: object) => findingsOf({ state: "running", promptId: "p", ...more })[0]!.words;
  const there = { agent: { connected: true } };
  assert.match(words({ ...there, suspectedComplete: true, reasons: ["it is silent"] }), /may be over .* it is silent\./);
  assert.match(words({ ...there, state: "cancelling" }), /A cancel was asked for/);
  assert.match(words({ agent: { connected: false } }), /The agent is not there; it is being started, or cannot be\./);
  assert.match(words({ ...there, toolsInFlight: ["t"] }), /A tool call is not finished: t\./);
});

test("evidence has what is known and nothing else", () => {
  const found = evidenceOf({
    state: "running",
    reasons: ["a tool call is not finished"],
    agent: { connected: true, pid: 7, breaches: { not_json: 2 }, lastSent: ["1", "2"] },
    clients: { c_1: "controller" },
    attended: true,
  });
  assert.deepEqual(found, [
    { name: "Waits for", value: ["a tool call is not finished"] },
    { name: "Agent", value: "there, process 7" },
    { name: "Broken lines", value: "2× not_json" },
    { name: "Clients", value: "1 attached, somebody who can answer is there" },
    { name: "Last to the agent, newest first", value: ["2", "1"] },
  ]);
});
