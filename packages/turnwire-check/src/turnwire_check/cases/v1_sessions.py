"""v1: sessions that are made, loaded, resumed, listed, closed and deleted."""

from __future__ import annotations

from typing import Any

from turnwire_check import mcp_server
from turnwire_check.capability import offers
from turnwire_check.case import IN_ORDER, Part, broken, holds, unscored
from turnwire_check.raw_client import LONGEST_LIST, RawClient, Turn, is_about_place, is_told, refusal, said
from turnwire_check.raw_peer import text
from turnwire_check.shapes import CONTENT, as_key, is_objects, is_one_of, is_same_place, is_text, options_complaint
from turnwire_check.tape import Frame, at

NEW = Part("v1.new", "Session setup, creating a session")
LOAD = Part("v1.load", "Session setup, loading sessions")
RESUME = Part("v1.resume", "Session setup, resuming sessions")
LIST = Part("v1.list", "Session list")
CLOSE = Part("v1.close", "Session close")
DELETE = Part("v1.delete", "Session delete")

CAN_LOAD = "agentCapabilities.loadSession"
CAN_RESUME = "agentCapabilities.sessionCapabilities.resume"
CAN_LIST = "agentCapabilities.sessionCapabilities.list"
CAN_CLOSE = "agentCapabilities.sessionCapabilities.close"
CAN_DELETE = "agentCapabilities.sessionCapabilities.delete"
TAKES_DIRECTORIES = "agentCapabilities.sessionCapabilities.additionalDirectories"
NO_SESSION = "00000000-0000-4000-8000-000000000000"


@NEW.case("id", "A new session has an id, which is a text.")
async def new_id(client: RawClient) -> None:
    await client.initialize()
    answer = await client.call("session/new", client.place_of_work())
    if answer.failed:
        unscored("`session/new` was answered with an error")
    found = at(answer.result, "sessionId")
    holds(is_text(found) and found, f"`sessionId` is {found!r}", answer)


@NEW.case("works", "A session can be opened in any directory that is there.")
async def works(client: RawClient) -> None:
    await client.initialize()
    answer = await client.call("session/new", client.place_of_work())
    if answer.failed and at(client.offer, "authMethods"):
        unscored("it may want a login before it opens a session")
    if is_about_place(answer):
        # A server may restrict the directories, and ours may not be among them.
        unscored(f"`session/new` was refused{refusal(answer)}")
    holds(answer.succeeded, "`session/new` was refused", answer)


@NEW.case("unique", "Two sessions have two ids.")
async def unique(client: RawClient) -> None:
    first, second = await client.open(), await client.new_session()
    holds(first != second, f"both sessions are {first!r}", *client.tape.heard())


@NEW.case("mcp-stdio", "An MCP server over stdio is taken.", section="MCP servers")
async def mcp_stdio(client: RawClient) -> None:
    await client.open()
    params = {**client.place_of_work(), "mcpServers": [mcp_server.over_stdio()]}
    answer = await client.call("session/new", params)
    holds(answer.succeeded, "a session with it was refused, and one without was not", answer)


@NEW.case("modes", "The current mode is one of those that the session offers.", section="modes")
async def modes(client: RawClient) -> None:
    await client.initialize()
    answer = await client.call("session/new", client.place_of_work())
    offered: Any = at(answer.result, "modes")
    if offered is None:
        unscored("it has no modes")
    listed: Any = at(offered, "availableModes")
    holds(is_objects(listed), "`availableModes` is no list", answer)
    names = [at(each, "id") for each in listed]
    holds(at(offered, "currentModeId") in names, "the current mode is none of them", answer)


@NEW.case("options", "Every option of a session has an id, a name and a value that it offers.")
async def options(client: RawClient) -> None:
    await client.initialize()
    answer = await client.call("session/new", client.place_of_work())
    offered = at(answer.result, "configOptions")
    if offered is None:
        unscored("it has no options")
    if complaint := options_complaint(offered):
        broken(complaint, answer)


