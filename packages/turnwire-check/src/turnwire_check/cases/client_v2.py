"""Clients of v2, which is a draft: judged where the client asks for it."""

from __future__ import annotations

from typing import Any

from turnwire_check.case import Part, Severity, broken, holds, unscored
from turnwire_check.judging_agent import NO_COMMON_VERSION, OPTIONS, JudgingAgent, chosen
from turnwire_check.raw_peer import HOLD, error, is_answer_to, text
from turnwire_check.shapes import is_absolute
from turnwire_check.tape import Frame, at, items

V2 = Part("client.v2", "v2, prompt lifecycle")


@V2.case("info", "The client says its name and version.")
async def who(agent: JudgingAgent) -> None:
    hello = await agent.initialized()
    for member in ("name", "version"):
        holds(isinstance(at(hello.params, "info", member), str), f"it gives no {member}", hello)


@V2.case("older-agent", "With an agent of v1 the client speaks v1, or leaves.")
async def older_agent(agent: JudgingAgent) -> None:
    agent.answers["initialize"] = lambda asked: {"result": {"protocolVersion": 1, "agentCapabilities": {}}}
    hello = await agent.initialized()
    new = await agent.until(lambda frame: frame.method == "session/new", hello.number)
    if new is not None:
        holds(isinstance(at(new.params, "mcpServers"), list), "it does not speak v1: `mcpServers` is no list", new)


@V2.case("no-common-version", "Without a common version the client does not go on.")
async def no_common_version(agent: JudgingAgent) -> None:
    agent.answers["initialize"] = lambda asked: error(NO_COMMON_VERSION)
    hello = await agent.initialized()
    went_on = await agent.until(
        lambda frame: frame.is_request and frame.method != "initialize", hello.number, within=4 * agent.silence_s
    )
    holds(went_on is None, "it went on", hello, went_on)


@V2.case("no-login", "Where the agent names no way to log in, no login or logout is asked of it.")
async def no_login(agent: JudgingAgent) -> None:
    asked = [each for each in await agent.visit() if each.method in ("auth/login", "auth/logout")]
    holds(not asked, "it was", *asked[:1])


@V2.case("cwd", "A session is opened in an absolute directory.")
async def cwd(agent: JudgingAgent) -> None:
    new = await agent.opened()
    found = at(new.params, "cwd")
    holds(is_absolute(found), f"the directory is {found!r}", new)


@V2.case("mcp-transport", "MCP servers are given only to agents that take their transport.")
async def mcp_transport(agent: JudgingAgent) -> None:
    agent.claims["capabilities"] = {"session": {}}
    hello = await agent.initialized()
    new = await agent.until(lambda frame: frame.method == "session/new", hello.number)
    # A client that opens no session rather than one without its servers has passed none either.
    if new is None:
        return
    given = [at(each, "type") for each in items(at(new.params, "mcpServers"))]
    ours = [each for each in given if not (isinstance(each, str) and each.startswith("_"))]
    holds(not ours, f"the agent takes none, and got one over {ours and ours[0]!r}", new)


@V2.case("directories", "Additional directories are given only to agents that take them.")
async def directories(agent: JudgingAgent) -> None:
    new = await agent.opened()
    found = at(new.params, "additionalDirectories")
    holds(not found, f"the agent takes none, and got {found!r}", new)


@V2.case("own-request", "A request of somebody's own is answered under its id.")
async def own_request(agent: JudgingAgent) -> None:
    await agent.prompted()
    asked = await agent.ask("_example.org/no_such_method", {"a": 1})
    answer = await agent.until(is_answer_to(asked.id), asked.frame.number)
    holds(answer, "it was not answered", asked.frame)


@V2.case("prompt", "A prompt is not empty.")
async def prompt(agent: JudgingAgent) -> None:
    found = await agent.prompted()
    holds(items(at(found.params, "prompt")), "it is empty", found)


