"""Every limit has a range and a reason, and a value outside the range refuses to start."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest

from turnwire.errors import ConfigError
from turnwire.limits import Bound, Limits, catalogue, check

CATALOGUE = catalogue()
every_limit = pytest.mark.parametrize("name", CATALOGUE)


def with_limit(name: str, value: Any) -> Limits:
    return Limits(**{name: value})


def test_the_defaults_are_legal() -> None:
    limits = Limits()
    assert {name: getattr(limits, name) for name in CATALOGUE} == {
        name: default for name, (default, _) in CATALOGUE.items()
    }


def test_the_catalogue_lists_every_limit() -> None:
    assert list(CATALOGUE) == [each.name for each in fields(Limits)]


@every_limit
def test_a_limit_says_its_unit_its_range_and_its_reason(name: str) -> None:
    default, bound = CATALOGUE[name]
    assert bound.unit
    assert bound.why
    assert bound.at_least <= default <= bound.at_most
    assert bound.at_least < bound.at_most


@every_limit
def test_the_ends_of_a_range_are_legal(name: str) -> None:
    bound = CATALOGUE[name][1]
    assert getattr(with_limit(name, bound.at_least), name) == bound.at_least
    assert getattr(with_limit(name, bound.at_most), name) == bound.at_most


@every_limit
def test_a_value_outside_its_range_refuses_to_start_and_says_the_range(name: str) -> None:
    bound = CATALOGUE[name][1]
    for value in (bound.at_least - 1, bound.at_most + 1, float("nan"), float("inf")):
        with pytest.raises(ConfigError) as refusal:
            with_limit(name, value)
        assert refusal.value.context == {"limit": name}
        assert name in str(refusal.value)
        assert f"{bound.at_least:g} to {bound.at_most:g} {bound.unit}" in str(refusal.value)
        assert bound.why in str(refusal.value)


@pytest.mark.parametrize("value", [True, "64", None, [64]])
def test_what_is_no_number_is_refused(value: object) -> None:
    with pytest.raises(ConfigError):
        check("queue_length", value, Bound("prompts", 0, 100, "a reason"))


def test_limits_do_not_change_once_they_are_checked() -> None:
    limits = Limits(queue_length=4)
    assert limits.queue_length == 4
    with pytest.raises(FrozenInstanceError):
        limits.queue_length = 0  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("given", [{"self_s": 8.0}, {"beat_s": 5.5}, {"lease_s": 300.0}])
def test_a_node_of_several_stops_itself_before_others_declare_it_gone(given: dict[str, Any]) -> None:
    Limits().check_leases()
    with pytest.raises(ConfigError, match="must be less than"):
        Limits(**given).check_leases()
