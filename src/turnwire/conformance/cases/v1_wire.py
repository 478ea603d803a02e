"""v1: lines, messages, ids, errors, and what nobody knows."""

from __future__ import annotations

import json
from typing import Any

from turnwire.conformance.capability import offers
from turnwire.conformance.case import IN_ORDER, Part, Severity, holds, unscored
from turnwire.conformance.raw_client import RawClient
from turnwire.conformance.raw_peer import INVALID_PARAMS, METHOD_NOT_FOUND, is_answer_to, text
from turnwire.conformance.shapes import is_object
from turnwire.conformance.tape import Frame, at, has

PART = Part("v1.wire", "Transports, stdio")
RPC = Part("v1.rpc", "Overview, JSON-RPC 2.0")
EXTENSION = Part("v1.extension", "Extensibility")
PARAMS = Part("v1.params", "Schema")

LARGE = 1_000_000
"""Characters of a prompt that is long and not absurd: a file that somebody pasted."""


async def _tour(client: RawClient) -> list[Frame]:
    """A session with one turn; gives all that was said."""
    await client.turn(await client.open())
    await client.barrier()
    return list(client.tape.heard())


# -- lines ----------------------------------------------------------------------------------------------


@PART.case("only-messages", "Nothing but messages is on stdout, each on a line of its own.", "v1 1")
async def only_messages(client: RawClient) -> None:
    for frame in await _tour(client):
        holds(frame.flaw not in ("json", "object"), "a line of its output is no message", frame)


@PART.case("utf-8", "Messages are UTF-8.", "v1 1")
async def utf_8(client: RawClient) -> None:
    session = await client.open()
    words = f"{client.words('plain')} Grüße, 世界 🌍"
    await client.call("session/prompt", {"sessionId": session, "prompt": [text(words)]})
    for frame in client.tape.heard():
        holds(frame.flaw != "encoding", "a line of its output is not UTF-8", frame)


@PART.case("split", "A message that arrives in two pieces is one message.", carriers=("stdio",))
async def split(client: RawClient) -> None:
    await client.initialize()
    line = json.dumps({"jsonrpc": "2.0", "id": "split", "method": "_turnwire_check/split", "params": {}}).encode()
    place = client.place
    await client.send_pieces(line[:20], line[20:] + b"\n")
    answer = await client.until(is_answer_to("split"), place)
    holds(answer, "it did not answer a request whose bytes came in two pieces", client.tape.frames[place])


@PART.case("joined", "Two messages that arrive together are two messages.", carriers=("stdio",))
async def joined(client: RawClient) -> None:
    await client.initialize()
    lines = [
        json.dumps({"jsonrpc": "2.0", "id": each, "method": "_turnwire_check/joined", "params": {}}).encode()
        for each in ("first", "second")
    ]
    place = client.place
    await client.send_pieces(b"\n".join(lines) + b"\n")
    for each in ("first", "second"):
        answer = await client.until(is_answer_to(each), place)
        holds(answer, f"it did not answer the {each} of two requests that came together", client.tape.frames[place])


@PART.case("large", "A prompt of a megabyte is taken.", severity="should")
async def large(client: RawClient) -> None:
    session = await client.open()
    await client.turn(session)
    words = f"{client.words('plain')} {'x' * LARGE}"
    request = await client.ask("session/prompt", {"sessionId": session, "prompt": [text(words)]})
    answer = await client.until(is_answer_to(request.id), request.frame.number)
    holds(answer, "it did not answer", request.frame)


@PART.case("no-json", "A line that is no JSON does not end the connection.", severity="should", carriers=IN_ORDER)
async def no_json(client: RawClient) -> None:
    await client.initialize()
    sent = await client.send_line(b'{"jsonrpc":"2.0","id":5,"method":')
    await _still_there(client, sent)


@PART.case(
    "batch",
    "A list of messages, which v1 does not have, does not end the connection.",
    severity="should",
    carriers=IN_ORDER,
)
async def batch(client: RawClient) -> None:
    await client.initialize()
    sent = await client.send([{"jsonrpc": "2.0", "id": "in-a-list", "method": "_turnwire_check/list"}])
    await _still_there(client, sent)


