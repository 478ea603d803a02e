"""v1 over more than one connection: coming back after a restart, and several clients of one server."""

from __future__ import annotations

from turnwire_check.capability import offers
from turnwire_check.case import SHARED, Part, holds, unscored
from turnwire_check.cases.v1_sessions import (
    CAN_DELETE,
    CAN_LIST,
    CAN_LOAD,
    CAN_RESUME,
    load,
)
from turnwire_check.raw_client import RawClient, Turn, is_told, said
from turnwire_check.raw_peer import is_answer_to
from turnwire_check.tape import Frame, at

AGAIN = Part("v1.again", "Session setup, loading sessions")
CLIENTS = Part("v1.clients", "Session setup, loading sessions")


async def _comes_back(client: RawClient, session: str, way: str) -> tuple[Frame, list[Frame]]:
    """Load or resume a session; return the answer and the updates before it."""
    if way == "session/load":
        return await load(client, session)
    answer = await client.call(way, {**client.place_of_work(), "sessionId": session})
    if answer.succeeded:
        await client.be_ready(session)
    return answer, []


async def _lived(client: RawClient, way: str) -> tuple[str, Turn]:
    """Open a session and run a turn in it. It can be reopened and continues to work on its own connection."""
    session = await client.open()
    lived = await client.sound_turn(session)
    answer, told = await _comes_back(client, session, way)
    if answer.failed:
        unscored(f"`{way}` does not work on the connection of the session either")
    if way == "session/load" and _heard([*told, *client.tape.heard(answer.number)], lived):
        unscored("the history is not whole on the connection of the session either")
    await client.sound_turn(session)
    return session, lived


async def _returned(client: RawClient, way: str) -> tuple[Turn, RawClient, str, Frame, list[Frame]]:
    """Reopen a session after its connection has ended: return the answer and the updates before it."""
    session, lived = await _lived(client, way)
    later = await client.again()
    await later.initialize()
    answer, told = await _comes_back(later, session, way)
    return lived, later, session, answer, told


async def _shared(client: RawClient) -> tuple[Turn, RawClient, str, Frame, list[Frame]]:
    """Load a session from a second client while the first is connected."""
    session, lived = await _lived(client, "session/load")
    other = await client.beside()
    await other.initialize()
    answer, told = await load(other, session)
    return lived, other, session, answer, told


def _heard(frames: list[Frame], lived: Turn) -> str:
    """Return the part of a turn that is missing in a history; empty if it is complete."""
    if not is_told(lived.words, said(frames, "user_message_chunk")):
        return "the prompt is not in the history"
    spoken = [each for each in lived.updates if each.kind == "agent_message_chunk"]
    if not spoken:
        unscored("the agent said nothing in the turn")
    last = [each for each in spoken if at(each.update, "messageId") == at(spoken[-1].update, "messageId")]
    words = said(last, "agent_message_chunk")
    return "" if is_told(words, said(frames, "agent_message_chunk")) else "the agent's words are not in the history"


@AGAIN.case(
    "load",
    "A session whose connection has ended can be loaded over another.",
    severity="should",
    capability=CAN_LOAD,
)
async def again_load(client: RawClient) -> None:
    _, _, _, answer, _ = await _returned(client, "session/load")
    holds(not answer.failed, "a session that was there before could not be loaded", answer)


@AGAIN.case(
    "history",
    "Loading over another connection tells again all that was said.",
    capability=CAN_LOAD,
)
async def again_history(client: RawClient) -> None:
    lived, later, _, answer, told = await _returned(client, "session/load")
    if answer.failed:
        unscored("the session could not be loaded")
    await later.barrier()
    told += later.tape.heard(answer.number)
    missing = _heard(told, lived)
    holds(not missing, missing, lived.request.frame, answer)


@AGAIN.case("goes-on", "A session that was loaded over another connection takes prompts.", capability=CAN_LOAD)
async def again_goes_on(client: RawClient) -> None:
    _, later, session, answer, _ = await _returned(client, "session/load")
    if answer.failed:
        unscored("the session could not be loaded")
    turn = await later.turn(session)
    holds(turn.answer.succeeded, "a prompt after the load was refused", turn.request.frame, turn.answer)


@AGAIN.case(
    "resume",
    "A session whose connection has ended can be resumed over another.",
    severity="should",
    capability=CAN_RESUME,
)
async def again_resume(client: RawClient) -> None:
    _, _, _, answer, _ = await _returned(client, "session/resume")
    holds(not answer.failed, "a session that was there before could not be resumed", answer)


@AGAIN.case(
    "resume-goes-on", "A session that was resumed over another connection takes prompts.", capability=CAN_RESUME
)
async def again_resume_goes_on(client: RawClient) -> None:
    _, later, session, answer, _ = await _returned(client, "session/resume")
    if answer.failed:
        unscored("the session could not be resumed")
    turn = await later.turn(session)
    holds(turn.answer.succeeded, "a prompt after the resume was refused", turn.request.frame, turn.answer)


