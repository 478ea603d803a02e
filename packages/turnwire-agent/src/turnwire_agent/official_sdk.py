"""An object of the official Python SDK, called as the v1 agent that it is, without a pipe between.

The object is wrapped in the SDK's connection, so it gets the SDK's models and its `conn` is the SDK's; only the
bytes on a pipe are replaced by messages. Messages arrive one after the other in the order they were sent. A request
of the object runs inside the task that sends it, so that a cancellation there cancels it here. The object's
descriptions of itself are converted to the values of `turnwire.agent`, and the other way round. It needs the
package `agent-client-protocol`, and never imports it before an object is adapted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, NamedTuple

import anyio
import msgspec
from msgspec import Raw

from turnwire.agent.options import AgentOptions, AuthMethod, Command, Mode, Option, Value
from turnwire.agent.v2_updates import Json, from_v1
from turnwire.errors import AgentFailure, ConfigError, LinkBroken, NotOffered, TurnwireError
from turnwire.projections.translate.handshake import ClientProfile
from turnwire.projections.translate.sessions import mcp_servers
from turnwire.projections.translate.tools import block_to_v1
from turnwire.projections.translate.updates import UpdatesV1ToV2
from turnwire.session.json_members import as_object, child, entries, is_offered
from turnwire.wire.jsonrpc import INTERNAL_ERROR, METHOD_NOT_FOUND, code_of, raw

PACKAGE = "agent-client-protocol"
MODE = "mode"


def official() -> Any:
    """The official SDK. Raises `ConfigError` if it is not installed."""
    try:
        import acp  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ConfigError(f"adapting needs the official SDK; install it: pip install {PACKAGE}") from None
    if not hasattr(acp, "AgentSideConnection"):
        raise ConfigError(f"the module `acp` is not the official SDK; install it: pip install {PACKAGE}")
    return acp


# -- the object behind the SDK's own connection ----------------------------------------------------------------


class OfficialPeer:
    """One object of the official SDK. `open` it inside a running event loop; `aclose` it there."""

    def __init__(
        self,
        told: Callable[[str, Json], Awaitable[None]],
        asked: Callable[[str, Json], Awaitable[Json]],
    ) -> None:
        """Create a peer. `told` is called with its notifications, by method and params; `asked` returns results of
        its requests or raises.
        """
        self._told, self._asked = told, asked
        self._numbers = count(1)
        self._waiting: dict[int, PendingResult] = {}
        self._to_it, self._from_us = anyio.create_memory_object_stream[Json | None](float("inf"))
        self._connection: Any = None

    def open(self, to_agent: Any) -> None:
        """Connect the object to the SDK's connection, which calls its `on_connect`."""
        connect: Callable[..., Any] = official().AgentSideConnection
        self._connection = connect(to_agent, self, use_unstable_protocol=True)

    async def aclose(self) -> None:
        """End it: its tasks are cancelled."""
        # Fail the pending requests first: the object's tasks may need time to stop, and no caller should wait
        # meanwhile.
        for waiting in self._waiting.values():
            waiting.give(None)
        if self._connection is not None:
            await self._connection.close()
        self._to_it.close()
        self._from_us.close()

    # -- to the object ---------------------------------------------------------------------------------------

    def begin(self, method: str, params: Json) -> PendingResult:
        """Send a request; its answer can be waited for."""
        number = next(self._numbers)
        self._waiting[number] = waiting = PendingResult(method)
        self._to_it.send_nowait({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        return waiting

    async def ask(self, method: str, params: Json) -> Json:
        """Send a request and return its result. Raises `AgentFailure`, `LinkBroken`."""
        return await self.begin(method, params).result()

    def notify(self, method: str, params: Json) -> None:
        """Send a notification."""
        self._to_it.send_nowait({"jsonrpc": "2.0", "method": method, "params": params})

    # -- what the SDK calls: it takes this for its pipe ----------------------------------------------------------

    async def receive(self) -> Json | None:
        """Return the next message for the object, or None at the end."""
        try:
            return await self._from_us.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            return None

    async def send(self, message: Json) -> None:
        """Handle a message of the object. Returns when it was delivered, and for a request when it was answered."""
        method, number = message.get("method"), message.get("id")
        if method is None:
            if (waiting := self._waiting.pop(number or 0, None)) is not None:
                waiting.give(message)
        elif number is None:
            await self._told(method, message.get("params") or {})
        else:
            answer = {"jsonrpc": "2.0", "id": number}
            self._to_it.send_nowait({**answer, **await self._outcome(method, message.get("params") or {})})

    async def close(self) -> None:
        """The SDK has closed its side."""
        self._to_it.close()

    async def _outcome(self, method: str, params: Json) -> Json:
        try:
            return {"result": await self._asked(method, params)}
        except NotOffered as error:
            return {"error": {"code": METHOD_NOT_FOUND, "message": str(error)}}
        except TurnwireError as error:
            return {"error": {"code": code_of(error, INTERNAL_ERROR), "message": str(error)}}


class PendingResult:
    """A request to the object. Any number of tasks may wait for its answer, one after the other."""

    def __init__(self, method: str) -> None:
        self._method = method
        self._came = anyio.Event()
        self._message: Json | None = None

    @property
    def is_done(self) -> bool:
        return self._came.is_set()

    def give(self, message: Json | None) -> None:
        """Set the answer; None if there will be none."""
        self._message = message
        self._came.set()

    async def result(self) -> Json:
        """Return the answer.

        Raises:
            AgentFailure: An error.
            LinkBroken: It was ended first.
        """
        await self._came.wait()
        if self._message is None:
            raise LinkBroken("the agent was ended before it answered", method=self._method)
        if "error" in self._message:
            raise _failure(self._message["error"])
        return self._message.get("result") or {}


def _failure(error: Json) -> AgentFailure:
    """Return the error that the object's author raised on purpose, without details of unexpected exceptions."""
    code = int(error.get("code", INTERNAL_ERROR))
    details = error.get("data")
    if code == INTERNAL_ERROR or details is None:
        return AgentFailure(str(error.get("message") or "the agent failed"), jsonrpc=code)
    return AgentFailure(
        str(error.get("message") or "the agent refused"), jsonrpc=code, data=msgspec.json.encode(details)
    )


# -- initialize: the params and the answer ---------------------------------------------------------------------


class Abilities(NamedTuple):
    """The object's abilities for its sessions."""

    load: bool = False
    resume: bool = False
    list: bool = False
    close: bool = False
    fork: bool = False


def initialize_params(asked: Json, client: ClientProfile) -> Json:
    """The client's `initialize` for a v1 agent. A v2 client has neither files nor terminals to offer."""
    if client.version == 1:
        named = asked.get("clientInfo")
        offered: Json = child(asked, "clientCapabilities")
    else:
        named = asked.get("info")
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


def agent_options(answer: Json, own: AgentOptions) -> AgentOptions:
    """Return the author's settings combined with the object's capabilities."""
    offered = child(answer, "agentCapabilities")
    prompt, mcp = child(offered, "promptCapabilities"), child(offered, "mcpCapabilities")
    return replace(
        own,
        image=prompt.get("image") is True,
        audio=prompt.get("audio") is True,
        embedded_context=prompt.get("embeddedContext") is True,
        mcp_http=mcp.get("http") is True,
        mcp_sse=mcp.get("sse") is True,
        auth_methods=tuple(_auth_method(each) for each in answer.get("authMethods") or ()),
    )


def _auth_method(method: Json) -> AuthMethod:
    env: Json = method.get("env") or {}
    return AuthMethod(
        id=method["id"],
        name=method.get("name") or method["id"],
        description=method.get("description"),
        type="terminal" if method.get("type") == "terminal" else "agent",
        args=tuple(method.get("args") or ()),
        env=tuple((str(name), str(value)) for name, value in env.items()) if isinstance(env, dict) else (),  # pyright: ignore[reportUnnecessaryIsInstance]  JSON
    )


# -- sessions: their params, histories and offers --------------------------------------------------------------


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
    """Return a history in v2 form from the replay of a v1 agent."""
    translator = UpdatesV1ToV2()
    told = [each for update in updates for each in translator.take(raw(from_v1(update)), turn=None)]
    # At the end nothing follows for which the translator would hold something back.
    return tuple(bytes(each) for each in (*told, *translator.part()))


def modes(offers: Json) -> tuple[list[Mode], str | None]:
    """The modes, and which one it is in."""
    listed = child(offers, "modes")
    found = [
        Mode(each["id"], each.get("name") or each["id"], each.get("description"))
        for each in _all(listed, "availableModes")
    ]
    return found, listed.get("currentModeId")


def modes_of(option: Option) -> list[Mode]:
    """Return the modes that an option represents."""
    return [Mode(each.id, each.name, each.description) for each in option.values if isinstance(each, Value)]


def options(listed: Iterable[Json]) -> list[Option]:
    """Config options. Groups of values are one list here."""
    return [_option(each) for each in listed]


def _option(option: Json) -> Option:
    values = [
        Value(each["value"], each.get("name") or each["value"], each.get("description")) for each in _values(option)
    ]
    return Option(
        option["id"],
        option.get("name") or option["id"],
        option["currentValue"],
        values,
        option.get("description"),
        option.get("category"),
    )


def _values(option: Json) -> list[Json]:
    return [each for found in _all(option, "options") for each in found.get("options", [found])]


def commands(listed: Iterable[Json]) -> list[Command]:
    """Slash commands."""
    return [
        Command(each["name"], each.get("description") or "", child(each, "input").get("hint")) for each in listed
    ]


def _all(parent: Json, name: str) -> list[Json]:
    return parent.get(name) or []
