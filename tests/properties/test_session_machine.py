"""The session's promises, checked against random histories of every kind of input.

The oracle is a `Ledger`, which reads nothing but the log and the effects. The machine feeds `decide` one input at a
time, the same inputs to one long `Draft`, and the stored form of the log to a separate fold: all three must agree
after every step. `TURNWIRE_SOAK=1` runs ten times as many histories.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import msgspec
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from msgspec import Raw
from msgspec.structs import replace
from tests.properties import strategies as some
from tests.properties.ledger import OUR_WORD, Ledger
from tests.properties.strategies import Which

from turnwire.errors import LocalProtocolError, TurnwireError
from turnwire.ids import AgentSessionId, ChildId, ClientId, PermissionId, PromptId, RequestId, SessionId
from turnwire.limits import Limits
from turnwire.session import events as ev
from turnwire.session import inputs as i
from turnwire.session.codec import decode, decode_state, encode, encode_state
from turnwire.session.decide import Decision, decide, take
from turnwire.session.draft import Draft
from turnwire.session.evolve import evolve, fold
from turnwire.session.state import NOTHING, STATE_VERSION, Phase, find_turn
from turnwire.session.turn import NEXT, TurnState
from turnwire.wire.peek import peek_update

PROFILE = settings(max_examples=max(200, settings().max_examples))

LIMITS = Limits(queue_length=3)
CONTENT = Raw(b'[{"type":"text","text":"x"}]')
NEVER_REFUSED = (
    *(i.AgentUpdate, i.AgentPieces, i.AgentAnswered, i.AgentRefused, i.AgentWithdraws, i.SteerAnswered),
    *(
        i.ChoicesTold,
        i.AgentHasPrompt,
        i.AgentReplayed,
        i.AgentGone,
        i.DeadlinePassed,
        i.Recover,
        i.Detach,
        i.Cancel,
        i.Close,
    ),
)
"""Inputs without a caller, or that must always work: a rejection would be a defect."""


class SessionMachine(RuleBasedStateMachine):
    """One session under random inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.is_sound = True
        """True if the last step passed; draining after a failed one would hide its failure."""
        self.at = 0
        self.minted = 0
        self.state = NOTHING
        self.stored: list[bytes] = []
        self.replayed = NOTHING
        self.updates = 0
        self.ledger = Ledger()
        self.draft = Draft(NOTHING, 0, LIMITS)
        self.give(i.CreateSession(at=0, session_id=SessionId("s1"), cwd="/w"))

    @initialize(turn_end=some.turn_ends, steering=some.steering)
    def begin(self, turn_end: ev.TurnEnd, steering: bool) -> None:
        self.give(self.ready(turn_end, steering=steering))

    @rule(happening=some.happenings)
    def happens(self, happening: some.Happening) -> None:
        self.is_sound = False
        getattr(self, happening.name)(**happening.parts)

    # -- taking inputs ---------------------------------------------------------------------------------------

    def give(self, given: i.AnyInput) -> Decision | None:
        """Apply one input in all three ways."""
        before = encode_state(self.state)
        try:
            decision = decide(self.state, given, offset=len(self.stored), limits=LIMITS)
        except TurnwireError as refusal:
            if isinstance(given, NEVER_REFUSED):
                raise
            self._refuse_in_the_draft(given, type(refusal))
            return None
        finally:
            assert encode_state(self.state) == before
        self._take_in_the_draft(given, decision)
        self._store(decision)
        return decision

    def _refuse_in_the_draft(self, given: i.AnyInput, error: type[TurnwireError]) -> None:
        draft = self.draft
        before = draft.state, len(draft.events), len(draft.effects)
        with pytest.raises(error):
            take(draft, given)
        assert (draft.state, len(draft.events), len(draft.effects)) == before

    def _take_in_the_draft(self, given: i.AnyInput, decision: Decision) -> None:
        draft = self.draft
        events, effects = len(draft.events), len(draft.effects)
        assert take(draft, given) == decision.answer
        assert tuple(draft.events[events:]) == decision.events
        assert tuple(draft.effects[effects:]) == decision.effects
        assert draft.state == decision.state

    def _store(self, decision: Decision) -> None:
        bodies = [encode(each) for each in decision.events]
        self.stored += bodies
        self.replayed = fold((decode(each) for each in bodies), self.replayed)
        self.state = decision.state
        for event in decision.events:
            self.ledger.read(event)
        self.ledger.hear(decision)

    @invariant()
    def everything_agrees(self) -> None:
        assert self.replayed == self.state, "the stored log folds to another state"
        self.ledger.check(self.state)
        assert self.ledger.updates.total() == self.updates, "an update was lost"
        self.is_sound = True

    # -- names -----------------------------------------------------------------------------------------------

    def now(self) -> int:
        self.at += 1
        return self.at

    def mint(self, kind: str) -> str:
        self.minted += 1
        return f"{kind}{self.minted}"

    def turn(self, which: Which, pick: int) -> PromptId:
        """Return the turn that `which` means now; a nonexistent one if there is none."""
        state, ended = self.state, list(self.ledger.ended)
        active = [state.turn.prompt_id] if state.turn else []
        found: Sequence[str] = {
            Which.ACTIVE: active,
            Which.WAITING: [each.prompt_id for each in state.queue],
            Which.JOINED: [each.prompt_id for each in state.joined],
            Which.OFFERED: [each.prompt_id for each in state.offered],
            Which.LAST: ended[-1:],
            Which.OLD: ended,
            Which.UNKNOWN: [],
        }[which]
        return PromptId(found[pick % len(found)] if found else "never")

    def ready(self, turn_end: ev.TurnEnd, *, steering: bool) -> i.AgentReady:
        return i.AgentReady(
            at=self.now(),
            agent_session_id=AgentSessionId("a1"),
            protocol_version=2 if turn_end is ev.TurnEnd.IDLE else 1,
            turn_end=turn_end,
            steering=steering,
        )

    def say(self, fields: dict[str, object], ends: PromptId | None = None) -> None:
        """Send a unique update; it must be recorded once, byte for byte."""
        self.updates += 1
        running, last = self.ledger.active, self.ledger.last
        is_background = not {fields.get("toolCallId"), fields.get("terminalId")}.isdisjoint(self.state.background)
        given = {each: value for each, value in fields.items() if value is not None}
        update = Raw(msgspec.json.encode({**given, "number": self.updates}))
        decision = self.give(i.AgentUpdate(at=self.now(), update=update, peek=peek_update(update), ends=ends))
        assert decision is not None
        told = [each for each in decision.events if isinstance(each, ev.SessionUpdated)]
        [recorded] = [each for each in told if OUR_WORD not in bytes(each.update)]
        assert bytes(recorded.update) == bytes(update)
        if not running and fields["sessionUpdate"] != "state_update":
            is_background |= fields["sessionUpdate"] == "subagent_update"
            assert recorded.prompt_id is None
            assert is_background or recorded.after == last, "late, and not marked so"

    # -- clients ---------------------------------------------------------------------------------------------

    def prompt(self, when: i.WhenBusy, key: str | None, digest: str, client: str | None) -> None:
        prompt_id = PromptId(self.mint("p"))
        known = self.state.keys.get(key) if key else None
        decision = self.give(
            i.Prompt(
                at=self.now(),
                prompt_id=prompt_id,
                content=CONTENT,
                when_busy=when,
                key=key,
                digest=digest if key else None,
                client_id=ClientId(client) if client else None,
            )
        )
        if decision is not None and known is not None:
            assert decision.events == (), "one key, two prompts"
        if decision is not None and known is None:
            assert prompt_id in self.ledger.accepted, "accepted, but not in the log"

    def prompt_with_a_known_id(self, which: Which, pick: int) -> None:
        if which in (Which.LAST, Which.OLD, Which.UNKNOWN) or not self.ledger.open_turns:
            return
        prompt_id = self.turn(which, pick)
        if prompt_id in self.ledger.open_turns:
            assert self.give(i.Prompt(at=self.now(), prompt_id=prompt_id, content=CONTENT)) is None

    def edit(self, which: Which, pick: int, position: int | None, new: bool) -> None:
        content = Raw(b'[{"type":"text","text":"new"}]') if new else None
        prompt_id = self.turn(which, pick)
        self.give(i.UpdatePrompt(at=self.now(), prompt_id=prompt_id, content=content, position=position))

    def remove(self, which: Which, pick: int) -> None:
        self.give(i.RemovePrompt(at=self.now(), prompt_id=self.turn(which, pick)))

    def cancel(self, which: Which | None, pick: int, client: str | None) -> None:
        named = self.turn(which, pick) if which else None
        over = named is not None and named not in self.ledger.open_turns
        # A turn whose end is marked ends before anything else happens, including inputs without a change.
        is_marked = self.state.turn is not None and bool(self.state.turn.marked)
        decision = self.give(i.Cancel(at=self.now(), prompt_id=named, author=client))
        assert decision is not None
        assert not over or is_marked or (decision.events == () and decision.effects == ())

    def choose(self, what: str, value: str) -> None:
        if what == "mode":
            self.give(i.ModeSet(at=self.now(), mode=value))
        else:
            self.give(i.OptionChosen(at=self.now(), config_id=what, value=value))

    def agent_was_told_the_choices(self, lost: set[str]) -> None:
        missing = tuple(ev.LostChoice(name=each, wanted="high", why="refused") for each in sorted(lost))
        self.give(i.ChoicesTold(at=self.now(), lost=missing))

    def settle(self, which: Which, pick: int) -> None:
        self.give(i.Settle(at=self.now(), prompt_id=self.turn(which, pick), author="ann"))

    def answer(self, pick: int, option: str | None, client: str | None) -> None:
        known = sorted(self.ledger.questions) or ["never"]
        self.give(
            i.AnswerPermission(
                at=self.now(),
                request_id=PermissionId(known[-1 - pick % len(known)]),
                answer=Raw(msgspec.json.encode({"option": option})),
                option_id=option,
                client_id=ClientId(client) if client else None,
            )
        )

    def attach_or_detach(self, client: str, here: bool) -> None:
        if here:
            self.give(i.Attach(at=self.now(), client_id=ClientId(client)))
        else:
            self.give(i.Detach(at=self.now(), client_id=ClientId(client)))

    # -- the agent -------------------------------------------------------------------------------------------

    def agent_starts(self, turn_end: ev.TurnEnd, steering: bool) -> None:
        if self.state.agent is not None:
            # A session has one agent at a time: the end of the last one is always processed before.
            self.give(i.AgentGone(at=self.now(), code="agent_exited", message="it went"))
        self.give(self.ready(turn_end, steering=steering))

    def agent_speaks(self, kind: str, tool: str, status: str | None, message: str | None) -> None:
        self.say(
            {
                "sessionUpdate": kind,
                "toolCallId": tool if kind.startswith("tool") else None,
                "terminalId": tool if kind.startswith("terminal") else None,
                "status": status,
                "messageId": message,
            }
        )

    def agent_says_pieces(self, kind: str, message: str | None, count: int) -> None:
        """Check that one input with several chunks equals the chunks one by one."""
        at, alone = self.now(), Draft(self.state, len(self.stored), LIMITS)
        updates = [
            Raw(msgspec.json.encode({"sessionUpdate": kind, "messageId": message, "number": self.updates + number}))
            for number in range(1, count + 1)
        ]
        self.updates += count
        for each in updates:
            take(alone, i.AgentUpdate(at=at, update=each, peek=peek_update(each)))
        decision = self.give(i.AgentPieces(at=at, kind=kind, updates=updates))
        assert decision is not None
        assert [encode(each) for each in decision.events] == [encode(each) for each in alone.events]
        assert decision.effects == tuple(alone.effects)
        assert encode_state(decision.state) == encode_state(alone.state)

    def agent_marks_the_end(self, kind: str, reason: str | None, named: bool, pick: int) -> None:
        asked = [each for each in self.ledger.begun if each not in self.ledger.by_agent]
        ends = PromptId(asked[-1 - pick % min(len(asked), 3)]) if named and asked else None
        self.say({"sessionUpdate": kind, "stopReason": reason}, ends)

    def agent_reports_its_state(self, state: str, reason: str | None, background: list[str] | None) -> None:
        ids = None if background is None else [{"toolCallId": each} for each in background]
        fields = {"state": state, "stopReason": reason, "background": ids}
        self.say({"sessionUpdate": "state_update", **fields})

    def agent_answers(self, which: Which, pick: int, reason: str | None, message: str | None) -> None:
        prompt_id = self.turn(which, pick)
        self.give(
            i.AgentAnswered(
                at=self.now(), prompt_id=prompt_id, stop_reason=reason, message_id=message, usage=Raw(b'{"n":1}')
            )
        )

    def agent_has_the_prompt(self, which: Which, pick: int, agent_id: RequestId) -> None:
        prompt_id = self.turn(which, pick)
        self.give(i.AgentHasPrompt(at=self.now(), prompt_id=prompt_id, agent_request_id=agent_id))

    def agent_replayed(self) -> None:
        self.give(i.AgentReplayed(at=self.now(), replayed=2, matched=1, missing=0))

    def agent_ends_the_turn(self, reason: str | None) -> None:
        """Send the end of a turn in the agent's dialect."""
        turn, agent = self.state.turn, self.state.agent
        if turn is None or agent is None:
            return
        if agent.turn_end is ev.TurnEnd.RESPONSE:
            self.give(i.AgentAnswered(at=self.now(), prompt_id=turn.prompt_id, stop_reason=reason))
            if reason is None and agent.busy:
                # So it is an agent that reports by states.
                self.say({"sessionUpdate": "state_update", "state": "idle"})
        elif agent.turn_end is ev.TurnEnd.MARKER:
            self.say({"sessionUpdate": "turn_complete", "stopReason": reason or "end_turn"}, turn.prompt_id)
            self.give(i.AnswerOverdue(at=self.now(), prompt_id=turn.prompt_id))
        else:
            self.give(i.AgentAnswered(at=self.now(), prompt_id=turn.prompt_id, message_id="its copy"))
            self.say({"sessionUpdate": "state_update", "state": "running"})
            self.say({"sessionUpdate": "state_update", "state": "idle", "stopReason": reason})
        assert turn.prompt_id in self.ledger.ended

    def agent_refuses(self, which: Which, pick: int) -> None:
        self.give(i.AgentRefused(at=self.now(), prompt_id=self.turn(which, pick), error=Raw(b"{}")))

    def agent_asks(self, agent_id: RequestId, method: str) -> None:
        self.give(
            i.AgentAsks(
                at=self.now(),
                request_id=PermissionId(self.mint("q")),
                agent_request_id=agent_id,
                method=method,
                params=Raw(b"{}"),
                options=("allow", "reject"),
            )
        )

    def child_is_announced(self, child: str, parent: str | None, state: dict[str, object], cancel: bool) -> None:
        fields: dict[str, object] = {"sessionUpdate": "subagent_update", "sessionId": child, **state}
        if cancel:
            fields["capabilities"] = {"cancel": {}}
        self.child_says(parent if parent in self.state.children else None, fields)
        assert child in self.state.children

    def child_speaks(self, child: str, kind: str, tool: str, state: str) -> None:
        if child in self.state.children:
            self.child_says(child, {"sessionUpdate": kind, "toolCallId": tool, "state": state, "messageId": "1"})

    def child_says(self, child: str | None, fields: dict[str, object]) -> None:
        """Send an update of a child, which is recorded once and changes no turn; without a child, of the
        session.
        """
        if child is None:
            self.say(fields)
            return
        self.updates += 1
        before = None if self.state.turn is None or self.state.turn.marked else self.state.turn.prompt_id
        known, count = self.state.children[child].child_id, self.state.child_count
        update = Raw(msgspec.json.encode({**fields, "number": self.updates}))
        decision = self.give(i.AgentUpdate(at=self.now(), update=update, peek=peek_update(update), child=child))
        assert decision is not None
        told = [each for each in decision.events if isinstance(each, ev.SessionUpdated)]
        [recorded] = [each for each in told if OUR_WORD not in bytes(each.update)]
        assert (recorded.child, recorded.after, bytes(recorded.update)) == (known, None, bytes(update))
        assert before is None or (self.state.turn is not None and self.state.turn.prompt_id == before)
        assert self.state.child_count in {count, count + 1}
        names = [each.child_id for each in self.state.children.values()]
        assert len(set(names)) == len(names), "an id twice"

    def child_asks(self, child: str, agent_id: RequestId, method: str) -> None:
        asks = i.AgentAsks(
            at=self.now(),
            request_id=PermissionId(self.mint("q")),
            agent_request_id=agent_id,
            method=method,
            params=Raw(b"{}"),
            options=("allow", "reject"),
            child=child,
        )
        self.give(asks)

    def child_is_cancelled(self, pick: int) -> None:
        known = [each.child_id for each in self.state.children.values()] or [ChildId("s1.9")]
        child = known[pick % len(known)]
        decision = self.give(i.CancelChild(at=self.now(), child=child))
        if decision is not None and decision.effects:
            assert all(each.child != child for each in self.state.permissions)

    def agent_withdraws(self, agent_id: RequestId) -> None:
        meant = {
            each.request_id
            for each in self.state.permissions
            if each.agent_request_id == agent_id and type(each.agent_request_id) is type(agent_id)
        }
        decision = self.give(i.AgentWithdraws(at=self.now(), agent_request_id=agent_id))
        assert decision is not None
        assert {each.request_id for each in decision.events if isinstance(each, ev.PermissionResolved)} == meant

    def agent_answers_steering(self, which: Which, pick: int, outcome: i.SteerOutcome) -> None:
        self.give(i.SteerAnswered(at=self.now(), prompt_id=self.turn(which, pick), outcome=outcome))

    def agent_goes(self, code: str) -> None:
        self.give(i.AgentGone(at=self.now(), code=code, message="gone"))

    # -- time and the machine --------------------------------------------------------------------------------

    def deadline_passes(self, which: Which, pick: int, rung: ev.CancelRung) -> None:
        ended = len(self.ledger.ended)
        self.give(i.DeadlinePassed(at=self.now(), prompt_id=self.turn(which, pick), rung=rung))
        assert len(self.ledger.ended) == ended, "time ended a turn"

    def an_event_is_offered(self, which: Which, pick: int, event: ev.TurnEvent) -> None:
        """Check that the fold rejects every event that the table does not have."""
        prompt_id = self.turn(which, pick)
        turn = find_turn(self.state, prompt_id)
        if turn is None and prompt_id != self.ledger.last:
            return
        if type(event) not in NEXT[turn.state if turn else TurnState.ENDED]:
            before = encode_state(self.state)
            with pytest.raises(LocalProtocolError):
                evolve(self.state, cast("ev.AnyEvent", replace(event, prompt_id=prompt_id)))
            assert encode_state(self.state) == before

    def restart(self) -> None:
        """Only the stored log survives; the new owner recovers from it."""
        self.state = self.replayed = fold((decode(each) for each in self.stored), NOTHING)
        self.commit()
        self.give(i.Recover(at=self.now()))

    def read_from_a_snapshot(self, cut: int) -> None:
        """Check that a prefix, stored as a snapshot, and the rest of the log give the same state as the whole."""
        place = cut % (len(self.stored) + 1)
        prefix = fold((decode(each) for each in self.stored[:place]), NOTHING)
        kept = decode_state(encode_state(prefix), STATE_VERSION)
        assert kept is not None
        assert fold((decode(each) for each in self.stored[place:]), kept) == self.state

    def commit(self) -> None:
        """The batch is stored and a new one begins."""
        self.draft = Draft(self.state, len(self.stored), LIMITS)

    def close(self) -> None:
        """Late in a history, because little happens after it."""
        if len(self.stored) < 100:
            return
        self.give(i.Close(at=self.now(), author="ann"))
        assert self.state.phase is Phase.CLOSED

    def teardown(self) -> None:
        """Check that everything has ended once after draining, by a close or by recovering until nothing
        remains.
        """
        if not self.is_sound:
            return
        if len(self.stored) % 2:
            self.give(i.Close(at=self.now()))
        else:
            self.give(i.ReleaseQueue(at=self.now()))
            for _ in range(LIMITS.queue_length + 3):
                self.give(i.Recover(at=self.now()))
        self.everything_agrees()
        assert set(self.ledger.ended) == self.ledger.accepted | self.ledger.by_agent
        assert self.ledger.resolved == self.ledger.questions
        assert not self.state.unsettled
        last = self.give(i.Recover(at=self.now()))
        assert last is not None
        assert (last.events, last.effects) == ((), ())


@pytest.mark.timeout(900)
@pytest.mark.guarantee("G3", "G4")
def test_any_history_keeps_the_promises_of_a_session() -> None:
    run_state_machine_as_test(SessionMachine, settings=PROFILE)
