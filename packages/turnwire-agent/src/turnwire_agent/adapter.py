"""`adapt`: run an unmodified agent of the official Python SDK on this runtime.

The object speaks v1 as before; a client may speak v1 or v2, and gets `turn_complete`, `session/ready` and exactly
one end of each turn. The object's `initialize` is called for each client, before that client is answered. Its
sessions are opened, loaded, prompted and closed through its peer (`official_sdk`): the object chooses their ids,
and a history that only the object has is replayed into ours. Its updates belong to the running turn; updates of a
prompt after its end, while no turn runs, are marked as late. An update never overtakes the answer that opens its
session, no method of the object is hidden, and the official SDK is never imported before `adapt` is called.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from typing import Any

import anyio
from msgspec import Raw

from turnwire.agent.agent import Agent
from turnwire.agent.definition import AgentDefinition, Function
from turnwire.agent.live_session import LiveSession, LiveSessions
from turnwire.agent.methods import NOTIFICATIONS
from turnwire.agent.options import AgentOptions
from turnwire.agent.session import Session
from turnwire.agent.session_client import SessionClient
from turnwire.agent.store import PAGE, Kept, Page, SessionStore
from turnwire.agent.turn import Turn
from turnwire.agent.v2_updates import Json
from turnwire.errors import (
    AgentFailure,
    ConfigError,
    InvalidOption,
    LinkError,
    NotOffered,
    RemoteProtocolError,
    SessionNotFound,
)
from turnwire.hosting.base import FrameLink
from turnwire.ids import SessionId
from turnwire.projections.dialect import PERMISSION_METHODS
from turnwire.projections.translate.handshake import read_client
from turnwire.projections.translate.permissions import translate_answer, translate_permission_request
from turnwire.projections.translate.sessions import Opening
from turnwire.session.json_members import as_object, child
from turnwire.wire.jsonrpc import METHOD_NOT_FOUND, RESOURCE_NOT_FOUND, Failure, Notification, Request, decode, raw
from turnwire.wire.methods import (
    AUTHENTICATE,
    INITIALIZE,
    SESSION_CANCEL,
    SESSION_CLOSE,
    SESSION_FORK,
    SESSION_LIST,
    SESSION_LOAD,
    SESSION_NEW,
    SESSION_PROMPT,
    SESSION_RESUME,
    SESSION_SET_CONFIG_OPTION,
    SESSION_SET_MODE,
    SESSION_UPDATE,
)
from turnwire_agent import official_sdk
from turnwire_agent.official_sdk import OfficialPeer, abilities, agent_options, initialize_params, official

logger = logging.getLogger(__name__)
CLOSE_S = 5.0
"""Timeout for the object's tasks to stop after its last client has disconnected."""
EARLY = 1024
"""Updates that may wait for a session to be open here."""
OF_V1 = ("fs/", "terminal/")
"""Methods that v2 clients do not have."""
current_turn: ContextVar[Turn | None] = ContextVar("current_turn", default=None)
"""The turn whose prompt is being handled by the object."""


def adapt(to_agent: Any, *, store: SessionStore | None = None, options: AgentOptions | None = None) -> Agent:
    """Adapt an agent of the official SDK to an `Agent`.

    Args:
        to_agent: An object with the methods of `acp.Agent`, or a factory that makes one from its connection.
        store: Storage of histories that the object does not store itself.
        options: Serving options. The object's values from `initialize` take precedence.

    Raises:
        ConfigError: The official SDK is not installed, or this is not one of its agents.
    """
    official()
    if not callable(to_agent) and not callable(getattr(to_agent, "prompt", None)):
        raise ConfigError("this is no agent of the official SDK: it has no method `prompt`; give an `acp.Agent`")
    return _AdaptedAgent(to_agent, store, options or AgentOptions())


