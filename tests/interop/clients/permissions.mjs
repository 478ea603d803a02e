// Questions of the agent: answered by one client, answered twice, answered with a cancel.
import { connect, DaemonSessionClient, failure, newSession, Reader, run, textOf, words, workspaceCwd } from "./client.mjs";

const selected = (optionId) => ({ outcome: { outcome: "selected", optionId } });
const cancelled = { outcome: { outcome: "cancelled" } };
const isQuestion = ({ type }) => type === "permission_request";
const isSettled = ({ type }) => type === "permission_resolved";

const ask = async () => {
  const session = await newSession();
  const reader = new Reader(session);
  const running = session.prompt(words("ask t1 yes,no"));
  const { data } = await reader.until(isQuestion);
  return { session, reader, running, question: data };
};

const select = async () => {
  const { session, reader, running, question } = await ask();
  const other = await DaemonSessionClient.resume(connect(), session.sessionId, { workspaceCwd });
  const status = await session.status();
  const wrong = await session.respondToPermission(question.requestId, selected("maybe")).catch(failure);
  const first = await session.respondToSessionPermission(question.requestId, selected("yes"));
  const second = await other.respondToPermission(question.requestId, selected("no"));
  const third = await other.respondToSessionPermission(question.requestId, selected("no"));
  const unknown = await other.respondToPermission("nothing-of-the-kind", selected("no"));
  const settled = await reader.until(isSettled);
  return {
    question,
    status,
    wrong,
    answers: [first, second, third, unknown],
    settled,
    clientId: session.clientId,
    ended: await running,
    said: textOf(reader.events),
  };
};

const cancel = async () => {
  const { session, reader, running, question } = await ask();
  const first = await session.respondToPermission(question.requestId, cancelled);
  const second = await session.respondToPermission(question.requestId, selected("yes"));
  const settled = await reader.until(isSettled);
  return { answers: [first, second], settled, ended: await running, said: textOf(reader.events) };
};

await run({ select, cancel });
