/** The stream over many connections: resuming, waits, gaps and their reports. */

import assert from "node:assert/strict";
import { test } from "node:test";
import {
  type AnyEvent,
  type Client,
  type Connection,
  DaemonUnreachable,
  PositionLost,
  RemoteProtocolError,
  Unauthenticated,
} from "../src/index.js";
import { FakeDaemon, answer, frame, settled } from "./fakes.js";

const EVENTS = "GET /session/s/events";

function event(id: number, more: object = {}): { id: number; type: string } {
  return { id, type: "made_up", data: { sessionId: "s" }, ...more } as { id: number; type: string };
}

/** Attach to the session from its beginning and collect its events. */
async function listen(client: Client): Promise<AnyEvent[]> {
  const heard: AnyEvent[] = [];
  const session = await client.attach("s", { after: 0 });
  session.on("*", (each) => void heard.push(each));
  await settled();
  return heard;
}

const ids = (heard: readonly AnyEvent[]) => heard.map((each) => each.id);

test("a cut stream continues after its last event, with its epoch, and each event arrives once", async () => {
  const daemon = new FakeDaemon();
  const streams = daemon.streams();
  const client = await daemon.connect();
  const heard = await listen(client);
  streams[0]?.tell(event(1), event(2));
  streams[0]?.write("id: 3\nevent: made_up\nda");
  await settled();
  streams[0]?.cut();
  await daemon.clock.advance(50);
  assert.equal(daemon.named(EVENTS)[1]?.headers.get("last-event-id"), "2");
  assert.equal(daemon.named(EVENTS)[1]?.headers.get("turnwire-epoch"), "e");
  // One that repeats what we have, as something in between may.
  streams[1]?.tell(event(2), event(3), event(4));
  await settled();
  assert.deepEqual(ids(heard), [1, 2, 3, 4]);
  client.close();
});

test("a missing event is reported", async () => {
  const daemon = new FakeDaemon();
  const streams = daemon.streams();
  daemon.on("POST /session/s/prompt", () => answer({ promptId: "p", lastEventId: 0, eventEpoch: "e" }, 202));
  const client = await daemon.connect();
  const session = await client.attach("s", { after: 0 });
  const turn = session.prompt("hello");
  await settled();
  streams[0]?.tell(event(1), event(3));
  await assert.rejects(turn.result(), RemoteProtocolError);
});

test("an event of several envelopes arrives once and complete, wherever it is cut", async () => {
  const daemon = new FakeDaemon();
  const streams = daemon.streams();
  const client = await daemon.connect();
  const heard = await listen(client);
  const part = (text: string) => ({ type: "made_up", data: { sessionId: "s", text }, _meta: { partOf: 1 } });
  streams[0]?.tell(part("a"), part("b"));
  await settled();
  assert.equal(heard.length, 0);
  streams[0]?.cut();
  await daemon.clock.advance(5_000);
  streams[1]?.tell(part("a"), part("b"), event(1), event(2));
  await settled();
  assert.deepEqual(
    heard.map((each) => (each.data as { text?: string }).text ?? each.id),
    ["a", "b", 1, 2],
  );
  client.close();
});

test("waits start at the daemon's retry time, double, and have jitter", async () => {
  const daemon = new FakeDaemon();
  const streams = daemon.streams();
  const client = await daemon.connect();
  await listen(client);
  streams[0]?.write("retry: 4000\n\n");
  await settled();
  streams[0]?.tell(event(1));
  await settled();
  daemon.on(EVENTS, () => Promise.reject(new TypeError("fetch failed")));
  streams[0]?.cut();
  const tries = () => daemon.named(EVENTS).length;
  // At once, since the last connection brought something; then half of 4, 8 and 16 seconds, by this clock's chance.
  for (const [waitMs, expected] of [
    [25, 2],
    [1_999, 2],
    [1, 3],
    [3_999, 3],
    [1, 4],
    [7_999, 4],
  ] as const) {
    await daemon.clock.advance(waitMs);
    assert.equal(tries(), expected);
  }
  // One that brings something begins a new row.
  const later = daemon.streams();
  await daemon.clock.advance(1);
  later[0]?.tell(event(2));
  await settled();
  daemon.on(EVENTS, () => Promise.reject(new TypeError("fetch failed")));
  later[0]?.cut();
  for (const [waitMs, expected] of [
    [25, 6],
    [1_999, 6],
    [1, 7],
  ] as const) {
    await daemon.clock.advance(waitMs);
    assert.equal(tries(), expected);
  }
  client.close();
});

test("a stream that is silent for three heartbeats is reopened", async () => {
  const daemon = new FakeDaemon();
  const streams = daemon.streams();
  const client = await daemon.connect();
  const heard = await listen(client);
  streams[0]?.tell(event(1));
  for (let beat = 0; beat < 20; beat++) {
    await daemon.clock.advance(15_000);
    streams[0]?.write(": heartbeat\n\n");
  }
  await settled();
  assert.equal(streams.length, 1);
  await daemon.clock.advance(46_000);
  assert.equal(streams.length, 2);
  streams[1]?.tell(event(2));
  await settled();
  assert.deepEqual(ids(heard), [1, 2]);
  client.close();
});

