"""What an agent of the official SDK says of itself, in the words of `turnwire.agent`, and the other way round.

Takes JSON of ACP v1; gives settings, lists and params. Never talks to anybody.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from msgspec import Raw

from turnwire.agent.options import AgentOptions, AuthMethod, Command, Mode, Option, Value
from turnwire.agent.words import Json, from_v1
from turnwire.core.translate.handshake import ClientProfile
from turnwire.core.translate.members import as_object, child, entries, is_offered
from turnwire.core.translate.sessions import mcp_servers
from turnwire.core.translate.tools import block_to_v1
from turnwire.core.translate.updates import UpdatesV1ToV2
from turnwire.wire.jsonrpc import raw

MODE = "mode"


class Abilities(NamedTuple):
    """What the object can do with its sessions."""

    load: bool = False
    resume: bool = False
    list: bool = False
    close: bool = False
    fork: bool = False


# -- the handshake -------------------------------------------------------------------------------------------


def initialize_params(given: Json, client: ClientProfile) -> Json:
    """The client's `initialize` for a v1 agent. A v2 client has neither files nor terminals to offer."""
    if client.version == 1:
        named = given.get("clientInfo")
        offered: Json = child(given, "clientCapabilities")
    else:
        named = given.get("info")
        forms = {"form": client.elicitation_form, "url": client.elicitation_url}
        offered = {"elicitation": {name: {} for name, is_there in forms.items() if is_there}}
        offered = {name: value for name, value in offered.items() if value}
    params: Json = {"protocolVersion": 1, "clientCapabilities": offered}
    return {**params, "clientInfo": named} if isinstance(named, dict) else params


def abilities(answer: Json) -> Abilities:
    """From the answer to `initialize`."""
    offered = child(answer, "agentCapabilities")
    session = child(offered, "sessionCapabilities")
    return Abilities(
        load=offered.get("loadSession") is True,
        **{name: is_offered(session, name) for name in ("resume", "list", "close", "fork")},
    )


def agent_options(answer: Json, given: AgentOptions) -> AgentOptions:
    """The settings of the author with what the object offers."""
    offered = child(answer, "agentCapabilities")
    prompt, mcp = child(offered, "promptCapabilities"), child(offered, "mcpCapabilities")
    return replace(
        given,
        image=prompt.get("image") is True,
        audio=prompt.get("audio") is True,
        embedded_context=prompt.get("embeddedContext") is True,
        mcp_http=mcp.get("http") is True,
        mcp_sse=mcp.get("sse") is True,
        auth_methods=tuple(_auth_method(each) for each in answer.get("authMethods") or ()),
    )


def _auth_method(given: Json) -> AuthMethod:
    env: Json = given.get("env") or {}
    return AuthMethod(
        id=given["id"],
        name=given.get("name") or given["id"],
        description=given.get("description"),
        type="terminal" if given.get("type") == "terminal" else "agent",
        args=tuple(given.get("args") or ()),
        env=tuple((str(name), str(value)) for name, value in env.items()) if isinstance(env, dict) else (),  # pyright: ignore[reportUnnecessaryIsInstance]  JSON
    )


# -- sessions ------------------------------------------------------------------------------------------------


def session_params(cwd: str, servers: Raw, directories: Sequence[str], meta: Json, **more: Any) -> Json:
    """The params that open a session."""
    params: Json = {
        **more,
        "cwd": cwd,
        "mcpServers": [as_object(each) for each in entries(mcp_servers(servers, 1))],
    }
    if directories:
        params["additionalDirectories"] = list(directories)
    return {**params, "_meta": meta} if meta else params


def prompt_blocks(blocks: Iterable[Json]) -> list[Json]:
    """The blocks of a prompt as v1 has them."""
    losses: Counter[str] = Counter()
    return [as_object(block_to_v1(raw(each), losses)) for each in blocks]


def history(updates: Iterable[Json]) -> tuple[bytes, ...]:
    """A history as a v1 agent replays it, in the words of v2."""
    translator = UpdatesV1ToV2()
    told = [each for update in updates for each in translator.take(raw(from_v1(update)), turn=None)]
    return tuple(bytes(each) for each in (*told, *translator.part()))


def modes(offers: Json) -> tuple[list[Mode], str | None]:
    """The modes, and which one it is in."""
    given = child(offers, "modes")
    found = [
        Mode(each["id"], each.get("name") or each["id"], each.get("description"))
        for each in _all(given, "availableModes")
    ]
    return found, given.get("currentModeId")


def modes_of(option: Option) -> list[Mode]:
    """The modes that an option stands for."""
    return [Mode(each.id, each.name, each.description) for each in option.values if isinstance(each, Value)]


def options(listed: Iterable[Json]) -> list[Option]:
    """Config options. Groups of values are one list here."""
    return [_option(each) for each in listed]


def _option(given: Json) -> Option:
    values = [
        Value(each["value"], each.get("name") or each["value"], each.get("description")) for each in _values(given)
    ]
    return Option(
        given["id"],
        given.get("name") or given["id"],
        given["currentValue"],
        values,
        given.get("description"),
        given.get("category"),
    )


def _values(given: Json) -> list[Json]:
    return [each for found in _all(given, "options") for each in found.get("options", [found])]


def commands(listed: Iterable[Json]) -> list[Command]:
    """Slash commands."""
    return [
        Command(each["name"], each.get("description") or "", child(each, "input").get("hint")) for each in listed
    ]


def _all(given: Json, name: str) -> list[Json]:
    return given.get(name) or []
