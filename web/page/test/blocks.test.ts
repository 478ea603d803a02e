/** Markdown in pieces is the markdown of the whole. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Lexer, Parser } from "marked";

import { Blocks, htmlOf } from "../src/content/blocks.js";

const TEXTS = [
  "# Title\n\nSome *words* and `code`.\n\n- a\n- b\n\n  still b\n\n- c\n\nEnd.",
  "- a\n\n-\n\n- b\n\n1. one\n2. two\n\n\n   more of two\n\ntext\n",
  "text\n---\n\nmore\n===\nafter\n- list\n***\n",
  "```js\nconst a = 1;\n\n\n```\nafter\n~~~\nnever closed\n\n# no title\n",
  "    code\n\n\n    more code\n\ntext\n    not code\n",
  "| a | b |\n|---|:-:|\n| 1 | 2 |\nlast row\n\ntext | no table\n",
  "see [a] and [b][a]\n\nmore\n\n[a]: http://example.test/long 'a title'\n\nend [a]\n",
  "[x]\n\n[x]: not a definition at all\n\n[x]: /url\n(over\nlines)\n\n[x]\n\nend\n",
  '[q]: /u "open\n- item\n\nstill [q]\n\nclosed"\n\nend [q]\n',
  "> quote\nlazy\n\n> [z]: /in-quote\n\n[z]\n\n> - list\n>\n>   ```\n>   code\n",
  "<details>\n<summary>More</summary>\n\n- inside\n\n```py\nx\n```\n\n</details>\n\nafter\n",
  "<div>\nnever closed\n\n" + "word\n\n".repeat(80) + "end\n",
  "<!-- a comment\n\nover lines -->\n\ntext <b>bold</b>\n\n<pre>\n\nx\n</pre>\ny\n",
  "- [ ] open\n- [x] done\n  1. deep\n\n     deeper\n\n* another list\n",
  "line one\r\nline two\r\n\r\n- a\r\n- b\r",
  "a\\\nb  \nc\n\n\\# no title\n\n&amp; &lt;x&gt;\n\nhttp://example.test/x_y_z.\n",
  "**bold\n\nnot** bold _a_b_ ~~gone~~\n\n![alt](data:image/png;base64,AAAA)\n",
  "\n\n\ntext\n\n\n\n",
  "",
];

function inPieces(text: string, sizes: () => number): string {
  const blocks = new Blocks();
  for (let end = sizes(); end < text.length; end += sizes()) blocks.update(text.slice(0, end), false);
  return blocks
    .update(text, true)
    .blocks.map((each) => each.html)
    .join("");
}

/** The same numbers in each run. */
function dice(seed: number): () => number {
  return () => {
    seed = (seed * 1103515245 + 12345) % 2147483648;
    return seed / 2147483648;
  };
}

test("a text in chunks of any size gives the same HTML as the whole text", () => {
  const random = dice(7);
  const joined = TEXTS.map((_, index) => TEXTS[index]! + "\n\n" + TEXTS[(index * 7 + 3) % TEXTS.length]!);
  for (const text of [...TEXTS, ...joined]) {
    const whole = htmlOf(text);
    assert.equal(
      inPieces(text, () => 1),
      whole,
    );
    for (let round = 0; round < 15; round++) {
      assert.equal(
        inPieces(text, () => 1 + Math.floor(random() * 12)),
        whole,
        JSON.stringify(text),
      );
    }
  }
});

test("random lines of markup in random chunks give the same HTML as the whole text", () => {
  const lines = [
    "a",
    "- x",
    "  y",
    "    z",
    "",
    "",
    "> q",
    "```",
    "---",
    "===",
    "1. n",
    "|a|b|",
    "|-|-|",
    "[r]",
    "[r]: /u",
    "(t)",
    "# h",
    "<div>",
    "</div>",
    "*e",
    "  - s",
    "\ttab",
    "<p>",
    '"',
    "[r]: /u 't",
    "+ p",
    "<foo>",
    "<script>",
    "x <y",
    "<!-- c",
    "-->",
  ];
  const random = dice(11);
  for (let round = 0; round < 800; round++) {
    const text = Array.from({ length: 9 }, () => lines[Math.floor(random() * lines.length)]!).join("\n");
    assert.equal(
      inPieces(text, () => 1 + Math.floor(random() * 4)),
      htmlOf(text),
      JSON.stringify(text),
    );
  }
});

