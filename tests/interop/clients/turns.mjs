// Sessions and turns: create, prompt in each way there is, watch with several clients, cancel, rename, close.
import { asKnownDaemonEvent, createDaemonTranscriptStore, DAEMON_KNOWN_EVENT_TYPE_VALUES } from "@qwen-code/sdk/daemon";
import { normalizeDaemonEvent, parseSseStream } from "@qwen-code/sdk/daemon";

import { connect, DaemonSessionClient, failure, isEnd, newSession, Reader, run, textOf, words, workspaceCwd } from "./client.mjs";

const create = async () => {
  const client = connect();
  const health = await client.health();
  const capabilities = await client.capabilities();
  const first = await DaemonSessionClient.createOrAttach(client, { workspaceCwd });
  const shared = await DaemonSessionClient.createOrAttach(client, { workspaceCwd, sessionScope: "single" });
  const named = await DaemonSessionClient.createOrAttach(client, { workspaceCwd, sessionId: "my-own-name" });
  const status = await first.status();
  const listed = await client.listWorkspaceSessions(workspaceCwd, { pageSize: 1000 });
  return {
    health,
    capabilities,
    first: first.session,
    shared: shared.session,
    named: named.session,
    status,
    listed: listed.map(({ sessionId }) => sessionId),
    heartbeat: await first.heartbeat(),
  };
};

// Of the plain client: it opens a stream of its own for each prompt.
const plain = async (texts) => {
  const client = connect();
  const { sessionId, clientId } = await client.createOrAttachSession({ workspaceCwd });
  const ends = [];
  for (const text of texts) {
    ends.push(await client.prompt(sessionId, words(text), undefined, clientId).catch(failure));
  }
  return { ends };
};

// Two that watch, one of them from a process's point of view a stranger; a third one prompts.
const observers = async (texts) => {
  const session = await newSession();
  const stranger = await DaemonSessionClient.resume(connect(), session.sessionId, { workspaceCwd });
  const readers = [new Reader(session), new Reader(stranger, { lastEventId: 0 })];
  await Promise.all(readers.map(({ opened }) => opened));
  const third = connect();
  const accepted = [];
  for (const text of texts) accepted.push(await third.promptNonBlocking(session.sessionId, words(text)));
  const last = accepted.at(-1).promptId;
  await Promise.all(readers.map((each) => each.until((event) => isEnd(event) && event.data.promptId === last)));
  await Promise.all(readers.map((each) => each.stop()));
  return {
    accepted,
    seen: readers.map(({ events }) => events.filter(({ id }) => id !== undefined)),
    said: textOf(readers[0].events),
  };
};

const cancel = async () => {
  const session = await newSession();
  const reader = new Reader(session);
  const running = session.prompt(words("say 1 begun\nnever"));
  await reader.until(() => textOf(reader.events) === "begun");
  const { pendingPrompts } = await session.getPendingPrompts();
  const asked = await reader.until(({ type }) => type === "state_changed");
  await session.cancel();
  const ended = await running;
  await session.cancel();
  return { ended, pendingPrompts, promptId: asked.promptId, types: reader.events.map(({ type }) => type) };
};

// A program that gives its call up: the SDK cancels the turn for it.
const abort = async () => {
  const session = await newSession();
  const reader = new Reader(session);
  const given = new AbortController();
  const running = session.prompt(words("say 1 begun\nnever"), given.signal).catch(failure);
  await reader.until(() => textOf(reader.events) === "begun");
  // On a busy machine the stream may be read before the 202 that came first, and without that the SDK cancels nothing.
  await session.getPendingPrompts();
  given.abort();
  const end = await reader.until(isEnd);
  return { rejected: await running, end: end.data };
};

const queue = async () => {
  const session = await newSession();
  const reader = new Reader(session);
  const running = session.prompt(words("say 1 begun\nnever"));
  await reader.until(() => textOf(reader.events) === "begun");
  const waiting = session.prompt(words("echo never said"));
  const { data } = await reader.until(({ type }) => type === "pending_prompt_added");
  const { pendingPrompts } = await session.getPendingPrompts();
  const removed = await session.removePendingPrompt(data.promptId);
  const again = await session.removePendingPrompt(data.promptId);
  const withdrawn = await waiting;
  await session.cancel();
  return { pendingPrompts, removed, again, withdrawn, ended: await running };
};

const rename = async () => {
  const session = await newSession();
  const reader = new Reader(session);
  const given = await session.updateMetadata({ displayName: "A better name" });
  const { data } = await reader.until(({ type }) => type === "session_metadata_updated");
  return { given, data };
};

const close = async () => {
  const session = await newSession();
  const reader = new Reader(session);
  await session.prompt(words("echo one"));
  await session.close();
  const ended = await reader.ended;
  await session.close();
  return { ended, last: reader.events.at(-1), prompted: await session.prompt(words("echo two")).catch(failure) };
};

const settings = async () => {
  const session = await newSession();
  const { client, sessionId, clientId } = session;
  const reader = new Reader(session);
  const mode = await client.setSessionApprovalMode(sessionId, "code", { clientId });
  const wrong = await client.setSessionApprovalMode(sessionId, "yolo", { clientId }).catch(failure);
  const model = await session.setModel("large");
  const changed = await reader.until(({ type }) => type === "approval_mode_changed");
  const switched = await reader.until(({ type }) => type === "model_switched");
  return { mode, wrong, model, changed: changed.data, switched: switched.data };
};

// Every kind of event that a session can show, as the SDK's own checks and its transcript see it.
const shapes = async (text) => {
  const session = await newSession();
  const reader = new Reader(session);
  const asked = reader.until(({ type }) => type === "permission_request");
  const turn = session.prompt(words(text));
  const { data } = await asked;
  const waiting = session.prompt(words("echo next"));
  const removed = await session.submitPrompt(words("echo never"));
  await session.removePendingPrompt(removed.promptId);
  await session.respondToPermission(data.requestId, { outcome: { outcome: "selected", optionId: "yes" } });
  await Promise.all([turn, waiting]);
  await session.prompt(words("error -32000 no luck")).catch(() => {});
  await session.updateMetadata({ displayName: "A name" });
  await session.client.setSessionApprovalMode(session.sessionId, "code");
  await session.setModel("large");
  const snapshot = await snapshotOf(session.sessionId);
  await session.close();
  await reader.ended;
  const store = createDaemonTranscriptStore();
  for (const event of reader.events) store.dispatch(normalizeDaemonEvent(event));
  const named = [...reader.events, snapshot].filter(({ type }) => DAEMON_KNOWN_EVENT_TYPE_VALUES.includes(type));
  return {
    named: [...new Set(named.map(({ type }) => type))],
    misshapen: named.filter((event) => asKnownDaemonEvent(event) === undefined),
    blocks: store.getSnapshot().blocks.map(({ kind, text: shown }) => ({ kind, text: shown })),
  };
};

// The SDK knows the event, but never asks for it.
const snapshotOf = async (sessionId) => {
  const headers = { Authorization: `Bearer ${process.env.TURNWIRE_TOKEN}` };
  const { body } = await fetch(`${process.env.TURNWIRE_URL}/session/${sessionId}/events?snapshot=1`, { headers });
  for await (const event of parseSseStream(body)) if (event.type === "session_snapshot") return event;
  throw new Error("there is no snapshot");
};

await run({ create, plain, observers, cancel, abort, queue, rename, close, settings, shapes });
