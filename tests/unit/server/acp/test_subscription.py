"""One session at one client: actions of its readers happen once, whichever reader triggered them."""

from __future__ import annotations

import pytest

from turnwire.ids import ClientId, Epoch, SessionId
from turnwire.server.acp.subscription import Start, Subscription, SubscriptionState, Wake
from turnwire.wire.jsonrpc import raw

pytestmark = pytest.mark.anyio

GREETING = [raw({"sessionUpdate": "session_info_update"})]


class Opened:
    """A subscription, and the number of its answers and notifications."""

    def __init__(self) -> None:
        self.answers = 0
        self.holds = 0
        self.changes = 0
        self.subscription = Subscription(SessionId("s-1"), 64, self._changed)

    def open(self, *, is_gated: bool = False) -> Subscription:
        start = Start(ClientId("c-1"), Epoch("e-1"), 3, 7, greeting=GREETING, answer=self._answer)
        self.subscription.open(start, self._held if is_gated else None)
        return self.subscription

    def _answer(self) -> None:
        self.answers += 1

    def _held(self, _: Subscription) -> None:
        self.holds += 1

    def _changed(self, _: Subscription) -> None:
        self.changes += 1


async def test_the_first_reader_behind_the_history_answers_and_the_first_behind_the_gate_greets() -> None:
    opened = Opened()
    subscription = opened.open()
    assert (subscription.state, opened.answers) == (SubscriptionState.HISTORY, 0)
    subscription.answer()
    subscription.answer()
    assert (subscription.state, opened.answers) == (SubscriptionState.GATE, 1)
    assert [subscription.greet(), subscription.greet()] == [GREETING, ()]
    assert subscription.state is SubscriptionState.LIVE


async def test_what_was_answered_before_it_began_has_no_history() -> None:
    subscription = Subscription(SessionId("s-1"), 64)
    subscription.open(Start(ClientId("c-1"), Epoch("e-1"), 0, 0), lambda _: None)
    assert subscription.state is SubscriptionState.GATE
    assert not subscription.gate.is_open


async def test_the_wait_begins_when_the_answer_is_out() -> None:
    opened = Opened()
    subscription = opened.open(is_gated=True)
    assert opened.holds == 0
    subscription.answer()
    subscription.answer()
    assert (opened.holds, subscription.gate.is_open) == (1, False)


async def test_each_opening_has_a_gate_of_its_own() -> None:
    opened = Opened()
    first = opened.open(is_gated=True).gate
    second = opened.open(is_gated=True).gate
    opened.subscription.open_gate()
    assert (first.is_open, second.is_open) == (False, True)


async def test_a_pause_makes_readers_begin_anew_where_they_stood() -> None:
    opened = Opened()
    subscription = opened.open()
    subscription.answer()
    before = subscription.generation
    subscription.pause()
    assert subscription.is_attached
    assert subscription.paused_generation == subscription.generation > before
    subscription.resume()
    assert (subscription.state, opened.answers) == (SubscriptionState.GATE, 1)
    assert subscription.generation > subscription.paused_generation
    resumed = subscription.generation
    subscription.resume()
    assert subscription.generation == resumed, "nothing was paused"


async def test_what_waits_behind_the_queue_is_forgotten_when_the_session_is_opened_anew() -> None:
    opened = Opened()
    subscription = opened.open()
    left: list[str] = []
    subscription.put(b"answer", 0)
    subscription.call_behind_queue(lambda: left.append("once"))
    subscription.delivered(7, 0)
    assert not left, "the answer was not given yet"
    opened.open()
    subscription.delivered(7, 1)
    assert not left
    subscription.call_behind_queue(lambda: left.append("then"))
    subscription.delivered(7, 1)
    subscription.delivered(8, 1)
    assert left == ["then"]


async def test_an_ended_one_is_not_opened_any_more() -> None:
    opened = Opened()
    opened.open()
    opened.subscription.end()
    assert opened.open().state is SubscriptionState.OVER
    assert opened.subscription.client_id is None
    assert opened.answers == 0


async def test_whoever_tends_it_hears_of_readers_openings_and_closings() -> None:
    opened, wake = Opened(), Wake()
    subscription = opened.open()
    subscription.add_reader(wake, is_stream=True)
    assert (subscription.readers, subscription.streams, opened.changes) == (1, 1, 2)
    subscription.remove_reader(wake, is_stream=True)
    subscription.close()
    assert (subscription.readers, subscription.streams, opened.changes) == (0, 0, 4)


async def test_what_is_done_behind_an_event_waits_for_the_reader_that_is_there() -> None:
    subscription, done = Opened().open(), list[int]()
    wake = Wake()
    subscription.behind(9, lambda: done.append(0))
    assert done == [0], "nobody reads"
    subscription.add_reader(wake, is_stream=False)
    subscription.answer()
    subscription.behind(9, lambda: done.append(1))
    assert done == [0, 1], "it is not told what comes yet"
    subscription.greet()
    for offset in (12, 9, 7):
        subscription.behind(offset, lambda offset=offset: done.append(offset))
    assert (done, subscription.next_behind) == ([0, 1], 7)
    subscription.delivered(8, 0)
    assert (done, subscription.next_behind) == ([0, 1, 7], 9)
    subscription.delivered(9, 0)
    subscription.behind(9, lambda: done.append(2))
    assert done == [0, 1, 7, 9, 2]
    subscription.remove_reader(wake, is_stream=False)
    assert (done, subscription.next_behind) == ([0, 1, 7, 9, 2, 12], None)


async def test_slower_reader_does_not_move_the_cursor_back() -> None:
    subscription = Opened().open()
    subscription.delivered(9, 0)
    subscription.delivered(4, 0)
    assert subscription.cursor == 9


async def test_what_is_done_behind_an_event_is_done_when_the_session_begins_anew_or_is_left() -> None:
    for leave in (Subscription.pause, Subscription.close, Subscription.end):
        opened, done = Opened(), list[str]()
        subscription = opened.open()
        subscription.add_reader(Wake(), is_stream=False)
        subscription.answer()
        subscription.greet()
        subscription.behind(9, lambda done=done: done.append("once"))
        leave(subscription)
        assert done == ["once"]
