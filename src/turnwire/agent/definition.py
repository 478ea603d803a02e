"""The parts of an agent that all its connections share: author's functions, store, settings, `initialize` answer.

Every agent of this SDK lists, loads, resumes, forks, closes and deletes sessions. Options that are switched off are
not advertised.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from inspect import isawaitable
from typing import Any, TypeAlias

from turnwire.agent.options import AgentOptions, AuthMethod, Command
from turnwire.agent.store import SessionStore
from turnwire.agent.v2_updates import Json
from turnwire.clock import Clock
from turnwire.errors import AgentFailure, LocalProtocolError
from turnwire.projections.translate.handshake import ClientProfile, HostOffer, Offered, initialize_answer
from turnwire.runtime.cancellation import contained
from turnwire.wire.methods import VENDOR

Function: TypeAlias = Callable[..., Any]


@dataclass
class Hooks:
    """The author's functions; None if not registered."""

    prompt: Function | None = None
    opened: Function | None = None
    ready: Function | None = None
    closed: Function | None = None
    authenticate: Function | None = None
    changed: Function | None = None
    steer: Function | None = None
    named: Function | None = None
    """`(opening, meta, forked)` returns the id of a new session. Without it an id is generated."""
    missing: Function | None = None
    """`(opening, meta)` returns a session that the store does not have as `Kept`, or None."""
    commands: dict[str, tuple[Command, Function]] = field(default_factory=dict[str, tuple[Command, Function]])
    extensions: dict[str, Function] = field(default_factory=dict[str, Function])


async def call(function: Function | None, *args: Any) -> Any:
    """Call a function and await its result if it is async. Does nothing for None.

    Raises what the function raises; `LocalProtocolError` if it raises a cancellation by itself, which would look
    like a cancel from outside; `AgentFailure` if it tries to end the process.
    """
    if function is None:
        return None
    with contained():
        try:
            result: Any | Awaitable[Any] = function(*args)
            return await result if isawaitable(result) else result
        except SystemExit as ended:
            # SystemExit would end every other session of the process.
            raise AgentFailure(
                f"the agent's function ended with SystemExit({ended.code!r}); return, or raise AgentFailure"
            ) from ended
    raise LocalProtocolError("the function raised the exception that cancels, and nobody had cancelled it")


class AgentDefinition:
    """An agent's identity, store, options and functions."""

    def __init__(
        self,
        name: str,
        title: str | None,
        version: str,
        store: SessionStore,
        options: AgentOptions,
        clock: Clock,
    ) -> None:
        self.name = name
        self.title = title
        self.version = version
        self.store = store
        self.options = options
        self.clock = clock
        self.hooks = Hooks()

    def timestamp(self) -> str:
        """Now, in ISO 8601 and UTC, always with the same number of digits."""
        return datetime.fromtimestamp(self.clock.now_ms() / 1000, UTC).isoformat(timespec="milliseconds")


# -- the answer to initialize ----------------------------------------------------------------------------------


_MARKERS: Json = {"fork": {}, "additionalDirectories": {}}


def initialize_result(definition: AgentDefinition, client: ClientProfile) -> Json:
    """Return the answer to `initialize`."""
    options = definition.options
    host = HostOffer(
        version=definition.version,
        turn_complete=options.dialect_for(client).turn_complete,
        ready=options.awaits(client),
        passed=frozenset(_MARKERS),
    )
    blocks = {"image": options.image, "audio": options.audio, "embeddedContext": options.embedded_context}
    servers = {"stdio": True, "http": options.mcp_http, "sse": options.mcp_sse}
    offered = Offered(
        blocks=tuple(each for each, is_taken in blocks.items() if is_taken),
        servers=tuple(each for each, is_taken in servers.items() if is_taken),
        session=_MARKERS,
        meta={},
    )
    named: Json = {"name": definition.name, "version": definition.version}
    if definition.title is not None:
        named["title"] = definition.title
    listed = [each for each in options.auth_methods if each.type == "agent" or client.terminal_login]
    described = _method_v2 if client.version == 2 else _method_v1
    methods = [described(each) for each in listed]
    result = initialize_answer(client.version, named, offered, host, methods, logout=bool(options.auth_methods))
    if definition.hooks.steer is not None:
        _add_steering(result["capabilities"]["session"] if client.version == 2 else result["agentCapabilities"])
    return result


def _add_steering(place: Json) -> None:
    """Advertise steering in `_meta`, as ACP extensions are."""
    meta: Json = place.setdefault("_meta", {})
    meta[VENDOR] = {**meta.get(VENDOR, {}), "steering": {}}


def _method_v1(method: AuthMethod) -> Json:
    listed = _named({"id": method.id}, method)
    if method.type == "agent":
        return listed
    return {**listed, "type": "terminal", "args": list(method.args), "env": dict(method.env)}


def _method_v2(method: AuthMethod) -> Json:
    listed = _named({"type": method.type, "methodId": method.id}, method)
    if method.type == "agent":
        return listed
    env = [{"name": name, "value": value} for name, value in method.env]
    return {**listed, "args": list(method.args), "env": env}


def _named(listed: dict[str, Any], method: AuthMethod) -> Json:
    named = {**listed, "name": method.name}
    return named if method.description is None else {**named, "description": method.description}
