/** What a prompt is made of: files, comments on lines, commands; what an agent offers; how a turn ended. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { attach, base64, fenced, takesOf, textOf } from "../src/conversation/attachments.js";
import { promptOf } from "../src/conversation/line_comments.js";
import { choicesOf } from "../src/conversation/options.js";
import { chosen, fitting } from "../src/conversation/slash_commands.js";
import { endOf } from "../src/conversation/turn_end.js";

const NOTHING = { image: false, audio: false, embeddedContext: false };

test("accepted content is read from the capabilities of both versions of ACP", () => {
  const all = { image: true, audio: false, embeddedContext: true };
  assert.deepEqual(takesOf({ promptCapabilities: { image: true, audio: false, embeddedContext: true } }), all);
  assert.deepEqual(takesOf({ session: { prompt: { image: {}, embeddedContext: {} } } }), all);
  assert.deepEqual(takesOf(undefined), NOTHING);
  assert.deepEqual(takesOf({ promptCapabilities: { image: false } }), NOTHING);
});

test("an image is attached if the agent accepts images, and rejected with a reason otherwise", async () => {
  const file = new File([new Uint8Array([1, 2, 3])], "cat.png", { type: "image/png" });
  const made = await attach(file, { ...NOTHING, image: true });
  assert.ok("block" in made);
  assert.deepEqual(made.block, { type: "image", data: "AQID", mimeType: "image/png" });
  assert.deepEqual(await attach(file, NOTHING), { name: "cat.png", why: "This agent does not accept images." });
});

test("a text is attached as a resource, or as plain text if the agent accepts nothing else", async () => {
  const file = new File(["a\n```\nb\n"], "notes.md", { type: "text/markdown" });
  const resource = await attach(file, { ...NOTHING, embeddedContext: true });
  assert.ok("block" in resource);
  assert.deepEqual(resource.block, {
    type: "resource",
    resource: { uri: "attachment:///notes.md", text: "a\n```\nb\n", mimeType: "text/markdown" },
  });
  const plain = await attach(file, NOTHING);
  assert.ok("block" in plain);
  assert.deepEqual(plain.block, { type: "text", text: "notes.md:\n````\na\n```\nb\n````" });
});

test("a file that is neither text nor an image is rejected", async () => {
  const file = new File([new Uint8Array([0, 255, 1])], "a.bin");
  assert.deepEqual(await attach(file, NOTHING), { name: "a.bin", why: "The file is neither text nor an image." });
  assert.equal(textOf(new Uint8Array([0xc3, 0x28])), undefined);
  assert.equal(textOf(new TextEncoder().encode("grün")), "grün");
});

test("any number of bytes is encoded as base64", () => {
  const bytes = Uint8Array.from({ length: 100_000 }, (_, at) => at % 251);
  assert.equal(base64(bytes), Buffer.from(bytes).toString("base64"));
});

test("a fence is longer than any in the text", () => {
  assert.equal(fenced("a", "x"), "a:\n```\nx\n```");
  assert.equal(fenced("a", "`````"), "a:\n``````\n`````\n``````");
});

test("comments on lines become part of the prompt, with their locations", () => {
  const comment = { path: "/p/a.py", line: 7, side: "new", text: "  x = 1", comment: "why 1?" } as const;
  assert.equal(promptOf("Mend this.", []), "Mend this.");
  assert.equal(promptOf(" ", [comment]), "A comment on the change:\n\n/p/a.py:7\n> x = 1\nwhy 1?");
  assert.equal(
    promptOf("Mend this.", [comment, { ...comment, side: "old", comment: "keep it" }]),
    "Mend this.\n\nComments on the changes:\n\n/p/a.py:7\n> x = 1\nwhy 1?\n\n/p/a.py, line 7 before the change\n> x = 1\nkeep it",
  );
});

test("commands with the typed prefix come before others that contain it, and none after a space", () => {
  const commands = ["demo", "compact", "mode"].map((name) => ({ name, description: "" }));
  const names = (text: string) => fitting(text, commands).map((each) => each.name);
  assert.deepEqual(names("/"), ["demo", "compact", "mode"]);
  assert.deepEqual(names("/mo"), ["mode", "demo"]);
  assert.deepEqual(names("/Comp"), ["compact"]);
  assert.deepEqual(names("/demo x"), []);
  assert.deepEqual(names("see /demo"), []);
  assert.equal(chosen({ name: "demo", description: "", input: { hint: "x" } }), "/demo ");
  assert.equal(chosen({ name: "help", description: "" }), "/help");
});

test("options, modes and models are offered once each, in both versions", () => {
  const options = [
    { id: "m", type: "select", name: "Mode", category: "mode", currentValue: "ask", options: [{ value: "ask", name: "Ask" }] },
    { configId: "fast", type: "boolean", name: "Fast", currentValue: true },
    { configId: "g", type: "select", name: "G", currentValue: "b", options: [{ group: "x", name: "X", options: [{ value: "b", name: "B" }] }] },
  ];
  const models = [{ modelId: "large", name: "Large" }];
  const choices = choicesOf({ configOptions: options, mode: "ask", modes: [{ id: "ask", name: "Ask" }], model: "large", models });
  assert.deepEqual(choices.map((each) => [each.id, each.value, each.values.length]), [
    ["m", "ask", 1],
    ["fast", true, 0],
    ["g", "b", 1],
    ["model", "large", 1],
  ]);
  assert.deepEqual(choicesOf({}), []);
});

test("the end of a turn in words", () => {
  const turn = { promptId: "p" };
  assert.equal(endOf({ ...turn, outcome: { stopReason: "end_turn" } }), "Done");
  assert.equal(endOf({ ...turn, cancelledBy: "ann", outcome: { stopReason: "cancelled", ending: "cancelled" } }), "Cancelled by ann");
  assert.equal(endOf({ ...turn, outcome: { stopReason: "cancelled", ending: "removed" } }), "Removed from the queue");
  assert.equal(endOf({ ...turn, outcome: { stopReason: "odd" } }), "Ended: odd");
  assert.equal(endOf({ ...turn, outcome: { error: { code: "daemon_restarted", message: "m" } } }), "The daemon was restarted during this turn");
});
