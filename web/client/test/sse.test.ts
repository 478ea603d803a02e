/** The parser: the same events however the bytes are cut. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { type SseEvent, SseParser } from "../src/sse.js";

const STREAM =
  "\ufeffretry: 3000\n\n" +
  "id: 1\nevent: one\ndata: first\n\n" +
  ": heartbeat\n\n" +
  "id: 2\r\nevent: two\r\ndata: second line one\r\ndata:second line two\r\n\r\n" +
  "id: 3\revent: three\rdata: grüße, 日本, 🦜\r\r" +
  "data\ndata\n\n" +
  "id: 4\n\n" +
  "id: a\0b\nretry: soon\nnonsense\nevent: five\ndata:  two spaces\n\n" +
  "event: nothing\n\n" +
  "data: without a type\n\n" +
  "data: never finished\n";

const EVENTS: SseEvent[] = [
  { type: "one", data: "first" },
  { type: "two", data: "second line one\nsecond line two" },
  { type: "three", data: "grüße, 日本, 🦜" },
  { type: "message", data: "\n" },
  { type: "five", data: " two spaces" },
  { type: "message", data: "without a type" },
];

function parse(pieces: Iterable<Uint8Array>): [SseEvent[], string, number | undefined] {
  const parser = new SseParser();
  const events = [...pieces].flatMap((piece) => parser.feed(piece));
  return [events, parser.lastEventId, parser.retryMs];
}

const bytes = new TextEncoder().encode(STREAM);
const expected = [EVENTS, "4", 3000] as const;

test("a stream is parsed as the standard says", () => {
  assert.deepEqual(parse([bytes]), expected);
});

test("a stream split at any byte gives the same events", () => {
  for (let at = 0; at <= bytes.length; at++) {
    assert.deepEqual(parse([bytes.subarray(0, at), bytes.subarray(at)]), expected, `cut at ${at}`);
  }
});

test("a stream in chunks of any size gives the same events", () => {
  for (let size = 1; size < 40; size++) {
    const pieces = Array.from({ length: Math.ceil(bytes.length / size) }, (_, piece) =>
      bytes.subarray(piece * size, (piece + 1) * size),
    );
    assert.deepEqual(parse(pieces), expected, `pieces of ${size}`);
  }
});

test("an event is returned as soon as its last line ends, even with a CR", () => {
  const parser = new SseParser();
  const feed = (text: string) => parser.feed(new TextEncoder().encode(text));
  assert.deepEqual(feed("data: x\r\r"), [{ type: "message", data: "x" }]);
  assert.deepEqual(feed("\ndata: y\r\n\r"), [{ type: "message", data: "y" }]);
  assert.deepEqual(feed("\ndata: z\n\n"), [{ type: "message", data: "z" }]);
});