class _AdaptedAgent(Agent):
    """An agent whose functions are those of the object."""

    def __init__(self, to_agent: Any, store: SessionStore | None, options: AgentOptions) -> None:
        super().__init__("adapted", store=store, options=options)
        self._to_agent = to_agent
        self._own_options = options
        self._sessions = sessions = AdaptedSessions(self._definition, self._live)
        self._watched = WatchedPrompts(sessions.turns)
        sessions.stop_with(self._watched.stop)
        self._serving = 0
        self._definition.store = AdaptedStore(self._definition.store, sessions)
        hooks = self._definition.hooks
        hooks.opened, hooks.closed, hooks.changed = sessions.opened, sessions.closed, sessions.changed
        hooks.prompt, hooks.authenticate = sessions.prompt, self._authenticate
        hooks.named, hooks.missing = sessions.named, sessions.missing
        hooks.extensions = AnyExtension(sessions.ask)

    async def serve(self, link: FrameLink) -> None:
        """Serve one client until its link ends. The object is connected while there is one."""
        async with self._connected():
            await super().serve(WatchedLink(link, self._look))

    @asynccontextmanager
    async def _connected(self) -> AsyncGenerator[None]:
        sessions = self._sessions
        self._serving += 1
        peer = sessions.peer
        try:
            if peer is None:
                peer = sessions.peer = OfficialPeer(sessions.told, sessions.asked)
                peer.open(self._watched.around(self._to_agent))
            yield
        finally:
            self._serving -= 1
            if not self._serving and peer is not None:
                sessions.peer = None
                with anyio.move_on_after(CLOSE_S, shield=True):
                    await peer.aclose()

    async def _look(self, line: bytes) -> bool:
        """Inspect a client message before the runtime receives it; return True if the runtime should handle it."""
        try:
            frame = decode(line)
        except RemoteProtocolError:
            return True
        if isinstance(frame, Request) and frame.method == INITIALIZE:
            await self._initialize(as_object(frame.params))
        elif isinstance(frame, Notification) and frame.method.startswith("_") and frame.method not in NOTIFICATIONS:
            if self._sessions.peer is not None:
                self._sessions.peer.notify(frame.method, as_object(frame.params))
            return False
        return True

    async def _initialize(self, params: Json) -> None:
        try:
            client = read_client(raw(params))
            answer = await self._sessions.ask(INITIALIZE, initialize_params(params, client))
        except RemoteProtocolError:
            # The runtime reports the error in it.
            return
        except (AgentFailure, LinkError) as error:
            logger.error("the adapted agent failed in `initialize`, so nothing of its own is offered: %s", error)
            return
        self._sessions.abilities = abilities(answer)
        definition, named = self._definition, child(answer, "agentInfo")
        definition.options = agent_options(answer, self._own_options)
        definition.name = named.get("name") or definition.name
        definition.title = named.get("title")
        definition.version = named.get("version") or definition.version

    async def _authenticate(self, method_id: str) -> None:
        await self._sessions.ask(AUTHENTICATE, {"methodId": method_id})


