"""v1: tool calls, permission requests, and an agent's requests to its client."""

from __future__ import annotations

from typing import Any

from turnwire_check.case import Part, Scene, broken, holds, unscored
from turnwire_check.raw_client import ALLOW, DISMISS, REJECT, RawClient, Turn
from turnwire_check.raw_peer import HOLD, error, gives, is_answer_to
from turnwire_check.shapes import (
    FINAL,
    PERMISSION_KINDS,
    TOOL_KINDS,
    TOOL_STATUSES,
    as_key,
    is_absolute,
    is_count,
    is_objects,
    is_one_of,
    is_text,
    paths_of,
)
from turnwire_check.tape import Frame, at, items
from turnwire_check.watch import Conversation

TOOL = Part("v1.tool", "Tool calls")
PERMISSION = Part("v1.permission", "Tool calls, requesting permission")
FILES = Part("v1.fs", "File system")
TERMINAL = Part("v1.terminal", "Terminals")
ELICIT = Part("v1.elicit", "Elicitation")

TOOL_UPDATES = ("tool_call", "tool_call_update")


async def _tools(client: RawClient, scene: Scene = "tool") -> tuple[Turn, list[Frame]]:
    """Run a turn with a tool call; return the tool call's updates."""
    turn = await client.turn(await client.open(), scene)
    told = [each for each in turn.updates if each.kind in TOOL_UPDATES]
    if not told:
        unscored("it showed no tool call")
    return turn, told


def _statuses(frames: list[Frame]) -> dict[str, list[Any]]:
    """For each tool call the statuses that it had, in order."""
    found: dict[str, list[Any]] = {}
    for each in frames:
        if each.kind not in TOOL_UPDATES:
            continue
        status = at(each.update, "status")
        listed = found.setdefault(as_key(at(each.update, "toolCallId")), [])
        if status is None and each.kind == "tool_call":
            status = "pending"
        if status is not None:
            listed.append(status)
    return found


@TOOL.watch("announced", "A tool call is announced before it is updated.")
def announced(talk: Conversation) -> None:
    seen: set[tuple[str, str]] = set()
    for each in _calls(talk):
        identity = as_key(each.session), as_key(at(each.update, "toolCallId"))
        is_known = each.kind == "tool_call" or identity in seen or identity[0] in talk.reopened
        holds(is_known, f"{identity[1]} was never announced", each)
        seen.add(identity)


@TOOL.watch("statuses", "The status of a tool call is one of four words.", section="Status")
def statuses(talk: Conversation) -> None:
    for each in _calls(talk):
        status = at(each.update, "status")
        holds(status is None or is_one_of(status, TOOL_STATUSES), f"the status {status!r}", each)


@TOOL.watch("kinds", "The kind of a tool call is one of ten words.", section="Creating")
def kinds(talk: Conversation) -> None:
    for each in _calls(talk):
        kind = at(each.update, "kind")
        holds(kind is None or is_one_of(kind, TOOL_KINDS), f"the kind {kind!r}", each)


def _calls(talk: Conversation) -> list[Frame]:
    found = [each for each in talk.updates if is_one_of(each.kind, TOOL_UPDATES)]
    return found or unscored("it showed no tool call")


@TOOL.case(
    "over",
    "A tool call is told to be over before its turn ends.",
    severity="should",
    scenes=("tool",),
    section="Status",
)
async def over(client: RawClient) -> None:
    turn, told = await _tools(client)
    for identity, listed in _statuses(told).items():
        last = listed[-1] if listed else "pending"
        holds(is_one_of(last, FINAL), f"{identity} is left as {last!r}", *told, turn.answer)


@TOOL.case(
    "runs",
    "A tool call is told to run before it is told to be over.",
    severity="should",
    scenes=("tool",),
    section="Status",
)
async def runs(client: RawClient) -> None:
    _, told = await _tools(client)
    for identity, listed in _statuses(told).items():
        is_sound = not listed or listed[-1] != "completed" or "in_progress" in listed
        holds(is_sound, f"{identity} went from {listed[:1]} to its end", *told)