test("silence never ends a turn, however long it lasts", async () => {
  const daemon = new FakeDaemon();
  const streams = daemon.streams();
  daemon.on("POST /session/s/prompt", () => answer({ promptId: "p", lastEventId: 0, eventEpoch: "e" }, 202));
  const client = await daemon.connect();
  const session = await client.attach("s", { after: 0 });
  const turn = session.prompt("hello");
  let isOver = false;
  void turn.then(() => (isOver = true));
  for (let beat = 0; beat < 8 * 60; beat++) {
    await daemon.clock.advance(15_000);
    streams.at(-1)?.write(": heartbeat\n\n");
  }
  await settled();
  assert.equal(isOver, false);
  streams
    .at(-1)
    ?.tell(
      event(1, {
        type: "turn_complete",
        promptId: "p",
        data: { sessionId: "s", promptId: "p", stopReason: "end_turn" },
      }),
    );
  assert.equal((await turn).stopReason, "end_turn");
  client.close();
});

test("a cursor that cannot be honoured is reported, and events continue from the oldest stored one", async () => {
  const daemon = new FakeDaemon();
  const streams = daemon.streams(EVENTS, { "turnwire-epoch": "other" });
  const client = await daemon.connect();
  const session = await client.attach("s", { after: { id: 7, epoch: "e" } });
  const heard: AnyEvent[] = [];
  session.on("*", (each) => void heard.push(each));
  await settled();
  const lost = {
    reason: "epoch_reset",
    detail: "epoch",
    lastDeliveredId: 7,
    earliestAvailableId: 3,
    sessionId: "s",
  };
  streams[0]?.tell({ type: "state_resync_required", data: lost }, event(3), event(4));
  await settled();
  assert.deepEqual(
    heard.map((each) => each.id ?? each.type),
    ["state_resync_required", 3, 4],
  );
  assert.deepEqual(session.position, { id: 4, epoch: "other" });
  client.close();
});

test("a turn whose events are gone gets its end from the daemon, and a loop over it throws", async () => {
  const daemon = new FakeDaemon();
  const streams = daemon.streams();
  const prompts = ["ended", "unknown", "running"];
  daemon.on("POST /session/s/prompt", () =>
    answer({ promptId: prompts.shift(), lastEventId: 0, eventEpoch: "e" }, 202),
  );
  const known = {
    sessionId: "s",
    promptId: "ended",
    state: "completed",
    endedAt: 9,
    stopReason: "end_turn",
    resultText: "so",
  };
  daemon.on("GET /session/s/turns/ended", () => answer(known));
  daemon.on("GET /session/s/turns/unknown", () => answer({ code: "prompt_not_found", detail: "no such" }, 404));
  daemon.on("GET /session/s/turns/running", () =>
    answer({ sessionId: "s", promptId: "running", state: "running" }),
  );
  const client = await daemon.connect();
  const session = await client.attach("s", { after: 0 });
  const [ended, unknown, running] = [session.prompt("a"), session.prompt("b"), session.prompt("c")];
  await running.accepted;
  const lost = { reason: "ring_evicted", lastDeliveredId: 0, earliestAvailableId: 50, sessionId: "s" };
  streams[0]?.tell({ type: "state_resync_required", data: lost });
  const result = await ended;
  assert.deepEqual([result.stopReason, result.text], ["end_turn", "so"]);
  await assert.rejects(unknown.result(), PositionLost);
  await assert.rejects(async () => {
    for await (const _ of running);
  }, PositionLost);
  const data = { sessionId: "s", promptId: "running", stopReason: "refusal" };
  streams[0]?.tell(event(50, { type: "turn_complete", promptId: "running", data }));
  assert.equal((await running).stopReason, "refusal");
  client.close();
});

test("a repeated prompt whose events are gone gets its end from the daemon, or an error", async () => {
  for (const isKnown of [true, false]) {
    const daemon = new FakeDaemon();
    const streams = daemon.streams();
    const receipt = { promptId: "p", lastEventId: 1, eventEpoch: "e", repeated: true };
    daemon.on("POST /session/s/prompt", () => answer(receipt, 202));
    const known = { sessionId: "s", promptId: "p", state: "completed", endedAt: 9, stopReason: "end_turn" };
    daemon.on("GET /session/s/turns/p", () =>
      isKnown ? answer(known) : answer({ code: "prompt_not_found", detail: "no such" }, 404),
    );
    const client = await daemon.connect();
    const turn = (await client.attach("s", { after: 5 })).prompt("x", { key: "again" });
    await settled();
    const lost = { reason: "ring_evicted", lastDeliveredId: 1, earliestAvailableId: 4, sessionId: "s" };
    streams[1]?.tell({ type: "state_resync_required", data: lost });
    if (isKnown) assert.equal((await turn).stopReason, "end_turn");
    else await assert.rejects(turn.result(), PositionLost);
    client.close();
  }
});

