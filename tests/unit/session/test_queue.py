"""Admission and the queue: queue, reject, interrupt, steer; edit, move, remove; keys that identify one prompt."""

from __future__ import annotations

import pytest
from msgspec import Raw
from msgspec.structs import replace
from tests.unit.session.driving import (
    AT,
    RECOVER,
    Session,
    agent_is,
    answered,
    cancel,
    chunk,
    content,
    edit,
    gone,
    prompt,
    refused,
    remove,
    steer_outcome,
    steered,
    types,
)

from turnwire.errors import (
    IdempotencyConflict,
    LocalProtocolError,
    PromptNotFound,
    PromptNotQueued,
    QueueFull,
    QueueTooLarge,
    SessionBusy,
)
from turnwire.ids import PromptId
from turnwire.limits import IDEMPOTENCY_KEYS, Limits
from turnwire.session import events as ev
from turnwire.session.effects import AskAgent, CancelAgent, SteerAgent
from turnwire.session.evolve import fold
from turnwire.session.inputs import HoldQueue, Prompt, SteerOutcome, UpdatePrompt, WhenBusy
from turnwire.session.queue import Accepted

STEER, INTERRUPT, REJECT = WhenBusy.STEER, WhenBusy.INTERRUPT, WhenBusy.REJECT


def busy(*waiting: str, steering: bool = False) -> Session:
    """Return a session with a running turn `p1` and prompts queued after it."""
    session = Session(steering=steering)
    session.take(prompt("p1"), *(prompt(each) for each in waiting))
    return session


# -- admission -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", WhenBusy)
def test_an_idle_session_starts_a_prompt_at_once(when: WhenBusy) -> None:
    session = Session()
    head = len(session.log)
    plan = session.take(prompt("p1", when=when, request_id="7"))
    assert types(plan.events) == ["prompt_accepted", "user_message", "turn_started"]
    assert plan.effects == (AskAgent(PromptId("p1"), content("p1")),)
    assert plan.answer == Accepted(PromptId("p1"), head)
    message = session.found(ev.UserMessage)[0]
    assert (message.author, message.client_id, message.message_id) == ("ann", "c1", "msg-p1")


def test_a_prompt_while_a_turn_runs_waits_and_starts_after_it_in_order() -> None:
    session = busy("p2", "p3")
    assert (session.running(), session.waiting()) == ("p1", ["p2", "p3"])
    assert session.effects_of(CancelAgent) == []
    session.take(answered("p1"), answered("p2"))
    assert (session.running(), session.waiting()) == ("p3", [])
    assert [each.prompt_id for each in session.found(ev.UserMessage)] == ["p1", "p2", "p3"]
    assert [each.prompt_id for each in session.effects_of(AskAgent)] == ["p1", "p2", "p3"]


def test_a_prompt_that_waited_shows_in_the_queue_events() -> None:
    session = busy("p2")
    assert [each.position for each in session.found(ev.PromptQueued)] == [0]
    plan = session.take(answered("p1"))
    started = ["pending_prompt_started", "user_message", "turn_started"]
    assert types(plan.events) == ["turn_complete", *started]
    plan = session.take(answered("p2"))
    assert types(plan.events) == ["pending_prompt_completed", "turn_complete"]


def test_a_prompt_that_does_not_want_to_wait_is_rejected() -> None:
    assert busy().refuses(prompt("p2", when=REJECT), SessionBusy).retryable


def test_an_interrupt_cancels_what_runs_and_goes_first() -> None:
    session = busy("p2")
    session.take(prompt("p3", when=INTERRUPT))
    assert session.waiting() == ["p3", "p2"]
    assert session.found(ev.CancelAsked)[0].prompt_id == "p1"
    session.take(prompt("p4", when=INTERRUPT))
    assert len(session.found(ev.CancelAsked)) == 1
    session.take(answered("p1", "cancelled"))
    assert session.running() == "p4"


@pytest.mark.parametrize("when", [WhenBusy.QUEUE, INTERRUPT, STEER])
def test_a_full_queue_refuses(when: WhenBusy) -> None:
    session = Session(limits=Limits(queue_length=2))
    session.take(prompt("p1"), prompt("p2"), prompt("p3"))
    refusal = session.refuses(prompt("p4", when=when), QueueFull)
    assert refusal.context == {"session_id": "s1", "limit": 2, "pending_count": 2}
    session.take(answered("p1"), prompt("p4", when=when))
    assert "p4" in session.waiting()


