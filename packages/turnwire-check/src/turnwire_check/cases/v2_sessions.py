"""v2, a draft: sessions that are made, resumed, listed and closed; permission."""

from __future__ import annotations

from typing import Any

from turnwire_check.case import IN_ORDER, Part, broken, holds, unscored
from turnwire_check.raw_client import ALLOW, DISMISS, LONGEST_LIST, REJECT, RawClient, is_told
from turnwire_check.raw_peer import INVALID_PARAMS, METHOD_NOT_FOUND, Answer, gives
from turnwire_check.shapes import is_objects, is_one_of, is_same_place, is_text
from turnwire_check.tape import Frame, at, has, items
from turnwire_check.v2_work import (
    BUSY,
    MESSAGES,
    OUTPUT,
    Work,
    asked,
    busy,
    end_of,
    is_state,
    told,
    work,
)

NEW = Part("v2.new", "v2 draft, session setup")
RESUME = Part("v2.resume", "v2 draft, session resume")
CLOSE = Part("v2.close", "v2 draft, session close")
LIST = Part("v2.list", "v2 draft, session list")
PERMISSION = Part("v2.permission", "v2 draft, requesting permission")

START = {"type": "start"}
NOT_FOUND = -32002
NO_SESSION = "00000000-0000-4000-8000-000000000000"


@NEW.case("id", "A new session has an id that no other has.")
async def new_id(client: RawClient) -> None:
    await client.initialize()
    ids: list[Any] = []
    for _ in range(2):
        answer = await client.call("session/new", client.place_of_work())
        if answer.failed:
            unscored("`session/new` was answered with an error")
        ids.append(at(answer.result, "sessionId"))
        holds(is_text(ids[-1]), f"`sessionId` is {ids[-1]!r}", answer)
    holds(ids[0] != ids[1], "two sessions have one id", *client.tape.heard())


@NEW.case("lists", "Options and commands of a new session are lists, if they are there.", section="session/new")
async def lists(client: RawClient) -> None:
    await client.initialize()
    answer = await client.call("session/new", client.place_of_work())
    for each in ("configOptions", "availableCommands"):
        found = at(answer.result, each)
        holds(not has(answer.result, each) or is_objects(found), f"`{each}` is {found!r}", answer)


# -- resume ------------------------------------------------------------------------------------------------------


async def _resumed(client: RawClient, **params: Any) -> tuple[str, Work, Frame, list[Frame]]:
    session = await client.open()
    lived = await work(client, session)
    await client.barrier()
    request = await client.ask("session/resume", {**client.place_of_work(), "sessionId": session, **params})
    answer = await client.answer_to(request, "session/resume")
    if answer.failed:
        unscored("the session could not be resumed")
    return session, lived, answer, list(client.tape.heard(request.frame.number, answer.number))


@RESUME.case("no-history", "Resuming tells no history unless it was asked for.", carriers=IN_ORDER)
async def no_history(client: RawClient) -> None:
    _, _, answer, before = await _resumed(client)
    history = [each for each in before if is_one_of(each.kind, OUTPUT | MESSAGES)]
    holds(not history, "history came before the answer", *history, answer)


@RESUME.case("state", "The state as it is now is told before the answer.", carriers=IN_ORDER)
async def state(client: RawClient) -> None:
    session, _, answer, before = await _resumed(client)
    states = [each for each in before if is_state(session, "idle", *BUSY)(each)]
    holds(states, "no state came before the answer", answer)


@RESUME.case(
    "running",
    "A session in which work runs is not told to be idle when it is resumed.",
    scenes=("wait",),
    carriers=IN_ORDER,
)
async def resumed_running(client: RawClient) -> None:
    session = await client.open()
    await busy(client, session)
    request = await client.ask("session/resume", {**client.place_of_work(), "sessionId": session})
    answer = await client.answer_to(request, "session/resume")
    before = client.tape.heard(request.frame.number, answer.number)
    states = [each for each in before if is_state(session, "idle", *BUSY)(each)]
    if answer.failed or not states:
        unscored("the session could not be resumed, or no state came before the answer")
    holds(is_state(session, *BUSY)(states[-1]), "it is told to be idle", request.frame, *states, answer)


@RESUME.case(
    "replay",
    "With `replayFrom` all that was said is told again, before the answer.",
    section="Replay",
    carriers=IN_ORDER,
)
async def replay(client: RawClient) -> None:
    _, lived, answer, before = await _resumed(client, replayFrom=START)
    holds(is_told(lived.words, told(before, "user_message")), "the prompt is not in the history", answer)
    words = lived.text()
    holds(is_told(words, told(before, "agent_message")), "the agent's words are not in the history", answer)


