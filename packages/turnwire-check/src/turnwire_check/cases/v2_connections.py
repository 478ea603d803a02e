"""v2, a draft, over more than one connection: coming back after a restart, and several clients of one server."""

from __future__ import annotations

from typing import Any

from turnwire_check.case import IN_ORDER, SHARED, Part, holds, unscored
from turnwire_check.raw_client import RawClient
from turnwire_check.raw_peer import is_answer_to
from turnwire_check.tape import Frame, at
from turnwire_check.v2_work import BUSY, Work, busy, is_state, work

AGAIN = Part("v2.again", "v2 draft, session resume")
CLIENTS = Part("v2.clients", "v2 draft, session resume")

START = {"type": "start"}


async def _resume(client: RawClient, session: str, **params: Any) -> tuple[Frame, list[Frame]]:
    """Resume a session; return the answer and the updates before it."""
    request = await client.ask("session/resume", {**client.place_of_work(), "sessionId": session, **params})
    answer = await client.answer_to(request, "session/resume")
    return answer, list(client.tape.heard(request.frame.number, answer.number))


async def _lived(client: RawClient, **params: Any) -> tuple[str, Work, Frame, list[Frame]]:
    """Open a session with completed work, which can be resumed on its own connection."""
    session = await client.open()
    lived = await work(client, session)
    answer, before = await _resume(client, session, **params)
    if answer.failed:
        unscored("it cannot be resumed on its own connection either")
    return session, lived, answer, before


async def _returned(client: RawClient, **params: Any) -> tuple[str, RawClient, Frame, list[Frame]]:
    """Resume a session after its connection has ended. Raises `NotScored` when it is not even resumed before."""
    session, *_ = await _lived(client, **params)
    later = await client.again()
    await later.initialize()
    answer, before = await _resume(later, session, **params)
    return session, later, answer, before


def _states(frames: list[Frame], session: str) -> list[Frame]:
    return [each for each in frames if is_state(session, "idle", *BUSY)(each)]


def _names(frames: list[Frame]) -> list[Any]:
    """Return the ids of the user's messages."""
    users = [each for each in frames if each.kind in ("user_message", "user_message_chunk")]
    return [at(each.update, "messageId") for each in users]


@AGAIN.case("resume", "A session whose connection has ended can be resumed over another.", severity="should")
async def again_resume(client: RawClient) -> None:
    _, _, answer, _ = await _returned(client)
    holds(not answer.failed, "a session that was there before could not be resumed", answer)


@AGAIN.case("state", "Over another connection, too, the state is told before the answer.", carriers=IN_ORDER)
async def again_state(client: RawClient) -> None:
    session, lived, answer, before = await _lived(client)
    if not _states(before, session):
        unscored("no state is told on its own connection either")
    later = await client.again()
    await later.initialize()
    answer, before = await _resume(later, session)
    if answer.failed:
        unscored("the session could not be resumed")
    holds(_states(before, session), "no state came before the answer", lived.idle, answer)


@AGAIN.case(
    "replay-ids",
    "A message that is told again over another connection has the id that its prompt was answered with.",
    section="Replay",
    carriers=IN_ORDER,
)
async def again_replay_ids(client: RawClient) -> None:
    session, lived, answer, before = await _lived(client, replayFrom=START)
    identity = at(lived.answer.result, "messageId") if lived.answer else None
    if identity not in _names(before):
        unscored("the message does not have its id on its own connection either")
    later = await client.again()
    await later.initialize()
    answer, before = await _resume(later, session, replayFrom=START)
    named = _names(before)
    if answer.failed or not named:
        unscored("there is no message to compare")
    holds(identity in named, f"the prompt was {identity!r}, and the history has {named!r}", lived.answer, *before)


@AGAIN.case("goes-on", "A session that was resumed over another connection takes prompts.")
async def again_goes_on(client: RawClient) -> None:
    session, _, _, _ = await _lived(client)
    await work(client, session)
    later = await client.again()
    await later.initialize()
    resumed, _ = await _resume(later, session)
    if resumed.failed:
        unscored("the session could not be resumed")
    request = await later.prompt(session)
    answer = await later.until(is_answer_to(request.id), request.frame.number)
    holds(answer is not None and answer.succeeded, "a prompt after the resume was refused", request.frame, answer)


@AGAIN.case(
    "list",
    "A session whose connection has ended is in the list of another.",
    severity="should",
    section="Session list",
)
async def again_list(client: RawClient) -> None:
    session = await client.open()
    lived = await work(client, session)
    if session not in await client.listed():
        unscored("it is not listed on its own connection either")
    later = await client.again()
    await later.initialize()
    place = later.place
    found = await later.listed()
    holds(session in found, "it is not listed any more", lived.request.frame, *later.tape.heard(place))


@AGAIN.case("ids", "A new session has an id that no session of an earlier connection has.")
async def again_ids(client: RawClient) -> None:
    first, _ = await client.open_two()
    await work(client, first)
    later = await client.again()
    second = await later.open()
    holds(first != second, f"both sessions are {first!r}", *later.tape.heard())


# -- several clients ---------------------------------------------------------------------------------------------


@CLIENTS.case(
    "resume", "A session that one client has open can be resumed by another.", severity="should", carriers=SHARED
)
async def clients_resume(client: RawClient) -> None:
    session, _, _, _ = await _lived(client)
    other = await client.beside()
    await other.initialize()
    answer, _ = await _resume(other, session)
    holds(not answer.failed, "the other client could not resume it", answer)


@CLIENTS.case(
    "state",
    "A client that resumes a session in which work runs for another is told that it runs.",
    scenes=("wait",),
    carriers=("websocket",),
)
async def clients_state(client: RawClient) -> None:
    session = await client.open()
    await busy(client, session)
    other = await client.beside()
    await other.initialize()
    answer, before = await _resume(other, session)
    if answer.failed:
        unscored("the other client could not resume it")
    states = [each for each in before if is_state(session, "idle", *BUSY)(each)]
    if not states:
        unscored("no state came before the answer")
    holds(is_state(session, *BUSY)(states[-1]), "the session is told to be idle", answer, *states)


@CLIENTS.case("first", "A client goes on with its session when another has resumed it.", carriers=SHARED)
async def clients_first(client: RawClient) -> None:
    session, _, _, _ = await _lived(client)
    await work(client, session)
    other = await client.beside()
    await other.initialize()
    resumed, _ = await _resume(other, session)
    if resumed.failed:
        unscored("the other client could not resume it")
    request = await client.prompt(session)
    answer = await client.until(is_answer_to(request.id), request.frame.number)
    holds(
        answer is not None and answer.succeeded, "its next prompt is not answered as before", request.frame, answer
    )


@CLIENTS.case("answers", "An answer goes to the client that asked, and to no other.", carriers=SHARED)
async def clients_answers(client: RawClient) -> None:
    session = await client.open()
    await work(client, session)
    other = await client.beside()
    await other.initialize()
    await _resume(other, session)
    place = other.place
    request = await client.prompt(session, id="asked-by-the-first")
    await client.step(request, "session/prompt (plain)")
    await other.barrier()
    strayed = [each for each in other.tape.heard(place) if is_answer_to("asked-by-the-first")(each)]
    holds(not strayed, "the answer came to a client that did not ask", request.frame, *strayed)