@pytest.mark.parametrize("when", [WhenBusy.QUEUE, INTERRUPT, STEER])
def test_queued_prompts_are_bounded_by_their_bytes(when: WhenBusy) -> None:
    def large(prompt_id: str) -> Prompt:
        return replace(prompt(prompt_id, when=when), content=Raw(b'[{"type":"text","text":"%b"}]' % (b"a" * 600)))

    session = Session(limits=Limits(queue_bytes=1_000))
    session.take(prompt("p1"), large("p2"))
    assert session.refuses(large("p3"), QueueTooLarge).context == {"session_id": "s1", "limit": 1_000}
    session.take(prompt("p4"))
    update = UpdatePrompt(at=AT, prompt_id=PromptId("p4"), content=large("p4").content)
    session.refuses(update, QueueTooLarge)
    session.take(replace(update, prompt_id=PromptId("p2")), answered("p1"))
    session.take(large("p5")) if when is WhenBusy.QUEUE else None
    huge = replace(large("p9"), content=Raw(b'[{"type":"text","text":"%b"}]' % (b"a" * 5_000)))
    alone = Session(limits=Limits(queue_bytes=1_000))
    alone.take(prompt("p1"), huge)
    assert alone.waiting() == ["p9"], "one prompt of any size may wait"


def test_a_prompt_id_that_is_open_or_has_just_ended_is_refused() -> None:
    session = busy("p2")
    session.refuses(prompt("p1"), LocalProtocolError)
    session.refuses(prompt("p2"), LocalProtocolError)
    session.take(answered("p1"), answered("p2"))
    session.refuses(prompt("p2"), LocalProtocolError)


# -- idempotency ---------------------------------------------------------------------------------------------


@pytest.mark.guarantee("G7")
@pytest.mark.parametrize("over", ["running", "waiting", "ended", "restarted"])
def test_the_same_key_and_body_is_one_prompt(over: str) -> None:
    session = Session()
    if over == "waiting":
        session.take(prompt("p0"))
    first = session.take(prompt("p1", key="k", digest="d")).answer
    assert isinstance(first, Accepted)
    if over in {"ended", "restarted"}:
        session.take(answered("p1") if over == "ended" else RECOVER)
    plan = session.take(prompt("p9", key="k", digest="d", when=INTERRUPT))
    assert plan.answer == first._replace(repeated=True)
    assert (plan.events, plan.effects) == ((), ())


@pytest.mark.guarantee("G7")
def test_the_same_key_with_another_body_is_refused() -> None:
    session = Session()
    session.take(prompt("p1", key="k", digest="d"), answered("p1"))
    assert session.refuses(prompt("p2", key="k", digest="e"), IdempotencyConflict).context == {"prompt_id": "p1"}
    session.refuses(prompt("p2", key="k"), IdempotencyConflict)


def test_prompts_without_a_key_are_never_the_same() -> None:
    session = busy("p2")
    assert session.waiting() == ["p2"]
    assert session.state.keys == {}


def test_a_refused_prompt_does_not_use_up_its_key() -> None:
    session = busy()
    session.refuses(prompt("p2", key="k", digest="d", when=REJECT), SessionBusy)
    session.take(prompt("p3", key="k", digest="d"))
    assert session.waiting() == ["p3"]


def test_keys_are_remembered_newest_first_up_to_a_bound() -> None:
    state = Session().state
    session = Session()
    for number in range(IDEMPOTENCY_KEYS + 1):
        event = ev.PromptAccepted(at=1, prompt_id=PromptId(f"p{number}"), after_offset=0, key=f"k{number}")
        end = ev.TurnCompleted(at=1, prompt_id=event.prompt_id, stop_reason="cancelled", ending=ev.Ending.REMOVED)
        state = fold([event, end], state)
    session.state = state
    assert len(state.keys) == IDEMPOTENCY_KEYS
    assert "k0" not in state.keys
    assert "k1" in state.keys


# -- before the start ----------------------------------------------------------------------------------------


def test_a_waiting_prompt_can_be_edited_until_it_starts() -> None:
    session = busy("p2")
    session.take(edit("p2", "better"))
    assert session.found(ev.PromptUpdated)[0].author == "bob"
    session.take(answered("p1"))
    assert session.effects_of(AskAgent)[-1].content == content("better")
    assert session.found(ev.UserMessage)[-1].content == content("better")
    session.refuses(edit("p2", "too late"), PromptNotQueued)
    session.refuses(edit("p1", "too late"), PromptNotQueued)
    session.refuses(edit("p9", "unknown"), PromptNotFound)


