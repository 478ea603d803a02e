"""Clients: opening sessions, prompts, permission requests, and how a turn ends."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

from turnwire_check.case import Part, broken, holds, unscored
from turnwire_check.judging_agent import OPTIONS, JudgingAgent, chosen
from turnwire_check.raw_peer import CANCELLED, HOLD, error, is_answer_to
from turnwire_check.shapes import is_one_of
from turnwire_check.tape import Frame, at, has, items

NEW = Part("client.new", "Session setup, creating a session")
PROMPT = Part("client.prompt", "Prompt turn, user message")
PERMISSION = Part("client.permission", "Tool calls, requesting permission")
CANCEL = Part("client.cancel", "Prompt turn, cancellation")
TURN = Part("client.turn", "Prompt turn")

COMMANDS = [{"name": "look", "description": "Look around"}]
BLOCKS = {"text": ("text",), "resource_link": ("uri", "name")}
"""Content blocks that every agent accepts, and their text members."""
ODD_NAME = 'id/ü "1" \\ %20'


@NEW.case("cwd", "A session is opened in an absolute directory.", section="Working directory")
async def cwd(agent: JudgingAgent) -> None:
    new = await agent.opened()
    found = at(new.params, "cwd")
    holds(isinstance(found, str) and os.path.isabs(found), f"`cwd` is {found!r}", new)


@NEW.case("mcp-servers", "A new session comes with a list of MCP servers, be it empty.", section="MCP servers")
async def mcp_servers(agent: JudgingAgent) -> None:
    new = await agent.opened()
    holds(isinstance(at(new.params, "mcpServers"), list), "`mcpServers` is no list", new)


def _is_whole(server: Any) -> bool:
    """Return True if the server has the members of its transport."""
    if has(server, "type"):
        return isinstance(at(server, "url"), str) and isinstance(at(server, "headers"), list)
    command = at(server, "command")
    lists = isinstance(at(server, "args"), list) and isinstance(at(server, "env"), list)
    return isinstance(command, str) and os.path.isabs(command) and lists


@NEW.case(
    "mcp-shape",
    "An MCP server has a name, and what its transport needs; a command is absolute.",
    section="MCP servers",
)
async def mcp_shape(agent: JudgingAgent) -> None:
    new = await agent.opened()
    servers = items(at(new.params, "mcpServers"))
    if not servers:
        unscored("it gave no MCP servers")
    for each in servers:
        holds(isinstance(at(each, "name"), str) and _is_whole(each), f"{json.dumps(each)} is not whole", new)


@NEW.case(
    "mcp-transport",
    "MCP servers over HTTP and SSE are given only to agents that take them.",
    section="MCP servers",
)
async def mcp_transport(agent: JudgingAgent) -> None:
    new = await agent.opened()
    found = [at(each, "type") for each in items(at(new.params, "mcpServers")) if has(each, "type")]
    holds(not found, f"the agent does not take {found[0]!r}" if found else "", new)


@NEW.case(
    "directories",
    "Additional directories are given only to agents that take them.",
    section="Additional directories",
)
async def directories(agent: JudgingAgent) -> None:
    new = await agent.opened()
    found = at(new.params, "additionalDirectories")
    holds(not found, "the agent does not take additional directories", new)


@NEW.case(
    "directories-absolute",
    "Additional directories are absolute.",
    section="Additional directories",
)
async def directories_absolute(agent: JudgingAgent) -> None:
    agent.claims["agentCapabilities"] = {"sessionCapabilities": {"additionalDirectories": {}}}
    new = await agent.opened()
    found = items(at(new.params, "additionalDirectories"))
    if not found:
        unscored("it gave no additional directories")
    holds(all(isinstance(each, str) and os.path.isabs(each) for each in found), f"they are {found!r}", new)


@NEW.case("prompt-waits", "No prompt is sent before the session is open.")
async def prompt_waits(agent: JudgingAgent) -> None:
    agent.answers["session/new"] = lambda asked: HOLD
    new = await agent.opened()
    await agent.pause()
    early = [each for each in agent.tape.heard() if each.method == "session/prompt"]
    await agent.respond(new, {"result": {"sessionId": "session-1"}})
    holds(not early, "it did not wait for the session", new, *early[:1])


@NEW.case("id", "The id of a session is used as it was given.", section="Session ID")
async def session_id(agent: JudgingAgent) -> None:
    agent.answers["session/new"] = lambda asked: {"result": {"sessionId": ODD_NAME}}
    prompt = await agent.prompted()
    holds(prompt.session == ODD_NAME, f"the session is {ODD_NAME!r}", prompt)


@NEW.case("meta", "What is said of a session in `_meta`, modes or options does no harm.")
async def new_meta(agent: JudgingAgent) -> None:
    modes = {"currentModeId": "a", "availableModes": [{"id": "a", "name": "A", "_meta": {"x": 1}}]}
    choices = [{"value": "s", "name": "S"}]
    option = {"id": "o", "name": "O", "type": "select", "currentValue": "s", "options": choices}
    odd = {"category": "_example.org/mood", "_meta": {"example.org": 1}}
    said = {"modes": modes, "configOptions": [{**option, **odd}], "_meta": {"example.org": {"x": [1]}}}
    await _opens_with(agent, lambda new: [{"id": new.id, "result": {"sessionId": "session-1", **said}}])


@NEW.case(
    "unknown-option",
    "Options of a type that is not known do no harm.",
    severity="should",
    section="Session config options",
)
async def unknown_option(agent: JudgingAgent) -> None:
    odd = {"id": "volume", "name": "Volume", "type": "_example.org/slider", "currentValue": 3, "from": 0, "to": 9}
    known = {
        "id": "o",
        "name": "O",
        "type": "select",
        "currentValue": "s",
        "options": [{"value": "s", "name": "S"}],
    }
    said = {"sessionId": "session-1", "configOptions": [odd, known]}
    await _opens_with(agent, lambda new: [{"id": new.id, "result": said}])


@NEW.case(
    "updates-behind",
    "An update right behind the answer to `session/new` does no harm.",
    severity="should",
)
async def updates_behind(agent: JudgingAgent) -> None:
    known = agent.of_session("session-1", "available_commands_update", availableCommands=COMMANDS)
    update = {"method": "session/update", "params": known}
    await _opens_with(agent, lambda new: [{"id": new.id, "result": {"sessionId": "session-1"}}, update])


@NEW.case(
    "updates-before",
    "An update that overtakes the answer to `session/new` does no harm.",
    severity="should",
)
async def updates_before(agent: JudgingAgent) -> None:
    known = agent.of_session("session-1", "available_commands_update", availableCommands=COMMANDS)
    update = {"method": "session/update", "params": known}
    await _opens_with(agent, lambda new: [update, {"id": new.id, "result": {"sessionId": "session-1"}}])


async def _opens_with(agent: JudgingAgent, frames: Callable[[Frame], list[dict[str, Any]]]) -> None:
    """Answer `session/new` with these frames in one write. Broken when the client stays, and does not answer."""
    agent.answers["session/new"] = lambda asked: HOLD
    new = await agent.opened()
    if await agent.hears() is None:
        unscored("it does not answer a request that it does not know")
    lines = [json.dumps({"jsonrpc": "2.0", **each}).encode() for each in frames(new)]
    await agent.send_pieces(b"\n".join(lines) + b"\n")
    if await agent.hears() is not None:
        return
    if agent.tape.ended:
        unscored("it left when the session was open")
    broken("it does not answer any more", agent.tape.frames[new.number])


# -- prompts --------------------------------------------------------------------------------------------


@PROMPT.case("content", "A prompt has only what the agent takes: text and links, if it claims no more.")
async def content(agent: JudgingAgent) -> None:
    prompt = await agent.prompted()
    odd = [
        at(each, "type") for each in items(at(prompt.params, "prompt")) if not is_one_of(at(each, "type"), BLOCKS)
    ]
    holds(not odd, f"the agent does not take {odd[0]!r}" if odd else "", prompt)


@PROMPT.case("blocks", "A prompt is a list of pieces, each with the members of its type.")
async def blocks(agent: JudgingAgent) -> None:
    prompt = await agent.prompted()
    given = at(prompt.params, "prompt")
    holds(isinstance(given, list), "`prompt` is no list", prompt)
    for each in items(given):
        members = BLOCKS.get(str(at(each, "type")), ())
        whole = isinstance(at(each, "type"), str) and all(isinstance(at(each, name), str) for name in members)
        holds(whole, f"{json.dumps(each)} is not whole", prompt)


@PROMPT.case(
    "one-at-a-time",
    "The next prompt of a session is sent when the one before is answered.",
    severity="should",
    scenes=("again",),
)
async def one_at_a_time(agent: JudgingAgent) -> None:
    prompt = await agent.prompted()
    await agent.say(prompt.session)
    await agent.pause()
    early = [
        each
        for each in agent.tape.heard(prompt.number + 1)
        if each.method == "session/prompt" and each.session == prompt.session
    ]
    ended = await agent.end(prompt)
    holds(not early, "it was sent while a turn ran", prompt, *early[:1])
    await agent.first("session/prompt", ended.number)


# -- permission -----------------------------------------------------------------------------------------


async def _permission(agent: JudgingAgent) -> tuple[Frame, Frame]:
    prompt = await agent.prompted()
    asked = await agent.want(prompt.session)
    return asked.frame, await agent.answer_to(asked, "session/request_permission")


@PERMISSION.case("result", "A permission request is answered with a result.")
async def result(agent: JudgingAgent) -> None:
    asked, answer = await _permission(agent)
    holds(answer.succeeded, "it was answered with an error", asked, answer)


@PERMISSION.case("outcome", "The outcome is `selected` with an option, or `cancelled`.")
async def outcome(agent: JudgingAgent) -> None:
    asked, answer = await _permission(agent)
    if not answer.succeeded:
        unscored("the permission request was answered with an error")
    found = at(answer.result, "outcome")
    is_choice = at(found, "outcome") == "selected" and isinstance(at(found, "optionId"), str)
    holds(is_choice or at(found, "outcome") == "cancelled", f"the outcome is {json.dumps(found)}", asked, answer)


@PERMISSION.case("offered", "Only an option that was offered is chosen.")
async def offered(agent: JudgingAgent) -> None:
    asked, answer = await _permission(agent)
    option = at(answer.result, "outcome", "optionId")
    if at(answer.result, "outcome", "outcome") != "selected" or not isinstance(option, str):
        unscored("it chose nothing")
    wrong = chosen(answer, list(OPTIONS))
    holds(not wrong, wrong, asked, answer)


@PERMISSION.case("two", "Two permission requests that are open at once are both answered.")
async def two(agent: JudgingAgent) -> None:
    prompt = await agent.prompted()
    call = {"toolCallId": "call-2", "title": "Look again"}
    wanted = [await agent.want(prompt.session), await agent.want(prompt.session, toolCall=call)]
    found = [await agent.until(is_answer_to(each.id), each.frame.number) for each in wanted]
    if not any(found):
        unscored("nobody answered a permission request")
    for asked, answer in zip(wanted, found, strict=True):
        holds(answer, "one of two was answered", asked.frame)


@PERMISSION.case(
    "taken-back",
    "A permission request that the agent takes back is answered once: with an outcome, or with -32800.",
    section="Cancellation of requests",
)
async def taken_back(agent: JudgingAgent) -> None:
    prompt = await agent.attentive()
    before = await agent.answer_to(await agent.want(prompt.session), "session/request_permission")
    if at(before.result, "outcome", "outcome") not in ("selected", "cancelled"):
        unscored("a permission request is not answered with an outcome")
    asked = await agent.want(prompt.session)
    await agent.notify("$/cancel_request", {"requestId": asked.id})
    answer = await agent.answer_to(asked, "a permission request that was taken back")
    await agent.hears()
    found = agent.answers_to(asked.id)
    holds(len(found) == 1, f"it was answered {len(found)} times", asked.frame, *found)
    is_outcome = at(answer.result, "outcome", "outcome") in ("selected", "cancelled")
    code = at(answer.error, "code")
    holds(is_outcome or code == CANCELLED, "the answer is neither an outcome nor -32800", asked.frame, answer)


# -- cancelling -----------------------------------------------------------------------------------------


async def _stopped(agent: JudgingAgent, prompt: Frame) -> Frame:
    """The client's cancel. Raises `NotScored` when it does not come."""
    await agent.say(prompt.session, "This takes a while. ")
    found = await agent.until(lambda frame: frame.method == "session/cancel", prompt.number)
    if found is None:
        unscored("it did not cancel the turn; make the client do so")
    return found


