/** The way from one text to another: it is one, and none is shorter. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { type Part, difference } from "../src/content/difference.js";

const lines = (text: string): string[] => [...text];
const count = (parts: readonly Part[]): number =>
  parts.reduce((sum, each) => sum + (each.kind === "same" ? 0 : each.lines.length), 0);
const without = (parts: readonly Part[], kind: Part["kind"]): string =>
  parts.flatMap((each) => (each.kind === kind ? [] : each.lines)).join("");

/** Edits of a shortest way, by the table that everybody knows. */
function least(old: string, next: string): number {
  const row = Array.from({ length: next.length + 1 }, () => 0);
  for (const one of old) {
    let corner = 0;
    for (let at = 1; at <= next.length; at++) {
      const above = row[at]!;
      row[at] = one === next[at - 1] ? corner + 1 : Math.max(above, row[at - 1]!);
      corner = above;
    }
  }
  return old.length + next.length - 2 * row[next.length]!;
}

test("what is given leads from the one to the other, and nothing does it in fewer edits", () => {
  let seed = 1;
  const random = (below: number): number => (seed = (seed * 48271) % 2147483647) % below;
  const text = (): string => Array.from({ length: random(14) }, () => "abc"[random(3)]).join("");
  for (let round = 0; round < 3000; round++) {
    const [old, next] = [text(), text()];
    const parts = difference(lines(old), lines(next), 100)!;
    assert.equal(without(parts, "added"), old);
    assert.equal(without(parts, "removed"), next);
    assert.equal(count(parts), least(old, next), `${old} ${next}`);
    assert.ok(parts.every((each, at) => each.lines.length > 0 && each.kind !== parts[at + 1]?.kind));
  }
});

test("what is removed stands before what takes its place", () => {
  assert.deepEqual(
    difference(["a", "b", "c"], ["a", "x", "c"], 10)!.map((each) => each.kind),
    ["same", "removed", "added", "same"],
  );
});

test("what has too many edits is told as none", () => {
  assert.equal(difference(lines("abcd"), lines("wxyz"), 7), undefined);
  assert.equal(count(difference(lines("abcd"), lines("wxyz"), 8)!), 8);
  assert.deepEqual(difference([], [], 0), []);
});

test("a long text with a few edits is quick", () => {
  const old = Array.from({ length: 100_000 }, (_, at) => `line ${at}`);
  const next = old.map((each, at) => (at % 1000 === 0 ? `${each}!` : each));
  assert.equal(count(difference(old, next, 4000)!), 200);
});
