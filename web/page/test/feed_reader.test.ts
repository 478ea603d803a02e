/**
 * The shared reader: the events of each tab, and when they start. Test names contain the rules of `feed_reader.ts`.
 */

import assert from "node:assert/strict";
import { test } from "node:test";

import { type AnyEvent, type Batch, DaemonUnreachable, Unauthenticated } from "@turnwire/client";
import type { ReaderOptions } from "@turnwire/client/reader";

import { FeedReader, type Stream } from "../src/state/feed_reader.js";
import type { ToTab } from "../src/state/feed_words.js";

const event = (id: number, sessionId: string, type = "turn_complete", update?: string) =>
  ({ id, v: 1, type, data: { sessionId, ...(update ? { update: { sessionUpdate: update } } : {}) } }) as unknown as AnyEvent;
const chunk = (id: number, sessionId: string) => event(id, sessionId, "session_update", "agent_message_chunk");

/** A daemon whose stream the test writes. */
class Daemon implements Stream {
  reconnects = 0;
  connections = 0;
  readonly places: (string | undefined)[] = [];
  options: ReaderOptions | undefined;
  #waiting: ((batch: Batch<string> | Error) => void)[] = [];

  readonly reach = (_: string, options: ReaderOptions): Stream => {
    this.connections++;
    this.options = options;
    return this;
  };
  async *events({ after }: { readonly after?: string } = {}): AsyncGenerator<Batch<string>, void, undefined> {
    this.places.push(after);
    for (;;) {
      const next = await new Promise<Batch<string> | Error>((resolve) => this.#waiting.push(resolve));
      if (next instanceof Error) throw next;
      yield next;
    }
  }
  /** The reader waits for the next event. */
  async isRead(): Promise<void> {
    while (this.#waiting.length === 0) await new Promise((resolve) => setImmediate(resolve));
  }
  async say(place: string, ...events: AnyEvent[]): Promise<void> {
    await this.isRead();
    this.#waiting.shift()!({ place, events });
    await this.isRead();
  }
  async fail(error: Error): Promise<void> {
    await this.isRead();
    this.#waiting.shift()!(error);
  }
  reconnect(): void {
    this.reconnects++;
  }
  close(): void {}
}

class Tab {
  readonly heard: ToTab[] = [];
  readonly say;
  constructor(reader: FeedReader, name = "tab") {
    this.say = reader.join((words) => this.heard.push(words));
    this.say({ say: "hello", pageKey: undefined, base: "http://d/", tab: name });
  }
  get ids(): number[] {
    return this.heard.flatMap((each) => (each.say === "events" ? each.events.map((one) => one.id!) : []));
  }
  get words(): string[] {
    return this.heard.map((each) => each.say);
  }
}

test("T1: a tab gets every event after `begun`, except chunks of sessions that it does not show", async () => {
  const daemon = new Daemon();
  const reader = new FeedReader(daemon.reach);
  const first = new Tab(reader);
  assert.ok(!first.words.includes("begun"));
  await daemon.say("0");
  assert.equal(first.words.at(-1), "begun");
  await daemon.say("1", event(1, "a"), chunk(2, "a"), event(3, "a"));
  const second = new Tab(reader, "other");
  assert.equal(second.words.at(-1), "begun");
  await daemon.say("2", event(4, "a"));
  assert.deepEqual([first.ids, second.ids], [[1, 3, 4], [4]]);
  assert.equal(daemon.connections, 1);
});

test("T2: after `wanted` a tab gets the chunks of the named sessions only", async () => {
  const daemon = new Daemon();
  const tab = new Tab(new FeedReader(daemon.reach));
  await daemon.say("0");
  tab.say({ say: "want", sessions: ["a"], number: 7 });
  assert.deepEqual(tab.heard.at(-1), { say: "wanted", number: 7 });
  await daemon.say("1", chunk(1, "a"), chunk(1, "b"));
  assert.deepEqual(tab.ids, [1]);
  tab.say({ say: "want", sessions: [], number: 8 });
  await daemon.say("2", chunk(2, "a"));
  assert.deepEqual(tab.ids, [1]);
});

test("T3: a frozen tab gets `begun` again, and no events from before it", async () => {
  const daemon = new Daemon();
  const reader = new FeedReader(daemon.reach);
  const tab = new Tab(reader);
  const other = new Tab(reader, "other");
  await daemon.say("0");
  tab.say({ say: "bye" });
  await daemon.say("1", event(1, "a"));
  tab.say({ say: "hello", pageKey: undefined, base: "http://d/", tab: "tab" });
  assert.equal(tab.words.at(-1), "begun");
  await daemon.say("2", event(2, "a"));
  assert.deepEqual([tab.ids, other.ids], [[2], [1, 2]]);
});

test("a failed stream is reopened after the last event", async (context) => {
  context.mock.timers.enable({ apis: ["setTimeout"] });
  const daemon = new Daemon();
  const tab = new Tab(new FeedReader(daemon.reach));
  await daemon.say("5", event(1, "a"));
  await daemon.fail(new DaemonUnreachable("gone"));
  while (tab.heard.at(-1)?.say !== "link") await new Promise((resolve) => setImmediate(resolve));
  context.mock.timers.tick(2_000);
  await daemon.isRead();
  assert.deepEqual(daemon.places, [undefined, "5"]);
});

test("the end of a login is reported, and the next tab starts from scratch", async () => {
  const daemon = new Daemon();
  const reader = new FeedReader(daemon.reach);
  const tab = new Tab(reader);
  await daemon.say("0");
  await daemon.fail(new Unauthenticated("unauthenticated", "no"));
  while (tab.heard.at(-1)?.say !== "link") await new Promise((resolve) => setImmediate(resolve));
  assert.deepEqual(tab.heard.at(-1), { say: "link", link: "refused" });
  const next = new Tab(reader, "next");
  assert.ok(!next.words.includes("begun"));
  await daemon.say("0");
  assert.equal(next.words.at(-1), "begun");
});

test("a tab that becomes visible wakes the stream", async () => {
  const daemon = new Daemon();
  const tab = new Tab(new FeedReader(daemon.reach));
  await daemon.isRead();
  tab.say({ say: "wake" });
  assert.equal(daemon.reconnects, 1);
});
