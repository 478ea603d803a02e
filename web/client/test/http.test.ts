/** Requests: retries, errors and types. */

import assert from "node:assert/strict";
import { test } from "node:test";
import {
  type AnyEvent,
  ClientClosed,
  DaemonRefused,
  DaemonUnreachable,
  QueueFull,
  SessionBusy,
  TurnwireError,
  connect,
} from "../src/index.js";
import { CAPABILITIES, FakeDaemon, answer, settled } from "./fakes.js";

test("after a lost response a read is retried, and a change is not", async () => {
  const daemon = new FakeDaemon();
  const client = await daemon.connect();
  let tries = 0;
  daemon.on("GET /agents", () => (++tries < 3 ? Promise.reject(new TypeError("reset")) : answer({ agents: [] })));
  const looked = client.agents();
  await daemon.clock.advance(1_000);
  assert.deepEqual(await looked, []);
  daemon.on("POST /x", () => Promise.reject(new TypeError("reset")));
  await assert.rejects(client.request("POST", "/x", {}), DaemonUnreachable);
  assert.equal(daemon.named("POST /x").length, 1);
});

test("a request that was certainly not executed is retried when the daemon asks for it, for a while", async () => {
  const daemon = new FakeDaemon();
  const client = await daemon.connect();
  let tries = 0;
  const refusal = () => answer({ code: "shutting_down", detail: "it stops" }, 503, { "retry-after": "2" });
  daemon.on("POST /x", () => (++tries < 2 ? refusal() : answer(undefined, 204)));
  const asked = client.request("POST", "/x", {});
  await daemon.clock.advance(1_900);
  assert.equal(tries, 1);
  await daemon.clock.advance(200);
  await asked;
  daemon.on("POST /x", refusal);
  const given = assert.rejects(client.request("POST", "/x", {}), { code: "shutting_down" });
  await daemon.clock.advance(20_000);
  await given;
});

test("a full queue is not retried", async () => {
  const daemon = new FakeDaemon();
  const client = await daemon.connect();
  const problem = { code: "prompt_queue_full", detail: "8 wait", limit: 8 };
  daemon.on("POST /session/s/prompt", () => answer(problem, 503, { "retry-after": "1" }));
  daemon.streams();
  const turn = (await client.attach("s")).prompt("x");
  await assert.rejects(turn.result(), (error) => {
    assert.ok(error instanceof QueueFull);
    assert.deepEqual([error.message, error.context["limit"], error.context["retryAfterMs"]], ["8 wait", 8, 1_000]);
    return true;
  });
  client.close();
});

test("an unknown code is kept, and a response without a problem has its status", async () => {
  const daemon = new FakeDaemon();
  const client = await daemon.connect();
  daemon.on("GET /x", () => answer({ code: "brand_new", detail: "as of tomorrow" }, 418));
  await assert.rejects(client.request("GET", "/x"), (error) => {
    assert.ok(error instanceof DaemonRefused);
    assert.deepEqual([error.code, error.message, error.status], ["brand_new", "as of tomorrow", 418]);
    return true;
  });
  daemon.on("GET /x", () => new Response("<html>", { status: 451 }));
  await assert.rejects(client.request("GET", "/x"), { code: "http_451" });
  daemon.on("GET /x", () => new Response("<html>"));
  await assert.rejects(client.request("GET", "/x"), { code: "peer_broke_protocol" });
});

test("requests send the token and no cookie; without a token the browser's login", async () => {
  const sent: RequestInit[] = [];
  const fetch = (_: unknown, init: RequestInit) => {
    sent.push(init);
    return Promise.resolve(answer(CAPABILITIES));
  };
  await connect("http://daemon.test/below/", { token: "tw_x", fetch: fetch as never });
  await connect("http://daemon.test", { fetch: fetch as never });
  assert.equal(new Headers(sent[0]?.headers).get("authorization"), "Bearer tw_x");
  assert.equal(sent[0]?.credentials, "omit");
  assert.equal(new Headers(sent[1]?.headers).get("authorization"), null);
  assert.equal(sent[1]?.credentials, "include");
  assert.ok(sent.every((each) => each.redirect === "error"));
});

test("an unreachable daemon and an invalid URL are reported immediately", async () => {
  const away = () => Promise.reject(new TypeError("fetch failed"));
  await assert.rejects(connect("http://daemon.test", { fetch: away as never }), DaemonUnreachable);
  await assert.rejects(connect("http://user@daemon.test"), TypeError);
  await assert.rejects(connect("ws://daemon.test"), TypeError);
});

test("a missing response fails after a minute, and when the client is closed", async () => {
  const daemon = new FakeDaemon();
  const client = await daemon.connect();
  daemon.on("POST /x", () => new Promise<Response>(() => {}));
  const slow = assert.rejects(client.request("POST", "/x", {}), DaemonUnreachable);
  await daemon.clock.advance(60_000);
  await slow;
  const cut = assert.rejects(client.request("POST", "/x", {}), ClientClosed);
  await settled();
  client.close();
  await cut;
  await assert.rejects(client.agents(), ClientClosed);
});

test("the client chooses the id of a new session, so that a retry creates only one", async () => {
  const daemon = new FakeDaemon();
  daemon.streams();
  const client = await daemon.connect();
  let tries = 0;
  daemon.on("POST /session", (got) => {
    const { sessionId } = got.body as { sessionId: string };
    daemon.on(`GET /session/${sessionId}`, () => answer({ sessionId, lastEventId: 2, eventEpoch: "e" }));
    return ++tries === 1 ? Promise.reject(new TypeError("reset")) : answer({ code: "session_id_conflict" }, 409);
  });
  const created = client.create({ cwd: "/x" });
  await daemon.clock.advance(1_000);
  const session = await created;
  const sent = daemon.named("POST /session").map((each) => (each.body as { sessionId: string }).sessionId);
  assert.deepEqual(sent, [session.sessionId, session.sessionId]);
  assert.deepEqual(session.position, { id: 0, epoch: "e" });
});

test("a client id that the session has forgotten is no longer sent", async () => {
  const daemon = new FakeDaemon();
  const client = await daemon.connect();
  daemon.on("POST /session", () => answer({ sessionId: "s", clientId: "c", lastEventId: 0, eventEpoch: "e" }));
  daemon.on("POST /session/s/mode", (got) =>
    got.headers.has("turnwire-client-id") ? answer({ code: "invalid_client_id" }, 400) : answer({}),
  );
  const session = await client.create();
  await session.setMode("code");
  await session.setMode("ask");
  const named = daemon.named("POST /session/s/mode").map((each) => each.headers.get("turnwire-client-id"));
  assert.deepEqual(named, ["c", null, null]);
});

test("types narrow events and errors", () => {
  // What counts here is that it compiles.
  const name = (event: AnyEvent): string => {
    if (event.type === "turn_complete") return event.data.stopReason;
    if (event.type === "session_update" && event.data.update.sessionUpdate === "tool_call")
      return event.data.update.toolCallId;
    switch (event.type) {
      case "turn_error":
        return `${event.data.code} ${event.data.exitCode ?? ""}`;
      default:
        return event.type;
    }
  };
  const told = (error: TurnwireError): string => (error instanceof SessionBusy ? error.code : error.message);
  const made = { id: 1, v: 1, type: "made_up", data: {} } as unknown as AnyEvent;
  assert.equal(name(made), "made_up");
  assert.equal(told(new DaemonRefused("x", "y")), "y");
});
