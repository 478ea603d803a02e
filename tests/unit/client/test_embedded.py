"""The newest events of a session in this process: a follower gets the same as the log has."""

from __future__ import annotations

from random import Random

import pytest

from turnwire.client.embedded import KEPT, Newest
from turnwire.ids import PromptId
from turnwire.runtime.follow import Page
from turnwire.session import events as ev
from turnwire.session.codec import encode_all
from turnwire.wire.jsonrpc import raw


def said(number: int) -> ev.AnyEvent:
    update = raw({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": f"{number} é"}})
    return ev.SessionUpdated(at=number, kind="agent_message_chunk", update=update, prompt_id=PromptId("p"))


def page_of(events: list[ev.AnyEvent], after: int, upto: int) -> Page:
    return Page(upto, encode_all(events[after:upto]))


@pytest.mark.parametrize("seed", range(30))
def test_followers_of_any_pace_read_what_the_log_has(seed: int) -> None:
    chance, newest = Random(seed), Newest()
    events: list[ev.AnyEvent] = []
    cursors = [0] * chance.randrange(1, 4)
    followed = [newest.followed() for _ in cursors]
    for each in followed:
        each.__enter__()
    for _ in range(40):
        some = [said(len(events) + number) for number in range(chance.randrange(1, 50))]
        events += some
        if chance.random() < 0.95:
            newest.publish(len(events), some)
        for place, after in enumerate(cursors):
            upto = chance.randint(after, len(events))
            if upto > after:
                assert newest.read(page_of(events, after, upto)) == events[after:upto]
                cursors[place] = upto
    for each in followed:
        each.__exit__(None, None, None)


def test_a_follower_is_given_the_events_themselves_once_and_then_what_the_log_has() -> None:
    newest, events = Newest(), [said(number) for number in range(4)]
    with newest.followed():
        newest.publish(4, events)
        assert newest.read(page_of(events, 0, 2))[0] is events[0]
        assert newest.read(page_of(events, 2, 4))[1] is events[3]
        again = newest.read(page_of(events, 0, 4))
        assert again == events
        assert again[0] is not events[0]


def test_nothing_is_kept_for_nobody_and_little_for_who_does_not_read() -> None:
    newest, events = Newest(), [said(number) for number in range(5 * KEPT)]
    newest.publish(2, events[:2])
    with newest.followed():
        assert newest.read(page_of(events, 0, 2))[0] is not events[0]
        for end in range(KEPT, len(events) + 1, KEPT):
            newest.publish(end, events[end - KEPT : end])
        assert newest.read(page_of(events, 0, 1))[0] is not events[0]
        assert newest.read(page_of(events, len(events) - 1, len(events)))[0] is events[-1]
