// Coming back to a session: load with its history, resume without, with an id that is not known any more; over a cut
// connection and over a restart of the daemon.
import { asKnownDaemonEvent } from "@qwen-code/sdk/daemon";

import { connect, DaemonSessionClient, failure, hear, isEnd, newSession, Reader, run, tell, textOf, words, workspaceCwd } from "./client.mjs";

const load = async (texts) => {
  const session = await newSession();
  const reader = new Reader(session);
  for (const text of texts) await session.prompt(words(text)).catch(() => {});
  await reader.stop();
  const raw = await connect().loadSession(session.sessionId, { workspaceCwd });
  const loaded = await DaemonSessionClient.load(connect(), session.sessionId, { workspaceCwd });
  const { compactedReplay, liveJournal } = loaded.consumeReplaySnapshot();
  const history = [...compactedReplay, ...liveJournal];
  const follower = new Reader(loaded);
  await loaded.prompt(words("echo later"));
  await follower.stop();
  return {
    complete: loaded.replaySnapshotComplete,
    seen: reader.events.filter(({ id }) => id !== undefined),
    history,
    lastEventId: raw.lastEventId,
    eventEpoch: raw.eventEpoch,
    promptTerminals: raw.promptTerminals,
    followed: follower.ids,
    later: textOf(follower.events),
    attached: loaded.attached,
    clientIds: [session.clientId, raw.clientId, loaded.clientId],
  };
};

const resume = async () => {
  const session = await newSession();
  await session.prompt(words("echo before"));
  const resumed = await DaemonSessionClient.resume(connect(), session.sessionId, { workspaceCwd });
  const reader = new Reader(resumed);
  const ended = await resumed.prompt(words("echo after"));
  await reader.stop();
  return { ended, said: textOf(reader.events), clientIds: [session.clientId, resumed.clientId] };
};

// The daemon no longer knows the client: a prompt is refused once, and the SDK gets itself a new id.
const heal = async () => {
  const session = await newSession();
  const before = session.clientId;
  await session.detach();
  const refused = await session.client.promptNonBlocking(session.sessionId, words("echo no"), undefined, before).catch(failure);
  const heartbeat = await session.heartbeat().catch(failure);
  const reader = new Reader(session);
  const ended = await Promise.all([session.prompt(words("echo one")), session.prompt(words("echo two"))]);
  await reader.stop();
  return { before, refused, heartbeat, ended, after: session.clientId, said: textOf(reader.events) };
};

const missing = async () => ({
  load: await DaemonSessionClient.load(connect(), "nobody-made-this", { workspaceCwd }).catch(failure),
  resume: await DaemonSessionClient.resume(connect(), "nobody-made-this", { workspaceCwd }).catch(failure),
});

// The test cuts the connection, or ends the daemon and starts another one, while a turn runs.
const interrupted = async (text) => {
  await hear();
  const session = await newSession();
  const first = new Reader(session);
  const running = session.prompt(words(text)).catch(failure);
  await first.until(() => textOf(first.events).endsWith("before"));
  tell({ sessionId: session.sessionId, promptId: first.events.at(-1).promptId });
  const ended = await first.ended;
  const rejected = await running;
  tell({ lastEventId: session.lastEventId });
  await hear();
  const second = new Reader(session);
  const end = await second.until(isEnd);
  const again = await session.prompt(words("echo and on"));
  await second.stop();
  return {
    ended,
    rejected,
    epochs: [first.epoch, second.epoch],
    first: first.ids,
    second: second.ids,
    resync: second.events.some(({ type }) => type === "state_resync_required"),
    end,
    said: textOf([...first.events, ...second.events]),
    again,
  };
};

// A cursor beyond the end of the log.
const misplaced = async (lastEventId) => {
  const session = await newSession();
  await session.prompt(words("echo there"));
  const reader = new Reader(session, { lastEventId });
  const told = await reader.until(({ type }) => type === "state_resync_required");
  await reader.until(({ type }) => type === "replay_complete");
  await reader.stop();
  return {
    told: told.data,
    known: asKnownDaemonEvent(told) !== undefined,
    said: textOf(reader.events),
    ids: reader.ids,
    last: session.lastEventId,
  };
};

await run({ misplaced, load, resume, heal, missing, interrupted });