@pytest.mark.parametrize(
    ("position", "order"),
    [(0, ["p4", "p2", "p3"]), (1, ["p2", "p4", "p3"]), (2, ["p2", "p3", "p4"]), (99, ["p2", "p3", "p4"])],
)
def test_a_waiting_prompt_can_be_moved(position: int, order: list[str]) -> None:
    session = busy("p2", "p3", "p4")
    session.take(edit("p4", position=position))
    assert session.waiting() == order
    moved = session.found(ev.PromptUpdated)[0]
    assert moved.position == min(position, 2)
    assert session.state.queue[order.index("p4")].content == content("p4")


def test_a_place_below_zero_is_refused() -> None:
    busy("p2").refuses(edit("p2", position=-1), LocalProtocolError)


def test_a_waiting_prompt_that_is_removed_gets_its_end() -> None:
    session = busy("p2", "p3")
    plan = session.take(remove("p2"))
    assert types(plan.events) == ["pending_prompt_completed", "turn_complete"]
    end = session.found(ev.TurnCompleted)[0]
    assert (end.stop_reason, end.ending, end.cancelled_by) == ("cancelled", ev.Ending.REMOVED, "bob")
    assert session.waiting() == ["p3"]
    session.refuses(remove("p2"), PromptNotFound)
    session.refuses(remove("p1"), PromptNotQueued)


def test_a_cancel_of_the_turn_leaves_the_queue() -> None:
    session = busy("p2", "p3")
    session.take(cancel(), answered("p1", "cancelled"))
    assert (session.running(), session.waiting()) == ("p2", ["p3"])


# -- steering ------------------------------------------------------------------------------------------------


def test_a_steering_prompt_joins_the_running_turn_and_ends_with_it() -> None:
    session = busy("p2", steering=True)
    session.take(prompt("s1", when=STEER, request_id=9))
    assert session.waiting() == ["s1", "p2"]
    assert session.effects_of(SteerAgent) == [SteerAgent(PromptId("s1"), content("s1"))]
    plan = session.take(steered("s1", injected=True))
    assert types(plan.events) == ["prompt_injected", "user_message"]
    plan = session.take(answered("p1", "max_tokens"))
    assert session.ends() == {"p1": "max_tokens", "s1": "max_tokens"}
    joined = session.found(ev.TurnCompleted)[1]
    assert (joined.ending, joined.prompt_request_id) == (ev.Ending.JOINED, 9)
    assert session.running() == "p2"
    assert "s1" not in [each.prompt_id for each in session.effects_of(AskAgent)]


def test_a_turn_that_fails_fails_what_joined_it() -> None:
    session = busy(steering=True)
    session.take(prompt("s1", when=STEER), steered("s1", injected=True), refused("p1"))
    assert session.ends() == {"p1": "agent_error", "s1": "agent_error"}


def test_a_declined_steering_prompt_goes_next() -> None:
    session = busy("p2", steering=True)
    session.take(prompt("s1", when=STEER), steered("s1", injected=False))
    assert session.waiting() == ["s1", "p2"]
    assert [each.reason for each in session.found(ev.SteerDeclined)] == [ev.SteerRefusal.DECLINED]
    session.take(answered("p1"))
    assert session.running() == "s1"


@pytest.mark.parametrize("able", [True, False])
def test_a_prompt_that_cannot_steer_goes_next(able: bool) -> None:
    session = busy("p2", steering=able)
    if able:
        session.take(cancel())
    session.take(prompt("s1", when=STEER))
    assert session.waiting() == ["s1", "p2"]
    assert session.effects_of(SteerAgent) == []
    [declined] = session.found(ev.SteerDeclined)
    assert declined.reason is (ev.SteerRefusal.NOT_AT_WORK if able else ev.SteerRefusal.NOT_OFFERED)


@pytest.mark.parametrize("injected", [True, False])
def test_a_turn_that_ends_before_the_agent_said_whether_it_steers(injected: bool) -> None:
    session = busy("p2", steering=True)
    session.take(prompt("s1", when=STEER), answered("p1"))
    assert (session.running(), session.waiting()) == ("p2", ["s1"])
    session.take(answered("p2"))
    assert session.running() is None
    session.take(prompt("p3"), steered("s1", injected=injected))
    if injected:
        assert session.ends() == {"p1": "end_turn", "p2": "end_turn", "s1": "end_turn"}
        assert session.running() == "p3"
    else:
        assert (session.running(), session.waiting()) == ("s1", ["p3"])
        assert [each.reason for each in session.found(ev.SteerDeclined)] == [ev.SteerRefusal.TURN_ENDED]


