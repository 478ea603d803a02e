"""v2, a draft: the handshake, and a prompt's life from its insertion to the idle that ends its work."""

from __future__ import annotations

from typing import Any

from turnwire_check.capability import speaks_v2
from turnwire_check.case import Part, Scene, broken, holds, unscored
from turnwire_check.raw_client import RawClient, hello
from turnwire_check.raw_peer import CANCELLED, INVALID_PARAMS, is_answer_to, text
from turnwire_check.shapes import as_key, is_absolute, is_object, is_one_of, is_text
from turnwire_check.tape import Frame, at, has, items
from turnwire_check.v2_work import (
    BUSY,
    MESSAGES,
    OUTPUT,
    busy,
    cancelled,
    is_state,
    work,
)
from turnwire_check.watch import Conversation

INIT = Part("v2.init", "v2 draft, initialization")
PROMPT = Part("v2.prompt", "v2 draft, prompt lifecycle")
STATE = Part("v2.state", "v2 draft, prompt lifecycle, state updates")
UPDATE = Part("v2.update", "v2 draft, session updates")
CANCEL = Part("v2.cancel", "v2 draft, cancellation")
FAIL = Part("v2.fail", "v2 draft, prompt lifecycle, errors")

UNSUPPORTED_VERSION = -32022
MARKERS = ("prompt", "mcp", "delete", "additionalDirectories")
KINDS = MESSAGES | frozenset(
    {
        *(
            "state_update",
            "tool_call_update",
            "tool_call_content_chunk",
            "terminal_update",
            "terminal_output_chunk",
        ),
        *("plan_update", "available_commands_update", "config_option_update", "session_info_update"),
        *("usage_update", "notice", "compaction_update", "compaction_summary_chunk"),
        *("plan_removed", "subagent_update", "session_message", "session_message_chunk"),
    }
)
STATES = frozenset({*BUSY, "idle", "unknown"})
REASONS = frozenset({"end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled", "error"})


@INIT.case("name", "The agent says its name and version.")
async def name(client: RawClient) -> None:
    answer = await client.initialize()
    who = at(answer.result, "info")
    holds(is_text(at(who, "name")) and is_text(at(who, "version")), "`info` has no name and version", answer)


@INIT.case("capabilities", "A capability is an object, or null.")
async def capabilities(client: RawClient) -> None:
    answer = await client.initialize()
    session = at(answer.result, "capabilities", "session")
    holds(session is None or is_object(session), "`capabilities.session` is no object", answer)
    for each in MARKERS:
        found = at(session, each)
        holds(found is None or is_object(found), f"`session.{each}` is {found!r}", answer)


@INIT.case(
    "no-version",
    "Where there is no common version, the handshake fails with -32022.",
    severity="should",
    section="Version negotiation",
)
async def no_version(client: RawClient) -> None:
    answer = await client.call("initialize", {**hello(1), **hello(2), "protocolVersion": 0})
    found = at(answer.error, "code")
    holds(found == UNSUPPORTED_VERSION, f"asked for version 0 it says {found!r}", answer)


@INIT.case("words", "An agent that says version 2 claims what it can in the words of version 2.")
async def own_words(client: RawClient) -> None:
    answer = await client.initialize()
    holds(speaks_v2(answer.result), "it says version 2 and has `agentCapabilities`, but no `capabilities`", answer)


@INIT.case(
    "baseline",
    "An agent with sessions lists, resumes and closes them, and answers.",
    capability="capabilities.session",
)
async def baseline(client: RawClient) -> None:
    session = await client.open()
    for method, params in (
        ("session/list", {}),
        ("session/resume", {**client.place_of_work(), "sessionId": session}),
        ("session/close", {"sessionId": session}),
    ):
        request = await client.ask(method, params)
        answer = await client.until(is_answer_to(request.id), request.frame.number)
        holds(answer, f"`{method}` is not answered", request.frame)
        holds(answer and at(answer.error, "code") != -32601, f"`{method}` does not exist", request.frame, answer)


