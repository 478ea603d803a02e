"""Streamable HTTP: statuses, headers, and which message comes on which stream."""

from __future__ import annotations

from turnwire_check.acp_http import AcpHttpClient, answers, message
from turnwire_check.case import Part, holds, unscored
from turnwire_check.http_client import Answer
from turnwire_check.raw_client import hello
from turnwire_check.remote import CONNECTION, SESSION
from turnwire_check.tape import at

SOURCE = "Streamable HTTP & WebSocket Transport (draft)"
OPEN = Part("http.open", SOURCE)
POST = Part("http.post", SOURCE)
GET = Part("http.get", SOURCE)
ROUTE = Part("http.route", SOURCE)
DELETE = Part("http.delete", SOURCE)

NOBODY = {CONNECTION: "no-such-connection"}
EVENTS = {"Accept": "text/event-stream"}


def refused(answer: Answer, *wanted: int) -> None:
    holds(answer.status in wanted, f"the answer is {answer.status}", answer.frame)


# -- a connection -----------------------------------------------------------------------------------------------


@OPEN.case(
    "answered", "`initialize` is answered in the POST: 200, and JSON.", severity="draft", section="Initialize"
)
async def answered(client: AcpHttpClient) -> None:
    answer = await client.initialize()
    holds(answer.status == 200 and answer.media == "application/json", f"{answer.status}", answer.frame)
    holds(at(answer.value, "result", "protocolVersion") is not None, "it is no answer to it", answer.frame)


@OPEN.case("named", "The answer names the connection in `Acp-Connection-Id`.", severity="draft", section="Identity")
async def named(client: AcpHttpClient) -> None:
    answer = await client.initialize()
    if answer.status != 200:
        unscored(f"the answer is {answer.status}")
    holds(answer.headers.get(CONNECTION.lower()), "the header is not there", answer.frame)


@OPEN.case("unique", "Two connections have two ids.", severity="draft", section="Identity")
async def unique(client: AcpHttpClient) -> None:
    first, second = await client.connection(), await client.connection()
    holds(first != second, f"both are {first[CONNECTION]!r}")


# -- POST -------------------------------------------------------------------------------------------------------


@POST.case("accepted", "A request is answered with 202.", severity="draft", section="POST")
async def accepted(client: AcpHttpClient) -> None:
    _, answer = await client.new_session(await client.connection())
    refused(answer, 202)


@POST.case("empty", "202 has no body: what a request brings comes on a stream.", severity="draft", section="POST")
async def empty(client: AcpHttpClient) -> None:
    _, answer = await client.new_session(await client.connection())
    if answer.status != 202:
        unscored(f"the answer is {answer.status}")
    holds(not answer.raw, "it has one", answer.frame)


@POST.case("notification", "A notification is answered with 202.", severity="draft", section="POST")
async def notification(client: AcpHttpClient) -> None:
    headers, _ = await client.session()
    refused(await client.post(message("session/cancel", {"sessionId": headers[SESSION]}), headers), 202)


@POST.case(
    "at-once", "202 does not wait for the end of the turn.", severity="draft", scenes=("wait",), section="POST"
)
async def at_once(client: AcpHttpClient) -> None:
    headers, _ = await client.session()
    stream = await client.stream(headers)
    block = {"type": "text", "text": client.subject.prompts["wait"]}
    body = message("session/prompt", {"sessionId": headers[SESSION], "prompt": [block]}, 77)
    answer = await client.ask("POST", client.subject.path, body, headers=headers)
    await client.post(message("session/cancel", {"sessionId": headers[SESSION]}), headers)
    end = await stream.until(lambda event: answers(event, 77))
    if end is None:
        unscored("the turn had no end")
    holds(answer, "it was not answered while its turn ran", end.frame)


@POST.case("media-type", "What is not said to be JSON is refused with 415.", severity="draft", section="POST")
async def media_type(client: AcpHttpClient) -> None:
    body = message("initialize", hello(1), 1)
    refused(await client.post(body, {"Content-Type": "text/plain"}), 415)


@POST.case(
    "parameters", "A media type may have parameters, and is written in any case.", severity="draft", section="POST"
)
async def parameters(client: AcpHttpClient) -> None:
    await client.connection()
    body = message("initialize", hello(1), 1)
    answer = await client.post(body, {"Content-Type": "Application/JSON; charset=utf-8"})
    holds(answer.status == 200, f"the answer is {answer.status}", answer.frame)


@POST.case("batch", "A list of messages is refused with 501.", severity="draft", section="POST")
async def batch(client: AcpHttpClient) -> None:
    headers = await client.connection()
    refused(await client.post([message("session/list", {}, 1)], headers), 501)


@POST.case(
    "no-connection", "A message that names no connection is refused with 400.", severity="draft", section="POST"
)
async def no_connection(client: AcpHttpClient) -> None:
    refused(await client.post(message("session/list", {}, 1)), 400)


@POST.case(
    "unknown", "A message to a connection that there is not is refused with 404.", severity="draft", section="POST"
)
async def unknown(client: AcpHttpClient) -> None:
    refused(await client.post(message("session/list", {}, 1), NOBODY), 404)


@POST.case("no-json", "What is no JSON is refused with 400.", severity="should", section="POST")
async def no_json(client: AcpHttpClient) -> None:
    headers = await client.connection()
    refused(await client.post(None, headers, raw=b'{"jsonrpc": '), 400)


# -- GET --------------------------------------------------------------------------------------------------------