@TOOL.case("ids", "A tool call has an id that no other has in the session.", scenes=("tool",), section="Creating")
async def ids(client: RawClient) -> None:
    session = await client.open()
    first, second = await client.turn(session, "tool"), await client.turn(session, "tool")
    before = {as_key(at(each.update, "toolCallId")): each for each in first.updates if each.kind == "tool_call"}
    after = {as_key(at(each.update, "toolCallId")): each for each in second.updates if each.kind == "tool_call"}
    if not before or not after:
        unscored("it did not show a tool call in each of two turns")
    shared = [each for each in after if each in before]
    holds(not shared, f"{shared and shared[0]} names two calls", *before.values(), *after.values())


@TOOL.watch("paths", "Paths are absolute.", section="Following the agent, diffs")
def paths(talk: Conversation) -> None:
    found = [(path, each) for each in talk.updates for path in paths_of(each.update)]
    if not found:
        unscored("its tool calls name no paths")
    for path, each in found:
        holds(is_absolute(path), f"the path {path!r} is not absolute", each)


# -- permission -----------------------------------------------------------------------------------------


@PERMISSION.case("shape", "A permission request names its session, its tool call and its options.", scenes=("ask",))
async def shape(client: RawClient) -> None:
    session = await client.open()
    _, asked = await client.asked(session)
    holds(asked.session == session, "it names another session", asked)
    holds(is_text(at(asked.params, "toolCall", "toolCallId")), "it names no tool call", asked)
    options = at(asked.params, "options")
    if not is_objects(options) or not options:
        broken("it has no options", asked)
    for each in options:
        is_whole = is_text(at(each, "optionId")) and is_text(at(each, "name"))
        holds(is_whole, "an option has no id and name", asked)
        holds(is_one_of(at(each, "kind"), PERMISSION_KINDS), f"an option of the kind {at(each, 'kind')!r}", asked)


@PERMISSION.watch("option-ids", "The options of a permission request have different ids.")
def option_ids(talk: Conversation) -> None:
    asked = [each for each in talk.heard if each.method == "session/request_permission"]
    if not asked:
        unscored("it did not ask for permission")
    for each in asked:
        ids = [as_key(at(option, "optionId")) for option in items(at(each.params, "options"))]
        holds(len(ids) == len(set(ids)), "two options have one id", each)


@PERMISSION.case(
    "request", "Permission is asked for by a request with an id, which is a number or a text.", scenes=("ask",)
)
async def request_id(client: RawClient) -> None:
    session = await client.open()
    client.answers["session/request_permission"] = lambda frame: HOLD
    prompt = await client.prompt(session, "ask")
    found = await client.until(
        lambda frame: frame.method == "session/request_permission" or is_answer_to(prompt.id)(frame),
        prompt.frame.number,
    )
    if found is None or found.is_answer:
        unscored("it did not ask for permission")
    is_id = isinstance(found.id, int | str) and not isinstance(found.id, bool)
    holds(found.is_request and is_id, f"its id is {found.id!r}", found)


@PERMISSION.case(
    "waits",
    "A tool that waits for permission does not run, and its turn does not end.",
    scenes=("ask",),
)
async def waits(client: RawClient) -> None:
    session = await client.open()
    request, asked = await client.asked(session)
    identity = at(asked.params, "toolCall", "toolCallId")
    await client.barrier()
    for each in client.tape.heard(request.frame.number):
        holds(not is_answer_to(request.id)(each), "the turn ended while its question was open", asked, each)
        ran = at(each.update, "toolCallId") == identity and at(each.update, "status") in ("completed",)
        holds(not ran, "the tool ran before anybody allowed it", asked, each)


async def _decided(client: RawClient, members: Any) -> tuple[Frame, Turn]:
    """Answer the permission request; return it, and the turn from there on."""
    session = await client.open()
    request, asked = await client.asked(session)
    client.answers["session/request_permission"] = DISMISS
    answered = await client.respond(asked, members(asked))
    turn = await client.end_of(request, "ask")
    return asked, turn._replace(frames=[each for each in turn.frames if each.number > answered.number])


def _completed(asked: Frame, turn: Turn) -> Frame | None:
    """Return the update that completed the tool call of the request."""
    identity = at(asked.params, "toolCall", "toolCallId")
    return next(
        (
            each
            for each in turn.updates
            if at(each.update, "toolCallId") == identity and at(each.update, "status") == "completed"
        ),
        None,
    )


