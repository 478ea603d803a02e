"""Clients: lines, messages, ids, and the handling of unknown ones."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, cast

from turnwire_check.case import ANY_CARRIER, Part, Severity, broken, holds, unscored
from turnwire_check.judging_agent import JudgingAgent
from turnwire_check.raw_peer import METHOD_NOT_FOUND, is_answer_to, text
from turnwire_check.tape import Frame, at, has

WIRE = Part("client.wire", "Transports, stdio")
RPC = Part("client.rpc", "Overview, JSON-RPC 2.0")
UPDATE = Part("client.update", "Prompt turn, agent output")
OWN = Part("client.own", "Extensibility")

MEGABYTE = 1024 * 1024
KNOWN = {
    "initialize": {"protocolVersion", "clientCapabilities", "clientInfo", "capabilities", "info"},
    "session/new": {"cwd", "mcpServers", "additionalDirectories", "systemPrompt"},
    "session/prompt": {"sessionId", "prompt"},
    "session/cancel": {"sessionId"},
}
"""Members of the params that ACP has."""


def _first(frames: Iterable[Frame], words: str) -> None:
    """Broken by the first of these."""
    for each in frames:
        broken(words, each)


# -- what the client writes -----------------------------------------------------------------------------


@WIRE.case("only-messages", "Nothing but messages is written to the agent, each on a line of its own.")
async def only_messages(agent: JudgingAgent) -> None:
    said = await agent.visit()
    _first((each for each in said if each.flaw in ("json", "object")), "this line is no message")


@WIRE.case("utf-8", "Messages are UTF-8.")
async def utf_8(agent: JudgingAgent) -> None:
    said = await agent.visit()
    _first((each for each in said if each.flaw == "encoding"), "this line is no UTF-8")


@RPC.case("version-member", 'Every message says `"jsonrpc":"2.0"`.')
async def version_member(agent: JudgingAgent) -> None:
    said = await agent.visit()
    _first((each for each in said if not each.flaw and at(each.value, "jsonrpc") != "2.0"), "it does not say so")


@RPC.case("ids", "Ids of requests are whole numbers or texts.")
async def ids(agent: JudgingAgent) -> None:
    said = await agent.visit()
    odd = (each for each in said if each.is_request and type(each.id) not in (int, str))
    _first(odd, "the id is neither a whole number nor a text")


@RPC.case("unique-ids", "No two requests have one id.")
async def unique_ids(agent: JudgingAgent) -> None:
    seen: dict[tuple[type, Any], Frame] = {}
    for each in await agent.visit():
        if each.is_request and isinstance(each.id, int | str):
            before = seen.setdefault((type(each.id), each.id), each)
            holds(before is each, f"the id {each.id!r} was used before", before, each)


@RPC.case("one-outcome", "An answer has a result or an error, and not both.")
async def one_outcome(agent: JudgingAgent) -> None:
    answers = [each for each in await agent.visit() if each.is_answer]
    if not answers:
        unscored("it answered nothing")
    for each in answers:
        both = has(each.value, "result") and at(each.value, "result") is not None and each.failed
        neither = not has(each.value, "result") and not each.failed
        holds(not both and not neither, "it has both" if both else "it has neither", each)


@RPC.case("error-shape", "An error has a whole number as code, and a message.")
async def error_shape(agent: JudgingAgent) -> None:
    errors = [each for each in await agent.visit() if each.is_answer and each.failed]
    if not errors:
        unscored("it answered nothing with an error")
    for each in errors:
        is_whole = type(at(each.error, "code")) is int and isinstance(at(each.error, "message"), str)
        holds(is_whole, "it has no whole number as code, or no message", each)


@RPC.case("one-answer", "A request of the agent is answered once.")
async def one_answer(agent: JudgingAgent) -> None:
    prompt = await agent.attentive()
    asked = await agent.want(prompt.session)
    await agent.answer_to(asked, "session/request_permission")
    await agent.hears()
    await agent.pause()
    found = agent.answers_to(asked.id)
    holds(len(found) == 1, f"it was answered {len(found)} times", asked.frame, *found)


@RPC.case("notification", "Nobody answers a notification.")
async def notification(agent: JudgingAgent) -> None:
    prompt = await agent.attentive()
    sent = [await agent.notify("_example.org/hint", {"x": 1}), await agent.say(prompt.session)]
    await agent.hears()
    strays = [
        each
        for each in agent.tape.heard(sent[0].number)
        if each.is_answer and not (isinstance(each.id, str) and each.id.startswith("barrier-"))
    ]
    holds(not strays, "it was answered", *sent, *strays[:1])


IDS = {
    "id-text": ("An id that is a text comes back as it is.", "one two"),
    "id-digits": ("An id that is a text of digits comes back as a text.", "70000"),
    "id-zero": ("A request may have the id 0.", 0),
    "id-number": ("An id that is a number comes back as a number.", 70001),
}


def _id_case(name: str) -> None:
    rule, given = IDS[name]

    @RPC.case(name, rule)
    async def comes_back(agent: JudgingAgent, given: Any = given) -> None:
        await agent.attentive()
        asked = await agent.ask("_turnwire_check/barrier", {}, id=given)
        found = await agent.until(lambda frame: frame.is_answer, asked.frame.number)
        if found is None:
            broken("it was not answered", asked.frame)
        holds(is_answer_to(given)(found), f"it came back as {found.id!r}", asked.frame, found)

    assert comes_back


for _name in IDS:
    _id_case(_name)


@RPC.case("shared-id", "A request of the agent may have the id of an open request of the client.")
async def shared_id(agent: JudgingAgent) -> None:
    prompt = await agent.attentive()
    asked = await agent.ask("_turnwire_check/barrier", {}, id=prompt.id)
    answer = await agent.until(is_answer_to(prompt.id), asked.frame.number)
    holds(answer, "it was not answered", prompt, asked.frame)


@RPC.case("unknown-method", "A request for a method that is not there is answered with -32601.")
async def unknown_method(agent: JudgingAgent) -> None:
    await agent.prompted()
    asked = await agent.ask("session/no_such_method", {})
    answer = await agent.until(is_answer_to(asked.id), asked.frame.number)
    if answer is None:
        broken("it was not answered", asked.frame)
    holds(at(answer.error, "code") == METHOD_NOT_FOUND, "the answer is not -32601", asked.frame, answer)


@OWN.case("answered", "A request of somebody's own is answered, be it with an error.")
async def own_answered(agent: JudgingAgent) -> None:
    await agent.prompted()
    asked = await agent.ask("_example.org/no_such_method", {"x": 1})
    answer = await agent.until(is_answer_to(asked.id), asked.frame.number)
    holds(answer, "it was not answered", asked.frame)


@OWN.case(
    "unknown-request",
    "A request of somebody's own that the client does not know is answered with -32601.",
    severity="should",
    section="Custom requests",
)
async def own_unknown(agent: JudgingAgent) -> None:
    await agent.prompted()
    answer = await agent.call("_example.org/no_such_method", {"x": 1})
    holds(at(answer.error, "code") == METHOD_NOT_FOUND, "the answer is not -32601", answer)


@OWN.case("members", "Objects of ACP get no members beside its own and `_meta`.", section="The _meta field")
async def own_members(agent: JudgingAgent) -> None:
    for each in await agent.visit():
        if each.method not in KNOWN or not isinstance(each.params, dict):
            continue
        given = cast("dict[str, object]", each.params)
        odd = sorted(set(given) - KNOWN[each.method] - {"_meta"})
        holds(not odd, f"`{odd[0]}` is not in ACP" if odd else "", each)


# -- what the client reads ------------------------------------------------------------------------------


@WIRE.case("split", "A message that arrives in two pieces is one message.", carriers=("stdio",))
async def split(agent: JudgingAgent) -> None:
    await agent.attentive()
    line = json.dumps({"jsonrpc": "2.0", "id": "in two", "method": "_turnwire_check/barrier"}).encode()
    place = agent.place
    await agent.send_pieces(line[:25], line[25:] + b"\n")
    answer = await agent.until(is_answer_to("in two"), place)
    holds(answer, agent.tape.ended or "it was not answered", agent.tape.frames[place])


@WIRE.case("joined", "Two messages that arrive together are two messages.", carriers=("stdio",))
async def joined(agent: JudgingAgent) -> None:
    await agent.attentive()
    one, two = (
        json.dumps({"jsonrpc": "2.0", "id": each, "method": "_turnwire_check/barrier"}).encode() + b"\n"
        for each in ("left", "right")
    )
    place = agent.place
    await agent.send_pieces(one + two)
    for each in ("left", "right"):
        answer = await agent.until(is_answer_to(each), place)
        holds(answer, agent.tape.ended or f"{each!r} was not answered", agent.tape.frames[place])


@WIRE.case("large", "An update of a megabyte is taken.", severity="should")
async def large(agent: JudgingAgent) -> None:
    prompt = await agent.attentive()
    await _unharmed(agent, await agent.say(prompt.session, "long " * (MEGABYTE // 5)))


LINES: dict[str, tuple[str, bytes]] = {
    "blank": ("An empty line does no harm.", b"  "),
    "no-json": ("A line that is no JSON does not end the connection.", b"Loading the model...\n{]"),
    "no-utf-8": ("A line that is no UTF-8 does not end the connection.", b'{"jsonrpc":"2.0","method":"\xff\xfe"}'),
    "batch": ("A list of messages, which v1 does not have, does not end the connection.", b"[]"),
}


OF_LINES = ("blank", "no-utf-8")


def _line_case(name: str) -> None:
    rule, line = LINES[name]

    # A WebSocket has no empty lines, and no text that is no UTF-8.
    @WIRE.case(name, rule, severity="should", carriers=("stdio",) if name in OF_LINES else ANY_CARRIER)
    async def harmless(agent: JudgingAgent, line: str = line.decode("latin-1")) -> None:
        await agent.attentive()
        await _unharmed(agent, await agent.send_line(line.encode("latin-1")))

    assert harmless


for _line in LINES:
    _line_case(_line)


async def _unharmed(agent: JudgingAgent, *sent: Frame) -> None:
    """Broken when the client does not answer any more after this."""
    if await agent.hears() is None:
        broken(agent.tape.ended or "it does not answer any more", *sent)


# -- updates --------------------------------------------------------------------------------------------

CALL = {"toolCallId": "call-9", "title": "Look", "kind": "read", "status": "pending"}
PICTURE = {"type": "image", "mimeType": "image/png", "data": "iVBORw0KGgo="}
SOUND = {"type": "audio", "mimeType": "audio/wav", "data": "UklGRg=="}
LINK = {"type": "resource_link", "uri": "file:///tmp/notes.txt", "name": "notes.txt"}
EMBEDDED = {"type": "resource", "resource": {"uri": "file:///tmp/notes.txt", "text": "notes"}}
ENTRY = {"content": "Look", "priority": "high", "status": "pending"}
META = {
    "_meta": {"example.org": {"x": [1]}, "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
}
CHUNK = "agent_message_chunk"

UPDATES: dict[str, tuple[Severity, str, list[dict[str, Any]]]] = {
    "every-kind": (
        "must",
        "Every kind of update that v1 has is taken.",
        [
            {"sessionUpdate": "user_message_chunk", "content": text("you said")},
            {"sessionUpdate": CHUNK, "content": text("I say"), "messageId": "m-1"},
            {"sessionUpdate": "agent_thought_chunk", "content": text("I think")},
            {"sessionUpdate": "tool_call", **CALL, "locations": [{"path": "/tmp/notes.txt", "line": 1}]},
            {"sessionUpdate": "tool_call_update", "toolCallId": "call-9", "status": "completed"},
            {"sessionUpdate": "plan", "entries": [ENTRY]},
            {"sessionUpdate": "available_commands_update", "availableCommands": []},
            {"sessionUpdate": "current_mode_update", "currentModeId": "ask"},
            {"sessionUpdate": "config_option_update", "configOptions": []},
            {"sessionUpdate": "session_info_update", "title": "A title"},
            {"sessionUpdate": "usage_update", "used": 5, "size": 1000, "cost": {"amount": 0.1, "currency": "EUR"}},
        ],
    ),
    "every-content": (
        "must",
        "What the agent shows may have any type of content, whatever a prompt may have.",
        [{"sessionUpdate": CHUNK, "content": each} for each in (PICTURE, SOUND, LINK, EMBEDDED)],
    ),
    "diff": (
        "must",
        "A tool call may show changes of files, also of a new one.",
        [
            {
                "sessionUpdate": "tool_call",
                **CALL,
                "kind": "edit",
                "content": [
                    {"type": "diff", "path": "/tmp/new.txt", "oldText": None, "newText": "new"},
                    {"type": "diff", "path": "/tmp/old.txt", "oldText": "old", "newText": "new"},
                    {"type": "content", "content": text("changed")},
                ],
            }
        ],
    ),
    "nulls": (
        "must",
        "In an update null is the same as nothing.",
        [
            {"sessionUpdate": "tool_call", **CALL},
            {"sessionUpdate": "tool_call_update", "toolCallId": "call-9", "title": None, "content": None},
            {"sessionUpdate": "tool_call_update", "toolCallId": "call-9", "status": None, "locations": None},
            {"sessionUpdate": CHUNK, "content": text("no name"), "messageId": None},
            {"sessionUpdate": "session_info_update", "title": None, "updatedAt": None},
            {"sessionUpdate": "usage_update", "used": 0, "size": 1, "cost": None},
        ],
    ),
    "empty": (
        "must",
        "Lists may be empty, and a text, too.",
        [
            {"sessionUpdate": "plan", "entries": []},
            {"sessionUpdate": CHUNK, "content": text("")},
            {"sessionUpdate": "tool_call", **CALL, "content": [], "locations": []},
        ],
    ),
    "meta": (
        "must",
        "`_meta` in an update does no harm, whatever it holds.",
        [
            {"sessionUpdate": CHUNK, "content": {**text("noted"), **META}, **META},
            {"sessionUpdate": "tool_call", **CALL, **META},
        ],
    ),
    "unknown-kind": (
        "should",
        "An update of a kind that the client does not know does no harm.",
        [{"sessionUpdate": "_example.org/weather", "degrees": 3}, {"sessionUpdate": "weather", "degrees": 4}],
    ),
    "unknown-members": (
        "should",
        "Members that the client does not know do no harm.",
        [{"sessionUpdate": CHUNK, "content": {**text("more"), "mood": 1}, "colour": {"red": 1}}],
    ),
    "unseen-call": (
        "should",
        "An update of a tool call that was not announced does no harm.",
        [{"sessionUpdate": "tool_call_update", "toolCallId": "never seen", "status": "completed"}],
    ),
}


def _update_case(name: str) -> None:
    severity, rule, updates = UPDATES[name]

    @UPDATE.case(name, rule, severity=severity)
    async def harmless(agent: JudgingAgent, updates: list[dict[str, Any]] = updates) -> None:
        prompt = await agent.attentive()
        params = [{"sessionId": prompt.session, "update": each} for each in updates]
        await _unharmed(agent, *[await agent.notify("session/update", each) for each in params])

    assert harmless


for _update in UPDATES:
    _update_case(_update)


@UPDATE.case("params-meta", "`_meta` beside an update does no harm.")
async def params_meta(agent: JudgingAgent) -> None:
    prompt = await agent.attentive()
    params = {**agent.of_session(prompt.session, CHUNK, content=text("noted")), **META}
    await _unharmed(agent, await agent.notify("session/update", params))


@UPDATE.case("unknown-session", "An update of another session does no harm.", severity="should")
async def unknown_session(agent: JudgingAgent) -> None:
    await agent.attentive()
    await _unharmed(agent, await agent.say("a session that nobody has"))


@UPDATE.case("unknown-notification", "A notification that nobody knows does nothing.", severity="should")
async def unknown_notification(agent: JudgingAgent) -> None:
    await agent.attentive()
    odd = [("_example.org/hint", {"x": 1}), ("$/progress", {"value": 1}), ("session/no_such_thing", None)]
    await _unharmed(agent, *[await agent.notify(*each) for each in odd])


@UPDATE.case("stray-answer", "An answer to a request that nobody sent does nothing.", severity="should")
async def stray_answer(agent: JudgingAgent) -> None:
    await agent.attentive()
    await _unharmed(agent, await agent.send({"jsonrpc": "2.0", "id": 987654, "result": {}}))
