"""Clients: the handshake, and its consequences for the rest of the connection."""

from __future__ import annotations

from typing import Any

from turnwire_check.case import Part, broken, holds, unscored
from turnwire_check.judging_agent import INFO, JudgingAgent
from turnwire_check.raw_peer import HOLD, error
from turnwire_check.tape import at, has

INIT = Part("client.init", "Initialization")
AUTH = Part("client.auth", "Authentication")

FLAGS = ("fs.readTextFile", "fs.writeTextFile", "terminal", "auth.terminal")
MARKERS = (
    *("session.configOptions.boolean", "session.compaction", "session.notices"),
    *("elicitation.form", "elicitation.url"),
)
GATED = frozenset(
    {
        *("session/load", "session/resume", "session/list", "session/delete", "session/close", "session/fork"),
        *("session/set_mode", "session/set_config_option", "logout", "authenticate"),
    }
)
"""Methods that go only to agents that claim them, or that gave something to set or to log in with."""


@INIT.case("first", "The first request is `initialize`.")
async def first(agent: JudgingAgent) -> None:
    found = await agent.until(lambda frame: frame.method is not None)
    if found is None:
        unscored("it said nothing")
    holds(found.method == "initialize" and found.is_request, f"it began with `{found.method}`", found)


@INIT.case("once", "`initialize` is sent once.", severity="should")
async def once(agent: JudgingAgent) -> None:
    hellos = [each for each in await agent.visit() if each.method == "initialize"]
    holds(len(hellos) == 1, f"it was sent {len(hellos)} times", *hellos)


@INIT.case("version", "The client asks for a version, which is a whole number.", section="Protocol version")
async def version(agent: JudgingAgent) -> None:
    hello = await agent.first("initialize")
    found = at(hello.params, "protocolVersion")
    holds(type(found) is int and 0 < found < 65536, f"it asks for {found!r}", hello)


@INIT.case(
    "capabilities",
    "Capabilities have their types: flags are booleans, markers are objects or null.",
    section="Client capabilities",
)
async def capabilities(agent: JudgingAgent) -> None:
    hello = await agent.first("initialize")
    told = at(hello.params, "clientCapabilities")
    if told is None:
        return
    holds(isinstance(told, dict), "`clientCapabilities` is no object", hello)
    for path in FLAGS:
        found = at(told, *path.split("."))
        holds(found is None or isinstance(found, bool), f"`{path}` is no boolean", hello)
    for path in MARKERS:
        found = at(told, *path.split("."))
        holds(found is None or isinstance(found, dict), f"`{path}` is no object", hello)


@INIT.case(
    "client-name",
    "The client says its name and version.",
    severity="should",
    section="Implementation information",
)
async def client_name(agent: JudgingAgent) -> None:
    hello = await agent.first("initialize")
    for member in ("name", "version"):
        found = at(hello.params, "clientInfo", member)
        if at(hello.params, "protocolVersion") != 1:
            found = found or at(hello.params, "info", member)
        holds(isinstance(found, str) and found, f"it gives no {member}", hello)


@INIT.case("waits", "Nothing else is asked until `initialize` is answered.")
async def waits(agent: JudgingAgent) -> None:
    agent.answers["initialize"] = lambda asked: HOLD
    hello = await agent.initialized()
    await agent.pause()
    early = [each for each in agent.tape.heard(hello.number + 1) if each.is_request and each.method != "initialize"]
    await agent.respond(hello, agent.welcome(hello))
    holds(not early, "it did not wait for the answer", hello, *early[:1])


@INIT.case(
    "unknown-version",
    "A client does not go on with an agent whose version it does not have.",
    severity="should",
    section="Version negotiation",
)
async def unknown_version(agent: JudgingAgent) -> None:
    await _stops_at(agent, {"result": {"protocolVersion": 65535, "agentCapabilities": {}}})


@INIT.case(
    "old-version",
    "A client does not go on with an agent of a version from before the first.",
    severity="should",
    section="Version negotiation",
)
async def old_version(agent: JudgingAgent) -> None:
    await _stops_at(agent, {"result": {"protocolVersion": 0, "agentCapabilities": {}}})


@INIT.case(
    "refused",
    "A client does not go on when `initialize` is answered with an error.",
    section="Version negotiation",
)
async def refused(agent: JudgingAgent) -> None:
    await _stops_at(agent, error(-32603))


async def _stops_at(agent: JudgingAgent, answer: dict[str, Any]) -> None:
    """Fail if the client continues after this answer to `initialize`. It may ask for another version."""
    agent.answers["initialize"] = lambda asked: answer
    hello = await agent.initialized()
    went_on = await agent.until(
        lambda frame: (frame.method or "").startswith("session/"),
        hello.number,
        within=4 * agent.silence_s,
    )
    holds(went_on is None, "it went on", hello, went_on)


async def _goes_on(agent: JudgingAgent, answer: dict[str, Any]) -> None:
    """Fail if the client disconnects after this answer to `initialize`."""
    agent.answers["initialize"] = lambda asked: {"result": answer}
    hello = await agent.initialized()
    if at(hello.params, "protocolVersion") != 1:
        unscored("it asks for another version than 1, and may not support 1")
    new = await agent.until(lambda frame: frame.method == "session/new", hello.number)
    if new is None and agent.tape.ended:
        broken(f"it opened no session: {agent.tape.ended}", hello)
    if new is None:
        unscored(f"it sent no `session/new` within {agent.patience_s:g} s")


@INIT.case(
    "no-capabilities",
    "An agent that says nothing of its capabilities is worked with.",
    severity="should",
)
async def no_capabilities(agent: JudgingAgent) -> None:
    await _goes_on(agent, {"protocolVersion": 1})


@INIT.case("nulls", "In the answer to `initialize` null is the same as nothing.", section="Capabilities")
async def nulls(agent: JudgingAgent) -> None:
    nothing = {"sessionCapabilities": {"list": None, "resume": None}, "auth": {"logout": None}}
    await _goes_on(agent, {"protocolVersion": 1, "agentCapabilities": nothing, "agentInfo": None, "_meta": None})


@INIT.case(
    "unknown-capabilities",
    "Capabilities that the client does not know do no harm.",
    severity="should",
    section="Capabilities",
)
async def unknown_capabilities(agent: JudgingAgent) -> None:
    odd: dict[str, Any] = {
        "telepathy": {"range": 3},
        "sessionCapabilities": {"dream": {}},
        "_meta": {"example.org": [1]},
    }
    whole: dict[str, Any] = {"agentCapabilities": odd, "agentInfo": INFO, "_meta": {"example.org": {"x": 1}}}
    await _goes_on(agent, {"protocolVersion": 1, "authMethods": [], **whole})


@INIT.case(
    "unclaimed",
    "What the agent does not claim is not asked of it.",
    section="Capabilities",
)
async def unclaimed(agent: JudgingAgent) -> None:
    asked = [each for each in await agent.visit() if each.method in GATED]
    holds(not asked, f"the agent does not claim `{asked[0].method}`" if asked else "", *asked[:1])


@AUTH.case("offered", "A client logs in by a way that is offered, and is no program.")
async def offered(agent: JudgingAgent) -> None:
    agent.claims["authMethods"] = [{"id": "key 1", "name": "Key"}]
    agent.answers["session/new"] = lambda asked: error(-32000, "a login is needed")
    await agent.opened()
    login = await agent.first("authenticate")
    found = at(login.params, "methodId")
    holds(has(login.params, "methodId") and found == "key 1", f"it logs in by {found!r}", login)
