/** Half-written markup is shown closed. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Lexer, Parser } from "marked";

import { closed } from "../src/content/closing.js";

const CASES: readonly (readonly [string, string])[] = [
  ["some **bold", "some **bold**"],
  ["some **bold ", "some **bold**"],
  ["some **bold*", "some **bold**"],
  ["some **", "some "],
  ["some *", "some "],
  ["a *b **c", "a *b **c***"],
  ["***both", "***both***"],
  ["snake_case_name", "snake_case_name"],
  ["_under", "_under_"],
  ["~~gone", "~~gone~~"],
  ["20~25", "20~25"],
  ["2 * 3", "2 * 3"],
  ["**done** and", "**done** and"],
  ["\\*not", "\\*not"],
  ["a `code", "a `code`"],
  ["a ``co`de", "a ``co`de``"],
  ["a ``co`", "a ``co``"],
  ["a `", "a "],
  ["`**` and **b", "`**` and **b**"],
  ["**a `b", "**a `b`**"],
  ["a [link", "a link"],
  ["a [link](http://x", "a link"],
  ["a [link](http://x) b", "a [link](http://x) b"],
  ["**a [link](http", "**a link**"],
  ["a [1] b", "a [1] b"],
  ["- [x", "- "],
  ["- [x]", "- "],
  ["- [x] done", "- [x] done"],
  ["an ![image](data:", "an "],
  ["a <b", "a "],
  ["a < b", "a < b"],
  ["a <b>c", "a <b>c"],
  ["text\n-", "text"],
  ["text\n=", "text"],
  ["text\n--", "text"],
  ["- **one\n- two", "- **one\n- two"],
  ["- one\n- **two", "- one\n- **two**"],
  ["* item", "* item"],
  ["> *quote", "> *quote*"],
  ["| a | **b", "| a | **b**"],
  ["# *title", "# *title*"],
  ["plain", "plain"],
  ["", ""],
];

for (const [text, wanted] of CASES) {
  test(`${JSON.stringify(text)} is shown as ${JSON.stringify(wanted)}`, () => assert.equal(closed(text), wanted));
}

test("no markup character is visible at any moment while a paragraph is streamed", () => {
  const text =
    "Some **bold words**, `code()` and *emphasis with **more** in it*, ~~gone~~, a [link](http://example.test/a_b) too.";
  for (let end = 1; end <= text.length; end++) {
    const html = Parser.parse(new Lexer().lex(closed(text.slice(0, end))));
    assert.doesNotMatch(html.replace(/href="[^"]*"/g, ""), /[*`~[\]]/, text.slice(0, end));
  }
});
