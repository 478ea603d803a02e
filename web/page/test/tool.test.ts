/** What a tool call is, in the words of various agents. */

import assert from "node:assert/strict";
import { test } from "node:test";

import type { TerminalItem } from "../src/content/items.js";
import {
  blocksOf,
  changesOf,
  commandOf,
  exitOf,
  folderOf,
  outputOf,
  placesOf,
  stateOf,
  terminalsOf,
  titleOf,
  unfenced,
} from "../src/content/tool.js";

const terminal: TerminalItem = { terminalId: "t", command: "make", cwd: "/t", exitStatus: { exitCode: 2 } };

test("a command is found in the input of various agents", () => {
  const command = (rawInput: unknown, kind = "execute"): string | undefined => commandOf({ kind, rawInput });
  assert.equal(command({ command: "ls -la" }), "ls -la");
  assert.equal(command({ cmd: "ls" }), "ls");
  assert.equal(command({ command: "git", args: ["commit", "-m", "it's done"] }), `git commit -m 'it'"'"'s done'`);
  assert.equal(command({ command: ["bash", "-lc", "a && b"] }), "a && b");
  assert.equal(command({ command: ["echo", "a b"] }), "echo 'a b'");
  assert.equal(command({ command: "x" }, "other"), "x");
  assert.equal(command({ command: "str_replace" }, "edit"), undefined);
  assert.equal(command({ command: [] }), undefined);
  assert.equal(command("ls"), undefined);
  assert.equal(command(null), undefined);
});

test("command and folder come from the terminal if the input lacks them", () => {
  assert.equal(commandOf({ kind: "read" }, [terminal]), "make");
  assert.equal(commandOf({ rawInput: { command: "own" } }, [terminal]), "own");
  assert.equal(folderOf({ rawInput: { workdir: "/w" } }, [terminal]), "/w");
  assert.equal(folderOf({}, [terminal]), "/t");
});

test("changes come from the content, else from the input", () => {
  const paths = (call: Parameters<typeof changesOf>[0]): string[][] =>
    changesOf(call).map((each) => [each.operation, each.path, String(each.added)]);
  const content = [{ type: "diff" as const, path: "/a", oldText: null, newText: "x\n" }];
  assert.deepEqual(paths({ content, rawInput: { file_path: "/b", old_string: "1", new_string: "2" } }), [
    ["add", "/a", "1"],
  ]);
  assert.deepEqual(paths({ rawInput: { filePath: "/b", oldString: "1", newString: "2" } }), [
    ["modify", "/b", "1"],
  ]);
  assert.deepEqual(paths({ rawInput: { path: "/c", diff: "--- a/c\n+++ b/c\n@@ -1 +1 @@\n-x\n+y\n" } }), [
    ["modify", "c", "1"],
  ]);
  assert.deepEqual(paths({ rawInput: { path: "/c" } }), []);
  assert.deepEqual(paths({ rawInput: [1] }), []);
});

test("content blocks and terminals are found in the content", () => {
  const content = [
    { type: "content" as const, content: { type: "text" as const, text: "x" } },
    { type: "terminal" as const, terminalId: "t" },
    { type: "terminal" as const, terminalId: "other" },
  ];
  assert.deepEqual(blocksOf({ content }), [{ type: "text", text: "x" }]);
  assert.deepEqual(terminalsOf({ content }, new Map([["t", terminal]])), [terminal]);
  assert.deepEqual(terminalsOf({ content }, undefined), []);
});

test("malformed content is left out", () => {
  const call = {
    content: [null, 1, { type: "diff" }],
    locations: [null, { path: 1 }, { path: "/a", line: "x" }, { path: "/b", line: 2 }],
  };
  const told = call as unknown as Parameters<typeof changesOf>[0];
  assert.deepEqual(
    changesOf(told).map((each) => each.path),
    [""],
  );
  assert.deepEqual(blocksOf(told), []);
  assert.deepEqual(terminalsOf(told, new Map()), []);
  assert.deepEqual(placesOf(told), ["/a", "/b:2"]);
  assert.deepEqual(placesOf({ locations: 3 } as unknown as typeof told), []);
});

test("output is found under any of the names that agents use", () => {
  assert.equal(outputOf({ rawOutput: "x" }), "x");
  assert.equal(outputOf({ rawOutput: { stdout: "y", other: 1 } }), "y");
  assert.equal(outputOf({ rawOutput: { output: 1 } }), "");
  assert.equal(unfenced("```console\na\nb\n```"), "a\nb");
  assert.equal(unfenced("a ``` b"), "a ``` b");
});

test("a command with a bad exit has failed, whatever the agent reports", () => {
  assert.equal(exitOf({}, [terminal]), "exit 2");
  assert.equal(exitOf({ rawOutput: { exit_code: 0 } }), "");
  assert.equal(exitOf({ rawOutput: { exitCode: 1 } }), "exit 1");
  assert.equal(exitOf({}, [{ terminalId: "t", exitStatus: { signal: "SIGKILL" } }]), "SIGKILL");
  assert.equal(stateOf({ status: "completed" }, "exit 2"), "failed");
  assert.equal(stateOf({ status: "completed" }), "completed");
});

test("the state of a call is the agent's if it has finished, else the turn's", () => {
  assert.equal(stateOf({}), "pending");
  assert.equal(stateOf({ status: "in_progress" }), "running");
  assert.equal(stateOf({ status: "a new word" }), "running");
  assert.equal(stateOf({ status: "in_progress", openAtEnd: true }), "left open");
  assert.equal(stateOf({ status: "in_progress", openAtEnd: true, cancelledLocally: true }), "cancelled");
  assert.equal(stateOf({ status: "completed", cancelledLocally: true }), "completed");
  assert.equal(stateOf({ status: "failed", openAtEnd: true }), "failed");
});

test("a title is shown without the quotes around a command", () => {
  assert.equal(titleOf({ title: "`ls -la`" }), "ls -la");
  assert.equal(titleOf({ title: "`a` and `b`" }), "`a` and `b`");
  assert.equal(titleOf({ name: "grep", toolCallId: "1" }), "grep");
});