test("the HTML equals marked's HTML of the whole text", () => {
  for (const text of TEXTS.filter((each) => !each.startsWith("[q]"))) {
    assert.equal(htmlOf(text), Parser.parse(new Lexer().lex(text)));
  }
});

test("unknown tags are shown as text, and in users' messages all tags are", () => {
  assert.equal(htmlOf("run it with <file> now"), "<p>run it with &lt;file&gt; now</p>\n");
  assert.equal(htmlOf("<script>\nx\n</script>"), "<p>&lt;script&gt;\nx\n&lt;/script&gt;</p>\n");
  assert.equal(htmlOf("a <b>c</b>"), "<p>a <b>c</b></p>\n");
  const typed = new Blocks([]).update("why does <b> or <!-- this --> fail\n\n<div>", true);
  assert.deepEqual(
    typed.blocks.map((each) => each.html),
    ["<p>why does &lt;b&gt; or &lt;!-- this --&gt; fail</p>\n", "<p>&lt;div&gt;</p>\n"],
  );
});

test("a settled block is not parsed again", () => {
  const blocks = new Blocks();
  const text = "First.\n\nSecond.\n\n```js\nx\n```\n\nThird and";
  const before = blocks.update(text, false);
  assert.equal(before.settled, 2);
  const after = blocks.update(text + " more words.\n\nFourth.\n\n", false);
  assert.equal(after.kept, 2);
  assert.equal(after.blocks[0], before.blocks[0]);
  assert.equal(after.blocks[1], before.blocks[1]);
  assert.equal(after.settled, 4);
});

test("another text starts from scratch", () => {
  const blocks = new Blocks();
  blocks.update("One.\n\nTwo.\n\nThree.", false);
  const change = blocks.update("Other.\n\nwords.", true);
  assert.equal(change.kept, 0);
  assert.deepEqual(
    change.blocks.map((each) => each.html),
    ["<p>Other.</p>\n", "<p>words.</p>\n"],
  );
});

test("half-written markup at the end is closed while the text grows", () => {
  const open = (text: string): string => new Blocks().update(text, false).blocks.at(-1)!.html;
  assert.equal(open("some **bold"), "<p>some <strong>bold</strong></p>\n");
  assert.equal(open("a `code"), "<p>a <code>code</code></p>\n");
  assert.equal(open("a [link](http://exam"), "<p>a link</p>\n");
  assert.equal(new Blocks().update("some **bold", true).blocks[0]!.html, "<p>some **bold</p>\n");
});

test("an open or closed fence is code with its language", () => {
  const blocks = new Blocks();
  assert.deepEqual(blocks.update("```ts title=x\nlet a", false).blocks[0]!.code, { text: "let a", language: "ts" });
  assert.deepEqual(blocks.update("```ts title=x\nlet a;\n```\n", true).blocks[0]!.code, {
    text: "let a;",
    language: "ts",
  });
});

test("streaming a long message costs only its tail", () => {
  const blocks = new Blocks();
  const paragraph = "Some words of a paragraph that is not short, with *markup*.\n\n";
  let text = "";
  let most = 0;
  for (let count = 0; count < 2000; count++) {
    text += paragraph;
    const { blocks: all, kept } = blocks.update(text, false);
    most = Math.max(most, all.length - kept);
  }
  assert.ok(most <= 4, `${most} blocks were made in one update`);
});

test("without a sanitizer tags are shown as text", () => {
  const text = "a <b onclick=x()>b</b>\n\n<script>alert(1)</script>\n\n- <i>c</i>\n\n| <u>d</u> |\n| --- |\n| <br> |\n\n`<i>` **e**";
  const { blocks } = new Blocks([]).update(text, true);
  const html = blocks.map((each) => each.html).join("");
  assert.deepEqual(html.match(/<(?:script|b|i|u|br)\b/g), null);
  assert.match(html, /<strong>e<\/strong>/);
  assert.ok(blocks.every((each) => each.isPlain));
  assert.ok(new Blocks().update("| a |\n| --- |\n| <br> |\n", true).blocks.some((each) => !each.isPlain));
});