async def _still_there(client: RawClient, sent: Frame) -> None:
    request = await client.ask("_turnwire_check/still_there", {})
    answer = await client.until(is_answer_to(request.id), sent.number)
    holds(
        answer, f"it does not answer any more{client.tape.ended and ': '}{client.tape.ended}", sent, request.frame
    )


# -- messages -------------------------------------------------------------------------------------------


@RPC.case("version-member", 'Every message says `"jsonrpc":"2.0"`.', "v1 1")
async def version_member(client: RawClient) -> None:
    for frame in await _tour(client):
        holds(frame.flaw or at(frame.value, "jsonrpc") == "2.0", "a message does not say so", frame)


@RPC.case("one-outcome", "An answer has a result or an error, and not both.", "v1 2")
async def one_outcome(client: RawClient) -> None:
    await client.initialize()
    await client.call("_turnwire_check/no_such_method", {})
    await client.call("session/new", client.place_of_work())
    for frame in client.tape.heard():
        outcomes = [name for name in ("result", "error") if has(frame.value, name)]
        holds(not frame.is_answer or len(outcomes) == 1, f"an answer has {outcomes or 'neither'}", frame)


@RPC.case("error-shape", "An error has a whole number as code, and a message.")
async def error_shape(client: RawClient) -> None:
    await client.initialize()
    answer = await client.call("session/no_such_method", {})
    if not answer.failed:
        unscored("a method that does not exist was answered with a result")
    code, message = at(answer.error, "code"), at(answer.error, "message")
    is_whole = isinstance(code, int) and not isinstance(code, bool)
    holds(is_whole and isinstance(message, str), "the error has no code and message", answer)


async def _id_comes_back(client: RawClient, number: Any) -> None:
    await client.initialize()
    request = await client.ask("session/new", client.place_of_work(), id=number)
    answer = await client.until(is_answer_to(number), request.frame.number)
    given = next((each for each in client.tape.heard(request.frame.number) if each.is_answer), None)
    holds(answer, f"no answer with the id {json.dumps(number)}", request.frame, given)


@RPC.case("id-text", "An id that is a text comes back as it is.", "v1 2")
async def id_text(client: RawClient) -> None:
    await _id_comes_back(client, "b2c5-Ä")


@RPC.case("id-digits", "An id that is a text of digits comes back as a text.", "v1 2")
async def id_digits(client: RawClient) -> None:
    await _id_comes_back(client, "42")


@RPC.case("id-zero", "A request may have the id 0.", "v1 2")
async def id_zero(client: RawClient) -> None:
    await _id_comes_back(client, 0)


@RPC.case("id-number", "An id that is a number comes back as a number.", "v1 2")
async def id_number(client: RawClient) -> None:
    await _id_comes_back(client, 4_000_000_000)


@RPC.case("same-id", "A request of the agent may have the id of an open request of the client.", scenes=("ask",))
async def same_id(client: RawClient) -> None:
    session = await client.open()
    await client.turn(session, "ask")
    asked = next((each for each in client.tape.heard() if each.is_request), None)
    if asked is None or asked.id is None:
        unscored("it did not ask for permission")
    # The same turn again, under the id that the agent will have for its next request.
    number = asked.id + 1 if isinstance(asked.id, int) else asked.id
    request = await client.prompt(session, "ask", id=number)
    answer = await client.until(is_answer_to(number), request.frame.number)
    if not any(each.is_request and each.id == number for each in client.tape.heard(request.frame.number)):
        unscored("the ids of its requests cannot be foreseen, so no two are the same")
    holds(answer, "ids of the two sides got mixed up: the prompt was not answered", asked, request.frame)


@RPC.case("notification", "Nobody answers a notification.", "v1 3")
async def notification(client: RawClient) -> None:
    session = await client.open()
    place = client.place
    sent = await client.cancel(session)
    barrier = await client.barrier()
    answers = [each for each in client.tape.heard(place) if each.is_answer and each is not barrier]
    holds(not answers, "a notification was answered", sent, *answers)


@RPC.case("unknown-method", "A request for a method that is not there is answered with -32601.", "v1 15")
async def unknown_method(client: RawClient) -> None:
    await client.initialize()
    await _refused(client, "session/no_such_method", {"sessionId": "x"}, METHOD_NOT_FOUND)