# -- the prompt ------------------------------------------------------------------------------------------------


@PROMPT.case("message-id", "A prompt is answered with the id of its message.")
async def message_id(client: RawClient) -> None:
    session = await client.open()
    request = await client.prompt(session)
    answer = await client.answer_to(request, "session/prompt (plain)")
    if answer.failed:
        unscored("a plain prompt is answered with an error")
    found = at(answer.result, "messageId")
    holds(is_text(found) and found, f"`messageId` is {found!r}", answer)


@PROMPT.case("answered", "A prompt is answered.")
async def answered(client: RawClient) -> None:
    session = await client.open()
    request = await client.prompt(session)
    answer = await client.until(is_answer_to(request.id), request.frame.number)
    holds(answer is not None and answer.succeeded, "a plain prompt was not taken", request.frame, answer)


@PROMPT.case(
    "at-once",
    "A prompt is answered when its message is inserted, and not when its work is done.",
    scenes=("wait",),
)
async def at_once(client: RawClient) -> None:
    session = await client.open()
    request = await busy(client, session)
    answer = await client.until(is_answer_to(request.id), request.frame.number)
    holds(answer, "it was not answered while the work went on", request.frame)


@PROMPT.case("told", "The message of a prompt is told under the id of its answer.")
async def message_told(client: RawClient) -> None:
    done = await work(client, await client.open())
    identity = at(done.answer.result, "messageId") if done.answer else None
    if identity is None:
        unscored("the prompt was answered without an id")
    await client.barrier()
    users = [each for each in client.tape.heard() if each.kind in ("user_message", "user_message_chunk")]
    named = [each for each in users if at(each.update, "messageId") == identity]
    holds(named, f"no user message has the id {identity!r}", done.answer, *users)


@PROMPT.case("empty", "A prompt without content is refused with -32602, and inserted nowhere.")
async def empty(client: RawClient) -> None:
    session = await client.open()
    answer = await client.call("session/prompt", {"sessionId": session, "prompt": []})
    found = at(answer.error, "code")
    holds(found == INVALID_PARAMS, f"it was answered with {found!r}", answer)


@PROMPT.case("malformed", "A prompt with a piece that makes no sense is refused with -32602.")
async def malformed(client: RawClient) -> None:
    session = await client.open()
    request = await client.ask("session/prompt", {"sessionId": session, "prompt": [{"type": "text"}]})
    answer = await client.until(is_answer_to(request.id), request.frame.number)
    if answer is None:
        broken("it was never answered", request.frame)
    found = at(answer.error, "code")
    holds(found == INVALID_PARAMS, f"it was answered with {found!r}", request.frame, answer)


@PROMPT.case("refused", "A prompt that is refused leaves no message.", section="Errors")
async def refused(client: RawClient) -> None:
    session = await client.open()
    prompt = [{"type": "text"}]
    answer = await client.call("session/prompt", {"sessionId": session, "prompt": prompt})
    await client.barrier()
    if not answer.failed:
        unscored("a prompt that makes no sense was taken")
    users = [each for each in client.tape.heard() if each.kind in ("user_message", "user_message_chunk")]
    holds(not users, "it was refused, and is told as a message", answer, *users)


@PROMPT.case("link", "A prompt may hold a link to a resource, always.")
async def link(client: RawClient) -> None:
    session = await client.open()
    done = await work(client, session)
    if done.answer is None or done.answer.failed:
        unscored("a plain prompt is refused")
    block = {"type": "resource_link", "uri": "file:///tmp/notes.txt", "name": "notes.txt"}
    prompt = [text(client.words("plain")), block]
    answer = await client.call("session/prompt", {"sessionId": await client.new_session(), "prompt": prompt})
    holds(answer.succeeded, "it was refused", answer)


@PROMPT.case(
    "unknown-session", "A prompt for a session that does not exist is refused.", severity="should", section="Errors"
)
async def unknown_session(client: RawClient) -> None:
    await client.open()
    answer = await client.call("session/prompt", {"sessionId": "no such session", "prompt": [text("x")]})
    holds(answer.failed, "it was taken", answer)


