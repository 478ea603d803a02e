"""v1: the handshake, and authentication."""

from __future__ import annotations

from typing import Any

from turnwire_check.case import Part, broken, holds, unscored
from turnwire_check.raw_client import RawClient, hello
from turnwire_check.raw_peer import AUTH_REQUIRED, is_answer_to
from turnwire_check.shapes import is_object, is_text
from turnwire_check.tape import at, items

PART = Part("v1.init", "Initialization")
AUTH = Part("v1.auth", "Authentication")

FLAGS = (
    ("loadSession",),
    ("promptCapabilities", "image"),
    ("promptCapabilities", "audio"),
    ("promptCapabilities", "embeddedContext"),
    ("mcpCapabilities", "http"),
    ("mcpCapabilities", "sse"),
)
MARKERS = (
    *(("sessionCapabilities", each) for each in ("list", "delete", "resume", "close", "additionalDirectories")),
    ("auth", "logout"),
)
NO_VERSION = 65535
"""The largest number that a version may have."""


@PART.case("version", "`initialize` is answered with a version, which is a whole number.")
async def version(client: RawClient) -> None:
    request = await client.ask("initialize", hello(1))
    answer = await client.until(is_answer_to(request.id), request.frame.number)
    if answer is None:
        broken(client.tape.ended or f"no answer within {client.subject.patience_s:g} s", request.frame)
    holds(answer.succeeded, "it answered with an error", answer)
    found = at(answer.result, "protocolVersion")
    is_whole = isinstance(found, int) and not isinstance(found, bool) and 0 <= found <= NO_VERSION
    holds(is_whole, f"`protocolVersion` is {found!r}", answer)


@PART.case(
    "newer-version",
    "A version that the agent does not have is answered with the newest that it has.",
    section="Version negotiation",
)
async def newer_version(client: RawClient) -> None:
    asked = {**hello(1), **hello(NO_VERSION)}
    answer = await client.call("initialize", asked)
    if answer.failed:
        broken("it refused, and must name a version that it speaks", answer)
    found = at(answer.result, "protocolVersion")
    holds(found != NO_VERSION, "it says that it speaks a version that does not exist", answer)


@PART.case(
    "same-version",
    "A version that the agent speaks is answered with itself.",
    section="Version negotiation",
)
async def same_version(client: RawClient) -> None:
    answer = await client.call("initialize", {**hello(1), **hello(NO_VERSION)})
    if at(answer.result, "protocolVersion") != 1:
        unscored("only an agent that names version 1 itself is known to speak it")
    found = client.subject.versions.get(1)
    holds(found == 1, f"its newest is 1, and asked for 1 it said {found!r}", answer)


@PART.case(
    "capabilities",
    "Capabilities have their types: flags are booleans, markers are objects or null.",
    section="Agent capabilities",
)
async def capabilities(client: RawClient) -> None:
    answer = await client.initialize()
    offered = at(answer.result, "agentCapabilities")
    holds(offered is None or is_object(offered), "`agentCapabilities` is no object", answer)
    for path in FLAGS:
        found = at(offered, *path)
        holds(found is None or isinstance(found, bool), f"`{'.'.join(path)}` is {found!r}, no boolean", answer)
    for path in MARKERS:
        found = at(offered, *path)
        holds(found is None or is_object(found), f"`{'.'.join(path)}` is {found!r}, no object", answer)


@PART.case(
    "agent-name",
    "The agent says its name and version.",
    severity="should",
    section="Implementation information",
)
async def agent_name(client: RawClient) -> None:
    answer = await client.initialize()
    name, number = at(answer.result, "agentInfo", "name"), at(answer.result, "agentInfo", "version")
    holds(is_text(name) and is_text(number), "`agentInfo` has no name and version", answer)


@PART.case(
    "no-capabilities",
    "A client that says nothing of its capabilities has none, and is served.",
    section="Capabilities",
)
async def no_capabilities(client: RawClient) -> None:
    answer = await client.call("initialize", {"protocolVersion": 1})
    holds(answer.succeeded, "without `clientCapabilities` it refuses", answer)


@PART.case(
    "unknown-capabilities",
    "Capabilities that the agent does not know do no harm.",
    severity="should",
    section="Capabilities",
)
async def unknown_capabilities(client: RawClient) -> None:
    unknown: dict[str, Any] = {
        "teleport": True,
        "fs": {"readTextFile": False, "glob": {}},
        "_meta": {"example.org": {"a": [1]}},
    }
    answer = await client.call("initialize", {**hello(1), "clientCapabilities": unknown})
    holds(answer.succeeded, "unknown capabilities make it refuse", answer)


@AUTH.case("methods", "Every way to log in has an id and a name.")
async def methods(client: RawClient) -> None:
    answer = await client.initialize()
    offered = at(answer.result, "authMethods")
    holds(offered is None or isinstance(offered, list), "`authMethods` is no list", answer)
    for each in items(at(answer.result, "authMethods")):
        holds(is_text(at(each, "id")) and is_text(at(each, "name")), f"a way to log in is {each!r}", answer)


@AUTH.case(
    "terminal",
    "Logins that are programs are named only to clients that can run them.",
    section="Terminal authentication",
)
async def terminal(client: RawClient) -> None:
    answer = await client.initialize({"auth": {"terminal": False}})
    named = [each for each in items(at(answer.result, "authMethods")) if at(each, "type") == "terminal"]
    holds(not named, "it names a login by terminal to a client that offers none", answer)


@AUTH.case(
    "unknown-method",
    "Logging in by a way that is not offered fails.",
    severity="should",
    section="authenticate",
    capability="authMethods",
)
async def unknown_method(client: RawClient) -> None:
    await client.initialize()
    answer = await client.call("authenticate", {"methodId": "no such way to log in"})
    holds(answer.failed, "it succeeded", answer)


@AUTH.case(
    "required",
    "A session that is refused for want of a login is refused with -32000.",
    section="Error codes",
    capability="authMethods",
)
async def required(client: RawClient) -> None:
    await client.initialize()
    answer = await client.call("session/new", client.place_of_work())
    if answer.succeeded:
        unscored("it opens sessions without a login")
    for each in items(at(client.offer, "authMethods")):
        await client.call("authenticate", {"methodId": at(each, "id")})
    again = await client.call("session/new", client.place_of_work())
    if not again.succeeded:
        unscored("it could not be logged in at")
    found = at(answer.error, "code")
    holds(found == AUTH_REQUIRED, f"it was refused with {found!r}", answer)