class AdaptedSessions:
    """Between one object and the runtime."""

    def __init__(self, definition: AgentDefinition, live: LiveSessions) -> None:
        self._definition = definition
        self._live = live
        self.abilities = official_sdk.Abilities()
        self.turns: dict[str, Turn] = {}
        """The turn of each prompt that the object has, by session."""
        self.peer: OfficialPeer | None = None
        self._known: set[str] = set()
        """Sessions that are open at the object."""
        self._answers: dict[str, Json] = {}
        """The object's answers for sessions that are not open here yet."""
        self._early: dict[str, list[Json]] = {}
        self._replays: dict[str, list[Json]] = {}
        self._stop: Callable[[str], None] = lambda session_id: None
        self._mode_is_option: set[str] = set()

    def stop_with(self, stop: Callable[[str], None]) -> None:
        """Stop a prompt that ignores a cancel."""
        self._stop = stop

    async def ask(self, method: str, params: Json) -> Json:
        """Ask the object. Raises `AgentFailure`, `LinkBroken`."""
        if self.peer is None:
            raise NotOffered("the adapted agent serves nobody now", what="agent")
        return await self.peer.ask(method, params)

    # -- opening -------------------------------------------------------------------------------------------------

    async def named(self, asked: Opening, meta: Json, forked: Kept | None) -> str:
        """Open a new session at the object, and return the object's session id."""
        if forked is None:
            answer = await self.ask(SESSION_NEW, _params(asked, meta))
        elif self.abilities.fork:
            answer = await self.ask(SESSION_FORK, _params(asked, meta, sessionId=forked.id))
        else:
            raise AgentFailure("this agent cannot fork a session; open a new one", jsonrpc=METHOD_NOT_FOUND)
        session_id = str(answer["sessionId"])
        if session_id not in self._live:
            # Otherwise the name is refused, and the session that has it stays as it is.
            self._known.add(session_id)
            self._answers[session_id] = answer
        return session_id

    async def missing(self, asked: Opening, meta: Json) -> Kept | None:
        """Load a session that only the object may have, with the history that it replays."""
        session_id = str(asked.session_id)
        try:
            answer, replayed = await self._reopen(session_id, _params(asked, meta, sessionId=session_id))
        except AgentFailure as failure:
            if failure.jsonrpc == RESOURCE_NOT_FOUND:
                return None
            raise
        if answer is None:
            return None
        self._answers[session_id] = answer
        return Kept(
            id=session_id,
            cwd=asked.cwd,
            directories=asked.setup.additional_directories,
            updated_at=self._definition.timestamp(),
            history=official_sdk.history(replayed),
        )

    async def opened(self, session: Session) -> None:
        """Show the object's options. A session that the object closed is reopened there; its history is ours."""
        answer = self._answers.pop(session.id, None)
        if answer is None and session.id not in self._known:
            directories = [str(each) for each in session.directories]
            params = official_sdk.session_params(
                str(session.cwd), raw(session.mcp_servers), directories, session.meta, sessionId=session.id
            )
            answer, _ = await self._reopen(session.id, params)
            if answer is None:
                raise SessionNotFound("the agent cannot bring the session back", session_id=session.id)
        if answer is not None:
            self._offer(session, answer)
        for update in self._early.pop(session.id, ()):
            await self._tell(session, update)

    async def _reopen(self, session_id: str, params: Json) -> tuple[Json | None, list[Json]]:
        """Return the object's answer and its replayed updates. The answer is None if it can neither load nor
        resume.
        """
        if not (self.abilities.load or self.abilities.resume):
            return None, []
        replayed = self._replays[session_id] = []
        try:
            answer = await self.ask(SESSION_LOAD if self.abilities.load else SESSION_RESUME, params)
        finally:
            del self._replays[session_id]
        self._known.add(session_id)
        return answer, replayed

    async def closed(self, session: Session) -> None:
        """Close a session that no client has open here. An object that cannot close keeps it open."""
        self._mode_is_option.discard(session.id)
        if self.abilities.close:
            self._known.discard(session.id)
            with suppress(AgentFailure, LinkError):
                await self.ask(SESSION_CLOSE, {"sessionId": session.id})

    def _offer(self, session: Session, answer: Json) -> None:
        modes, mode = official_sdk.modes(answer)
        listed: list[Json] = answer.get("configOptions") or []
        standing = next(
            (each for each in listed if each.get("id") == official_sdk.MODE and "options" in each), None
        )
        if not modes and standing is not None:
            self._mode_is_option.add(session.id)
            [option] = official_sdk.options([standing])
            modes = official_sdk.modes_of(option)
            mode = str(option.value)
        if modes:
            session.modes = modes
        if mode is not None:
            self._choose(session, mode)
        if listed:
            session.options = official_sdk.options(each for each in listed if each.get("id") != official_sdk.MODE)

    def _choose(self, session: Session, mode: str) -> None:
        with suppress(InvalidOption):
            session.mode = mode

    async def changed(self, session: Session, option_id: str, value: str | bool) -> None:
        """The client chose something."""
        named: Json = {"sessionId": session.id}
        if option_id == official_sdk.MODE and session.id not in self._mode_is_option:
            await self.ask(SESSION_SET_MODE, {**named, "modeId": value})
            return
        kind = {"type": "boolean"} if isinstance(value, bool) else {}
        await self.ask(SESSION_SET_CONFIG_OPTION, {**named, **kind, "configId": option_id, "value": value})

    # -- prompting -----------------------------------------------------------------------------------------------

    async def prompt(self, turn: Turn) -> str | None:
        """Have the object answer a prompt."""
        if self.peer is None:
            raise AgentFailure("the adapted agent serves nobody now")
        session_id = turn.session.id
        params: Json = {"sessionId": session_id, "prompt": official_sdk.prompt_blocks(turn.content)}
        if turn.meta:
            params["_meta"] = turn.meta
        self.turns[session_id] = turn
        waiting = self.peer.begin(SESSION_PROMPT, params)
        try:
            answer = await waiting.result()
        except anyio.get_cancelled_exc_class():
            # Updates that the object sends before it has stopped still belong to the turn.
            with anyio.move_on_after(self._definition.options.max_cancel_s / 2, shield=True):
                self.peer.notify(SESSION_CANCEL, {"sessionId": session_id})
                with suppress(AgentFailure, LinkError):
                    turn.add_usage((await waiting.result()).get("usage") or {})
            if not waiting.is_done:
                logger.warning("the prompt of session %s did not heed its cancel; it is stopped", session_id)
                self._stop(session_id)
            raise
        finally:
            if self.turns.get(session_id) is turn:
                del self.turns[session_id]
        turn.add_usage(answer.get("usage") or {})
        return answer.get("stopReason")

    # -- what the object says ------------------------------------------------------------------------------------

    async def told(self, method: str, params: Json) -> None:
        """Handle a notification of the object."""
        session_id, live = self._of(params)
        if method != SESSION_UPDATE:
            client = self._client_of(live)
            if client is not None and (live is None or live.is_opened):
                client.connected.put(Notification(method, raw(params)))
            return
        update: Json = params["update"]
        if session_id in self._replays:
            self._replays[session_id].append(update)
        elif live is not None:
            await self._tell(live.session, update)
        elif len(early := self._early.setdefault(session_id, [])) < EARLY:
            early.append(update)

    async def _tell(self, session: Session, update: Json) -> None:
        match update.get("sessionUpdate"):
            case "available_commands_update":
                session.commands = official_sdk.commands(update.get("availableCommands") or ())
            case "current_mode_update":
                self._choose(session, update["currentModeId"])
            case "config_option_update":
                self._offer(session, update)
            case "session_info_update" if "title" in update:
                session.title = update["title"]
            case _:
                # A worker that one prompt started may continue during the next, so the running turn takes
                # precedence.
                turn = session.running or current_turn.get()
                if turn is not None and turn.session is session:
                    await turn.update(update, version=1)
                else:
                    await session.notify(update, version=1)

    async def asked(self, method: str, params: Json) -> Json:
        """Forward a request of the object to its client. Raises `NotOffered`, `AgentFailure`."""
        session_id, live = self._of(params)
        client = self._client_of(live)
        if client is None:
            raise NotOffered("no client has this session open, so there is nobody to ask", what=method)
        version = client.connected.profile.version
        if version == 2 and method.startswith(OF_V1):
            raise NotOffered(f"the client does not offer `{method}`", what=method)
        request = as_object(translate_permission_request(method, raw(params), 1, version, SessionId(session_id)))
        run = None if live is None else live.turns.running
        if run is not None and method in PERMISSION_METHODS:
            answer = await run.ask(client, method, request)
        else:
            answer = await client.request(method, request)
        if isinstance(answer, Failure):
            raise AgentFailure(answer.error.message, jsonrpc=answer.error.code)
        return as_object(translate_answer(method, answer.result, version, 1))

    def _of(self, params: Json) -> tuple[str, LiveSession | None]:
        session_id = params.get("sessionId")
        return (session_id, self._live.get(session_id)) if isinstance(session_id, str) else ("", None)

    def _client_of(self, live: LiveSession | None) -> SessionClient | None:
        """The client to talk to: the one that prompted, the first that has the session, or any."""
        if live is not None:
            run = live.turns.running
            return run.asked_client if run is not None else next(iter(live.clients), None)
        return next((client for each in self._live.values() for client in each.clients), None)


