/** Time as people read it, and scales. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { clockOf, durationOf, joined, lengthOf, momentOf, scaleOf, ticksOf, without } from "../src/inspector/time.js";

test("durations have a fitting unit, and never 60 of one", () => {
  const told: [number, string][] = [
    [0, "0 ms"],
    [999, "999 ms"],
    [1_240, "1.24 s"],
    [9_994, "9.99 s"],
    [9_999, "10.0 s"],
    [59_949, "59.9 s"],
    [59_999, "1 min"],
    [125_000, "2 min 5 s"],
    [3_599_900, "1 h"],
    [3_720_000, "1 h 2 min"],
    [86_400_000, "1 d"],
    [100_800_000, "1 d 4 h"],
  ];
  for (const [ms, words] of told) assert.equal(durationOf(ms), words);
});

test("times are in the reader's time zone", () => {
  const at = new Date(2026, 10, 7, 9, 5, 3, 42).getTime();
  assert.equal(momentOf(at), "2026-11-07 09:05:03.042");
  assert.equal(clockOf(at), "09:05:03.042");
});

test("ticks are at round values, as many as there is room for", () => {
  assert.deepEqual(ticksOf(1000, 5), [0, 200, 400, 600, 800, 1000]);
  assert.deepEqual(ticksOf(4_100, 5), [0, 1000, 2000, 3000, 4000]);
  assert.deepEqual(ticksOf(0, 5), [0]);
  assert.ok(ticksOf(40 * 86_400_000, 5).length <= 6);
});

test("touching spans are merged, and the gaps between spans are found", () => {
  const spans = joined([
    { from: 5, to: 7 },
    { from: 0, to: 2 },
    { from: 2, to: 3 },
    { from: 6, to: 9 },
  ]);
  assert.deepEqual(spans, [
    { from: 0, to: 3 },
    { from: 5, to: 9 },
  ]);
  assert.equal(lengthOf(spans), 7);
  assert.deepEqual(without({ from: 1, to: 12 }, spans), [
    { from: 3, to: 5 },
    { from: 9, to: 12 },
  ]);
  assert.deepEqual(without({ from: 0, to: 3 }, spans), []);
});

test("busy times are to scale, and long idle times are shortened", () => {
  const hour = 3_600_000;
  const busy = [
    { from: 0, to: 1000 },
    { from: 10 * hour, to: 10 * hour + 1000 },
  ];
  const scale = scaleOf(0, 10 * hour + 1000, busy);
  assert.equal(scale.cuts.length, 1);
  const near = (one: number, other: number) => assert.ok(Math.abs(one - other) < 1e-6, `${one} is not ${other}`);
  near(scale.place(0), 0);
  near(scale.place(1000), 1000 / 2500);
  near(scale.place(10 * hour), 1500 / 2500);
  near(scale.place(10 * hour + 1000), 1);
  near(scale.place(500) * 2, scale.place(1000));
  for (const at of [0, 250, 1000, 10 * hour + 300]) near(scale.at(scale.place(at)), at);
});

test("without idle time a scale is linear, even without a length", () => {
  const scale = scaleOf(100, 300, [{ from: 100, to: 300 }]);
  assert.deepEqual(scale.cuts, []);
  assert.equal(scale.place(150), 0.25);
  assert.equal(scale.at(0.5), 200);
  assert.equal(scaleOf(5, 5, []).place(5), 0);
});
