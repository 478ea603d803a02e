"""The sessions of an object of the official SDK: opened, found again, told, asked and closed by way of its peer.

Takes what `turnwire.agent` asks of an author, and what the object says; carries each to the other side. The object
names its sessions. A history that only it has is replayed into ours. What it says belongs to the turn that runs;
what a prompt says after its end, while none runs, is marked as late. Never lets an update overtake the answer that
opens its session.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import nullcontext, suppress
from contextvars import ContextVar
from typing import Any

import anyio
from msgspec import Raw

from turnwire.agent import adapt_words as words
from turnwire.agent.adapt_peer import OfficialPeer
from turnwire.agent.authored import Authored
from turnwire.agent.live import LiveSession
from turnwire.agent.seat import Seat
from turnwire.agent.session import Session
from turnwire.agent.store import Kept
from turnwire.agent.turn import Turn
from turnwire.agent.words import Json
from turnwire.core.dialect import PERMISSION_METHODS
from turnwire.core.translate.members import as_object
from turnwire.core.translate.permissions import translate_answer, translate_question
from turnwire.core.translate.sessions import Opening
from turnwire.errors import AgentFailure, InvalidOption, LinkError, NotOffered, SessionNotFound
from turnwire.ids import SessionId
from turnwire.wire.jsonrpc import METHOD_NOT_FOUND, RESOURCE_NOT_FOUND, Failure, Notification, raw

EARLY = 1024
"""Updates that may wait for a session to be open here."""
OF_V1 = ("fs/", "terminal/")
"""What v2 clients do not have."""

logger = logging.getLogger(__name__)

current: ContextVar[Turn | None] = ContextVar("current", default=None)
"""The turn in whose prompt the object speaks."""


class AdaptedSessions:
    """Between one object and the runtime."""

    def __init__(self, authored: Authored) -> None:
        self._authored = authored
        self.abilities = words.Abilities()
        self.turns: dict[str, Turn] = {}
        """The turn of each prompt that the object has, by session."""
        self.peer: OfficialPeer | None = None
        self._known: set[str] = set()
        """Sessions that are open at the object."""
        self._answers: dict[str, Json] = {}
        """How the object opened a session that is not open here yet."""
        self._early: dict[str, list[Json]] = {}
        self._replays: dict[str, list[Json]] = {}
        self._stop: Callable[[str], None] = lambda session_id: None
        self._mode_is_option: set[str] = set()

    def stop_with(self, stop: Callable[[str], None]) -> None:
        """How a prompt that does not heed a cancel is stopped."""
        self._stop = stop

    async def ask(self, method: str, params: Json) -> Json:
        """Ask the object. Raises `AgentFailure`, `LinkBroken`."""
        if self.peer is None:
            raise NotOffered("the adapted agent serves nobody now", what="agent")
        return await self.peer.ask(method, params)

    # -- opening -------------------------------------------------------------------------------------------------

    async def named(self, asked: Opening, meta: Json, forked: Kept | None) -> str:
        """Open a new session at the object, and give it the object's name."""
        if forked is None:
            answer = await self.ask("session/new", _params(asked, meta))
        elif self.abilities.fork:
            answer = await self.ask("session/fork", _params(asked, meta, sessionId=forked.id))
        else:
            raise AgentFailure("this agent cannot fork a session; open a new one", jsonrpc=METHOD_NOT_FOUND)
        session_id = str(answer["sessionId"])
        if session_id not in self._authored.live:
            # Otherwise the name is refused, and the session that has it stays as it is.
            self._known.add(session_id)
            self._answers[session_id] = answer
        return session_id

    async def missing(self, asked: Opening, meta: Json) -> Kept | None:
        """A session that only the object may have, with the history that it replays."""
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
            updated_at=self._authored.timestamp(),
            history=words.history(replayed),
        )

    async def opened(self, session: Session) -> None:
        """Show what the object offers. A session that it has let go is opened there again; its history is ours."""
        answer = self._answers.pop(session.id, None)
        if answer is None and session.id not in self._known:
            directories = [str(each) for each in session.directories]
            params = words.session_params(
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
        """The object's answer, and what it replayed. No answer if it can do neither."""
        if not (self.abilities.load or self.abilities.resume):
            return None, []
        replayed = self._replays[session_id] = []
        try:
            answer = await self.ask("session/load" if self.abilities.load else "session/resume", params)
        finally:
            del self._replays[session_id]
        self._known.add(session_id)
        return answer, replayed

    async def closed(self, session: Session) -> None:
        """Nobody has it open here. An object that cannot close keeps it."""
        self._mode_is_option.discard(session.id)
        if self.abilities.close:
            self._known.discard(session.id)
            with suppress(AgentFailure, LinkError):
                await self.ask("session/close", {"sessionId": session.id})

    def _offer(self, session: Session, answer: Json) -> None:
        modes, mode = words.modes(answer)
        listed: list[Json] = answer.get("configOptions") or []
        standing = next((each for each in listed if each.get("id") == words.MODE and "options" in each), None)
        if not modes and standing is not None:
            self._mode_is_option.add(session.id)
            [option] = words.options([standing])
            modes = words.modes_of(option)
            mode = str(option.value)
        if modes:
            session.modes = modes
        if mode is not None:
            self._choose(session, mode)
        if listed:
            session.options = words.options(each for each in listed if each.get("id") != words.MODE)

    def _choose(self, session: Session, mode: str) -> None:
        with suppress(InvalidOption):
            session.mode = mode

    async def changed(self, session: Session, option_id: str, value: str | bool) -> None:
        """The client chose something."""
        named: Json = {"sessionId": session.id}
        if option_id == words.MODE and session.id not in self._mode_is_option:
            await self.ask("session/set_mode", {**named, "modeId": value})
            return
        kind = {"type": "boolean"} if isinstance(value, bool) else {}
        await self.ask("session/set_config_option", {**named, **kind, "configId": option_id, "value": value})

    # -- prompting -----------------------------------------------------------------------------------------------

    async def prompt(self, turn: Turn) -> str | None:
        """Have the object answer a prompt."""
        if self.peer is None:
            raise AgentFailure("the adapted agent serves nobody now")
        session_id = turn.session.id
        params: Json = {"sessionId": session_id, "prompt": words.prompt_blocks(turn.content)}
        if turn.meta:
            params["_meta"] = turn.meta
        self.turns[session_id] = turn
        waiting = self.peer.begin("session/prompt", params)
        try:
            answer = await waiting.result()
        except anyio.get_cancelled_exc_class():
            # What it says until it has stopped still belongs to the turn.
            with anyio.move_on_after(self._authored.options.max_cancel_s / 2, shield=True):
                self.peer.notify("session/cancel", {"sessionId": session_id})
                with suppress(AgentFailure, LinkError):
                    await waiting.result()
            if not waiting.is_done:
                logger.warning("the prompt of session %s did not heed its cancel; it is stopped", session_id)
                self._stop(session_id)
            raise
        finally:
            if self.turns.get(session_id) is turn:
                del self.turns[session_id]
        usage: Json = answer.get("usage") or {}
        turn.usage(
            input_tokens=usage.get("inputTokens") or 0,
            output_tokens=usage.get("outputTokens") or 0,
            cached_tokens=usage.get("cachedReadTokens") or 0,
            thought_tokens=usage.get("thoughtTokens") or 0,
        )
        return answer.get("stopReason")

    # -- what the object says ------------------------------------------------------------------------------------

    async def told(self, method: str, params: Json) -> None:
        """A notification of the object."""
        session_id, live = self._of(params)
        if method != "session/update":
            seat = self._seat(live)
            if seat is not None and (live is None or live.is_opened):
                seat.client.put(Notification(method, raw(params)))
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
                session.commands = words.commands(update.get("availableCommands") or ())
            case "current_mode_update":
                self._choose(session, update["currentModeId"])
            case "config_option_update":
                self._offer(session, update)
            case "session_info_update" if "title" in update:
                session.title = update["title"]
            case _:
                # A worker that one prompt started may go on for the next, so the turn that runs comes first.
                turn = session.running or current.get()
                if turn is not None and turn.session is session:
                    await turn.update(update, version=1)
                else:
                    await session.notify(update, version=1)

    async def asked(self, method: str, params: Json) -> Json:
        """A request of the object to its client. Raises `NotOffered`, `AgentFailure`."""
        session_id, live = self._of(params)
        seat = self._seat(live)
        if seat is None:
            raise NotOffered("no client has this session open, so there is nobody to ask", what=method)
        version = seat.client.profile.version
        if version == 2 and method.startswith(OF_V1):
            raise NotOffered(f"the client does not offer `{method}`", what=method)
        question = translate_question(method, raw(params), 1, version, SessionId(session_id))
        course = None if live is None else live.turns.running
        with course.blocked() if course is not None and method in PERMISSION_METHODS else nullcontext():
            answer = await seat.request(method, as_object(question))
        if isinstance(answer, Failure):
            raise AgentFailure(answer.error.message, jsonrpc=answer.error.code)
        return as_object(translate_answer(method, answer.result, version, 1))

    def _of(self, params: Json) -> tuple[str, LiveSession | None]:
        session_id = params.get("sessionId")
        return (session_id, self._authored.live.get(session_id)) if isinstance(session_id, str) else ("", None)

    def _seat(self, live: LiveSession | None) -> Seat | None:
        """The client to talk to: the one that prompted, the first that has the session, or any."""
        if live is not None:
            course = live.turns.running
            return course.hearer if course is not None else next(iter(live.seats), None)
        return next((seat for each in self._authored.live.values() for seat in each.seats), None)


def _params(asked: Opening, meta: Json, **more: Any) -> Json:
    setup = asked.setup
    return words.session_params(asked.cwd, Raw(setup.mcp_servers), setup.additional_directories, meta, **more)