@RESUME.case("replay-then-state", "The state follows the history.", section="Replay", carriers=IN_ORDER)
async def replay_then_state(client: RawClient) -> None:
    session, _, answer, before = await _resumed(client, replayFrom=START)
    history = [each for each in before if is_one_of(each.kind, OUTPUT | MESSAGES)]
    states = [each for each in before if is_state(session, "idle", *BUSY)(each)]
    if not history or not states:
        unscored("there was no history, or no state")
    holds(states[-1].number > history[-1].number, "history came behind the state", states[-1], history[-1], answer)


@RESUME.case(
    "replay-ids",
    "A message of the history has the id that its prompt was answered with.",
    section="Replay",
    carriers=IN_ORDER,
)
async def replay_ids(client: RawClient) -> None:
    _, lived, answer, before = await _resumed(client, replayFrom=START)
    identity = at(lived.answer.result, "messageId") if lived.answer else None
    users = [each for each in before if each.kind in ("user_message", "user_message_chunk")]
    if identity is None or not users:
        unscored("there is no message to compare")
    named = [at(each.update, "messageId") for each in users]
    holds(identity in named, f"the prompt was {identity!r}, and the history has {named!r}", answer, *users)


@RESUME.case("cursor", "A place to replay from that is not known is refused with -32602.", section="Replay")
async def cursor(client: RawClient) -> None:
    session = await client.open()
    await work(client, session)
    params = {**client.place_of_work(), "sessionId": session, "replayFrom": {"type": "no such place"}}
    answer = await client.call("session/resume", params)
    found = at(answer.error, "code")
    holds(found == INVALID_PARAMS, f"it was answered with {found!r}", answer)


@RESUME.case("unknown", "Resuming a session that there is not fails.")
async def unknown(client: RawClient) -> None:
    await client.open()
    answer = await client.call("session/resume", {**client.place_of_work(), "sessionId": NO_SESSION})
    holds(answer.failed, "it succeeded", answer)


@RESUME.case(
    "no-notices",
    "Notices are for those who are there: the history has none.",
    severity="should",
    section="Replay",
    carriers=IN_ORDER,
)
async def no_notices(client: RawClient) -> None:
    session = await client.open()
    for scene in ("plain", "tool", "plan", "usage"):
        if scene in client.subject.prompts:
            await work(client, session, scene)
    await client.barrier()
    titles = [at(each.update, "title") for each in client.tape.heard() if each.kind == "notice"]
    if not titles:
        unscored("it told no notice")
    request = await client.ask(
        "session/resume", {**client.place_of_work(), "sessionId": session, "replayFrom": START}
    )
    answer = await client.answer_to(request, "session/resume")
    if answer.failed:
        unscored("the session could not be resumed")
    told = client.tape.heard(request.frame.number, answer.number)
    again = [each for each in told if each.kind == "notice" and at(each.update, "title") in titles]
    holds(not again, "a notice was told again", *again, answer)


# -- close, list ---------------------------------------------------------------------------------------------------


@CLOSE.case("idle-first", "Closing ends what runs, and tells its end before the answer.", scenes=("wait",))
async def idle_first(client: RawClient) -> None:
    session = await client.open()
    request = await busy(client, session)
    answer = await client.call("session/close", {"sessionId": session})
    if answer.failed:
        unscored("the session could not be closed")
    await client.barrier()
    idle = next((each for each in client.tape.heard(request.frame.number) if is_state(session, "idle")(each)), None)
    if idle is None:
        broken("no end was told", answer)
    holds(idle.number < answer.number, "the end came behind the answer", answer, idle)
    reason = at(idle.update, "stopReason")
    holds(reason == "cancelled", f"it ended with {reason!r}", idle)


@CLOSE.case("silence", "After a session is closed, nothing is told of it.", scenes=("wait",))
async def silence(client: RawClient) -> None:
    session = await client.open()
    await busy(client, session)
    answer = await client.call("session/close", {"sessionId": session})
    if answer.failed:
        unscored("the session could not be closed")
    await client.barrier()
    late = [
        each
        for each in client.tape.heard(answer.number)
        if each.session == session and not is_state(session, "idle")(each)
    ]
    holds(not late, "something came behind the answer", answer, *late)


@CLOSE.case("unknown", "Closing a session that is not there succeeds, or says -32002.", severity="should")
async def close_unknown(client: RawClient) -> None:
    await client.open()
    answer = await client.call("session/close", {"sessionId": NO_SESSION})
    found = at(answer.error, "code")
    if found == METHOD_NOT_FOUND:
        unscored("there is no `session/close`")
    holds(found in (None, NOT_FOUND), f"it failed with {found!r}", answer)