@V2.case("answer-no-end", "The answer to a prompt is not taken for the end of the work.")
async def answer_no_end(agent: JudgingAgent) -> None:
    found = await agent.attentive()
    await agent.insert(found)
    await _stays(agent, found, "it left when the prompt was answered")


@V2.case("unknown-state", "A state that is not known is not taken for idle.")
async def unknown_state(agent: JudgingAgent) -> None:
    found = await agent.attentive()
    await agent.insert(found)
    await _stays(agent, found, "", scored=False)
    sent = await agent.update(found.session, "state_update", state="_resting")
    await _stays(agent, sent, "it left")


async def _stays(agent: JudgingAgent, sent: Frame, words: str, *, scored: bool = True) -> None:
    """Fail, or leave the case unscored, if the client disconnects now."""
    await agent.pause()
    if agent.tape.ended and scored:
        broken(words, sent)
    if agent.tape.ended:
        unscored("it left before the work had ended")


@V2.case("early-state", "What is told of a session before the answer to `session/new` does no harm.")
async def early_state(agent: JudgingAgent) -> None:
    agent.answers["session/new"] = lambda asked: HOLD
    new = await agent.opened()
    if await agent.hears() is None:
        unscored("it does not answer a request that it does not know")
    sent = await agent.update("session-1", "state_update", state="idle")
    await agent.respond(new, {"result": {"sessionId": "session-1"}})
    if await agent.hears() is not None:
        return
    if agent.tape.ended:
        unscored("it left when the session was open")
    broken("it does not answer any more", sent)


SHOWN = {"type": "content", "content": text("shown")}
UPDATES: dict[str, tuple[Severity, str, list[dict[str, Any]]]] = {
    "unknown-update": (
        "should",
        "Kinds and values that are not known do no harm.",
        [
            {"sessionUpdate": "_example.org/weather", "degrees": 3},
            {
                "sessionUpdate": "tool_call_update",
                "toolCallId": "c",
                "title": "T",
                "kind": "_dance",
                "status": "_odd",
            },
        ],
    ),
    "clears": (
        "must",
        "Null in an update clears, and does no harm.",
        [
            {
                "sessionUpdate": "tool_call_update",
                "toolCallId": "c",
                "title": "T",
                "content": [],
                "status": "pending",
            },
            {"sessionUpdate": "tool_call_update", "toolCallId": "c", "title": None, "content": None, "kind": None},
            {"sessionUpdate": "agent_message", "messageId": "m", "content": [text("whole")]},
            {"sessionUpdate": "agent_message", "messageId": "m", "content": None, "_meta": None},
        ],
    ),
    "pieces": (
        "must",
        "Pieces of content, and a list that takes their place, do no harm.",
        [
            {"sessionUpdate": "tool_call_update", "toolCallId": "c", "title": "T", "status": "in_progress"},
            {"sessionUpdate": "tool_call_content_chunk", "toolCallId": "c", "content": SHOWN},
            {"sessionUpdate": "tool_call_content_chunk", "toolCallId": "c", "content": SHOWN},
            {"sessionUpdate": "tool_call_update", "toolCallId": "c", "content": [SHOWN]},
        ],
    ),
    "output": (
        "must",
        "Output that comes in encoded pieces, cut in a character, and a snapshot do no harm.",
        [
            {"sessionUpdate": "terminal_update", "terminalId": "t", "command": "printf é", "cwd": "/"},
            {"sessionUpdate": "terminal_output_chunk", "terminalId": "t", "data": "ww=="},
            {"sessionUpdate": "terminal_output_chunk", "terminalId": "t", "data": "qQ=="},
            {"sessionUpdate": "terminal_update", "terminalId": "t", "output": {"data": "w6k="}},
            {"sessionUpdate": "terminal_update", "terminalId": "t", "exitStatus": {"exitCode": 0, "signal": None}},
        ],
    ),
    "one-name": (
        "must",
        "A terminal and a tool call of one name do no harm.",
        [
            {"sessionUpdate": "tool_call_update", "toolCallId": "same", "title": "T", "status": "in_progress"},
            {"sessionUpdate": "terminal_update", "terminalId": "same", "command": "true"},
            {"sessionUpdate": "tool_call_update", "toolCallId": "same", "status": "completed"},
            {"sessionUpdate": "terminal_update", "terminalId": "same", "exitStatus": {"exitCode": 1}},
        ],
    ),
    "no-patch": (
        "must",
        "Changes of files without a patch do no harm.",
        [
            {
                "sessionUpdate": "tool_call_update",
                "toolCallId": "c",
                "title": "T",
                "content": [{"type": "diff", "changes": [{"operation": "modify", "path": "/tmp/notes.txt"}]}],
            },
        ],
    ),
    "unknown-option": (
        "should",
        "Options of a type that is not known do no harm.",
        [
            {
                "sessionUpdate": "config_option_update",
                "configOptions": [
                    {"configId": "v", "name": "Volume", "type": "_example.org/slider", "currentValue": 3, "to": 9}
                ],
            },
        ],
    ),
    "notice": (
        "must",
        "Notices, also of a severity that is not known, do no harm.",
        [
            {"sessionUpdate": "notice", "severity": "error", "title": "A server is gone.", "description": None},
            {"sessionUpdate": "notice", "severity": "_grave", "title": "Another one, too."},
        ],
    ),
    "background": (
        "must",
        "Work in the background that goes on does no harm.",
        [
            {"sessionUpdate": "terminal_update", "terminalId": "t", "command": "sleep 600"},
            {
                "sessionUpdate": "state_update",
                "state": "running",
                "background": [{"type": "terminal", "terminalId": "t"}, {"type": "_odd"}],
            },
        ],
    ),
}


