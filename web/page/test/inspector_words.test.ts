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

test("each turn has a heading, text is unchanged, and thoughts are left out by default", () => {
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

test("the output and changes of a tool call are in fences that their content cannot close", () => {
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

test("a new file, and a change of which only the path is known", () => {
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

test("notable ends of turns are shown, and late messages are marked", () => {
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

test("blocks other than text are separate", () => {
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

test("pages read from the newest to the oldest are joined in order", () => {
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

test("neither an idle session nor a working agent is reported as stuck", () => {
  assert.deepEqual(findingsOf({ state: "idle" }), [{ words: "Nothing is stuck: no turn runs.", tone: "good" }]);
  const works = { state: "running", promptId: "p", agent: { connected: true } };
  assert.equal(findingsOf(works)[0]!.words, "Nothing looks stuck: the agent works.");
});

test("findings that require an action come first", () => {
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

test("a suspected end, a cancel, a missing agent and a tool call are reported", () => {
  const words = (more: object) => findingsOf({ state: "running", promptId: "p", ...more })[0]!.words;
  const there = { agent: { connected: true } };
  assert.match(words({ ...there, suspectedComplete: true, reasons: ["it is silent"] }), /may be over .* it is silent\./);
  assert.match(words({ ...there, state: "cancelling" }), /A cancel was asked for/);
  assert.match(words({ agent: { connected: false } }), /The agent is not there; it is being started, or cannot be\./);
  assert.match(words({ ...there, toolsInFlight: ["t"] }), /A tool call is not finished: t\./);
});

test("evidence has the known facts only", () => {
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