async def _refused(client: RawClient, method: str, params: Any, *codes: int) -> None:
    request = await client.ask(method, params)
    answer = await client.until(is_answer_to(request.id), request.frame.number)
    holds(answer, f"`{method}` was not answered", request.frame)
    assert answer is not None
    holds(answer.failed, "it succeeded", request.frame, answer)
    found = at(answer.error, "code")
    wanted = " or ".join(map(str, codes))
    holds(not codes or found in codes, f"it was refused with {found!r} in place of {wanted}", request.frame, answer)


@RPC.case("stray-answer", "An answer to a request that nobody sent does nothing.", severity="should")
async def stray_answer(client: RawClient) -> None:
    await client.initialize()
    sent = await client.send({"jsonrpc": "2.0", "id": "nobody asked this", "result": {}})
    await _still_there(client, sent)


# -- what is not ACP's ----------------------------------------------------------------------------------


@EXTENSION.case(
    "unknown-request",
    "A request of somebody's own that the agent does not know is answered with -32601.",
    "v1 19",
    "v1 15",
    severity="should",
    section="Custom requests",
)
async def unknown_request(client: RawClient) -> None:
    await client.initialize()
    await _refused(client, "_example.org/no_such_method", {"a": 1}, METHOD_NOT_FOUND)


@EXTENSION.case(
    "unknown-notification",
    "A notification that nobody knows does nothing.",
    "v1 16",
    severity="should",
    section="Custom notifications",
)
async def unknown_notification(client: RawClient) -> None:
    await client.initialize()
    sent = await client.notify("_example.org/happened", {"a": 1})
    await client.notify("$/happened", {"a": 1})
    await _still_there(client, sent)


@EXTENSION.case("meta", "`_meta` with members of anybody's own does no harm.", "v1 18", section="The _meta field")
async def meta(client: RawClient) -> None:
    session = await client.open_proven()
    trace = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "example.org": {"deep": [1]}}
    answer = await client.call("session/new", {**client.place_of_work(), "_meta": trace})
    holds(answer.succeeded, "`session/new` with `_meta` was refused", answer)
    prompt = {"sessionId": session, "prompt": [text(client.words("plain"))], "_meta": trace}
    answer = await client.call("session/prompt", prompt)
    holds(answer.succeeded, "`session/prompt` with `_meta` was refused", answer)


@EXTENSION.case(
    "named",
    "Who sends methods of its own names what it adds in the `_meta` of its capabilities.",
    "v1 20",
    severity="should",
    section="Advertising custom capabilities",
)
async def named(client: RawClient) -> None:
    session = await client.open()
    for scene in ("plain", "tool", "plan", "usage"):
        if scene in client.subject.prompts:
            await client.turn(session, scene)
    own = [each for each in client.tape.heard() if (each.method or "").startswith("_")]
    if not own:
        unscored("it sends no methods of its own")
    offered = at(client.offer, "agentCapabilities")
    objects = [offered, *(offered.values() if is_object(offered) else ())]
    holds(any(at(each, "_meta") for each in objects), "no capability has `_meta`", own[0])


# -- params that are none: one row each -----------------------------------------------------------------


def _refuses(
    name: str,
    rule: str,
    method: str,
    params: Any,
    *numbers: str,
    severity: Severity = "must",
    capability: str = "",
    is_malformed: bool = True,
) -> None:
    """`"SESSION"` and `"CWD"` in the params stand for a session of the connection, and a directory.

    That it is refused is the rule; with which code is a case of its own, for all that are malformed.
    """
    if is_malformed:
        MALFORMED.append((capability, method, params))

    @PARAMS.case(name, rule, *numbers, severity=severity, capability=capability, section=method)
    async def judge(client: RawClient, method: str = method, params: Any = params) -> None:
        session = await client.open()
        await _refused(client, method, _filled(client, session, params))

    assert judge


MALFORMED: list[tuple[str, str, Any]] = []
"""What the schema does not have: the capability that it takes, the method, the params."""


def _filled(client: RawClient, session: str, params: Any) -> Any:
    whole = json.dumps(params).replace('"SESSION"', json.dumps(session))
    return json.loads(whole.replace('"CWD"', json.dumps(client.cwd)))


