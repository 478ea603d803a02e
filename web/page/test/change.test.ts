/** Lines of a diff, from texts and from patches. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { edits } from "../src/content/edits.js";

import {
  changeOfTexts,
  changesOfPatch,
  fileChanges,
  folded,
  type Line,
  type Row,
  sideBySide,
} from "../src/content/change.js";

const SIGNS = { same: " ", added: "+", removed: "-" };

function written(lines: readonly Row[]): string[] {
  return lines.map((each) => {
    if (each.kind === "gap") return `…${each.count}`;
    if (each.kind === "fold") return `fold ${each.lines.length}`;
    return `${each.old ?? ""},${each.new ?? ""}${SIGNS[each.kind]}${each.text}`;
  });
}

const numbered = (count: number): string =>
  Array.from({ length: count }, (_, index) => `line ${index + 1}\n`).join("");

test("texts are compared line by line", () => {
  const change = changeOfTexts("/a.ts", "one\ntwo\nthree\n", "one\n2\nthree\nfour\n");
  assert.deepEqual(written(change.lines), ["1,1 one", "2,-two", ",2+2", "3,3 three", ",4+four"]);
  assert.deepEqual([change.added, change.removed, change.operation], [2, 1, "modify"]);
});

test("without an old text the file is new, and an empty text has no lines", () => {
  const change = changeOfTexts("/a", undefined, "x\ny");
  assert.equal(change.operation, "add");
  assert.deepEqual(written(change.lines), [",1+x", ",2+y"]);
  assert.deepEqual(changeOfTexts("/a", "", "").lines, []);
  assert.deepEqual(written(changeOfTexts("/a", "x\n", "").lines), ["1,-x"]);
});

test("long texts without a common line are replaced quickly", () => {
  const old = Array.from({ length: 9000 }, (_, index) => `a${index}`).join("\n");
  const next = Array.from({ length: 9000 }, (_, index) => `b${index}`).join("\n");
  const change = changeOfTexts("/a", old, next);
  assert.deepEqual([change.added, change.removed], [9000, 9000]);
});

test("the lines of both sides add up to the texts", () => {
  let seed = 3;
  const random = (): number => (seed = (seed * 16807) % 2147483647) / 2147483647;
  for (let round = 0; round < 200; round++) {
    const make = (): string[] =>
      Array.from({ length: Math.floor(random() * 12) }, () => "abc"[Math.floor(random() * 3)]!);
    const [old, next] = [make(), make()];
    const lines = changeOfTexts("/a", old.join("\n"), next.join("\n")).lines as Line[];
    assert.deepEqual(
      lines.filter((each) => each.kind !== "added").map((each) => each.text),
      old,
    );
    assert.deepEqual(
      lines.filter((each) => each.kind !== "removed").map((each) => each.text),
      next,
    );
    lines.forEach((each) => {
      if (each.old !== undefined) assert.equal(old[each.old - 1], each.text);
      if (each.new !== undefined) assert.equal(next[each.new - 1], each.text);
    });
  }
});

test("the number of edits is minimal", () => {
  let seed = 5;
  const random = (): number => (seed = (seed * 16807) % 2147483647) / 2147483647;
  /** The length of the longest list that both have in them, the slow way. */
  const common = (one: string, other: string): number => {
    const rows = Array.from({ length: one.length + 1 }, () => Array<number>(other.length + 1).fill(0));
    for (let a = 1; a <= one.length; a++) {
      for (let b = 1; b <= other.length; b++) {
        const isSame = one[a - 1] === other[b - 1];
        rows[a]![b] = isSame ? rows[a - 1]![b - 1]! + 1 : Math.max(rows[a - 1]![b]!, rows[a]![b - 1]!);
      }
    }
    return rows[one.length]![other.length]!;
  };
  for (let round = 0; round < 300; round++) {
    const make = (): string =>
      Array.from({ length: Math.floor(random() * 15) }, () => "abcd"[Math.floor(random() * 4)]).join("");
    const [one, other] = [make(), make()];
    const found = edits([...one], [...other]);
    assert.equal(found.filter((each) => each === "same").length, common(one, other), `${one} ${other}`);
    assert.doesNotMatch(found.join(" "), /added removed/);
  }
});

