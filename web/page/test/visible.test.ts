/** Characters that hide or turn round others are shown as marks. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { askedOf, optionName } from "../src/content/asked.js";
import { isMarked, visible } from "../src/content/visible.js";

const TURNED = "echo '\u202E' ; rm -rf ~ '\u2066# \u2069'";

test("bidirectional controls and zero-width characters become marks", () => {
  assert.equal(visible(TURNED), "echo '⟨U+202E⟩' ; rm -rf ~ '⟨U+2066⟩# ⟨U+2069⟩'");
  for (const each of ["\u200B", "\u200C", "\u200D", "\u2060", "\uFEFF", "\u00AD", "\u{E0041}", "\r", "\u001B", "\u2028"]) {
    assert.match(visible(`rm${each} x`), /^rm⟨U\+[0-9A-F]{4,}⟩ x$/u);
    assert.ok(isMarked(`rm${each} x`));
  }
});

test("ordinary text is not marked: lines, tabs, emoji, scripts with joiners", () => {
  for (const each of ["a\n\tb", "👩‍👩‍👧 ❤️", "👍🏽‍", "می\u200Cخواهم", "क्\u200Dष", "שלום", ""]) assert.equal(visible(each), each);
});

test("a permission request shows marks everywhere, and reports them", () => {
  const options = [{ optionId: "y", name: "Re\u202Eject", kind: "allow_once" }];
  const asked = askedOf({ requestId: "r", method: "m", params: {}, options, title: "\u200BRun", subject: { type: "command", command: TURNED, cwd: "/w\u200B" } });
  assert.deepEqual([asked.title, asked.command, asked.folder], ["⟨U+200B⟩Run", visible(TURNED), "/w⟨U+200B⟩"]);
  assert.ok(asked.hasMarks);
  assert.equal(optionName(options[0]!), "Re⟨U+202E⟩ject");
  const plain = askedOf({ requestId: "r", method: "m", params: {}, subject: { type: "command", command: "ls" } });
  assert.ok(!plain.hasMarks);
  assert.ok(askedOf({ requestId: "r", method: "m", params: {}, toolCall: { toolCallId: "1", rawInput: { a: ["\u202E"] } } }).hasMarks);
});
