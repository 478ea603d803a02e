"""v1: lines, messages, ids, errors, and unknown methods."""

from __future__ import annotations

import json
import re
from typing import Any

from turnwire_check.capability import offers
from turnwire_check.case import IN_ORDER, Part, Severity, broken, holds, unscored
from turnwire_check.raw_client import RawClient
from turnwire_check.raw_peer import INVALID_PARAMS, METHOD_NOT_FOUND, is_answer_to, is_mistyped_answer_to, text
from turnwire_check.shapes import is_object
from turnwire_check.tape import Frame, at, has
from turnwire_check.watch import Conversation

PART = Part("v1.wire", "Transports, stdio")
RPC = Part("v1.rpc", "Overview, JSON-RPC 2.0")
EXTENSION = Part("v1.extension", "Extensibility")
PARAMS = Part("v1.params", "Schema")

WIRE_V2 = Part("v2.wire", "v2 draft, transports")
RPC_V2 = Part("v2.rpc", "v2 draft, JSON-RPC 2.0")
MARKERS = "agentCapabilities.sessionCapabilities"
NO_SESSION = "00000000-0000-4000-8000-000000000000"
LARGE = 1_000_000
"""Characters of a prompt that is long but realistic: a file that a user pasted."""


# -- lines ----------------------------------------------------------------------------------------------


def only_messages(talk: Conversation) -> None:
    for frame in talk.heard:
        holds(frame.flaw not in ("json", "object"), "a line of its output is not a message", frame)


def utf_8(talk: Conversation) -> None:
    for frame in talk.heard:
        holds(frame.flaw != "encoding", "a line of its output is not UTF-8", frame)


def surrogates(talk: Conversation) -> None:
    for frame in talk.heard:
        # A reader of JSON that follows RFC 8259 strictly rejects the whole message.
        is_half = b"\\u" in frame.raw and SURROGATE.search(json.dumps(frame.value, ensure_ascii=False))
        holds(not is_half, "a text has half of a surrogate pair", frame)


def version_member(talk: Conversation) -> None:
    for frame in talk.heard:
        holds(frame.flaw or at(frame.value, "jsonrpc") == "2.0", "a message does not say so", frame)


def one_outcome(talk: Conversation) -> None:
    for frame in talk.heard:
        outcomes = [name for name in ("result", "error") if has(frame.value, name)]
        holds(not frame.is_answer or len(outcomes) == 1, f"an answer has {outcomes or 'neither'}", frame)


def error_shape(talk: Conversation) -> None:
    failed = [each for each in talk.heard if each.is_answer and each.failed]
    if not failed:
        unscored("it answers nothing with an error")
    for each in failed:
        code, message = at(each.error, "code"), at(each.error, "message")
        is_whole = isinstance(code, int) and not isinstance(code, bool)
        holds(is_whole and isinstance(message, str), "the error has no code and message", each)


SURROGATE = re.compile("[\ud800-\udfff]")
for _wire, _rpc in ((PART, RPC), (WIRE_V2, RPC_V2)):
    _wire.watch("only-messages", "Nothing but messages is on stdout, each on a line of its own.")(only_messages)
    _wire.watch("utf-8", "Messages are UTF-8.")(utf_8)
    _wire.watch("surrogates", "Every text is valid Unicode, without half of a surrogate pair.")(surrogates)
    _rpc.watch("version-member", 'Every message says `"jsonrpc":"2.0"`.')(version_member)
    _rpc.watch("one-outcome", "An answer has a result or an error, and not both.")(one_outcome)
    _rpc.watch("error-shape", "An error has an integer code and a message.")(error_shape)


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


CLAIMED: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("agentCapabilities.loadSession", "session/load", {"sessionId": NO_SESSION, "cwd": "CWD", "mcpServers": []}),
    (f"{MARKERS}.resume", "session/resume", {"sessionId": NO_SESSION, "cwd": "CWD", "mcpServers": []}),
    (f"{MARKERS}.list", "session/list", {}),
    (f"{MARKERS}.close", "session/close", {"sessionId": NO_SESSION}),
    (f"{MARKERS}.delete", "session/delete", {"sessionId": NO_SESSION}),
    ("authMethods", "authenticate", {"methodId": "no such way to log in"}),
)
"""Methods with the capability that promises them."""


@RPC.case("claimed", "A method that the agent claims exists, and is answered.")
async def claimed(client: RawClient) -> None:
    session = await client.open()
    rows = [(method, params) for capability, method, params in CLAIMED if offers(client.offer, capability)]
    if not rows:
        unscored("it claims no further methods")
    for method, params in rows:
        request = await client.ask(method, _filled(client, session, params))
        is_ours, is_mistyped = is_answer_to(request.id), is_mistyped_answer_to(request.id)
        answer = await client.until(
            lambda frame, ours=is_ours, other=is_mistyped: ours(frame) or other(frame), request.frame.number
        )
        holds(answer, f"`{method}` is claimed and not answered", request.frame)
        code = answer and at(answer.error, "code")
        holds(code != METHOD_NOT_FOUND, f"`{method}` is claimed and does not exist", request.frame, answer)


async def _id_comes_back(client: RawClient, number: Any) -> None:
    await client.initialize()
    request = await client.ask("session/new", client.place_of_work(), id=number)
    is_ours, is_mistyped = is_answer_to(number), is_mistyped_answer_to(number)
    found = await client.until(lambda frame: is_ours(frame) or is_mistyped(frame), request.frame.number)
    given = next((each for each in client.tape.heard(request.frame.number) if each.is_answer), None)
    sent = json.dumps(number)
    changed = "" if found is None else f"the id {sent} came back as {json.dumps(found.id)}"
    holds(found is not None and is_ours(found), changed or f"no answer with the id {sent}", request.frame, given)