@CANCEL.case("notification", "`session/cancel` is a notification.", scenes=("stop",))
async def notification(agent: JudgingAgent) -> None:
    prompt = await agent.prompted()
    stop = await _stopped(agent, prompt)
    await agent.end(prompt, "cancelled")
    holds(not has(stop.value, "id"), "it has an id", stop)


@CANCEL.case("session", "`session/cancel` names the session whose turn it is.", scenes=("stop",))
async def session(agent: JudgingAgent) -> None:
    prompt = await agent.prompted()
    stop = await _stopped(agent, prompt)
    await agent.end(prompt, "cancelled")
    holds(stop.session == prompt.session, f"it names {stop.session!r}", prompt, stop)


@CANCEL.case(
    "permissions",
    "A permission request that is open when the turn is cancelled is answered with `cancelled`.",
    scenes=("stop-asked",),
)
async def permissions(agent: JudgingAgent) -> None:
    prompt = await agent.prompted()
    asked = await agent.want(prompt.session)
    stop = await _stopped(agent, prompt)
    answer = await agent.until(is_answer_to(asked.id), asked.frame.number)
    if answer is None:
        broken("it was not answered", asked.frame, stop)
    found = at(answer.result, "outcome", "outcome")
    # The answer may go ahead of the cancel. A choice that does was made before it.
    if found != "cancelled" and answer.number < stop.number:
        unscored("it answered the permission request before it cancelled")
    holds(found == "cancelled", f"the outcome is {found!r}", asked.frame, stop, answer)