@PERMISSION.case(
    "allowed",
    "A tool that was allowed is told to be over before the turn ends.",
    severity="should",
    scenes=("ask",),
)
async def allowed(client: RawClient) -> None:
    asked, turn = await _decided(client, ALLOW)
    if turn.answer.failed:
        unscored("the turn failed")
    identity = at(asked.params, "toolCall", "toolCallId")
    found = _statuses(list(client.tape.heard())).get(as_key(identity), [])
    holds(found and is_one_of(found[-1], FINAL), "it is left open", asked, turn.answer)


@PERMISSION.case("rejected", "A tool that was rejected does not run.", scenes=("ask",))
async def rejected(client: RawClient) -> None:
    asked, turn = await _decided(client, REJECT)
    done = _completed(asked, turn)
    holds(done is None, "the tool was rejected, and is told to be done", asked, done)


@PERMISSION.case("not-offered", "An option that was not offered is no approval.", scenes=("ask",))
async def not_offered(client: RawClient) -> None:
    strange = {"result": {"outcome": {"outcome": "selected", "optionId": "no-such-option"}}}
    asked, turn = await _decided(client, gives(**strange))
    done = _completed(asked, turn)
    holds(done is None, "an option that nobody offered was taken for approval", asked, done)


@PERMISSION.case("refused", "A permission request that is answered with an error is no approval.", scenes=("ask",))
async def refused(client: RawClient) -> None:
    asked, turn = await _decided(client, gives(**error(-32603)))
    done = _completed(asked, turn)
    holds(done is None, "an error was taken for approval", asked, done)


@PERMISSION.case(
    "dismissed", "Where a question is answered with `cancelled`, the tool does not run.", scenes=("ask",)
)
async def dismissed(client: RawClient) -> None:
    asked, turn = await _decided(client, DISMISS)
    done = _completed(asked, turn)
    holds(done is None, "the tool was not allowed, and is told to be done", asked, done)


# -- what only some clients have ------------------------------------------------------------------------


async def _unasked(client: RawClient, scene: Scene, prefix: str) -> None:
    """Check that a client which does not offer these requests receives none, even if prompted to cause them."""
    session = await client.open()
    request = await client.prompt(session, scene)

    def is_gated(frame: Frame) -> bool:
        return frame.is_request and (frame.method or "").startswith(prefix)

    # A turn may continue for as long as it would need with a client that supports them. That breaks no rule.
    found = await client.until(
        lambda frame: is_gated(frame) or is_answer_to(request.id)(frame),
        request.frame.number,
        within=client.patience_s / 5,
    )
    if found is not None and is_gated(found):
        broken(f"`{found.method}` was asked of a client that does not offer it", found)


@FILES.case("offered", "Files are asked only of clients that offer them.", scenes=("read",))
async def files_offered(client: RawClient) -> None:
    await _unasked(client, "read", "fs/")


@TERMINAL.case("offered", "Terminals are asked only of clients that offer them.", scenes=("terminal",))
async def terminal_offered(client: RawClient) -> None:
    await _unasked(client, "terminal", "terminal/")


@ELICIT.case("offered", "Users are asked by a form only where the client can show one.", scenes=("elicit",))
async def elicit_offered(client: RawClient) -> None:
    await _unasked(client, "elicit", "elicitation/")


@FILES.case("read", "A file is asked for by its absolute path, with lines that begin at 1.", scenes=("read",))
async def files_read(client: RawClient) -> None:
    client.answers["fs/read_text_file"] = gives(result={"content": "a line\n"})
    session = await client.open({"fs": {"readTextFile": True, "writeTextFile": False}})
    await client.turn(session, "read")
    asked = [each for each in client.tape.heard() if each.method == "fs/read_text_file"]
    if not asked:
        unscored("it read no file through its client")
    for each in asked:
        holds(each.session == session, "it names another session", each)
        holds(is_absolute(at(each.params, "path")), f"the path is {at(each.params, 'path')!r}", each)
        line = at(each.params, "line")
        holds(line is None or (is_count(line) and line > 0), f"it asks for the line {line!r}", each)