def _update_case(name: str) -> None:
    severity, rule, updates = UPDATES[name]

    @V2.case(name, rule, severity=severity)
    async def harmless(agent: JudgingAgent, updates: list[dict[str, Any]] = updates) -> None:
        found = await agent.attentive()
        await agent.insert(found)
        if await agent.hears() is None:
            unscored("it does not answer within a turn")
        params = [{"sessionId": found.session, "update": each} for each in updates]
        sent = [await agent.notify("session/update", each) for each in params]
        if await agent.hears() is None:
            broken(agent.tape.ended or "it does not answer any more", *sent)

    assert harmless


for _update in UPDATES:
    _update_case(_update)


@V2.case("permission", "Only an option that was offered is chosen.")
async def permission(agent: JudgingAgent) -> None:
    found = await agent.prompted()
    await agent.insert(found)
    asked = await agent.want(found.session)
    answer = await agent.answer_to(asked, "session/request_permission")
    wrong = chosen(answer, list(OPTIONS))
    holds(not wrong, wrong, asked.frame, answer)


@V2.case(
    "taken-back",
    "A permission request that the agent takes back is answered with `cancelled`.",
    scenes=("hold",),
)
async def taken_back(agent: JudgingAgent) -> None:
    found = await agent.prompted()
    await agent.insert(found)
    asked = await agent.want(found.session)
    await agent.pause()
    if agent.tape.ended:
        unscored("it left before the work had ended")
    if agent.answers_to(asked.id):
        unscored("it answered the permission request before it was taken back")
    back = await agent.notify("$/cancel_request", {"requestId": asked.id})
    answer = await agent.until(is_answer_to(asked.id), back.number)
    if answer is None:
        broken("it was not answered", asked.frame, back)
    outcome = at(answer.result, "outcome", "outcome")
    holds(outcome == "cancelled", f"the outcome is {outcome!r}", asked.frame, back, answer)


@V2.case("error", "Work that fails does not end the client.", severity="should", scenes=("again",))
async def failing(agent: JudgingAgent) -> None:
    found = await agent.attentive()
    await agent.insert(found)
    failure = {"stopReason": "error", "error": {"code": -32603, "message": "it failed"}}
    sent = await agent.update(found.session, "state_update", state="idle", **failure)
    if await agent.hears() is None:
        if agent.tape.ended:
            unscored("it left after the work")
        broken("it does not answer any more", sent)