@CANCEL.case(
    "late-permission",
    "A permission request that crosses the cancel is answered.",
    scenes=("stop",),
)
async def late_permission(agent: JudgingAgent) -> None:
    prompt = await agent.attentive()
    stop = await _stopped(agent, prompt)
    asked = await agent.want(prompt.session)
    answer = await agent.until(is_answer_to(asked.id), asked.frame.number)
    holds(answer, "it was not answered", stop, asked.frame)


@CANCEL.case(
    "updates-after",
    "What the agent tells after a cancel does no harm.",
    severity="should",
    scenes=("stop",),
)
async def updates_after(agent: JudgingAgent) -> None:
    prompt = await agent.attentive()
    stop = await _stopped(agent, prompt)
    if await agent.hears() is None:
        unscored("it does not answer after a cancel")
    call = {"toolCallId": "late", "title": "Late", "status": "in_progress"}
    await agent.update(prompt.session, "tool_call", **call)
    sent = await agent.update(prompt.session, "tool_call_update", toolCallId="late", status="failed")
    if await agent.hears() is None:
        broken(agent.tape.ended or "it does not answer any more", stop, sent)


# -- the end of a turn ----------------------------------------------------------------------------------


async def _survives(agent: JudgingAgent, prompt: Frame, *members: dict[str, Any]) -> None:
    """Send these in one write. Broken when the client stays, and does not answer any more."""
    lines = [json.dumps({"jsonrpc": "2.0", **each}).encode() for each in members]
    await agent.send_pieces(b"\n".join(lines) + b"\n")
    place = agent.place - 1
    if await agent.hears() is not None:
        return
    if agent.tape.ended:
        unscored("it left after the turn")
    broken("it does not answer any more", prompt, agent.tape.frames[place])