@RPC.case("id-text", "An id that is a text comes back as it is.")
async def id_text(client: RawClient) -> None:
    await _id_comes_back(client, "b2c5-Ä")


@RPC.case("id-digits", "An id that is a text of digits comes back as a text.")
async def id_digits(client: RawClient) -> None:
    await _id_comes_back(client, "42")


@RPC.case("id-zero", "A request may have the id 0.")
async def id_zero(client: RawClient) -> None:
    await _id_comes_back(client, 0)


@RPC.case("id-number", "An id that is a number comes back as a number.")
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


@RPC.case("notification", "Nobody answers a notification.")
async def notification(client: RawClient) -> None:
    session = await client.open()
    place = client.place
    sent = await client.cancel(session)
    barrier = await client.barrier()
    answers = [each for each in client.tape.heard(place) if each.is_answer and each is not barrier]
    holds(not answers, "a notification was answered", sent, *answers)


@RPC.case("unknown-method", "A request for a method that is not there is answered with -32601.")
async def unknown_method(client: RawClient) -> None:
    await client.initialize()
    await _refused(client, "session/no_such_method", {"sessionId": "x"}, METHOD_NOT_FOUND)


async def _refused(client: RawClient, method: str, params: Any, *codes: int) -> None:
    request = await client.ask(method, params)
    if codes:
        answer = await client.until(is_answer_to(request.id), request.frame.number)
        if answer is None:
            broken(f"`{method}` was not answered", request.frame)
    else:
        answer = await client.answer_to(request, method)
    holds(answer.failed, "it succeeded", request.frame, answer)
    found = at(answer.error, "code")
    wanted = " or ".join(map(str, codes))
    holds(not codes or found in codes, f"it was refused with {found!r} in place of {wanted}", request.frame, answer)


@RPC.case("stray-answer", "An answer to a request that nobody sent does nothing.", severity="should")
async def stray_answer(client: RawClient) -> None:
    await client.initialize()
    sent = await client.send({"jsonrpc": "2.0", "id": "nobody asked this", "result": {}})
    await _still_there(client, sent)


# -- messages outside of ACP ----------------------------------------------------------------------------


@EXTENSION.case(
    "unknown-request",
    "A request of somebody's own that the agent does not know is answered with -32601.",
    severity="should",
    section="Custom requests",
)
async def unknown_request(client: RawClient) -> None:
    await client.initialize()
    await _refused(client, "_example.org/no_such_method", {"a": 1}, METHOD_NOT_FOUND)


@EXTENSION.case(
    "unknown-notification",
    "A notification that nobody knows does nothing.",
    severity="should",
    section="Custom notifications",
)
async def unknown_notification(client: RawClient) -> None:
    await client.initialize()
    sent = await client.notify("_example.org/happened", {"a": 1})
    await client.notify("$/happened", {"a": 1})
    await _still_there(client, sent)


@EXTENSION.case("meta", "`_meta` with members of anybody's own does no harm.", section="The _meta field")
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


# -- malformed params: one row each ---------------------------------------------------------------------


def _refuses(
    name: str,
    rule: str,
    method: str,
    params: Any,
    *,
    severity: Severity = "must",
    capability: str = "",
    is_malformed: bool = True,
) -> None:
    """Check that malformed params are rejected. `"SESSION"` and `"CWD"` in the params stand for a session of the
    connection, and a directory.

    The rule requires a rejection; its code is a separate case, for all malformed requests.
    """
    if is_malformed:
        MALFORMED.append((capability, method, params))

    @PARAMS.case(name, rule, severity=severity, capability=capability, section=method)
    async def judge(client: RawClient, method: str = method, params: Any = params) -> None:
        session = await client.open()
        await _refused(client, method, _filled(client, session, params))

    assert judge


MALFORMED: list[tuple[str, str, Any]] = []
"""Requests that violate the schema: the required capability, the method, the params."""


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
    "A prompt for a session that does not exist is refused.",
    "session/prompt",
    {"sessionId": "no such session", "prompt": [text("x")]},
    severity="should",
    is_malformed=False,
)
_refuses(
    "directories-relative",
    "A further directory that is not absolute is refused, and not dropped.",
    "session/new",
    {**WORK, "additionalDirectories": ["relative/path"]},
    capability=ROOTS,
    is_malformed=False,
)
_refuses(
    "directories-empty",
    "A further directory that is an empty text is refused.",
    "session/new",
    {**WORK, "additionalDirectories": [""]},
    capability=ROOTS,
    is_malformed=False,
)
_refuses(
    "directories-no-list",
    "Further directories that are no list are refused.",
    "session/new",
    {**WORK, "additionalDirectories": "/"},
    capability=ROOTS,
    is_malformed=False,
)
_refuses(
    "directories-number",
    "A further directory that is no text is refused.",
    "session/new",
    {**WORK, "additionalDirectories": [5]},
    capability=ROOTS,
    is_malformed=False,
)
_refuses(
    "list-cursor",
    "A cursor that was never given is refused.",
    "session/list",
    {"cursor": "no such cursor"},
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
        found = at(answer.error, "code")
        # That a method does not exist at all is another rule's matter.
        if answer.failed and found != METHOD_NOT_FOUND:
            seen += 1
            words = f"it was refused with {found!r} in place of {INVALID_PARAMS}"
            holds(found == INVALID_PARAMS, words, request.frame, answer)
    if not seen:
        unscored("it refuses nothing of that")
