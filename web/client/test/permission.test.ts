/** Permission requests: handlers, answers, and answers that lost to another client's. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { type Answer, InvalidOption, LocalProtocolError, PermissionRequest } from "../src/index.js";
import { FakeDaemon, FakeSource, answer, settled, turn as of } from "./fakes.js";

const OPTIONS = [
  { optionId: "yes", name: "Yes", kind: "allow_once" },
  { optionId: "no", name: "No", kind: "reject_always" },
];
const ASKED = {
  type: "permission_request",
  promptId: "p1",
  data: {
    requestId: "q",
    method: "session/request_permission",
    options: OPTIONS,
    toolCall: { toolCallId: "t", title: "rm" },
    params: {},
  },
};
const RESOLVED = {
  type: "permission_resolved",
  promptId: "p1",
  data: { requestId: "q", end: "answered", answer: {} },
};

async function rig() {
  const daemon = new FakeDaemon();
  const source = new FakeSource();
  const errors: unknown[] = [];
  daemon.on("POST /session/s/prompt", () => answer({ promptId: "p1", lastEventId: 0, eventEpoch: "e" }, 202));
  daemon.on("POST /session/s/permissions/q", () => answer({ won: true, answer: {} }));
  const client = await daemon.connect({ source: () => source, onHandlerError: (error) => void errors.push(error) });
  const session = await client.attach("s", { after: 0 });
  const turn = session.prompt("x");
  await turn.accepted;
  const answers = () => daemon.named("POST /session/s/permissions/q").map((each) => each.body);
  return { source, session, turn, errors, answers };
}

test("handlers are called one after the other, and the first answer is sent", async () => {
  const { source, session, turn, answers } = await rig();
  const asked: string[] = [];
  session.onPermission((request) => void asked.push(request.title));
  session.onPermission(() => "yes");
  session.onPermission(() => void asked.push("never"));
  source.tell(ASKED, RESOLVED, of.ends("p1"));
  await turn;
  assert.deepEqual(asked, [], "it was closed already when its turn came");
  source.tell({ ...ASKED, promptId: "p1" });
  await settled();
  assert.deepEqual(asked, ["rm"]);
  assert.deepEqual(answers(), [{ outcome: { outcome: "selected", optionId: "yes" } }]);
});

test("a request answered elsewhere is abandoned: its signal is aborted and the walk does not wait", async () => {
  const { source, session, turn, answers } = await rig();
  const signals: AbortSignal[] = [];
  session.onPermission((_, signal) => {
    signals.push(signal);
    return new Promise<Answer>(() => {});
  });
  source.tell(ASKED);
  await settled();
  assert.equal(signals[0]?.aborted, false);
  source.tell(RESOLVED, of.ends("p1"));
  await turn;
  assert.equal(signals[0]?.aborted, true);
  assert.deepEqual(answers(), []);
});

test("the turn is drained only when the permission handler has finished", async () => {
  const { source, session, turn } = await rig();
  let finish!: (answer: Answer) => void;
  session.onPermission(() => new Promise<Answer>((resolve) => (finish = resolve)));
  source.tell(ASKED, of.ends("p1"));
  let isOver = false;
  void turn.then(() => (isOver = true));
  await settled();
  assert.equal(isOver, false);
  finish("no");
  await turn;
});

test("a handler that throws or returns an invalid option leaves the request open and is reported", async () => {
  const { source, session, turn, errors, answers } = await rig();
  session.onPermission(() => "maybe");
  source.tell(ASKED, of.ends("p1"));
  const { handlerErrors } = await turn;
  assert.ok(handlerErrors[0] instanceof InvalidOption);
  assert.deepEqual(errors, handlerErrors);
  assert.deepEqual(answers(), []);
});

test("a short answer becomes an option, and a rejection never an approval", () => {
  const request = (options: object[], method = "session/request_permission") =>
    new PermissionRequest("s", { requestId: "q", method, params: { message: "name?" }, options: options as never });
  const selected = (optionId: string) => ({ outcome: { outcome: "selected", optionId } });
  const [yes, no] = OPTIONS;
  assert.ok(yes && no);
  assert.deepEqual(request(OPTIONS).reply("yes"), selected("yes"));
  assert.deepEqual(request(OPTIONS).reply(no), selected("no"));
  assert.deepEqual(request(OPTIONS).reply("reject"), selected("no"));
  assert.deepEqual(request([yes]).reply("reject"), { outcome: { outcome: "cancelled" } });
  assert.deepEqual(request(OPTIONS).reply({ outcome: { outcome: "cancelled" } }), {
    outcome: { outcome: "cancelled" },
  });
  const form = request([], "elicitation/create");
  assert.equal(form.title, "name?");
  assert.deepEqual(form.reply("reject"), { answer: { action: "decline" } });
  const filled = { action: "accept" as const, content: { name: "x" } };
  assert.deepEqual(form.reply(filled), { answer: filled });
  assert.throws(() => form.reply({ outcome: { outcome: "cancelled" } }), LocalProtocolError);
  for (const none of [true, 3, {}, null])
    assert.throws(() => request(OPTIONS).reply(none as never), LocalProtocolError);
});