test("a stream that ends is reopened unless the session is closed", async () => {
  const daemon = new FakeDaemon();
  const streams = daemon.streams();
  const client = await daemon.connect();
  await listen(client);
  streams[0]?.end();
  await daemon.clock.advance(3_000);
  assert.equal(streams.length, 2);
  daemon.on("GET /session/s", () => answer({ sessionId: "s", lastEventId: 0, eventEpoch: "e", isClosed: true }));
  streams[1]?.end();
  await daemon.clock.advance(60_000);
  assert.equal(streams.length, 2);
  client.close();
});

test("a daemon that is away for too long is reported; a page waits forever", async () => {
  for (const reconnectMs of [60_000, Number.POSITIVE_INFINITY]) {
    const daemon = new FakeDaemon();
    daemon.on("POST /session/s/prompt", () => answer({ promptId: "p", lastEventId: 0, eventEpoch: "e" }, 202));
    daemon.on(EVENTS, () => Promise.reject(new TypeError("fetch failed")));
    const client = await daemon.connect({ reconnectMs });
    const outcome: unknown[] = [];
    const session = await client.attach("s");
    void session
      .prompt("x")
      .result()
      .catch((error: unknown) => outcome.push(error));
    await daemon.clock.advance(600_000);
    assert.equal(outcome[0] instanceof DaemonUnreachable, reconnectMs === 60_000);
    client.close();
    await settled();
  }
});

test("permanent errors are thrown immediately", async () => {
  const daemon = new FakeDaemon();
  daemon.on("POST /session/s/prompt", () => answer({ promptId: "p", lastEventId: 0, eventEpoch: "e" }, 202));
  daemon.on(EVENTS, () => answer({ code: "unauthenticated", detail: "this credential is not valid" }, 401));
  const client = await daemon.connect();
  const turn = (await client.attach("s")).prompt("x");
  await assert.rejects(turn.result(), (error) => {
    assert.ok(error instanceof Unauthenticated);
    assert.deepEqual(
      [error.message, error.code, error.status],
      ["this credential is not valid", "unauthenticated", 401],
    );
    return true;
  });
});

test("`reconnect` drops a possibly dead connection and ends a wait, and states are reported", async () => {
  const daemon = new FakeDaemon();
  const streams = daemon.streams();
  const states: Connection[] = [];
  const client = await daemon.connect({ onConnection: (each) => void states.push(each) });
  const heard = await listen(client);
  streams[0]?.tell(event(1));
  await settled();
  client.reconnect();
  await settled();
  assert.equal(streams.length, 2, "without any time passing");
  streams[1]?.tell(event(2));
  await settled();
  assert.deepEqual(ids(heard), [1, 2]);
  assert.deepEqual(
    states.map((each) => [each.state, each.sessionId]),
    [
      ["open", "s"],
      ["lost", "s"],
      ["open", "s"],
    ],
  );
  client.close();
});

test("many sessions share one connection, and the daemon's cursor is sent back unchanged", async () => {
  const daemon = new FakeDaemon();
  const streams = daemon.streams("GET /events");
  const client = await daemon.connect();
  const heard: string[] = [];
  const places: string[] = [];
  const reading = (async () => {
    for await (const { events, place } of client.events({ sessions: ["a", "b/c"] })) {
      heard.push(
        ...events.map((each) => `${(each.data as { sessionId?: string }).sessionId} ${each.id ?? each.type}`),
      );
      places.push(place);
      if (heard.length >= 7) break;
    }
  })();
  const of = (sessionId: string, id: number) => ({ id, type: "made_up", data: { sessionId } });
  await settled();
  assert.equal(daemon.got.at(-1)?.path, "/events?acp=1&session=a&session=b%2Fc");
  streams[0]?.write("retry: 3000\n\nid: m1.start\n\n");
  await settled();
  assert.deepEqual([heard, places], [[], ["m1.start"]], "it is open, and that is told");
  streams[0]?.write(frame(of("a", 4), "m1.a4") + frame(of("b/c", 9), "m1.b9") + frame(of("a", 5), "m1.a5"));
  await settled();
  streams[0]?.cut();
  await daemon.clock.advance(50);
  assert.equal(daemon.named("GET /events")[1]?.headers.get("last-event-id"), "m1.a5");
  // Repeated events are dropped by their session's number; a session whose numbers are lost starts again.
  streams[1]?.write(frame(of("b/c", 9), "m1.b9") + frame(of("b/c", 10), "m1.b10"));
  const lost = {
    reason: "epoch_reset",
    detail: "epoch",
    lastDeliveredId: 5,
    earliestAvailableId: 1,
    sessionId: "a",
  };
  streams[1]?.write(frame({ type: "state_resync_required", data: lost } as never) + frame(of("a", 1), "m1.a1"));
  streams[1]?.write(frame(of("a", 2), "m1.a2"));
  await reading;
  assert.deepEqual(heard, ["a 4", "b/c 9", "a 5", "b/c 10", "a state_resync_required", "a 1", "a 2"]);
  assert.equal(places.at(-1), "m1.a2");
  assert.equal(streams[1]?.isOver, true, "leaving the loop ends the connection");
  client.close();
});
