/** Times and amounts in few letters. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { costInWords, durationInWords, tokensInWords } from "../src/content/amounts.js";

test("durations have a fitting unit", () => {
  assert.deepEqual([0, 999, 1000, 59_940, 59_960, 61_200, 3_600_000].map(durationInWords), [
    "0 ms",
    "999 ms",
    "1.0 s",
    "59.9 s",
    "1 min 0 s",
    "1 min 1 s",
    "1 h 0 min",
  ]);
});

test("tokens are counted in thousands and millions", () => {
  assert.deepEqual([0, 999, 1500, 9960, 45_200, 999_600, 1_250_000].map(tokensInWords), [
    "0",
    "999",
    "1.5k",
    "10k",
    "45k",
    "1.0M",
    "1.3M",
  ]);
});

test("costs are in their currency, or in a unit of the agent's own", () => {
  assert.equal(costInWords(0.0312, "USD"), "$0.0312");
  assert.equal(costInWords(1.5, "EUR"), "€1.50");
  assert.equal(costInWords(12, "credits"), "12 credits");
});
