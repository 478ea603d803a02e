"""What one agent says about one session: each frame becomes an input, in the order of the frames.

History that an agent replays on `session/load` is folded aside and not told as news; nor is what it repeats after
`session/resume`. Nothing about a turn is decided here: that is for the session, which gets the inputs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from enum import Enum, auto
from typing import NamedTuple

from msgspec import UNSET, Raw, UnsetType
from msgspec.structs import replace

from turnwire.core.child_names import ANNOUNCES, read_announcement
from turnwire.core.correlation import names
from turnwire.core.dialect import read_permission_request
from turnwire.core.events import SessionUpdated
from turnwire.core.inputs import AgentGone, AgentPieces, AgentReplayed, AgentUpdate, AgentWithdraws, AnyInput
from turnwire.core.repeats import Repeats, Said
from turnwire.core.view import View
from turnwire.errors import RemoteProtocolError
from turnwire.ids import AgentSessionId, PromptId, RequestId, SessionId
from turnwire.link.process import Exit
from turnwire.runtime import new_ids
from turnwire.runtime.agent_exit import agent_gone, manner
from turnwire.runtime.client_requests import ClientRequests
from turnwire.runtime.clock import Clock
from turnwire.runtime.last_frames import KEPT_FRAMES, LastFrames
from turnwire.runtime.session import Place
from turnwire.wire.jsonrpc import Failure, Request, Result
from turnwire.wire.peek import UpdatePeek, peek_update
from turnwire.wire.schema.update import CURRENT_STATE, MARKERS

_ANOTHER = PromptId("")
"""What a marker names that names none of our open requests."""

_GONE = {
    "agent_exited": "the agent is gone",
    "agent_unresponsive": "the agent does not read what it is sent",
    "agent_recycled": "the agent was let go because nobody used it",
}


class OwedBy(Enum):
    """What an agent still gives before it takes the next prompt."""

    ANSWER = auto()
    """The answer to `session/prompt` (v1)."""
    IDLE = auto()
    """A `state_update` that says idle (v2); the answer alone only says that the prompt was taken."""


class Owed(NamedTuple):
    """A prompt that the agent has not finished with, whatever ended its turn here."""

    prompt_id: PromptId
    by: OwedBy


class AgentInbound:
    """The inbound half of one session at one agent, from the asking to the end of either.

    What is known of the agent's side is written here and by `AgentSession`, its outbound half. It is silent once
    it `is_over`: nothing that an old agent still says can be taken for a new one's words.
    """

    def __init__(
        self,
        session_id: SessionId,
        requests: ClientRequests,
        clock: Clock,
        *,
        put: Callable[[AnyInput | Place], None],
        room: Callable[[], Awaitable[None]],
        ready: Callable[[], None],
        lost: Callable[[AgentGone], None],
    ) -> None:
        """What the session's side is told: `put` what happened, `ready` for a prompt, `lost` for good."""
        self.session_id = session_id
        self.frames = LastFrames()
        """The newest frames of this session, both ways."""
        self._requests = requests
        self._clock = clock
        self._put = put
        self._room = room
        self._ready = ready
        self._lost = lost
        self.agent_session_id: AgentSessionId | None = None
        """What the agent calls the session, once it is open there."""
        self.how = "new"
        """The way in which it is, or was, opened there."""
        self.asked: dict[PromptId, RequestId] = {}
        """The newest `session/prompt`, and those that the agent was handed while it was at that one."""
        self.answered: PromptId | None = None
        """The last `session/prompt` that the agent answered, whatever that means in its dialect."""
        self.owed: Owed | None = None
        """So long as it owes, the agent takes no other prompt."""
        self.replay: View | None = None
        """The history that the agent tells on `session/load`, folded aside."""
        self.repeats: Repeats | None = None
        """What the agent repeats of the history after `session/resume`, until it answers its first prompt."""
        self.children: frozenset[str] = frozenset()
        """The agent's ids of child sessions that the log knows, if the agent is to bring this session back."""
        self.news: list[Said] = []
        """What is new, said before the answer to load or resume: it is told after it."""
        self.is_over = False

    # -- called by the connection, in the order of the agent's frames; each hands over and returns ---------------

    def registered(self) -> None:
        """The session is open at the agent, which was told so and can be asked things from now on."""
        self.ready()

    def updated(self, update: Raw, child: str | None = None, beside: Raw | UnsetType = UNSET) -> str | None:
        """A `session/update`, of a child session if one is named, with what is beside it.

        Gives the child that it announces, if it does. One that cannot be read is no news to anybody.
        """
        if self.is_over:
            return None
        # Kept before it is read: who asks why an agent is stuck wants to see above all what could not be read.
        self.frames.updated(update)
        try:
            peek = peek_update(update)
        except RemoteProtocolError:
            return None
        said = Said(update, beside, child)
        is_before = self.agent_session_id is None and self.how in {"load", "resume"}
        # What is true now is no repetition, however often it was said before; and a child's words are not compared,
        # because what could be repeated is the session's own transcript.
        if self.repeats is not None and child is None and (peek.kind not in CURRENT_STATE or not is_before):
            self._compare(self.repeats, said, peek)
        elif is_before:
            self._before_the_answer(said, peek.kind)
        else:
            self._tell(said, peek)
        return read_announcement(update).session_id if peek.kind == ANNOUNCES else None

    def said(self, kind: str, updates: Sequence[Raw], lines: bytes = b"") -> None:
        """Pieces of text, one `session/update` each, of the session itself. `lines`: as `AgentPieces` has them."""
        if self.is_over:
            return
        if self.repeats is not None or (self.agent_session_id is None and self.how in {"load", "resume"}):
            for each in updates:
                self.updated(each)
            return
        for each in updates[-KEPT_FRAMES:]:
            self.frames.updated(each)
        self._put(AgentPieces(at=self._clock.now_ms(), kind=kind, updates=updates, lines=lines))

    def tell(self, said: Said) -> None:
        """An update that has been read once, and is news."""
        if not self.is_over:
            self._tell(said, peek_update(said.update))

    def _tell(self, said: Said, peek: UpdatePeek) -> None:
        ends = None
        if peek.kind in MARKERS and peek.prompt_request_id is not None:
            named = (each for each, request_id in self.asked.items() if names(peek.prompt_request_id, request_id))
            ends = next(named, _ANOTHER)
        self._put(
            AgentUpdate(
                at=self._clock.now_ms(),
                update=said.update,
                peek=peek,
                ends=ends,
                beside=said.beside,
                child=said.child,
            )
        )
        if said.child is not None:
            return
        # Behind the input: who is ready is given the next prompt, and this idle is the end of the one before.
        if peek.state == "idle" and self.owed is not None and self.owed.by is OwedBy.IDLE:
            self.owed = None
            self._ready()

    def _compare(self, repeats: Repeats, said: Said, peek: UpdatePeek) -> None:
        """Something that an agent says after a resume: only what the log does not have is told."""
        # The end of what we asked for is no repetition. What was undecided goes before it, into the same turn.
        if self.asked and (peek.state == "idle" or peek.kind in MARKERS):
            self.end_repeats(answered=True)
            self._tell(said, peek)
            return
        for each in repeats.take(said, peek):
            if self.agent_session_id is None:
                self.news.append(each)
            else:
                self.tell(each)
        if repeats.is_over:
            self.end_repeats()

    def end_repeats(self, *, answered: bool = False) -> None:
        """What the agent says from here on is no replay. What could not be decided until now is news."""
        # Until `session/resume` is answered more of the history may come, and the log has no agent to tell it of.
        if self.repeats is None or self.agent_session_id is None:
            return
        repeats, self.repeats = self.repeats, None
        for said in repeats.finish(answered=answered):
            self.tell(said)
        found = repeats.found
        if found is not None:
            self._put(AgentReplayed(at=self._clock.now_ms(), **found._asdict()))

    def _before_the_answer(self, said: Said, kind: str) -> None:
        """A load tells history first. Only what is true now is new to the log, and it waits for the answer."""
        if self.replay is None or kind in CURRENT_STATE or kind == ANNOUNCES:
            self.news.append(said)
        elif said.child is None:
            self.replay.apply(SessionUpdated(at=0, kind=kind, update=said.update))

    def asked_users(self, request: Request, child: str | None = None) -> None:
        """A permission request for the session's users, of a child session if one is named."""
        # Who asks is at work, and tells no history any more. What is undecided was said before this.
        self.end_repeats()
        self.frames.heard(request)
        asks = read_permission_request(self._clock.now_ms(), request, new_ids.permission_id())
        self.put(asks if child is None else replace(asks, child=child))

    def asked_client(
        self,
        request: Request,
        answer: Callable[[Result | Failure], None],
        place: Callable[[Callable[[int], None]], None] | None = None,
        refused: set[object] | None = None,
    ) -> bool:
        """A file, a terminal, or something of the agent's own. False if there is nobody who does it.

        `place`: where it stands, if that is not behind this session alone. `refused`: clients that need not be
        asked any more.
        """
        self.end_repeats()
        self.frames.heard(request)
        return not self.is_over and self._requests.begin(request, place or self.place, answer, refused)

    def owners(self, method: str) -> set[str | None]:
        """The owners of the session's clients that would do this."""
        return self._requests.owners(method)

    def place(self, reached: Callable[[int], None]) -> None:
        """The agent says something that no log has: `reached` hears behind which event it stands."""
        if self.is_over:
            reached(0)
        else:
            self._put(Place(reached))

    def withdrew(self, request_id: RequestId) -> None:
        """The agent does not want an answer to this request any more."""
        self._requests.withdraw(request_id)
        self.put(AgentWithdraws(at=self._clock.now_ms(), agent_request_id=request_id))

    def gone(self, how: Exit | None, code: str) -> None:
        """The agent is gone."""
        message = _GONE.get(code, _GONE["agent_exited"])
        # Who let go of it knows why; of one that went by itself, how it went is the first thing to know.
        went = manner(how) if code == "agent_exited" else None
        self.lost(code, message if went is None else f"{message}: it ended {went}", how)

    async def room(self) -> None:
        """Wait until the session can take more."""
        if not self.is_over:
            await self._room()

    # -- to the session's side -------------------------------------------------------------------------------

    def put(self, happened: AnyInput) -> None:
        """Something happened."""
        if not self.is_over:
            self._put(happened)

    def ready(self) -> None:
        """The agent can be prompted."""
        if not self.is_over:
            self._ready()

    def lost(self, code: str, message: str, how: Exit | None = None, error: Raw | None = None) -> None:
        """The agent, or its hold on the session, is gone, and not because we ended it. Told once."""
        if self.is_over:
            return
        # First: nothing is told once it is over, and what is undecided would be in no log.
        self.end_repeats()
        self.is_over = True
        self._lost(agent_gone(self._clock.now_ms(), code, message, how, error))