def test_a_steering_prompt_that_comes_after_the_agents_turn_is_asked_once() -> None:
    session = busy(steering=True)
    session.take(prompt("s1", when=STEER), steer_outcome("s1", SteerOutcome.PROMPT_REQUIRED))
    assert [each.reason for each in session.found(ev.SteerDeclined)] == [ev.SteerRefusal.TURN_ENDED]
    session.take(answered("p1"), answered("s1"))
    assert [each.prompt_id for each in session.effects_of(AskAgent)] == ["p1", "s1"]


def test_a_steering_prompt_that_the_agent_runs_by_itself_is_never_asked_again() -> None:
    session = busy(steering=True)
    session.take(prompt("s1", when=STEER), answered("p1"), steer_outcome("s1", SteerOutcome.STARTED))
    session.take(chunk("late"))
    assert session.ends() == {"p1": "end_turn", "s1": "end_turn"}
    assert [each.prompt_id for each in session.effects_of(AskAgent)] == ["p1"]


def test_a_steering_prompt_that_a_v2_agent_runs_by_itself_is_its_turn() -> None:
    session = Session(ev.TurnEnd.IDLE, steering=True)
    session.take(prompt("p1"), answered("p1", None, "m1"), agent_is("running"), prompt("s1", when=STEER))
    session.take(agent_is("idle", stopReason="end_turn"), steer_outcome("s1", SteerOutcome.STARTED))
    assert session.running() == "s1"
    session.take(agent_is("running"), chunk("words"), agent_is("idle", stopReason="end_turn"))
    assert session.ends() == {"p1": "end_turn", "s1": "end_turn"}
    assert [each.prompt_id for each in session.effects_of(AskAgent)] == ["p1"]
    assert session.found(ev.SessionUpdated)[-2].prompt_id == "s1"


def test_what_waits_behind_a_steering_prompt_starts_when_that_is_cancelled() -> None:
    session = busy(steering=True)
    session.take(prompt("s1", when=STEER), answered("p1"), prompt("p2"))
    assert (session.running(), session.waiting()) == (None, ["s1", "p2"])
    session.take(cancel("s1"))
    assert session.ends() == {"p1": "end_turn", "s1": "cancelled"}
    assert session.running() == "p2"


def test_a_steering_prompt_is_out_of_its_authors_hands() -> None:
    session = busy(steering=True)
    session.take(prompt("s1", when=STEER))
    session.refuses(edit("s1", "x"), PromptNotQueued)
    session.refuses(remove("s1"), PromptNotQueued)


@pytest.mark.parametrize("injected", [True, False])
def test_a_second_word_about_steering_says_nothing_new(injected: bool) -> None:
    session = busy(steering=True)
    session.take(prompt("s1", when=STEER), steered("s1", injected=True))
    plan = session.take(steered("s1", injected=injected), steered("p1", injected=True))
    assert plan.events == ()
    session.take(answered("p1"), steered("s1", injected=injected))
    assert session.ends() == {"p1": "end_turn", "s1": "end_turn"}


def test_a_steering_prompt_of_a_lost_agent_gets_its_own_turn() -> None:
    session = busy(steering=True)
    session.take(prompt("s1", when=STEER))
    plan = session.take(gone())
    assert "prompt_steer_declined" in types(plan.events)
    assert [each.reason for each in session.found(ev.SteerDeclined)] == [ev.SteerRefusal.AGENT_GONE]
    assert session.running() == "s1"


def test_a_prompt_that_is_to_be_steered_into_a_held_session_waits_and_says_why() -> None:
    session = Session(steering=True)
    session.take(HoldQueue(at=1, reason="user"), prompt("s1", when=STEER))
    assert session.waiting() == ["s1"]
    assert [each.reason for each in session.found(ev.SteerDeclined)] == [ev.SteerRefusal.NO_TURN]


def test_a_prompt_waits_behind_a_turn_that_the_agent_began() -> None:
    session = Session(ev.TurnEnd.IDLE)
    session.take(agent_is("running"), prompt("p1"))
    assert session.waiting() == ["p1"]
    session.take(chunk(), agent_is("idle", stopReason="end_turn"))
    assert session.running() == "p1"


def test_content_is_passed_on_byte_for_byte() -> None:
    odd = Raw(b'[ {"type":"text", "text":"\\u00e9"} ]')
    session = busy()
    waiting = prompt("p2")
    session.take(replace(waiting, content=odd), answered("p1"))
    assert bytes(session.effects_of(AskAgent)[-1].content) == bytes(odd)