@PROMPT.case(
    "all-answered",
    "A prompt that comes while work goes on is answered, at the latest by a cancel.",
    scenes=("wait",),
)
async def all_answered(client: RawClient) -> None:
    session = await client.open()
    await work(client, session)
    first = await busy(client, session)
    second = await client.prompt(session)
    await client.pause()
    await client.cancel(session)
    if await client.until(is_answer_to(first.id), first.frame.number) is None:
        unscored("the first prompt was not answered")
    answer = await client.until(is_answer_to(second.id), second.frame.number)
    holds(answer, "the second prompt was never answered", second.frame)


@PROMPT.case(
    "taken-back",
    "A prompt that waits and is taken back is answered: with its message, or with -32800.",
    scenes=("wait",),
    section="$/cancel_request",
)
async def prompt_taken_back(client: RawClient) -> None:
    await _second_answer(client, await client.open(), taken_back=False)
    second, answer = await _second_answer(client, await client.new_session(), taken_back=True)
    if answer is None:
        broken("it was never answered", second)
    code = at(answer.error, "code")
    holds(code in (None, CANCELLED), f"it was answered with {code!r}", second, answer)


async def _second_answer(client: RawClient, session: str, *, taken_back: bool) -> tuple[Frame, Frame | None]:
    """Send a prompt while work runs, and return its answer after all was cancelled.

    Raises `NotScored` if even a prompt that is not withdrawn gets no answer.
    """
    first = await busy(client, session)
    second = await client.prompt(session)
    if taken_back:
        await client.notify("$/cancel_request", {"requestId": second.id})
    await client.pause()
    await client.cancel(session)
    if await client.until(is_answer_to(first.id), first.frame.number) is None:
        unscored("the first prompt was not answered")
    answer = await client.until(is_answer_to(second.id), second.frame.number)
    if answer is None and not taken_back:
        unscored("a second prompt is never answered")
    return second.frame, answer


# -- states ----------------------------------------------------------------------------------------------------


@STATE.case("idle", "When no work is left, the session is told to be idle.")
async def idle(client: RawClient) -> None:
    session = await client.open()
    request = await client.prompt(session)
    answer = await client.answer_to(request, "session/prompt (plain)")
    if answer.failed:
        unscored("a plain prompt is answered with an error")
    found = await client.until(is_state(session, "idle"), request.frame.number)
    holds(found, f"it was not within {client.subject.patience_s:g} s", request.frame)


@STATE.case("running", "Work is told to run before its first output.")
async def running(client: RawClient) -> None:
    session = await client.open()
    done = await work(client, session)
    output = next((each for each in done.frames if is_one_of(each.kind, OUTPUT)), None)
    if output is None:
        unscored("it said nothing")
    begun = next((each for each in done.frames if is_state(session, *BUSY)(each)), None)
    holds(begun is not None and begun.number < output.number, "output came first", output, begun)


@STATE.case("reason", "The idle that ends work says why it ended.", severity="should")
async def reason(client: RawClient) -> None:
    done = await work(client, await client.open())
    found = at(done.idle.update, "stopReason")
    holds(is_text(found), f"`stopReason` is {found!r}", done.idle)


@STATE.case("reason-word", "A stop reason is one of ACP's, or begins with `_`.")
async def reason_word(client: RawClient) -> None:
    done = await work(client, await client.open())
    found = at(done.idle.update, "stopReason")
    if found is None:
        unscored("the idle has no stop reason")
    holds(is_text(found) and (found in REASONS or found.startswith("_")), f"it is {found!r}", done.idle)


@STATE.case("nothing-after", "All output of the foreground comes before the idle.")
async def nothing_after(client: RawClient) -> None:
    done = await work(client, await client.open())
    await client.barrier()
    late = [each for each in client.tape.heard(done.idle.number) if is_one_of(each.kind, OUTPUT)]
    holds(not late, "output came behind the idle", done.idle, *late)