@TURN.case("error", "A turn that fails does not end the client.", severity="should", scenes=("again",))
async def failing(agent: JudgingAgent) -> None:
    prompt = await agent.attentive()
    await _survives(agent, prompt, {"id": prompt.id, **error(-32603, "it failed")})


REASONS = {
    "refusal": "A turn that the agent refuses",
    "max_tokens": "A turn that runs out of tokens",
    "max_turn_requests": "A turn that runs out of requests",
}


def _reason_case(reason: str) -> None:
    name = reason.replace("_", "-")

    @TURN.case(name, f"{REASONS[reason]} does not end the client.", scenes=("again",), section="Stop reasons")
    async def taken(agent: JudgingAgent, reason: str = reason) -> None:
        prompt = await agent.attentive()
        await _survives(agent, prompt, {"id": prompt.id, "result": {"stopReason": reason}})

    assert taken


for _reason in REASONS:
    _reason_case(_reason)


@TURN.case(
    "late-updates",
    "What an agent tells of a session behind the end of a turn does no harm.",
    severity="should",
    scenes=("again",),
)
async def late_updates(agent: JudgingAgent) -> None:
    prompt = await agent.attentive()
    words = {"type": "text", "text": "one more thing"}
    late = agent.of_session(prompt.session, "agent_message_chunk", content=words)
    end = {"id": prompt.id, "result": {"stopReason": "end_turn"}}
    await _survives(agent, prompt, end, {"method": "session/update", "params": late})


@TURN.case(
    "agent-gone",
    "A client lets go of an agent whose output has ended.",
    severity="should",
    section="Transports, stdio",
    carriers=("stdio",),
)
async def agent_gone(agent: JudgingAgent) -> None:
    prompt = await agent.attentive()
    sent = await agent.say(prompt.session)
    await agent.hang_up()
    await agent.until(lambda frame: False, sent.number)
    holds(agent.tape.ended, f"it is still there after {agent.patience_s:g} s", prompt, sent)
