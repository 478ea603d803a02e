/** What a terminal would show of a command's output. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { bytesOf, lastLines, lineCount, terminalLines } from "../src/content/ansi.js";

function written(output: string): string[] {
  return terminalLines(output).map((line) =>
    line.map(({ text, classes }) => (classes ? `<${classes}>${text}</>` : text)).join(""),
  );
}

test("colours and weights become classes, across lines", () => {
  assert.deepEqual(written("\x1b[1;31mbad\x1b[0m ok\n\x1b[92mgreen\nstill\x1b[39m plain\n"), [
    "<ansi-red ansi-bold>bad</> ok",
    "<ansi-bright-green>green</>",
    "<ansi-bright-green>still</> plain",
  ]);
  assert.deepEqual(written("\x1b[44;4mx\x1b[0m"), ["<ansi-on-blue ansi-underline>x</>"]);
});

test("colours of larger palettes become the nearest of sixteen", () => {
  assert.deepEqual(written("\x1b[38;5;196mx\x1b[0m"), ["<ansi-red>x</>"]);
  assert.deepEqual(written("\x1b[38;5;9mx\x1b[0m"), ["<ansi-bright-red>x</>"]);
  assert.deepEqual(written("\x1b[38;5;240mx\x1b[0m"), ["<ansi-bright-black>x</>"]);
  assert.deepEqual(written("\x1b[48;2;250;250;250mx\x1b[0m"), ["<ansi-on-bright-white>x</>"]);
});

test("a carriage return overwrites the line", () => {
  assert.deepEqual(written("10%\r50%\r100%\ndone\r\n"), ["100%", "done"]);
  assert.deepEqual(written("a long line\rshort\n"), ["shortg line"]);
  assert.deepEqual(written("a long line\r\x1b[Kshort\n"), ["short"]);
  assert.deepEqual(written("a long line\x1b[2K\rshort\n"), ["short"]);
  assert.deepEqual(written("abc\b\bX"), ["aXc"]);
  assert.deepEqual(written("\x1b[31mred\x1b[0m\rX"), ["X<ansi-red>ed</>"]);
});

test("control sequences are dropped", () => {
  assert.deepEqual(
    written("a\x1b[2J\x1b[H\x1b]0;title\x07b\x1b]8;;http://x\x1b\\c\x1b(B\x07\x00d\x1b[?25le\x1bMf"),
    ["abcdef"],
  );
  assert.deepEqual(written("cut off \x1b["), ["cut off "]);
  assert.deepEqual(written("cut off \x1b]0;titl"), ["cut off "]);
  assert.deepEqual(written("<b>&amp;"), ["<b>&amp;"]);
});

test("the last lines of an output come with the number of lines before them", () => {
  assert.deepEqual(lastLines("a\nb\nc\nd\n", 2), { text: "c\nd\n", before: 2 });
  assert.deepEqual(lastLines("a\nb\nc\nd", 2), { text: "c\nd", before: 2 });
  assert.deepEqual(lastLines("a\nb\n", 5), { text: "a\nb\n", before: 0 });
  assert.deepEqual(lastLines("\n\nx\n", 1), { text: "x\n", before: 2 });
  assert.deepEqual(lastLines("", 5), { text: "", before: 0 });
  assert.deepEqual(["", "a", "a\n", "a\nb"].map(lineCount), [0, 1, 1, 2]);
});

test("invalid base64 is an empty output", () => {
  assert.deepEqual([...bytesOf("aGk=")], [104, 105]);
  assert.equal(bytesOf("?").length, 0);
});
