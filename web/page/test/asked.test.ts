/** What a permission request asks, and how it ended. */

import assert from "node:assert/strict";
import { test } from "node:test";

import type { PermissionMembers } from "@turnwire/client";

import { askedOf, optionsOf, outcomeInWords, wasAllowed } from "../src/content/asked.js";

const OPTIONS = [
  { optionId: "no", name: "Reject", kind: "reject_once" },
  { optionId: "plan", name: "Keep planning", kind: "a new kind" },
  { optionId: "always", name: "Always", kind: "allow_always" },
  { optionId: "yes", name: "Allow once", kind: "allow_once" },
];

function request(more: Partial<PermissionMembers> = {}): PermissionMembers {
  return { requestId: "r", method: "session/request_permission", params: {}, options: OPTIONS, ...more };
}

test("a v1 request is about its tool call, as reported before", () => {
  const before = {
    item: "tool_call",
    at: 1,
    toolCallId: "1",
    title: "Run it",
    kind: "execute",
    rawInput: { command: "ls" },
  } as const;
  const asked = askedOf(request({ toolCall: { toolCallId: "1", title: null, rawInput: { cwd: "/w" } } }), before);
  assert.deepEqual([asked.title, asked.kind, asked.command, asked.folder], ["Run it", "execute", "ls", "/w"]);
});

test("a v2 request has a title, and a command or a tool call", () => {
  const command = askedOf(
    request({ title: "Run?", description: "Why", subject: { type: "command", command: "rm x", cwd: "/w" } }),
  );
  assert.deepEqual(
    [command.title, command.description, command.command, command.folder],
    ["Run?", "Why", "rm x", "/w"],
  );
  const content = [{ type: "diff", changes: [{ operation: "delete", path: "/a" }] }];
  const call = askedOf(
    request({ title: "T", subject: { type: "tool_call", toolCall: { toolCallId: "1", kind: "edit", content } } }),
  );
  assert.deepEqual(
    call.changes.map((each) => [each.operation, each.path]),
    [["delete", "/a"]],
  );
  assert.equal(call.kind, "edit");
});

test("members that are only in the params are found there", () => {
  const params = {
    toolCall: { toolCallId: "1", title: "Edit", locations: [{ path: "/a", line: 2 }] },
    options: OPTIONS,
  };
  const asked = askedOf({ requestId: "r", method: "session/request_permission", params });
  assert.deepEqual([asked.title, asked.locations], ["Edit", ["/a:2"]]);
  assert.equal(optionsOf({ requestId: "r", method: "m", params }).length, 4);
  assert.equal(askedOf({ requestId: "r", method: "m", params: null }).title, "The agent needs permission");
});

test("options that allow come first", () => {
  assert.deepEqual(
    optionsOf(request()).map((each) => each.optionId),
    ["yes", "always", "plan", "no"],
  );
  assert.deepEqual(optionsOf({ requestId: "r", method: "m", params: {}, optionIds: ["a", "b"] }), [
    { optionId: "a" },
    { optionId: "b" },
  ]);
});

test("the outcome of a request in words", () => {
  const answer = { outcome: { outcome: "selected", optionId: "yes" } };
  assert.equal(
    outcomeInWords(request(), { end: "answered", here: false, by: "jon", answer }),
    "Answered elsewhere by jon: Allow once",
  );
  assert.equal(outcomeInWords(request(), { end: "answered", here: true, answer }), "You answered: Allow once");
  assert.equal(
    outcomeInWords(request(), { end: "answered", here: false, answer: { action: "decline" } }),
    "Answered elsewhere: Declined",
  );
  assert.equal(outcomeInWords(request(), { end: "withdrawn", here: false }), "Withdrawn by the agent");
  assert.equal(outcomeInWords(request(), { end: "cancelled", here: false, by: "jon" }), "Cancelled by jon");
  assert.ok(wasAllowed(request(), { end: "answered", here: true, answer }));
  assert.ok(
    !wasAllowed(request(), {
      end: "answered",
      here: true,
      answer: { outcome: { outcome: "selected", optionId: "no" } },
    }),
  );
  assert.ok(
    !wasAllowed(request(), { end: "cancelled", here: true, answer: { outcome: { outcome: "cancelled" } } }),
  );
});