def _params(asked: Opening, meta: Json, **more: Any) -> Json:
    setup = asked.setup
    return official_sdk.session_params(
        asked.cwd, Raw(setup.mcp_servers), setup.additional_directories, meta, **more
    )


# -- interception of prompts, the link, extensions -------------------------------------------------------------


class WatchedPrompts:
    """Prompts of an object: each knows its turn, and can be stopped."""

    def __init__(self, turns: Mapping[str, Turn]) -> None:
        self._turns = turns
        self._scopes: dict[str, anyio.CancelScope] = {}

    def around(self, to_agent: Any) -> Any:
        """Wrap the object so that its prompts are tracked, or wrap its factory in the same way."""
        if not callable(to_agent):
            return _WatchedObject(to_agent, self)
        make: Callable[[Any], Any] = to_agent

        def around(connection: Any) -> Any:
            return _WatchedObject(make(connection), self)

        return around

    def stop(self, session_id: str) -> None:
        """Cancel the prompt that runs in a session."""
        scope = self._scopes.get(session_id)
        if scope is not None:
            scope.cancel()

    async def prompt(self, function: Callable[..., Awaitable[Any]], args: tuple[Any, ...], named: Json) -> Any:
        """Run a prompt of the object."""
        session_id = str(named["session_id"] if "session_id" in named else getattr(args[0], "session_id", ""))
        current_turn.set(self._turns.get(session_id))
        with anyio.CancelScope() as scope:
            self._scopes[session_id] = scope
            try:
                return await function(*args, **named)
            finally:
                if self._scopes.get(session_id) is scope:
                    del self._scopes[session_id]


