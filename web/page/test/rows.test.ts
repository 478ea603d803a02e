/** A conversation as rows: where the end of a turn stands, what moves and what does not. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { BLOCK_ROWS, Rows } from "../src/state/rows.js";

interface Said {
  readonly promptId?: string;
  readonly text: string;
}
const said = (text: string, promptId?: string): Said => (promptId === undefined ? { text } : { text, promptId });
const shown = (rows: Rows<Said>) =>
  rows.blocks.value.flatMap((block) =>
    block.rows.value.map((row) => (row.kind === "item" ? row.item.value.text : `end ${row.promptId}`)),
  );

test("an end follows the last item of its turn", () => {
  const rows = new Rows<Said>();
  rows.begin(0, [said("a", "1"), said("b", "1"), said("c", "2")], (each) => each === "1");
  assert.deepEqual(shown(rows), ["a", "b", "end 1", "c"]);
  rows.set(3, said("d", "2"));
  rows.end("2");
  rows.set(4, said("late"));
  assert.deepEqual(shown(rows), ["a", "b", "end 1", "c", "d", "end 2", "late"]);
});

test("a repeated end is shown once", () => {
  const rows = new Rows<Said>();
  rows.begin(0, [said("a", "1")], () => true);
  rows.end("1");
  assert.deepEqual(shown(rows), ["a", "end 1"]);
});

test("the end of a prompt that was removed from the queue is not shown", () => {
  const rows = new Rows<Said>();
  rows.begin(0, [said("a", "1")], () => false);
  rows.end("2");
  assert.deepEqual(shown(rows), ["a"]);
});

test("a turn that continues in a newer page has its end there", () => {
  const rows = new Rows<Said>();
  rows.begin(2, [said("c", "1")], () => true);
  rows.prepend(0, [said("a", "0"), said("b", "1")], () => true);
  assert.deepEqual(shown(rows), ["a", "end 0", "b", "c", "end 1"]);
});

test("an item that changes changes one row, and blocks keep their keys", () => {
  const rows = new Rows<Said>();
  const items = Array.from({ length: BLOCK_ROWS + 1 }, (_, at) => said(`${at}`));
  rows.begin(100, items, () => false);
  const before = rows.blocks.value;
  const lists = before.map((each) => each.rows.value);
  rows.set(100, said("other"));
  assert.equal(shown(rows)[0], "other");
  assert.equal(rows.blocks.value, before);
  assert.deepEqual(before.map((each, at) => each.rows.value === lists[at]), [true, true]);
  rows.prepend(99, [said("older")], () => false);
  assert.deepEqual(rows.blocks.value.slice(1), before);
  for (let at = 0; at < BLOCK_ROWS; at++) rows.set(200 + at, said("new"));
  assert.ok(rows.blocks.value.every((each) => each.rows.value.length <= BLOCK_ROWS));
});

test("reading again starts from scratch", () => {
  const rows = new Rows<Said>();
  rows.begin(0, [said("a", "1")], () => true);
  rows.begin(0, [said("a", "1"), said("b", "2")], () => true);
  assert.deepEqual(shown(rows), ["a", "end 1", "b", "end 2"]);
});