@NEW.case("no-switches", "Options that are on or off go only to clients that asked for them.")
async def no_switches(client: RawClient) -> None:
    session = await client.open()
    told = [at(each.result, "configOptions") for each in client.tape.heard() if each.is_answer]
    await client.turn(session)
    told += [at(each.update, "configOptions") for each in client.tape.heard()]
    listed = [each for offered in told if is_objects(offered) for each in offered]
    if not listed:
        unscored("it has no options")
    found = [at(each, "id") for each in listed if at(each, "type") == "boolean"]
    holds(not found, f"the option {found and found[0]!r} is on or off", *client.tape.heard())


# -- load -----------------------------------------------------------------------------------------------


async def load(client: RawClient, session: str) -> tuple[Frame, list[Frame]]:
    """Load a session; return the answer and the updates before it."""
    request = await client.ask("session/load", {**client.place_of_work(), "sessionId": session})
    answer = await client.answer_to(request, "session/load")
    if answer.succeeded:
        await client.be_ready(session)
    return answer, list(client.tape.heard(request.frame.number, answer.number))


async def _loaded(client: RawClient, turns: int = 1) -> tuple[list[Turn], Frame, list[Frame]]:
    session = await client.open()
    lived = [await client.sound_turn(session) for _ in range(turns)]
    await client.barrier()
    answer, told = await load(client, session)
    if answer.failed:
        unscored("the session could not be loaded")
    return lived, answer, told


@LOAD.case("known", "A session that the agent has can be loaded.", capability=CAN_LOAD)
async def load_known(client: RawClient) -> None:
    session = await client.open()
    await client.turn(session)
    answer, _ = await load(client, session)
    holds(not answer.failed, "a session that was just used could not be loaded", answer)


@LOAD.case("user", "Loading tells again what the user said.", capability=CAN_LOAD)
async def load_user(client: RawClient) -> None:
    lived, answer, told = await _loaded(client)
    everything = said([*told, *client.tape.heard(answer.number)], "user_message_chunk")
    holds(is_told(lived[0].words, everything), "the prompt is not in the history", answer)


@LOAD.case("agent", "Loading tells again what the agent answered.", capability=CAN_LOAD)
async def load_agent(client: RawClient) -> None:
    [lived], answer, told = await _loaded(client)
    spoken = [each for each in lived.updates if each.kind == "agent_message_chunk"]
    # A notice for a client that cannot display notices may be sent as a separate message, and is not replayed.
    last = [each for each in spoken if at(each.update, "messageId") == at(spoken[-1].update, "messageId")]
    words = said(last, "agent_message_chunk")
    if not words:
        unscored("the agent said nothing in the turn")
    everything = said([*told, *client.tape.heard(answer.number)], "agent_message_chunk")
    holds(is_told(words, everything), "the agent's words are not in the history", answer)


@LOAD.case("tools", "Loading tells the tool calls again.", capability=CAN_LOAD, scenes=("tool",))
async def load_tools(client: RawClient) -> None:
    session = await client.open()
    await client.sound_turn(session)
    turn = await client.turn(session, "tool")
    calls = [as_key(at(each.update, "toolCallId")) for each in turn.updates if each.kind == "tool_call"]
    if not calls:
        unscored("it showed no tool call")
    await client.barrier()
    answer, told = await load(client, session)
    if answer.failed:
        unscored("the session could not be loaded")
    told += client.tape.heard(answer.number)
    if not said(told, "user_message_chunk"):
        unscored("the history is not told at all")
    again = {as_key(at(each.update, "toolCallId")) for each in told if each.kind == "tool_call"}
    missing = [each for each in calls if each not in again]
    holds(not missing, f"the tool call {missing and missing[0]} is not in the history", turn.request.frame, answer)


@LOAD.case(
    "answer-last",
    "The answer to a load comes behind the history.",
    capability=CAN_LOAD,
    carriers=IN_ORDER,
)
async def load_answer_last(client: RawClient) -> None:
    _, answer, _ = await _loaded(client)
    await client.barrier()
    late = [each for each in client.tape.heard(answer.number) if is_one_of(each.kind, CONTENT)]
    holds(not late, "history came behind the answer", answer, *late)