@STATE.watch("words", "A state is one of ACP's, or begins with `_`.")
def state_words(talk: Conversation) -> None:
    for each in talk.updates:
        if each.kind == "state_update":
            found = at(each.update, "state")
            holds(is_text(found) and (found in STATES or found.startswith("_")), f"it is {found!r}", each)


# -- updates ---------------------------------------------------------------------------------------------------


@UPDATE.watch("kind", "An update is of a kind that ACP has, or one that begins with `_`.")
def kind(talk: Conversation) -> None:
    for each in talk.updates:
        is_known = is_text(each.kind) and (each.kind in KINDS or each.kind.startswith("_"))
        holds(is_known, f"an update of the kind {each.kind!r}", each)


@UPDATE.watch("message-ids", "Every message and every chunk of one has an id.")
def message_ids(talk: Conversation) -> None:
    for each in talk.updates:
        if is_one_of(each.kind, MESSAGES):
            found = at(each.update, "messageId")
            holds(is_text(found) and found, f"`messageId` is {found!r}", each)


@UPDATE.case("own-ids", "An id names one message of its kind in the session.")
async def own_ids(client: RawClient) -> None:
    session = await client.open()
    owners: dict[str, int] = {}
    for number in range(2):
        done = await work(client, session)
        for each in done.frames:
            if each.kind in ("agent_message", "agent_message_chunk"):
                identity = as_key(at(each.update, "messageId"))
                holds(owners.setdefault(identity, number) == number, f"{identity} names two messages", each)
    if not owners:
        unscored("it said nothing")


@UPDATE.case("tool-title", "The first update of a tool call has its title.", severity="should", scenes=("tool",))
async def tool_title(client: RawClient) -> None:
    done = await work(client, await client.open(), "tool")
    seen: set[str] = set()
    for each in done.frames:
        identity = as_key(at(each.update, "toolCallId"))
        if each.kind == "tool_call_update" and identity not in seen:
            seen.add(identity)
            holds(is_text(at(each.update, "title")), f"{identity} has none", each)
    if not seen:
        unscored("it showed no tool call")


@UPDATE.case("plan-id", "A plan has an id, whatever its form.", scenes=("plan",))
async def plan_id(client: RawClient) -> None:
    done = await work(client, await client.open(), "plan")
    plans = [each for each in done.frames if each.kind == "plan_update"]
    if not plans:
        unscored("it showed no plan")
    for each in plans:
        found = at(each.update, "plan", "planId")
        holds(is_text(found) and found, f"`planId` is {found!r}", each)


@UPDATE.watch("paths", "Paths of tool calls and of changes are absolute.", section="Tool calls, diffs")
def paths(talk: Conversation) -> None:
    found = [(path, each) for each in talk.updates for path in _paths(each.update)]
    if not found:
        unscored("its tool calls name no paths")
    for path, each in found:
        holds(is_absolute(path), f"the path {path!r} is not absolute", each)


def _paths(update: object) -> list[Any]:
    """Every path that a tool call names."""
    found = [at(each, "path") for each in items(at(update, "locations"))]
    for shown in items(at(update, "content")):
        for change in items(at(shown, "changes")):
            found += [change[name] for name in ("path", "oldPath") if has(change, name)]
    return found


async def _terminals(client: RawClient) -> list[Frame]:
    """Return the terminal updates of work that uses terminals, and of the work after it."""
    session = await client.open()
    scenes: list[Scene] = [each for each in ("terminal", "background") if each in client.subject.prompts]
    for scene in scenes * 2:
        await work(client, session, scene)
    await client.barrier()
    told = [each for each in client.tape.heard() if each.kind == "terminal_update" and each.session == session]
    return told or unscored("it shows no terminals; give a prompt: --provoke terminal=TEXT")


@UPDATE.case("terminal-cwd", "The directory of a terminal is absolute.", section="Tool calls, terminals")
async def terminal_cwd(client: RawClient) -> None:
    named = [each for each in await _terminals(client) if at(each.update, "cwd") is not None]
    if not named:
        unscored("its terminals name no directory")
    for each in named:
        found = at(each.update, "cwd")
        holds(is_absolute(found), f"it is {found!r}", each)


