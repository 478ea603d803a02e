"""What one agent says about one session: each frame becomes an input, in the order of the frames.

Takes what a connection hears for the session; gives inputs to the session's side. History that an agent replays on
`session/load` is folded aside and not told as news. Never decides anything about a turn, and is silent once the
stay is over, so nothing an old agent still says can be taken for a new one's words.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from msgspec import Raw

from turnwire.core.correlation import names
from turnwire.core.dialect import read_question
from turnwire.core.events import SessionUpdated
from turnwire.core.evolve import MARKERS
from turnwire.core.inputs import AgentGone, AgentUpdate, AgentWithdraws, AnyInput
from turnwire.core.view import View
from turnwire.errors import RemoteProtocolError
from turnwire.ids import AgentSessionId, PromptId, RequestId
from turnwire.link.process import Exit
from turnwire.runtime import mint
from turnwire.runtime.clock import Clock
from turnwire.runtime.errands import Errands
from turnwire.runtime.last_words import signal_name
from turnwire.wire.jsonrpc import Failure, Request, Result
from turnwire.wire.peek import peek_update

_ANOTHER = PromptId("")
"""What a marker names that names none of our open requests."""

LATEST = frozenset(
    {
        "available_commands_update",
        "config_option_update",
        "current_mode_update",
        "session_info_update",
        "state_update",
        "usage_update",
    }
)
"""Updates that say what is now. In a replay they are news; everything else in it is history."""


class Household(Protocol):
    """Whom a residence reports to: the session's side."""

    def put(self, given: AnyInput) -> None:
        """Something happened."""
        ...

    async def room(self) -> None:
        """Wait until the session can take more."""
        ...

    def ready(self) -> None:
        """The agent can be prompted."""
        ...

    def lost(self, gone: AgentGone) -> None:
        """The agent, or its hold on the session, is gone."""
        ...

    def replayed(self, replay: View) -> None:
        """The agent told the history of the session as it remembers it."""
        ...


@dataclass
class Stay:
    """One session at one agent, from the asking to the end of either."""

    agent_session_id: AgentSessionId | None = None
    """What the agent calls the session, once it is open there."""
    how: str = "new"
    asked: tuple[RequestId, PromptId] | None = None
    answered: PromptId | None = None
    """The last `session/prompt` that the agent answered, whatever that means in its dialect."""
    owes: PromptId | None = None
    """The prompt that the agent has not answered (v1) or not gone idle after (v2): so long it takes no other,
    whatever ended the turn."""
    owes_answer: bool = True
    """Whether it is an answer that is owed, and not an idle."""
    replay: View | None = None
    news: list[Raw] = field(default_factory=list[Raw])
    """What is true now, said before the answer to load or resume: it is told after it."""
    is_over: bool = False


class Hearing:
    """The ears of a session at one agent. Implements `connection.Resident`."""

    def __init__(self, stay: Stay, household: Household, errands: Errands, clock: Clock) -> None:
        self._stay = stay
        self._household = household
        self._errands = errands
        self._clock = clock

    def registered(self) -> None:
        if not self._stay.is_over:
            self._household.ready()

    def updated(self, update: Raw) -> None:
        stay = self._stay
        if stay.is_over:
            return
        try:
            peek = peek_update(update)
        except RemoteProtocolError:
            return
        if stay.agent_session_id is None and stay.how in {"load", "resume"}:
            self._before_the_answer(update, peek.kind)
            return
        ends = None
        if peek.kind in MARKERS and peek.prompt_request_id is not None:
            asked = stay.asked
            ends = asked[1] if asked is not None and names(peek.prompt_request_id, asked[0]) else _ANOTHER
        self._household.put(AgentUpdate(at=self._clock.now_ms(), update=update, peek=peek, ends=ends))
        if peek.state == "idle" and stay.owes is not None and not stay.owes_answer:
            stay.owes = None
            self._household.ready()

    def _before_the_answer(self, update: Raw, kind: str) -> None:
        """A load tells history first. Only what is true now is new to the log, and it waits for the answer."""
        if self._stay.replay is None or kind in LATEST:
            self._stay.news.append(update)
        else:
            self._stay.replay.apply(SessionUpdated(at=0, kind=kind, update=update))

    def asked(self, request: Request) -> None:
        self.put(read_question(self._clock.now_ms(), request, mint.permission_id()))

    def wants(self, request: Request, answer: Callable[[Result | Failure], None]) -> bool:
        return not self._stay.is_over and self._errands.begin(request, answer)

    def withdrew(self, request_id: RequestId) -> None:
        self._errands.withdraw(request_id)
        self.put(AgentWithdraws(at=self._clock.now_ms(), agent_request_id=request_id))

    def gone(self, how: Exit | None, code: str) -> None:
        self.lost(code, _GONE.get(code, _GONE["agent_exited"]), how)

    async def room(self) -> None:
        if not self._stay.is_over:
            await self._household.room()

    def put(self, given: AnyInput) -> None:
        """Tell the session's side, unless the stay is over."""
        if not self._stay.is_over:
            self._household.put(given)

    def lost(self, code: str, message: str, how: Exit | None = None, error: Raw | None = None) -> None:
        """The stay is over, and not by our wish. Told once."""
        if self._stay.is_over:
            return
        self._stay.is_over = True
        self._household.lost(gone(self._clock.now_ms(), code, message, how, error))


def gone(at: int, code: str, message: str, how: Exit | None = None, error: Raw | None = None) -> AgentGone:
    """The end of an agent as an input, with all that is known of it."""
    return AgentGone(
        at=at,
        code=code,
        message=message,
        exit_code=how.exit_code if how else None,
        signal=signal_name(how.signal) if how and how.signal else None,
        stderr_tail=(how.stderr_tail or None) if how else None,
        error=error,
    )


_GONE = {
    "agent_exited": "the agent is gone",
    "agent_unresponsive": "the agent does not read what it is sent",
    "agent_recycled": "the agent was let go because nobody used it",
}