@LOAD.case("order", "The history is told in the order in which it happened.", capability=CAN_LOAD)
async def load_order(client: RawClient) -> None:
    _, answer, told = await _loaded(client, turns=2)
    await client.barrier()
    told += client.tape.heard(answer.number)
    speakers = [each.kind for each in told if each.kind in ("user_message_chunk", "agent_message_chunk")]
    runs = [each for at_, each in enumerate(speakers) if at_ == 0 or speakers[at_ - 1] != each]
    if len(set(runs)) < 2:
        unscored("the history does not have both sides")
    expected = ["user_message_chunk", "agent_message_chunk"] * (len(runs) // 2)
    holds(runs == expected and len(runs) == 4, "the sides of two turns do not alternate", answer, *told)


@LOAD.case("session", "The history is told under the id of the session that is loaded.", capability=CAN_LOAD)
async def load_session(client: RawClient) -> None:
    session = await client.open()
    await client.turn(session)
    answer, told = await load(client, session)
    if answer.failed:
        unscored("the session could not be loaded")
    strange = [each for each in told if is_one_of(each.kind, CONTENT) and each.session != session]
    holds(not strange, "history under another id", *strange)


@LOAD.case("goes-on", "A session that was loaded takes prompts.", capability=CAN_LOAD)
async def load_goes_on(client: RawClient) -> None:
    session = await client.open()
    await client.sound_turn(session)
    await client.sound_turn(session)
    answer, _ = await load(client, session)
    if answer.failed:
        unscored("the session could not be loaded")
    turn = await client.turn(session)
    holds(turn.answer.succeeded, "a prompt after the load was refused", turn.answer)


# -- resume ---------------------------------------------------------------------------------------------


async def _resume(client: RawClient, turns: int = 1) -> tuple[str, Frame, list[Frame]]:
    session = await client.open()
    for _ in range(turns):
        await client.sound_turn(session)
    await client.barrier()
    request = await client.ask("session/resume", {**client.place_of_work(), "sessionId": session})
    answer = await client.answer_to(request, "session/resume")
    if answer.succeeded:
        await client.be_ready(session)
    return session, answer, list(client.tape.heard(request.frame.number, answer.number))


@RESUME.case("known", "A session that the agent has can be resumed.", capability=CAN_RESUME)
async def resume_known(client: RawClient) -> None:
    _, answer, _ = await _resume(client)
    holds(not answer.failed, "a session that was just used could not be resumed", answer)


@RESUME.case("no-history", "Resuming tells no history before its answer.", capability=CAN_RESUME, carriers=IN_ORDER)
async def resume_no_history(client: RawClient) -> None:
    _, answer, told = await _resume(client)
    if answer.failed:
        unscored("the session could not be resumed")
    history = [each for each in told if is_one_of(each.kind, CONTENT)]
    holds(not history, "history came before the answer", *history, answer)


@RESUME.case("goes-on", "A session that was resumed takes prompts.", capability=CAN_RESUME)
async def resume_goes_on(client: RawClient) -> None:
    session, answer, _ = await _resume(client, turns=2)
    if answer.failed:
        unscored("the session could not be resumed")
    turn = await client.turn(session)
    holds(turn.answer.succeeded, "a prompt after the resume was refused", turn.answer)


@RESUME.case(
    "directories",
    "Directories of an earlier opening that a resume does not name are not in force again.",
    capability=CAN_RESUME,
    section="Additional workspace roots",
)
async def resume_directories(client: RawClient) -> None:
    await client.initialize()
    for each in (CAN_LIST, TAKES_DIRECTORIES):
        if not offers(client.offer, each):
            unscored(f"it does not claim `{each}`")
    answer = await client.call("session/new", {**client.place_of_work(), "additionalDirectories": [client.cwd]})
    session = at(answer.result, "sessionId")
    if not is_text(session):
        unscored(f"`session/new` with a directory gave no session{refusal(answer)}")
    await client.be_ready(session)
    await client.sound_turn(session)
    if not at(await _row_of(client, session), "additionalDirectories"):
        unscored("its list does not tell of directories")
    answer = await client.call("session/resume", {**client.place_of_work(), "sessionId": session})
    if answer.failed:
        unscored("the session could not be resumed")
    found = at(await _row_of(client, session), "additionalDirectories")
    holds(not found, f"it was resumed without any, and has {found!r}", answer, *client.tape.heard(answer.number))


# -- list, delete, close --------------------------------------------------------------------------------


async def _listed(client: RawClient, **params: Any) -> tuple[Frame, Any]:
    answer = await client.call("session/list", params)
    if answer.failed:
        unscored("`session/list` was answered with an error")
    return answer, at(answer.result, "sessions")


async def _all_ids(client: RawClient) -> list[Any]:
    ids: list[Any] = []
    cursor: dict[str, Any] = {}
    for _ in range(1000):
        answer, sessions = await _listed(client, **cursor)
        if not is_objects(sessions):
            unscored("the list is no list")
        ids += [at(each, "sessionId") for each in sessions]
        following = at(answer.result, "nextCursor")
        if following is None:
            return ids
        cursor = {"cursor": following}
    broken("the list does not end")


async def _row_of(client: RawClient, session: str) -> dict[str, Any]:
    """Return the list's entry for a session. Raises `NotScored` if it is not listed."""
    cursor: dict[str, Any] = {}
    for _ in range(LONGEST_LIST):
        answer, sessions = await _listed(client, **cursor)
        for each in sessions if is_objects(sessions) else []:
            if at(each, "sessionId") == session:
                return each
        cursor = {"cursor": at(answer.result, "nextCursor")}
        if cursor["cursor"] is None:
            break
    unscored("the session is not listed")


@LIST.case("shape", "A list has sessions, each with its id and its directory.", capability=CAN_LIST)
async def list_shape(client: RawClient) -> None:
    session = await client.open()
    await client.turn(session)
    answer, sessions = await _listed(client)
    if not is_objects(sessions):
        broken("`sessions` is no list of objects", answer)
    for each in sessions:
        is_whole = is_text(at(each, "sessionId")) and is_text(at(each, "cwd"))
        holds(is_whole, "a session has no id and directory", answer)


@LIST.case(
    "cwd",
    "A session has the directory that it was opened in, wherever the agent itself runs.",
    capability=CAN_LIST,
)
async def list_cwd(client: RawClient) -> None:
    session = await client.open()
    await client.turn(session)
    row = await _row_of(client, session)
    found = at(row, "cwd")
    if not is_text(found):
        unscored("the session is listed without its directory")
    is_there = is_same_place(found, client.cwd)
    holds(is_there, f"it was opened in {client.cwd!r} and has {found!r}", *client.tape.heard())


@LIST.case("empty", "A list without a match is an empty list.", capability=CAN_LIST)
async def list_empty(client: RawClient) -> None:
    await client.open()
    answer, sessions = await _listed(client, cwd=f"{client.cwd.rstrip('/')}/no-such-directory")
    holds(sessions == [], f"`sessions` is {sessions!r}", answer)


@LIST.case(
    "ends",
    "Following the cursors leads to the end of the list, and names no session twice.",
    capability=CAN_LIST,
)
async def list_ends(client: RawClient) -> None:
    session = await client.open()
    await client.turn(session)
    ids = await _all_ids(client)
    holds(len(ids) == len(set(map(str, ids))), "a session is listed twice", *client.tape.heard())


@DELETE.case("gone", "A deleted session is in no list any more.", capability=CAN_DELETE)
async def delete_gone(client: RawClient) -> None:
    session = await client.open()
    if at(client.offer, "agentCapabilities", "sessionCapabilities", "list") is None:
        unscored("it does not list sessions")
    await client.turn(session)
    answer = await client.call("session/delete", {"sessionId": session})
    if answer.failed:
        unscored("the session could not be deleted")
    holds(session not in await _all_ids(client), "it is still listed", answer, *client.tape.heard(answer.number))


@DELETE.case("known", "A session can be deleted.", capability=CAN_DELETE)
async def delete_known(client: RawClient) -> None:
    session = await client.open()
    await client.turn(session)
    answer = await client.call("session/delete", {"sessionId": session})
    holds(answer.succeeded, "it was refused", answer)


@DELETE.case("unknown", "Deleting a session that is not there succeeds.", severity="should", capability=CAN_DELETE)
async def delete_unknown(client: RawClient) -> None:
    await client.open()
    answer = await client.call("session/delete", {"sessionId": NO_SESSION})
    holds(answer.succeeded, "it failed", answer)


@CLOSE.case("known", "A session can be closed.", capability=CAN_CLOSE)
async def close_known(client: RawClient) -> None:
    session = await client.open()
    await client.turn(session)
    answer = await client.call("session/close", {"sessionId": session})
    holds(answer.succeeded, "it was refused", answer)


@CLOSE.case(
    "cancels",
    "Closing cancels the turn that runs, and its prompt is answered so.",
    capability=CAN_CLOSE,
    scenes=("wait",),
)
async def close_cancels(client: RawClient) -> None:
    session = await client.open()
    request = await client.running(session)
    closing = await client.ask("session/close", {"sessionId": session})
    answer = await client.until(lambda frame: frame.is_answer and frame.id == request.id, request.frame.number)
    if answer is None:
        broken("the prompt was never answered", closing.frame)
    reason = at(answer.result, "stopReason")
    holds(reason == "cancelled", f"the prompt ended with {reason!r}", closing.frame, answer)


@NEW.case("apart", "What is said in a session is told under its id.", section="Session id")
async def apart(client: RawClient) -> None:
    first, second = await client.open_two()
    place = client.place
    await client.turn(first)
    await client.barrier()
    await client.turn(second)
    await client.barrier()
    updates = [each for each in client.tape.heard(place) if is_one_of(each.kind, CONTENT)]
    middle = next(each.number for each in client.tape.frames[place:] if each.is_ours and each.session == second)
    before, after = (
        [each for each in updates if (each.number < middle) is is_before] for is_before in (True, False)
    )
    # A late update of the first turn is another rule's matter: it may come after the second prompt.
    mixed = [each for each in before if each.session != first]
    mixed += [each for each in after if each.session not in (first, second)]
    if after and all(each.session != second for each in after):
        mixed += after
    holds(not mixed, "an update names another session than the one that was prompted", *mixed)


@NEW.case("at-once", "Each of two turns at the same time is told under its session id.", section="Session id")
async def at_once(client: RawClient) -> None:
    first, second = await client.open_two()
    for session in (first, second):
        spoken = [each for each in (await client.sound_turn(session)).updates if is_one_of(each.kind, CONTENT)]
        if not spoken or any(each.session != session for each in spoken):
            unscored("a turn by itself says nothing under the id of its session")
        await client.barrier()
    requests = [await client.prompt(each) for each in (first, second)]
    ended = [(await client.end_of(request, "plain")).answer for request in requests]
    if any(each.failed for each in ended):
        unscored("a prompt is answered with an error")
    await client.barrier()
    told = [each for each in client.tape.heard(requests[0].frame.number) if is_one_of(each.kind, CONTENT)]
    for each in (first, second):
        holds(any(update.session == each for update in told), f"no update names {each!r}", *told)
    strange = [each for each in told if each.session not in (first, second)]
    holds(not strange, "an update names a third session", *strange)


@NEW.case(
    "side-by-side",
    "A turn in one session does not keep another session waiting.",
    severity="should",
    scenes=("wait",),
)
async def side_by_side(client: RawClient) -> None:
    busy, free = await client.open_two()
    await client.sound_turn(free)
    await client.running(busy)
    request = await client.ask("session/prompt", {"sessionId": free, "prompt": [text(client.words("plain"))]})
    answer = await client.until(lambda frame: frame.is_answer and frame.id == request.id, request.frame.number)
    holds(answer, "the prompt in the other session was not answered while the first one ran", request.frame)
