"""An account of a session, derived from its log and effects alone: the oracle for the machine under test.

It reads events and plans in the order in which they are stored, and fails on the first that is forbidden. It never
reads the session's state to form its account, only to compare.
"""

from __future__ import annotations

from collections import Counter

from turnwire.session import effects as ef
from turnwire.session import events as ev
from turnwire.session.decide import Decision
from turnwire.session.state import SessionState

OUR_WORD = b'"_meta":{"turnwire":{"closed":'
"""Text in an update by which the machine closes a call that its agent left open."""


class Ledger:
    """An account of a session that is derived from its log and effects alone."""

    def __init__(self) -> None:
        self.accepted: set[str] = set()
        self.begun: list[str] = []
        """Started turns, whatever started them, in order."""
        self.by_agent: set[str] = set()
        self.joined: set[str] = set()
        self.offered: set[str] = set()
        """Prompts that the agent was handed while a turn ran."""
        self.messages: set[str] = set()
        self.inserted: set[str] = set()
        self.ended: dict[str, ev.Event] = {}
        self.questions: set[str] = set()
        self.resolved: set[str] = set()
        self.updates: Counter[bytes] = Counter()
        self.asked: Counter[str] = Counter()
        self.steered: set[str] = set()
        self.started_by_steering: set[str] = set()
        """Prompts with which the agent began a turn when it was steered: they must not be sent again."""
        self.last: str | None = None
        """The turn that ran last, once it has ended."""
        self.closed = False

    @property
    def open_turns(self) -> set[str]:
        return (self.accepted | self.by_agent) - set(self.ended)

    @property
    def active(self) -> set[str]:
        return set(self.begun) - set(self.ended)

    def read(self, event: ev.AnyEvent) -> None:
        """Add one event to the account; fails on events that must never be in a log."""
        named: str | None = getattr(event, "prompt_id", None)
        assert named not in self.ended, f"{type(event).__name__} of a turn after its end"
        match event:
            case ev.TurnStarted():
                self._start(event)
            case ev.TurnCompleted() | ev.TurnFailed():
                assert self.inserted.isdisjoint({event.prompt_id} - self.messages), "inserted, and no message"
                self.ended[event.prompt_id] = event
                self.last = event.prompt_id if event.prompt_id in self.begun else self.last
            case ev.SessionUpdated():
                if OUR_WORD not in bytes(event.update):
                    self.updates[bytes(event.update)] += 1
                speaking = self.active | self.joined if event.echo else self.active
                assert event.prompt_id is None or event.prompt_id in speaking, "an update of no running turn"
                assert event.after is None or (event.prompt_id is None and event.after in self.ended)
                assert event.child is None or event.after is None, "a child is never late"
            case ev.PermissionRequested():
                self.questions.add(event.request_id)
            case ev.PermissionResolved():
                assert event.request_id in self.questions - self.resolved, "resolved twice, or never asked"
                self.resolved.add(event.request_id)
            case ev.SessionClosed():
                assert not self.closed, "closed twice"
                self.closed = True
            case _:
                self._read_prompt(event)
        assert named is None or named in self.accepted | self.by_agent, "an event of a turn that never was"

    def _read_prompt(self, event: ev.AnyEvent) -> None:
        match event:
            case ev.PromptAccepted():
                assert event.prompt_id not in self.accepted, "accepted twice"
                self.accepted.add(event.prompt_id)
            case ev.PromptOffered():
                self.offered.add(event.prompt_id)
            case ev.UserMessage():
                assert event.prompt_id not in self.messages, "a message twice"
                self.messages.add(event.prompt_id)
            case ev.PromptInserted():
                assert event.prompt_id not in self.inserted, "inserted twice"
                self.inserted.add(event.prompt_id)
            case ev.PromptInjected():
                assert event.into in self.begun, "joined a turn that never ran"
                self.joined.add(event.prompt_id)
            case _:
                pass

    def _start(self, event: ev.TurnStarted) -> None:
        assert not self.active, "two turns at once"
        assert event.prompt_id not in self.begun, "started twice"
        assert (event.prompt_id in self.accepted) == (event.origin is ev.Origin.CLIENT)
        self.begun.append(event.prompt_id)
        if event.origin is ev.Origin.AGENT:
            self.by_agent.add(event.prompt_id)

    def hear(self, decision: Decision) -> None:
        """Add the effects of a decision to the account, after its events."""
        for effect in decision.effects:
            if isinstance(effect, ef.AskAgent):
                self.asked[effect.prompt_id] += 1
            if isinstance(effect, ef.SteerAgent):
                self.steered.add(effect.prompt_id)
            named: str | None = getattr(effect, "prompt_id", None)
            assert named is None or named in self.accepted | self.by_agent, "an effect for a turn that never was"
        asked = {each.prompt_id for each in decision.effects if isinstance(each, ef.AskAgent)}
        offered = {each.prompt_id for each in decision.events if isinstance(each, ev.PromptOffered)}
        assert offered - asked <= self.steered, "an offered prompt that the agent was never sent"
        self.started_by_steering |= offered - asked
        answers = [each for each in decision.effects if isinstance(each, ef.AnswerAgent)]
        resolved = [each for each in decision.events if isinstance(each, ev.PermissionResolved)]
        assert len(answers) <= len(resolved), "the agent is answered more often than its questions are resolved"

    def check(self, state: SessionState) -> None:
        """Check that the account and the folded state agree."""
        assert len(self.active) <= 1
        assert self.active == ({state.turn.prompt_id} if state.turn else set())
        waiting = {each.prompt_id for each in state.queue}
        joined = {each.prompt_id for each in state.joined}
        offered = {each.prompt_id for each in state.offered}
        assert self.open_turns == self.active | waiting | joined | offered
        assert offered <= self.offered
        assert not offered or self.active, "an offered prompt, and nothing runs"
        assert joined == self.joined - set(self.ended)
        assert not joined or self.active, "a joined prompt without the turn it joined"
        assert {each.request_id for each in state.permissions} == self.questions - self.resolved
        assert state.agent is not None or not state.running_children, "a child runs at no agent"
        assert state.unsettled == bool(self.open_turns or self.questions - self.resolved)
        sent = (set(self.begun) - self.by_agent) | self.offered
        assert self.asked == Counter(sent - self.started_by_steering)
        waits = state.held is not None or any(each.steering for each in state.queue)
        assert state.turn or not state.queue or waits, "nothing starts"
        assert not self.updates or self.updates.most_common(1)[0][1] == 1, "an update twice"
