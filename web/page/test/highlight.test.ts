/** Highlighted code in lines. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { languageOfPath, linesOf } from "../src/content/highlight.js";
import { highlighted } from "../src/content/languages.js";

test("each line has its tags closed and opened again", () => {
  const html = 'a <span class="x">b\nc <span class="y">d</span>\ne</span> f';
  assert.deepEqual(linesOf(html), [
    'a <span class="x">b</span>',
    '<span class="x">c <span class="y">d</span></span>',
    '<span class="x">e</span> f',
  ]);
});

test("code is escaped and has classes, never styles", () => {
  const html = highlighted('const a = "<script>alert(1)</script>"; // & so on', "ts")!;
  assert.ok(!html.includes("<script"));
  assert.ok(!html.includes("style="));
  assert.match(html, /class="code-kwd">const</);
  assert.equal(highlighted("x", "no-such-language"), undefined);
});

test("the language of a file follows from its name", () => {
  const known = (path: string): boolean => highlighted("x", languageOfPath(path)) !== undefined;
  assert.deepEqual(["/a/b.ts", "C:\\x\\y.PY", "Makefile", "x.toml", "k.yml", "m.hpp"].map(known), Array(6).fill(true));
  assert.deepEqual(["a.tar.gz", ".bashrc", "none", ""].map(known), Array(4).fill(false));
});
