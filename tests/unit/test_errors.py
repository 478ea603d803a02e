"""What an error says: its code, whether to try again, what may be shown, and what it is on each surface."""

from __future__ import annotations

import pytest

from turnwire.errors import (
    AppendConflict,
    FrameTooLarge,
    LimitExceeded,
    LinkBroken,
    LinkClosed,
    LocalProtocolError,
    LogFull,
    LogLocked,
    LogUnavailable,
    PositionLost,
    PromptNotFound,
    QueueFull,
    SessionBusy,
    SessionClosed,
    SessionNotFound,
    TurnwireError,
    kind_of,
    tree,
)


def test_an_error_carries_its_message_and_what_may_be_shown() -> None:
    error = QueueFull("the queue is full", limit=3, pending=3)
    assert str(error) == "the queue is full"
    assert error.context == {"limit": 3, "pending": 3}
    assert error.code == "prompt_queue_full"


def test_an_error_without_context_shows_nothing() -> None:
    assert TurnwireError("no").context == {}


@pytest.mark.parametrize("error", list(tree()), ids=lambda error: error.__name__)
def test_every_error_is_what_its_class_says(error: type[TurnwireError]) -> None:
    assert kind_of(error.__new__(error)) is error


@pytest.mark.parametrize(
    "error", [SessionBusy, QueueFull, AppendConflict, LogUnavailable, LogLocked, LogFull, LinkBroken]
)
def test_what_may_go_better_the_next_time_is_retryable(error: type[TurnwireError]) -> None:
    assert error.retryable


@pytest.mark.parametrize(
    "error", [TurnwireError, LocalProtocolError, SessionClosed, PromptNotFound, PositionLost, LinkClosed]
)
def test_what_fails_the_same_way_again_is_not_retryable(error: type[TurnwireError]) -> None:
    assert not error.retryable


@pytest.mark.parametrize(
    ("error", "http", "jsonrpc"),
    [
        (SessionNotFound, 404, -32002),
        (PromptNotFound, 404, -32002),
        (SessionClosed, 410, -32002),
        (SessionBusy, 409, -32602),
        (QueueFull, 503, -32602),
        (PositionLost, 410, -32002),
        (FrameTooLarge, 413, -32602),
        (LinkClosed, 503, -32603),
    ],
)
def test_what_clients_act_on_has_the_number_they_know(error: type[TurnwireError], http: int, jsonrpc: int) -> None:
    told = kind_of(error("x"))
    assert (told.http_status, told.jsonrpc_code) == (http, jsonrpc)


def test_an_error_that_says_no_number_has_its_parents() -> None:
    class Derived(LimitExceeded):
        """As a program may define its own."""

    told = kind_of(Derived("x"))
    assert (told.http_status, told.jsonrpc_code, told.exit_status) == (413, -32602, 65)
    assert Derived not in set(tree())


@pytest.mark.parametrize("foreign", [ValueError("secret"), KeyboardInterrupt(), OSError(2, "secret")])
def test_a_foreign_error_is_an_internal_one(foreign: BaseException) -> None:
    assert kind_of(foreign) is TurnwireError


def test_families_can_be_caught_by_their_parent() -> None:
    assert issubclass(LogLocked, LogUnavailable)
    assert issubclass(FrameTooLarge, LimitExceeded)
    assert not issubclass(LocalProtocolError, SessionNotFound)