async def _in_terminal(client: RawClient) -> Turn:
    """Run a turn with a command in a terminal of the client."""
    client.answers |= {
        "terminal/create": gives(result={"terminalId": "terminal-1"}),
        "terminal/wait_for_exit": gives(result={"exitCode": 0, "signal": None}),
        "terminal/output": gives(
            result={"output": "done\n", "truncated": False, "exitStatus": {"exitCode": 0, "signal": None}}
        ),
        "terminal/kill": gives(result={}),
        "terminal/release": gives(result={}),
    }
    session = await client.open({"terminal": True})
    turn = await client.turn(session, "terminal")
    if not any(each.method == "terminal/create" for each in turn.frames):
        unscored("it used no terminal of its client")
    return turn


@TERMINAL.case("released", "Every terminal is released in the end.", scenes=("terminal",))
async def released(client: RawClient) -> None:
    turn = await _in_terminal(client)
    asked = [each.method for each in turn.frames]
    opened, closed = asked.count("terminal/create"), asked.count("terminal/release")
    holds(opened <= closed, f"{opened} were made and {closed} released", turn.answer)


@TERMINAL.case(
    "shown",
    "A terminal is shown in its tool call before it is released.",
    severity="should",
    scenes=("terminal",),
    section="Embedding in tool calls",
)
async def shown(client: RawClient) -> None:
    turn = await _in_terminal(client)
    showing = [each for each in turn.updates if _shows_terminal(each)]
    released = [each for each in turn.frames if each.method == "terminal/release"]
    if not showing or not released:
        unscored("it shows no terminal in a tool call, or releases none")
    holds(showing[0].number < released[0].number, "it was released first", released[0], showing[0])


def _shows_terminal(frame: Frame) -> bool:
    return any(at(each, "type") == "terminal" for each in items(at(frame.update, "content")))


@ELICIT.case("form", "A form says what it is for, and has a schema.", scenes=("elicit",))
async def form(client: RawClient) -> None:
    client.answers["elicitation/create"] = gives(result={"action": "decline"})
    session = await client.open({"elicitation": {"form": {}}})
    turn = await client.turn(session, "elicit")
    asked = [each for each in turn.frames if each.method == "elicitation/create"]
    if not asked:
        unscored("it asked for no form")
    for each in asked:
        holds(is_text(at(each.params, "message")), "it has no message", each)
        holds(at(each.params, "mode") == "form", f"its mode is {at(each.params, 'mode')!r}", each)
        holds(isinstance(at(each.params, "requestedSchema"), dict), "it has no schema", each)


@ELICIT.case("declined", "A form that is declined does not keep the turn from its end.", scenes=("elicit",))
async def declined(client: RawClient) -> None:
    client.answers["elicitation/create"] = gives(result={"action": "decline"})
    session = await client.open({"elicitation": {"form": {}}})
    request = await client.prompt(session, "elicit")
    answer = await client.until(is_answer_to(request.id), request.frame.number)
    asked = [each for each in client.tape.heard() if each.method == "elicitation/create"]
    if not asked:
        unscored("it asked for no form")
    holds(answer, "the turn did not end", *asked)


@ELICIT.case(
    "own-ids",
    "Each open request with an address has an id that no other open one has.",
    scenes=("elicit",),
    section="URL completion",
)
async def own_ids(client: RawClient) -> None:
    client.answers["elicitation/create"] = lambda frame: HOLD
    found: list[Frame] = []
    session = await client.open({"elicitation": {"url": {}}})
    for each in (session, await client.new_session()):
        request = await client.prompt(each, "elicit")
        asked = await client.until(
            lambda frame, id=request.id: frame.method == "elicitation/create" or is_answer_to(id)(frame),
            request.frame.number,
            within=client.patience_s / 5,
        )
        if asked is None or asked.is_answer or at(asked.params, "mode") != "url":
            unscored("it does not send its user to an address")
        found.append(asked)
    ids = [at(each.params, "elicitationId") for each in found]
    holds(is_text(ids[0]) and is_text(ids[1]), f"the ids are {ids!r}", *found)
    holds(ids[0] != ids[1], f"both are {ids[0]!r}", *found)
