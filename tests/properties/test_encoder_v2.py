"""Frames to a v2 client, checked against an executable model of the v2 prompt lifecycle.

A run is a session under random inputs: `core.decide` returns the events, a `SessionEncoder` the frames, and the
model reads nothing but the frames, in the order in which the client does. Agents of all three dialects come and go
within a run. Each example of hypothesis is one seed for many runs, so that ten thousand of them need only seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.session import driving as d

from turnwire.errors import TurnwireError
from turnwire.ids import SessionId
from turnwire.limits import Limits
from turnwire.projections.encoder import Answer, Ask, Fail, Outgoing, SessionEncoder, Tell, TellBlocked, Withdraw
from turnwire.projections.encoder.encoder import Dialect
from turnwire.session import events as ev
from turnwire.session import inputs as i
from turnwire.session.decide import decide
from turnwire.session.state import NOTHING, SessionState
from turnwire.wire.schema import Unknown, decode_update
from turnwire.wire.schema.update import STATES

SEEDS, RUNS, STEPS = 200, 50, 18
V1_NAMES = {"tool_call", "plan", "current_mode_update", "turn_complete", "state_change"}
LIMITS = Limits(queue_length=3)


class Lifecycle:
    """The guarantees of the published v2 for a client. `take` raises if a frame breaks one."""

    def __init__(self) -> None:
        self.state = "idle"
        self.background: Any = None
        self.starts = 0
        self.ends = 0
        self.last_idle: dict[str, Any] = {}
        self.messages: set[str] = set()
        self.answered: dict[str, str] = {}
        self.failed: set[str] = set()
        self.asked: set[str] = set()

    def take(self, frame: Outgoing) -> None:
        match frame:
            case Tell(update) | TellBlocked(update):
                typed = decode_update(update, 2)
                told = msgspec.json.decode(update)
                assert not isinstance(typed, Unknown) or told["sessionUpdate"].startswith("_"), told
                self._update(told)
            case Answer(prompt_id, result):
                assert prompt_id not in self.answered, "answered twice"
                assert prompt_id not in self.failed, "answered after a refusal"
                # The order of the answer and the message is free; that there is one is seen at the end.
                self.answered[prompt_id] = msgspec.json.decode(result)["messageId"]
            case Fail(prompt_id):
                assert prompt_id not in self.answered, "refused after the message was inserted"
                assert prompt_id not in self.failed, "refused twice"
                self.failed.add(prompt_id)
            case Ask(request_id):
                assert request_id not in self.asked
                self.asked.add(request_id)
            case Withdraw(request_id):
                self.asked.remove(request_id)

    def _update(self, told: dict[str, Any]) -> None:
        kind = told["sessionUpdate"]
        assert kind not in V1_NAMES
        if kind == "user_message":
            assert told["messageId"] not in self.messages, "a message was inserted twice"
            assert told["content"]
            self.messages.add(told["messageId"])
        elif kind.endswith("_chunk") and "message" in kind:
            assert told["messageId"]
        elif kind == "state_update":
            self._state(told)

    def _state(self, told: dict[str, Any]) -> None:
        state, background = told["state"], told.get("background")
        assert "background" in told or self.background is None, "background must be on every state"
        if state == self.state:
            # A waiting state is sent again when it waits for more.
            assert background != self.background or state == "requires_action", "a state was repeated for nothing"
            assert (
                state != "idle"
                or {**told, "background": 0} == {**self.last_idle, "background": 0}
                or (not self.last_idle)
            )
        elif state == "idle":
            assert (told.get("stopReason") == "error") == ("error" in told)
            self.ends += 1
            self.last_idle = told
        elif self.state == "idle":
            self.starts += 1
        assert "stopReason" not in told or state == "idle"
        self.state, self.background = state, background


class Run:
    """One session, its client and the checker."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.state: SessionState = NOTHING
        self.log: list[ev.AnyEvent] = []
        self.encoder = SessionEncoder(Dialect(version=2), SessionId("s1"))
        self.model = Lifecycle()
        self.own: set[str] = set()
        self.minted = 0
        self.give(i.CreateSession(at=0, session_id=SessionId("s1"), cwd="/w"))
        self.give(self.agent())

    def give(self, given: i.AnyInput) -> None:
        try:
            plan = decide(self.state, given, offset=len(self.log), limits=LIMITS)
        except TurnwireError:
            return
        self.state = plan.state
        for event in plan.events:
            self.log.append(event)
            self.read(event)

    def read(self, event: ev.AnyEvent) -> None:
        prompt_id = getattr(event, "prompt_id", None)
        frames = self.encoder.take(event, own=prompt_id in self.own)
        for frame in frames:
            self.model.take(frame)
        is_output = isinstance(event, ev.SessionUpdated) and event.kind not in STATES
        if is_output and prompt_id is not None and frames:
            assert self.model.state != "idle", "output of a turn while idle"

    def mint(self, kind: str) -> str:
        self.minted += 1
        return f"{kind}{self.minted}"

    def agent(self) -> i.AgentReady:
        return d.ready(self.random.choice(list(ev.TurnEnd)), steering=self.random.random() < 0.5)

    def turn(self) -> str:
        turns = [self.state.turn, *self.state.queue, *self.state.joined]
        known = [each.prompt_id for each in turns if each is not None]
        return self.random.choice(known) if known else "never"

    def active(self) -> str:
        return self.state.turn.prompt_id if self.state.turn is not None else "never"

    def question(self) -> str:
        return next((each.request_id for each in self.state.permissions), "never")

    def step(self) -> None:
        self.give(self.random.choices(_STEPS, _WEIGHTS)[0](self))

    def finish(self) -> None:
        """End everything that is open, and compare both sides' counts."""
        self.give(d.close())
        ended = {each.prompt_id for each in self.log if isinstance(each, ev.TurnCompleted | ev.TurnFailed)}
        assert self.own & ended == self.model.answered.keys() | self.model.failed
        assert (self.model.state, self.model.asked) == ("idle", set())
        started = sum(isinstance(each, ev.TurnStarted) for each in self.log)
        # A prompt that its agent rejects never runs.
        assert self.model.starts == self.model.ends <= started
        shown = {each.prompt_id for each in self.log if isinstance(each, ev.UserMessage)}
        assert self.model.answered.keys() <= shown, "answered, and no message"