test("a patch of several files is read: changed, new, deleted, renamed, binary", () => {
  const patch = [
    "diff --git /w/a b.txt /w/a b.txt",
    "--- /w/a b.txt",
    "+++ /w/a b.txt",
    "@@ -2,3 +2,4 @@ function",
    " two",
    "-three",
    "+3",
    "+--- not a header",
    " four",
    "@@ -10 +11,0 @@",
    "-ten",
    "diff --git /w/new /w/new",
    "new file mode 100644",
    "--- /dev/null",
    "+++ /w/new",
    "@@ -0,0 +1,2 @@",
    "+x",
    "+y",
    "\\ No newline at end of file",
    "diff --git /w/old /w/old",
    "deleted file mode 100644",
    "--- /w/old",
    "+++ /dev/null",
    "@@ -1 +0,0 @@",
    "-gone",
    "diff --git /w/from /w/to",
    "similarity index 100%",
    "rename from /w/from",
    "rename to /w/to",
    "diff --git a/pic.png b/pic.png",
    "Binary files a/pic.png and b/pic.png differ",
    "",
  ].join("\n");
  const changes = changesOfPatch(patch);
  assert.deepEqual(
    changes.map((each) => [each.operation, each.path, each.oldPath, each.isBinary]),
    [
      ["modify", "/w/a b.txt", undefined, false],
      ["add", "/w/new", undefined, false],
      ["delete", "/w/old", undefined, false],
      ["move", "/w/to", "/w/from", false],
      ["modify", "pic.png", undefined, true],
    ],
  );
  assert.deepEqual(written(changes[0]!.lines), [
    "…1",
    "2,2 two",
    "3,-three",
    ",3+3",
    ",4+--- not a header",
    "4,5 four",
    "…6",
    "10,-ten",
  ]);
  assert.deepEqual(written(changes[1]!.lines), [",1+x", ",2+y"]);
  assert.deepEqual(written(changes[2]!.lines), ["1,-gone"]);
});

test("a removed line that looks like a header stays a line", () => {
  const [change] = changesOfPatch("--- a/q.sql\n+++ b/q.sql\n@@ -1,2 +1 @@\n--- comment\n x\n");
  assert.deepEqual(written(change!.lines), ["1,--- comment", "2,1 x"]);
  assert.equal(change!.path, "q.sql");
});

test("quoted paths are read", () => {
  const [change] = changesOfPatch(
    'diff --git "a/\\303\\244 \\"x\\".txt" "b/\\303\\244 \\"x\\".txt"\nnew file mode 100644\n',
  );
  assert.equal(change!.path, 'ä "x".txt');
  assert.equal(change!.operation, "add");
});

test("the list of changes of v2 decides; the patch has their lines", () => {
  const changes = [
    { operation: "modify", path: "/a" },
    { operation: "move", oldPath: "/b", path: "/c" },
  ];
  const found = fileChanges({
    changes,
    patch: { text: "diff --git /a /a\n--- /a\n+++ /a\n@@ -1 +1 @@\n-x\n+y\n" },
  });
  assert.deepEqual(
    found.map((each) => [each.path, each.operation, each.lines.length]),
    [
      ["/a", "modify", 2],
      ["/c", "move", 0],
    ],
  );
  assert.equal(fileChanges({ changes, patch: null }).length, 2);
  assert.equal(fileChanges({ path: "/v1", oldText: null, newText: "x" })[0]!.operation, "add");
});

test("unchanged lines far from a change are folded", () => {
  const rows = folded(changeOfTexts("/a", numbered(30), numbered(30).replace("line 15\n", "line X\n")).lines);
  assert.deepEqual(written(rows), [
    "fold 11",
    "12,12 line 12",
    "13,13 line 13",
    "14,14 line 14",
    "15,-line 15",
    ",15+line X",
    "16,16 line 16",
    "17,17 line 17",
    "18,18 line 18",
    "fold 12",
  ]);
  assert.deepEqual(written(folded(changeOfTexts("/a", "a\nb\n", "a\nc\n").lines)), ["1,1 a", "2,-b", ",2+c"]);
});

test("side by side, removed lines are opposite added lines", () => {
  const pairs = sideBySide(changeOfTexts("/a", "a\nb\nc\nd\n", "a\nB\nd\n").lines);
  assert.deepEqual(
    pairs.map((each) => (each.kind === "pair" ? [each.old?.text, each.new?.text] : each.kind)),
    [
      ["a", "a"],
      ["b", "B"],
      ["c", undefined],
      ["d", "d"],
    ],
  );
});