@AGAIN.case(
    "list",
    "A session whose connection has ended is in the list of another.",
    severity="should",
    capability=CAN_LIST,
    section="Session list",
)
async def again_list(client: RawClient) -> None:
    session = await client.open()
    lived = await client.sound_turn(session)
    if session not in await client.listed():
        unscored("it is not listed on its own connection either")
    later = await client.again()
    await later.initialize()
    place = later.place
    listed = await later.listed()
    holds(session in listed, "it is not listed any more", lived.request.frame, *later.tape.heard(place))


@AGAIN.case(
    "deleted",
    "A session that was deleted is in no list of another connection.",
    capability=CAN_DELETE,
    section="Session delete",
)
async def again_deleted(client: RawClient) -> None:
    session = await client.open()
    if not offers(client.offer, CAN_LIST):
        unscored("it does not list sessions")
    await client.turn(session)
    answer = await client.call("session/delete", {"sessionId": session})
    if answer.failed or session in await client.listed():
        unscored("the session could not be deleted")
    later = await client.again()
    await later.initialize()
    place = later.place
    holds(session not in await later.listed(), "it is listed again", answer, *later.tape.heard(place))


@AGAIN.case(
    "ids",
    "A new session has an id that no session of an earlier connection has.",
    section="Session ID",
)
async def again_ids(client: RawClient) -> None:
    first, _ = await client.open_two()
    if not any(offers(client.offer, each) for each in (CAN_LOAD, CAN_RESUME, CAN_LIST)):
        unscored("no session of it can be come back to")
    await client.turn(first)
    later = await client.again()
    second = await later.open()
    holds(first != second, f"both sessions are {first!r}", *later.tape.heard())


# -- several clients ------------------------------------------------------------------------------------


@CLIENTS.case(
    "load",
    "A session that one client has open can be loaded by another.",
    severity="should",
    capability=CAN_LOAD,
    carriers=SHARED,
)
async def clients_load(client: RawClient) -> None:
    _, _, _, answer, _ = await _shared(client)
    holds(not answer.failed, "the other client could not load it", answer)


@CLIENTS.case(
    "history",
    "A client that loads a session of another is told all that was said.",
    capability=CAN_LOAD,
    carriers=SHARED,
)
async def clients_history(client: RawClient) -> None:
    lived, other, _, answer, told = await _shared(client)
    if answer.failed:
        unscored("the other client could not load it")
    await other.barrier()
    told += other.tape.heard(answer.number)
    missing = _heard(told, lived)
    holds(not missing, missing, lived.request.frame, answer)


@CLIENTS.case(
    "first",
    "A client goes on with its session when another has loaded it.",
    capability=CAN_LOAD,
    carriers=SHARED,
)
async def clients_first(client: RawClient) -> None:
    _, _, session, loaded, _ = await _shared(client)
    if loaded.failed:
        unscored("the other client could not load it")
    request = await client.prompt(session)
    answer = await client.until(is_answer_to(request.id), request.frame.number)
    holds(
        answer is not None and answer.succeeded, "its next prompt is not answered as before", request.frame, answer
    )


@CLIENTS.case(
    "answers",
    "An answer goes to the client that asked, and to no other.",
    carriers=SHARED,
    section="JSON-RPC 2.0",
)
async def clients_answers(client: RawClient) -> None:
    session = await client.open()
    other = await client.beside()
    await other.initialize()
    if offers(client.offer, CAN_LOAD):
        await client.sound_turn(session)
        await load(other, session)
    place = other.place
    turn = await client.turn(session, id="asked-by-the-first")
    await other.barrier()
    strayed = [each for each in other.tape.heard(place) if is_answer_to("asked-by-the-first")(each)]
    holds(not strayed, "the answer came to a client that did not ask", turn.request.frame, *strayed)


@CLIENTS.case("ids", "Two clients may have requests with one id.", carriers=SHARED, section="JSON-RPC 2.0")
async def clients_ids(client: RawClient) -> None:
    other = await client.beside()
    theirs, ours = await other.open(), await client.open()
    await other.sound_turn(theirs)
    await client.sound_turn(ours)
    for_client, for_other = await client.prompt(ours, id="same"), await other.prompt(theirs, id="same")
    for peer, request in ((client, for_client), (other, for_other)):
        answer = await peer.until(is_answer_to("same"), request.frame.number)
        await peer.barrier()
        found = [each for each in peer.tape.heard() if is_answer_to("same")(each)]
        is_own = answer is not None and answer.succeeded and len(found) == 1
        holds(is_own, f"a client got {len(found)} answers to its request", request.frame, *found)


@CLIENTS.case(
    "leaving",
    "A client that leaves takes nothing from another.",
    carriers=SHARED,
    section="Session ID",
)
async def clients_leaving(client: RawClient) -> None:
    ours = await client.open()
    await client.sound_turn(ours)
    other = await client.beside()
    await other.sound_turn(await other.open())
    await other.leave()
    request = await client.prompt(ours)
    answer = await client.until(is_answer_to(request.id), request.frame.number)
    holds(answer is not None and answer.succeeded, "it is not served any more", request.frame, answer)