@GET.case("stream", "The stream of a connection is `text/event-stream`.", severity="draft", section="GET")
async def stream_of_events(client: AcpHttpClient) -> None:
    stream = await client.stream(await client.connection())
    found = stream.body.headers.get("content-type", "").partition(";")[0].strip().lower()
    holds(found == "text/event-stream", f"it is {found!r}", stream.head)


@GET.case("at-once", "The head of a stream does not wait for the first message.", severity="draft", section="GET")
async def head_at_once(client: AcpHttpClient) -> None:
    headers = await client.connection()
    found = await client.open("GET", client.subject.path, headers={**EVENTS, **headers})
    holds(found, "nothing came while nothing happened")


@GET.case("no-connection", "A stream of no connection is refused with 400.", severity="draft", section="GET")
async def get_no_connection(client: AcpHttpClient) -> None:
    refused(await client.call("GET", client.subject.path, headers=EVENTS), 400)


@GET.case(
    "unknown", "A stream of a connection that there is not is refused with 404.", severity="draft", section="GET"
)
async def get_unknown(client: AcpHttpClient) -> None:
    refused(await client.call("GET", client.subject.path, headers={**EVENTS, **NOBODY}), 404)


@GET.case(
    "unknown-session",
    "A stream of a session that there is not is refused with 404.",
    severity="draft",
    section="GET",
)
async def get_unknown_session(client: AcpHttpClient) -> None:
    headers = {**EVENTS, **await client.connection(), SESSION: "no-such-session"}
    refused(await client.call("GET", client.subject.path, headers=headers), 404)


@GET.case("accept", "Who does not accept a stream is refused with 406.", severity="draft", section="GET")
async def accept(client: AcpHttpClient) -> None:
    headers = {**await client.connection(), "Accept": "application/json"}
    refused(await client.call("GET", client.subject.path, headers=headers), 406)


# -- which message on which stream ------------------------------------------------------------------------------


@ROUTE.case(
    "new",
    "The answer to `session/new` comes on the stream of the connection.",
    severity="draft",
    section="Streams",
)
async def new(client: AcpHttpClient) -> None:
    headers = await client.connection()
    stream = await client.stream(headers)
    number, posted = await client.new_session(headers)
    if posted.status != 202:
        unscored(f"it is answered with {posted.status}")
    holds(await stream.until(lambda event: answers(event, number)), "it does not", posted.frame)


@ROUTE.case(
    "kept", "What a session says before its stream is opened is kept for it.", severity="should", section="Streams"
)
async def kept(client: AcpHttpClient) -> None:
    headers, _ = await client.session()
    number, posted = await client.prompt(headers)
    stream = await client.stream(headers)
    holds(await stream.until(lambda event: answers(event, number)), "the answer is lost", posted.frame)


@ROUTE.case(
    "session",
    "Updates and the answer to a prompt come on the session's stream.",
    severity="draft",
    section="Streams",
)
async def session(client: AcpHttpClient) -> None:
    headers, _ = await client.session()
    stream = await client.stream(headers)
    number, posted = await client.prompt(headers)
    end = await stream.until(lambda event: answers(event, number))
    holds(end, "the answer does not", posted.frame)
    updates = [each for each in stream.events if at(each.value, "method") == "session/update"]
    holds(updates, "there are no updates", posted.frame, end and end.frame)


@ROUTE.case("apart", "The stream of the connection has nothing of a session.", severity="draft", section="Streams")
async def apart(client: AcpHttpClient) -> None:
    headers, connection = await client.session()
    stream = await client.stream(headers)
    number, _ = await client.prompt(headers)
    if await stream.until(lambda event: answers(event, number)) is None:
        unscored("the prompt was not answered")
    await connection.pause()
    strays = [
        each for each in connection.events if at(each.value, "method") == "session/update" or answers(each, number)
    ]
    holds(not strays, "it has", *(each.frame for each in strays))


@ROUTE.case("one-message", "An event is one message of JSON-RPC.", severity="draft", section="Streams")
async def one_message(client: AcpHttpClient) -> None:
    headers, connection = await client.session()
    stream = await client.stream(headers)
    number, _ = await client.prompt(headers)
    await stream.until(lambda event: answers(event, number))
    for each in (*connection.events, *stream.events):
        holds(at(each.value, "jsonrpc") == "2.0", "it is not", each.frame)


# -- DELETE -----------------------------------------------------------------------------------------------------


@DELETE.case("answered", "`DELETE` is answered with 202.", severity="draft", section="DELETE")
async def deleted(client: AcpHttpClient) -> None:
    headers = await client.connection()
    refused(await client.call("DELETE", client.subject.path, headers=headers), 202)


@DELETE.case("gone", "A connection that was ended takes no more messages.", severity="draft", section="DELETE")
async def gone(client: AcpHttpClient) -> None:
    headers = await client.connection()
    await client.call("DELETE", client.subject.path, headers=headers)
    answer = await client.post(message("session/list", {}, 1), headers)
    holds(400 <= answer.status < 500, f"the answer is {answer.status}", answer.frame)


@DELETE.case("ends", "The streams of a connection that was ended end.", severity="draft", section="DELETE")
async def ends(client: AcpHttpClient) -> None:
    headers = await client.connection()
    stream = await client.stream(headers)
    answer = await client.call("DELETE", client.subject.path, headers=headers)
    holds(await stream.is_ended(), "the stream is still open", answer.frame)


@DELETE.case("no-connection", "`DELETE` of no connection is refused with 400.", severity="draft", section="DELETE")
async def delete_no_connection(client: AcpHttpClient) -> None:
    refused(await client.call("DELETE", client.subject.path), 400)
