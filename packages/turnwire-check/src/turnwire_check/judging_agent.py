"""The agent of a case that checks a client: its answers, the sessions it opens, the turns it plays.

By default it answers as a correct agent without any capabilities. A case changes the one behaviour that it is
about. When the case is decided, `finish` continues as a plain agent until the client disconnects.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any, NoReturn, Protocol, runtime_checkable

from turnwire_check.capability import MARKER, offers
from turnwire_check.case import unscored
from turnwire_check.raw_peer import HOLD, RawPeer, Request, error, is_answer_to, text
from turnwire_check.tape import Frame, at
from turnwire_check.transport import Transport

INFO = {"name": "turnwire-check-agent", "title": "turnwire check", "version": "1"}

OPTIONS = [
    {"optionId": "yes, once", "name": "Allow", "kind": "allow_once"},
    {"optionId": "no/1", "name": "Reject", "kind": "reject_once"},
]
"""The options of a permission request."""

NO_COMMON_VERSION = -32022


@runtime_checkable
class Ending(Protocol):
    """A transport that can close its sending side and still receive."""

    async def hang_up(self) -> None: ...


class JudgingAgent(RawPeer):
    """An agent over one connection, for one case."""

    def __init__(
        self, transport: Transport, version: int = 1, *, patience_s: float = 10.0, silence_s: float = 0.1
    ) -> None:
        super().__init__(transport, patience_s, silence_s)
        self.version = version
        self._sessions = itertools.count(1)
        self.claims: dict[str, Any] = {}
        """Members of the answer to `initialize` in addition to the version and the agent's info."""
        self.answers = {
            "initialize": self.welcome,
            "session/new": lambda asked: {"result": {"sessionId": f"session-{next(self._sessions)}"}},
            "session/prompt": lambda asked: HOLD,
            "authenticate": lambda asked: {"result": {}},
        }

    def welcome(self, asked: Frame) -> dict[str, Any]:
        """The answer to `initialize`."""
        wanted = at(asked.params, "protocolVersion")
        if self.version == 1:
            plain: dict[str, Any] = {"agentCapabilities": {}, "authMethods": [], "agentInfo": INFO}
            return {"result": {"protocolVersion": 1, **plain, **self.claims}}
        if not isinstance(wanted, int) or wanted < self.version:
            return error(NO_COMMON_VERSION)
        plain = {"info": INFO, "capabilities": {"session": {"mcp": {"stdio": {}}}}}
        return {"result": {"protocolVersion": 2, **plain, **self.claims}}

    # -- what the client did. Where it does not come, the case is unjudged ------------------------------

    async def first(self, method: str, since: int = 0) -> Frame:
        """The first request for this. Raises `NotScored` when it does not come."""
        found = await self.until(lambda frame: frame.method == method, since)
        if found is not None:
            return found
        if self.tape.ended:
            unscored(f"it left before it sent `{method}`")
        unscored(f"it sent no `{method}` within {self.patience_s:g} s")

    async def initialized(self) -> Frame:
        hello = await self.first("initialize")
        if self.version > 1 and at(hello.params, "protocolVersion") != self.version:
            unscored(f"it does not ask for version {self.version}")
        return hello

    async def opened(self) -> Frame:
        await self.initialized()
        return await self.first("session/new")

    async def prompted(self, since: int = 0) -> Frame:
        await self.opened()
        return await self.first("session/prompt", since)

    async def attentive(self) -> Frame:
        """Return a prompt of a client that answers unknown requests. Raises `NotScored` if it does not."""
        prompt = await self.prompted()
        if await self.hears() is None:
            unscored("it does not answer a request that it does not know")
        return prompt

    async def hears(self) -> Frame | None:
        """Return the client's answer to an unknown request, to check that it still responds."""
        asked = await self.ask("_turnwire_check/barrier", {}, id=f"barrier-{next(self._ids)}")
        return await self.until(is_answer_to(asked.id), asked.frame.number)

    def no_answer(self, what: str) -> NoReturn:
        """Raise `NoAnswer`, unless the client has disconnected, as it may at any time."""
        if self.tape.ended:
            unscored(f"{self.tape.ended} before it answered {what}")
        super().no_answer(what)

    def answers_to(self, id: Any) -> list[Frame]:
        return [each for each in self.tape.heard() if is_answer_to(id)(each)]

    # -- what the agent says -----------------------------------------------------------------------------

    async def update(self, session: Any, kind: str, **members: Any) -> Frame:
        return await self.notify("session/update", self.of_session(session, kind, **members))

    def of_session(self, session: Any, kind: str, **members: Any) -> dict[str, Any]:
        return {"sessionId": session, "update": {"sessionUpdate": kind, **members}}

    async def say(self, session: Any, words: str = "Hello from the judge. ") -> Frame:
        named = {"messageId": "said"} if self.version > 1 else {}
        return await self.update(session, "agent_message_chunk", content=text(words), **named)

    async def want(self, session: Any, **members: Any) -> Request:
        """Ask for permission, and wait for nothing."""
        call: dict[str, Any] = {"toolCallId": "call-1", "title": "Look", "kind": "read", "status": "pending"}
        about: dict[str, Any] = {"toolCall": call}
        if self.version > 1:
            about = {"title": "May it look?", "subject": {"type": "tool_call", "toolCall": call}}
        params = {"sessionId": session, **about, "options": OPTIONS, **members}
        return await self.ask("session/request_permission", params)

    async def end(self, prompt: Frame, reason: str = "end_turn") -> Frame:
        """End the turn of this prompt, as the version has it."""
        if self.version == 1:
            if offers(self.claims, MARKER):
                await self.mark(prompt, reason)
            return await self.respond(prompt, {"result": {"stopReason": reason}})
        if not self._is_answered(prompt):
            await self.insert(prompt)
        return await self.update(prompt.session, "state_update", state="idle", stopReason=reason)

    async def mark(self, prompt: Frame, reason: str = "end_turn") -> Frame:
        """Send the `turn_complete` of this prompt."""
        return await self.update(prompt.session, "turn_complete", promptRequestId=prompt.id, stopReason=reason)

    async def insert(self, prompt: Frame) -> None:
        """v2: the prompt is in the conversation, and work on it runs."""
        name = f"message-{next(self._ids)}"
        await self.respond(prompt, {"result": {"messageId": name}})
        await self.update(prompt.session, "user_message", messageId=name, content=at(prompt.params, "prompt"))
        await self.update(prompt.session, "state_update", state="running")

    async def hang_up(self) -> None:
        """Close the sending side, as a crashed agent would. Raises `NotScored` if the transport cannot do that."""
        if not isinstance(self._transport, Ending):
            unscored("the connection cannot be ended from this side")
        await self._transport.hang_up()

    # -- a whole visit -----------------------------------------------------------------------------------

    async def visit(self) -> list[Frame]:
        """Play a turn with every kind of update; return all frames of the client."""
        prompt = await self.prompted()
        await self.say(prompt.session)
        wanted = await self.want(prompt.session)
        await self.until(is_answer_to(wanted.id), wanted.frame.number)
        await self.hears()
        await self.end(prompt)
        await self.pause()
        return list(self.tape.heard())

    async def finish(self) -> None:
        """Continue as a plain agent until the client has disconnected."""
        while True:
            prompt = await self.until(self._is_open, within=math.inf)
            if prompt is None:
                return
            await self.say(prompt.session)
            await self.end(prompt)

    def _is_open(self, frame: Frame) -> bool:
        return frame.is_request and frame.method == "session/prompt" and not self._is_answered(frame)

    def _is_answered(self, asked: Frame) -> bool:
        return any(each.is_ours and is_answer_to(asked.id)(each) for each in self.tape.frames)


def chosen(answer: Frame, offered: list[Mapping[str, Any]]) -> str:
    """Return the error in an answer to a permission request; empty if there is none."""
    outcome = at(answer.result, "outcome", "outcome")
    if outcome == "cancelled":
        return ""
    if outcome != "selected":
        return f"the outcome is {outcome!r}"
    option = at(answer.result, "outcome", "optionId")
    if option not in [each["optionId"] for each in offered]:
        return f"it chose {option!r}, which was not offered"
    return ""