@LIST.case("shape", "A list has sessions, each with its id and its directory.")
async def list_shape(client: RawClient) -> None:
    session = await client.open()
    await work(client, session)
    answer = await client.call("session/list", {})
    if at(answer.error, "code") == METHOD_NOT_FOUND:
        unscored("there is no `session/list`")
    sessions = at(answer.result, "sessions")
    if not is_objects(sessions):
        broken("`sessions` is no list of objects", answer)
    for each in sessions:
        is_whole = is_text(at(each, "sessionId")) and is_text(at(each, "cwd"))
        holds(is_whole, "a session has no id and directory", answer)


@LIST.case("cwd", "A session has the directory that it was opened in.", section="Working directory")
async def list_cwd(client: RawClient) -> None:
    session = await client.open()
    await work(client, session)
    rows: list[Any] = []
    cursor: dict[str, Any] = {}
    for _ in range(LONGEST_LIST):
        answer = await client.call("session/list", cursor)
        rows += [each for each in items(at(answer.result, "sessions")) if at(each, "sessionId") == session]
        cursor = {"cursor": at(answer.result, "nextCursor")}
        if rows or cursor["cursor"] is None:
            break
    found = at(rows[0], "cwd") if rows else None
    if not is_text(found):
        unscored("the session is not listed, or without its directory")
    is_there = is_same_place(found, client.cwd)
    holds(is_there, f"it was opened in {client.cwd!r} and has {found!r}", *client.tape.heard())


# -- permission ----------------------------------------------------------------------------------------------------


@PERMISSION.case("shape", "A permission request has a title, and options with ids of their own.", scenes=("ask",))
async def shape(client: RawClient) -> None:
    session = await client.open()
    _, question = await asked(client, session)
    holds(question.session == session, "it names another session", question)
    holds(is_text(at(question.params, "title")), "it has no title", question)
    options = at(question.params, "options")
    if not is_objects(options) or not options:
        broken("it has no options", question)
    ids = [at(each, "optionId") for each in options]
    holds(all(is_text(each) for each in ids), "an option has no id", question)
    holds(len(ids) == len(set(ids)), "two options have one id", question)


@PERMISSION.case(
    "waiting",
    "While all work waits for the user, the session is told to require action.",
    severity="should",
    scenes=("ask",),
)
async def waiting(client: RawClient) -> None:
    session = await client.open()
    request, question = await asked(client, session)
    await client.barrier()
    found = [each for each in client.tape.heard(request.frame.number) if is_state(session, "requires_action")(each)]
    holds(found, "it was not", question)


@PERMISSION.case("resumes", "After the answer the work is told to run again, or to be over.", scenes=("ask",))
async def resumes(client: RawClient) -> None:
    session = await client.open()
    _, question = await asked(client, session)
    await client.barrier()
    if not any(is_state(session, "requires_action")(each) for each in client.tape.heard()):
        unscored("it did not say that it requires action")
    sent = await client.respond(question, ALLOW(question))
    found = await client.until(is_state(session, "running", "idle"), sent.number)
    holds(found, "neither was told", sent)


async def _decided(client: RawClient, answer: Answer) -> tuple[Frame, Frame | None]:
    """Answer the permission request; return the request, and the update that completed its tool."""
    session = await client.open()
    request, question = await asked(client, session)
    client.answers["session/request_permission"] = DISMISS
    sent = await client.respond(question, answer(question))
    await end_of(client, session, request, "ask")
    identity = at(question.params, "subject", "toolCall", "toolCallId") or at(
        question.params, "toolCall", "toolCallId"
    )
    if identity is None:
        unscored("it asks for something that is no tool call")
    done = [
        each
        for each in client.tape.heard(sent.number)
        if at(each.update, "toolCallId") == identity and at(each.update, "status") == "completed"
    ]
    return question, next(iter(done), None)


@PERMISSION.case("rejected", "A tool that was rejected does not run.", scenes=("ask",))
async def rejected(client: RawClient) -> None:
    question, done = await _decided(client, REJECT)
    holds(done is None, "the tool was rejected, and is told to be done", question, done)


@PERMISSION.case("not-offered", "An option that was not offered is no approval.", scenes=("ask",))
async def not_offered(client: RawClient) -> None:
    strange = {"outcome": {"outcome": "selected", "optionId": "no-such-option"}}
    question, done = await _decided(client, gives(result=strange))
    holds(done is None, "an option that nobody offered was taken for approval", question, done)


@PERMISSION.case("unknown-outcome", "An outcome that nobody knows is no approval.", scenes=("ask",))
async def unknown_outcome(client: RawClient) -> None:
    question, done = await _decided(client, gives(result={"outcome": {"outcome": "_maybe", "optionId": "yes"}}))
    holds(done is None, "an outcome that nobody knows was taken for approval", question, done)


@PERMISSION.case("dismissed", "A question that is answered with `cancelled` is no approval.", scenes=("ask",))
async def dismissed(client: RawClient) -> None:
    question, done = await _decided(client, DISMISS)
    holds(done is None, "the tool was not allowed, and is told to be done", question, done)
