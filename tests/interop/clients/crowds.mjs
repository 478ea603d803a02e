// Many at once: prompts, fast output, readers.
import { connect, failure, isEnd, newSession, Reader, run, textOf, words } from "./client.mjs";

const LONG_S = 30;

// A prompt whose end is lost hangs for ever; then the program says which one it was.
const within = async (promise, what) => {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`${what} did not end in ${LONG_S} s`)), LONG_S * 1000);
  });
  try {
    return await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
};

const counted = (values) => values.reduce((sum, each) => ({ ...sum, [each]: (sum[each] ?? 0) + 1 }), {});

// More than the daemon queues: what is refused is refused at once, and what was accepted ends.
const tooMany = async (count) => {
  const session = await newSession();
  const reader = new Reader(session);
  const first = session.prompt(words("say 1 begun\nnever"));
  await reader.until(() => textOf(reader.events) === "begun");
  const rest = Array.from({ length: count }, () => session.prompt(words("stop end_turn")).catch(failure));
  const refused = await within(Promise.race(rest), "a refusal");
  const plain = await connect({ maxPendingPromptsPerSession: null }).prompt(session.sessionId, words("more")).catch(failure);
  await session.cancel();
  await first;
  const ends = await within(Promise.all(rest), "the accepted prompts");
  return { refused, plain, ends: counted(ends.map(({ stopReason, name }) => stopReason ?? name)) };
};

const chunks = async (count) => {
  const session = await newSession();
  const reader = new Reader(session);
  const bound = await within(session.prompt(words(`flood ${count}`)), "the flood");
  await reader.stop();
  const plain = await within(session.prompt(words(`flood ${count}`)), "the second flood");
  const numbers = reader.events.filter(({ data }) => data.update?.sessionUpdate === "agent_message_chunk");
  return {
    bound,
    plain,
    inOrder: numbers.every(({ data }, at) => data.update.content.text === String(at)),
    count: numbers.length,
    types: counted(reader.events.map(({ type }) => type)),
  };
};

const readers = async (count) => {
  const session = await newSession();
  const { client, sessionId } = session;
  // The session's own client takes one reader only.
  const events = (options) => client.subscribeEvents(sessionId, { lastEventId: 0, ...options });
  const all = Array.from({ length: count }, () => new Reader({ events }));
  await within(Promise.all(all.map(({ opened }) => opened)), "opening the streams");
  const ended = await within(session.prompt(words("flood 200")), "the turn");
  const ends = await within(Promise.all(all.map((each) => each.until(isEnd))), "the readers");
  await Promise.all(all.map((each) => each.stop()));
  return { ended, ends: counted(ends.map(({ id }) => id)), lengths: counted(all.map(({ ids }) => ids.join())) };
};

await run({ tooMany, chunks, readers });