class _WatchedObject:
    """The object, as the SDK sees it."""

    def __init__(self, agent: Any, watched: WatchedPrompts) -> None:
        self._agent = agent
        self._watched = watched

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._agent, name)
        if name != "prompt":
            return found

        async def prompt(*args: Any, **named: Any) -> Any:
            return await self._watched.prompt(found, args, named)

        # The SDK distinguishes the old form of a method from the new one by the function's parameters.
        prompt.__func__ = getattr(found, "__func__", found)  # pyright: ignore[reportFunctionMemberAccess]
        return prompt


class WatchedLink:
    """A link whose messages are inspected before the reader receives them."""

    def __init__(self, link: FrameLink, look: Callable[[bytes], Awaitable[bool]]) -> None:
        self._link = link
        self._look = look

    async def receive(self) -> list[bytes]:
        """Return the arrived messages that are for the reader. Raises `LinkBroken`, `LinkClosed`."""
        while True:
            lines = [line for line in await self._link.receive() if await self._look(line)]
            if lines:
                return lines

    async def send(self, frame: bytes) -> None:
        """Send one frame, waiting for room."""
        await self._link.send(frame)

    def send_nowait(self, frame: bytes) -> None:
        """Send one frame or refuse."""
        self._link.send_nowait(frame)

    async def aclose(self) -> None:
        """Close our side."""
        await self._link.aclose()


class AnyExtension(dict[str, Function]):
    """Every method of an extension is the object's to answer."""

    def __init__(self, ask: Callable[[str, Json], Awaitable[Json]]) -> None:
        super().__init__()
        self._ask = ask

    def __contains__(self, method: object) -> bool:
        return isinstance(method, str) and method.startswith("_")

    def __missing__(self, method: str) -> Function:
        async def answer(params: Json, session: object) -> Json:
            return await self._ask(method, params)

        return answer


# -- what the object keeps itself is listed by the object ------------------------------------------------------


class AdaptedStore:
    """A store that lists the object's sessions, if the object has a list."""

    def __init__(self, inner: SessionStore, sessions: AdaptedSessions) -> None:
        self._inner = inner
        self._sessions = sessions

    async def save(self, record: Kept) -> None:
        """Store a session."""
        await self._inner.save(record)

    async def append(self, session_id: str, updates: Sequence[bytes]) -> None:
        """Add to a history. Raises `SessionNotFound`."""
        await self._inner.append(session_id, updates)

    async def load(self, session_id: str) -> Kept | None:
        """Load a session with its history."""
        return await self._inner.load(session_id)

    async def list(self, cwd: str | None = None, cursor: str | None = None, limit: int = PAGE) -> Page:
        """Return a page of sessions. Raises `RequestRefused`, or `AgentFailure` for a bad cursor."""
        if not self._sessions.abilities.list:
            return await self._inner.list(cwd, cursor, limit)
        asked = {name: value for name, value in (("cwd", cwd), ("cursor", cursor)) if value is not None}
        answer = await self._sessions.ask(SESSION_LIST, asked)
        return Page([_kept(each) for each in answer.get("sessions") or ()], answer.get("nextCursor"))

    async def delete(self, session_id: str) -> None:
        """Delete a session here. v1 has no method for it, so the object retains its data."""
        await self._inner.delete(session_id)


def _kept(listed: Json) -> Kept:
    return Kept(
        id=listed["sessionId"],
        cwd=listed["cwd"],
        directories=tuple(listed.get("additionalDirectories") or ()),
        title=listed.get("title"),
        updated_at=listed.get("updatedAt") or "",
    )