@UPDATE.case(
    "terminal-ids",
    "The id of a terminal that has ended is not used again.",
    section="Tool calls, terminals",
)
async def terminal_ids(client: RawClient) -> None:
    ended: dict[str, Frame] = {}
    for each in await _terminals(client):
        identity = as_key(at(each.update, "terminalId"))
        if at(each.update, "exitStatus") is not None:
            ended.setdefault(identity, each)
        elif identity in ended:
            begins = at(each.update, "command") is not None
            holds(not begins, f"{identity} has ended, and runs a command again", ended[identity], each)
    if not ended:
        unscored("no terminal of its ended")


# -- cancelling, failing -----------------------------------------------------------------------------------------


@CANCEL.case("heard", "Work that is cancelled ends with an idle.", scenes=("wait",))
async def heard(client: RawClient) -> None:
    session = await client.open()
    request = await busy(client, session)
    sent = await client.cancel(session)
    found = await client.until(is_state(session, "idle"), request.frame.number)
    holds(found, f"there was none within {client.subject.patience_s:g} s", sent)


@CANCEL.case("reason", "Work that is cancelled ends as `cancelled`, whatever was broken off.", scenes=("wait",))
async def cancel_reason(client: RawClient) -> None:
    done = await cancelled(client, await client.open())
    found = at(done.idle.update, "stopReason")
    holds(found == "cancelled", f"it ended with {found!r}", done.idle)


@CANCEL.case("nothing-after", "After a cancel, too, all output comes before the idle.", scenes=("wait",))
async def cancel_nothing_after(client: RawClient) -> None:
    done = await cancelled(client, await client.open())
    await client.barrier()
    late = [each for each in client.tape.heard(done.idle.number) if is_one_of(each.kind, OUTPUT)]
    holds(not late, "output came behind the idle", done.idle, *late)


@CANCEL.case("goes-on", "After work that was cancelled the next prompt runs to its own end.", scenes=("wait",))
async def cancel_goes_on(client: RawClient) -> None:
    session = await client.open()
    await work(client, session)
    await cancelled(client, session)
    await client.barrier()
    done = await work(client, session)
    found = at(done.idle.update, "stopReason")
    holds(found != "cancelled", "the next work was cancelled, too", done.idle)


@CANCEL.case("idle", "A cancel while nothing runs does nothing to the next prompt.")
async def cancel_idle(client: RawClient) -> None:
    session = await client.open()
    before = await work(client, session)
    if at(before.idle.update, "stopReason") == "cancelled":
        unscored("plain work ends as cancelled")
    sent = await client.cancel(session)
    await client.barrier()
    done = await work(client, session)
    found = at(done.idle.update, "stopReason")
    holds(found != "cancelled", "the work that came later was cancelled", sent, done.idle)


@FAIL.case("idle", "Work that fails ends with an idle that says `error`.", scenes=("fail",))
async def fail_idle(client: RawClient) -> None:
    session = await client.open()
    request = await client.prompt(session, "fail")
    answer = await client.answer_to(request, "session/prompt (fail)")
    if answer.failed:
        unscored("the prompt was refused before its message was inserted")
    found = await client.until(is_state(session, "idle"), request.frame.number)
    if found is None:
        broken("there is no idle", answer)
    holds(at(found.update, "stopReason") == "error", f"it ended with {at(found.update, 'stopReason')!r}", found)


@FAIL.case("once", "A prompt that was answered with its message gets no error later.", scenes=("fail",))
async def fail_once(client: RawClient) -> None:
    session = await client.open()
    request = await client.prompt(session, "fail")
    await client.until(is_state(session, "idle"), request.frame.number)
    await client.barrier()
    answers = [each for each in client.tape.heard() if is_answer_to(request.id)(each)]
    holds(len(answers) <= 1, f"it was answered {len(answers)} times", *answers)