WORK: dict[str, Any] = {"cwd": "CWD", "mcpServers": []}
ROOTS = "agentCapabilities.sessionCapabilities.additionalDirectories"

_refuses("new-no-cwd", "A new session without a directory is refused.", "session/new", {"mcpServers": []})
_refuses("new-cwd-number", "A directory that is no text is refused.", "session/new", {"cwd": 5, "mcpServers": []})
_refuses(
    "prompt-no-session", "A prompt that names no session is refused.", "session/prompt", {"prompt": [text("x")]}
)
_refuses("prompt-no-prompt", "A prompt without content is refused.", "session/prompt", {"sessionId": "SESSION"})
_refuses(
    "prompt-no-list",
    "A prompt that is no list is refused.",
    "session/prompt",
    {"sessionId": "SESSION", "prompt": "hello"},
)
_refuses(
    "prompt-bad-block",
    "A prompt with a piece of a type that there is not is refused as a whole.",
    "session/prompt",
    {"sessionId": "SESSION", "prompt": [text("x"), {"type": "no such type", "text": "x"}]},
)
_refuses(
    "prompt-half-block",
    "A prompt with a text that has no text is refused as a whole.",
    "session/prompt",
    {"sessionId": "SESSION", "prompt": [{"type": "text"}]},
)
_refuses(
    "prompt-unknown-session",
    "A prompt for a session that there is not is refused.",
    "session/prompt",
    {"sessionId": "no such session", "prompt": [text("x")]},
    is_malformed=False,
)
_refuses(
    "directories-relative",
    "A further directory that is not absolute is refused, and not dropped.",
    "session/new",
    {**WORK, "additionalDirectories": ["relative/path"]},
    "v1 45",
    capability=ROOTS,
    is_malformed=False,
)
_refuses(
    "directories-empty",
    "A further directory that is an empty text is refused.",
    "session/new",
    {**WORK, "additionalDirectories": [""]},
    "v1 45",
    capability=ROOTS,
    is_malformed=False,
)
_refuses(
    "directories-no-list",
    "Further directories that are no list are refused.",
    "session/new",
    {**WORK, "additionalDirectories": "/"},
    "v1 45",
    capability=ROOTS,
    is_malformed=False,
)
_refuses(
    "directories-number",
    "A further directory that is no text is refused.",
    "session/new",
    {**WORK, "additionalDirectories": [5]},
    "v1 45",
    capability=ROOTS,
    is_malformed=False,
)
_refuses(
    "list-cursor",
    "A cursor that was never given is refused.",
    "session/list",
    {"cursor": "no such cursor"},
    "v1 40",
    severity="should",
    capability="agentCapabilities.sessionCapabilities.list",
    is_malformed=False,
)
_refuses(
    "list-cursor-number",
    "A cursor that is no text is refused.",
    "session/list",
    {"cursor": 5},
    capability="agentCapabilities.sessionCapabilities.list",
)
_refuses(
    "load-unknown",
    "Loading a session that there is not fails.",
    "session/load",
    {**WORK, "sessionId": "00000000-0000-4000-8000-000000000000"},
    capability="agentCapabilities.loadSession",
    is_malformed=False,
)
_refuses(
    "resume-unknown",
    "Resuming a session that there is not fails.",
    "session/resume",
    {**WORK, "sessionId": "00000000-0000-4000-8000-000000000000"},
    capability="agentCapabilities.sessionCapabilities.resume",
    is_malformed=False,
)


@PARAMS.case(
    "code", "What is refused because the schema does not have it is refused with -32602.", severity="should"
)
async def code(client: RawClient) -> None:
    session = await client.open()
    seen = 0
    for capability, method, params in MALFORMED:
        if capability and not offers(client.offer, capability):
            continue
        request = await client.ask(method, _filled(client, session, params))
        answer = await client.step(request, f"{method} with malformed params")
        if answer.failed:
            seen += 1
            found = at(answer.error, "code")
            words = f"it was refused with {found!r} in place of {INVALID_PARAMS}"
            holds(found == INVALID_PARAMS, words, request.frame, answer)
    if not seen:
        unscored("it refuses nothing of that")
