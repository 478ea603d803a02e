"""The catalogue of events: one sample of each, types that are unique, times and payloads that stay."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace
from tests.unit.session.driving import AT, SAMPLES

from turnwire.session import events as ev
from turnwire.session.codec import EVENT_TYPES, encode


def defined() -> set[type[ev.Event]]:
    """Every event class of the catalogue."""
    classes = [each for each in vars(ev).values() if isinstance(each, type) and issubclass(each, ev.Event)]
    return {each for each in classes if each not in (ev.Event, ev.TurnEvent, ev.TerminalEvent)}


def test_every_event_class_has_one_sample() -> None:
    kinds = [type(each) for each in SAMPLES]
    assert len(kinds) == len(set(kinds))
    assert set(kinds) == defined()


def test_every_event_class_is_in_the_union_with_a_type_of_its_own() -> None:
    assert len(EVENT_TYPES) == len(defined())
    assert {each.__struct_config__.tag for each in defined()} == EVENT_TYPES


@pytest.mark.parametrize("event", SAMPLES, ids=lambda event: type(event).__name__)
def test_an_event_is_a_value(event: ev.AnyEvent) -> None:
    assert event.at == AT
    assert replace(event, at=AT) == event
    with pytest.raises(AttributeError):
        event.at = 0  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("event", SAMPLES, ids=lambda event: type(event).__name__)
def test_stored_fields_are_camel_case_and_the_type_comes_first(event: ev.AnyEvent) -> None:
    fields = msgspec.json.decode(encode(event), type=dict[str, object])
    assert next(iter(fields)) == "type"
    assert [name for name in fields if not name.isalnum()] == []


@pytest.mark.parametrize(
    "kind",
    [ev.PromptAccepted, ev.TurnStarted, ev.PermissionResolved, ev.CancelAsked, ev.TurnCompleted, ev.TurnFailed],
)
def test_acceptances_permissions_and_ends_are_never_relaxed(kind: type[ev.Event]) -> None:
    assert kind not in ev.RELAXED