# -- what can happen -----------------------------------------------------------------------------------------


def _prompt(run: Run) -> i.AnyInput:
    prompt_id = run.mint("p")
    if run.random.random() < 0.6:
        run.own.add(prompt_id)
    return d.prompt(prompt_id, when=run.random.choice(list(i.WhenBusy)))


_UPDATES: list[Callable[[Random], i.AgentUpdate]] = [
    lambda random: d.said(
        "agent_thought_chunk", content={"type": "text", "text": "t"}, messageId=random.choice(["m1", "m2"])
    ),
    lambda random: d.said("tool_call_update", toolCallId=random.choice("ab"), status="completed"),
    lambda random: d.said("_own", x=1),
]
_V1_UPDATES: list[Callable[[Random], i.AgentUpdate]] = [
    *_UPDATES,
    lambda random: d.chunk(),
    lambda random: d.said("tool_call", toolCallId=random.choice("ab"), title="T"),
    lambda random: d.said("plan", entries=[]),
    lambda random: d.said("current_mode_update", currentModeId="ask"),
]
_V2_UPDATES: list[Callable[[Random], i.AgentUpdate]] = [
    *_UPDATES,
    lambda random: d.said("plan_update", plan={"type": "items", "planId": "a", "entries": []}),
    lambda random: d.said("terminal_output_chunk", terminalId="x", data=""),
    lambda random: d.said(
        "agent_message_chunk", content={"type": "text", "text": "t"}, messageId=random.choice(["m1", "m2"])
    ),
]


def _speak(run: Run) -> i.AnyInput:
    agent = run.state.agent
    if agent is None:
        return run.agent()
    return run.random.choice(_V2_UPDATES if agent.protocol_version == 2 else _V1_UPDATES)(run.random)


def _report(run: Run) -> i.AnyInput:
    state = run.random.choice(["running", "running", "requires_action", "idle", "idle"])
    members: dict[str, Any] = {}
    if state == "idle" and run.random.random() < 0.8:
        members["stopReason"] = run.random.choice(["end_turn", "cancelled", "error"])
    if run.random.random() < 0.2:
        members["background"] = run.random.choice([[], [{"type": "tool_call", "toolCallId": "a"}]])
    return d.said("state_update", state=state, **members)


def _work(run: Run) -> i.AnyInput:
    """Send the agent's answer in its dialect."""
    message_id = run.mint("m") if run.random.random() < 0.5 else None
    return d.answered(run.active(), run.random.choice(["end_turn", "cancelled", None]), message_id)


_MENU: list[tuple[int, Callable[[Run], i.AnyInput]]] = [
    (6, _prompt),
    (6, _speak),
    (6, _report),
    (6, _work),
    (2, lambda run: d.marked(run.random.choice(["end_turn", None]), ends=run.random.choice([None, run.active()]))),
    (2, lambda run: d.cancel(run.random.choice([None, run.turn()]))),
    (1, lambda run: d.remove(run.turn())),
    (1, lambda run: d.edit(run.turn(), "new", 0)),
    (1, lambda run: d.settle(run.active())),
    (2, lambda run: d.refused(run.active())),
    (2, lambda run: d.asks(run.mint("q"), run.minted)),
    (2, lambda run: d.answer(run.question())),
    (2, lambda run: d.steered(run.turn(), injected=run.random.random() < 0.5)),
    (1, lambda run: d.gone()),
    (1, lambda run: run.agent()),
    (1, lambda run: d.RECOVER),
]
_STEPS = [step for _, step in _MENU]
_WEIGHTS = [weight for weight, _ in _MENU]


@pytest.mark.guarantee("G11")
@settings(max_examples=SEEDS, deadline=None)
@given(seed=st.integers(0, 2**63))
def test_a_v2_client_is_told_a_legal_lifecycle_whatever_happens(seed: int) -> None:
    random = Random(seed)
    for _ in range(RUNS):
        run = Run(random)
        for _ in range(STEPS):
            run.step()
        run.finish()
