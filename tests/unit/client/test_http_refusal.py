"""Refusals over HTTP are the errors that they are inside one process."""

from __future__ import annotations

import pytest

from turnwire.client.http import is_passing, refusal_of, retry_after_of
from turnwire.errors import (
    AgentLaunchFailed,
    AgentUnavailable,
    AuthRequired,
    DaemonRefused,
    Forbidden,
    NotFound,
    QueueFull,
    SessionBusy,
    ShuttingDown,
    TooManyRequests,
    TurnwireError,
    Unauthenticated,
)


def test_errors_with_more_to_them_keep_it() -> None:
    auth = refusal_of(424, None, b'{"code":"auth_required","error":"log in","methods":[{"id":"a"}]}')
    assert isinstance(auth, AuthRequired)
    assert auth.methods == b'[{"id":"a"}]'
    launch = refusal_of(
        502, None, b'{"code":"agent_launch_failed","error":"no","definite":true,"agentError":{"code":1}}'
    )
    assert isinstance(launch, AgentLaunchFailed)
    assert (launch.definite, launch.agent_error) == (True, b'{"code":1}')


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (401, b"", Unauthenticated),
        (403, b"<html>no</html>", Forbidden),
        (404, b'{"error":"where?"}', NotFound),
        (429, b"", TooManyRequests),
        (418, b'{"code":"teapot","error":"short and stout"}', DaemonRefused),
        (502, b"<html>bad gateway</html>", DaemonRefused),
        (500, b'{"code":["a"],"error":{"deep":[]}}', DaemonRefused),
        (500, b"\xff\xfe", DaemonRefused),
        (302, b"", DaemonRefused),
        (409, b'{"code":"busy","error":"wait","message":"twice","self":1}', SessionBusy),
    ],
)
def test_any_answer_becomes_an_error_that_says_what_to_do(
    status: int, body: bytes, kind: type[TurnwireError]
) -> None:
    error = refusal_of(status, None, body)
    assert type(error) is kind
    assert "<html>" not in str(error)
    assert len(str(error)) > 3


def test_an_unknown_code_is_kept_for_the_caller() -> None:
    error = refusal_of(418, None, b'{"code":"teapot","error":"short and stout","potSize":2}')
    assert (error.context["reason"], error.context["status"], error.context["pot_size"]) == ("teapot", 418, 2)


@pytest.mark.parametrize(
    ("text", "seconds"), [("3", 3.0), ("0.5", 0.5), ("999999999", 3600.0), ("soon", 0.0), (None, 0.0), ("-1", 0.0)]
)
def test_retry_after_is_seconds_or_nothing(text: str | None, seconds: float) -> None:
    assert retry_after_of(refusal_of(503, text, b"")) == seconds


def test_only_what_is_about_the_moment_is_tried_again() -> None:
    assert is_passing(ShuttingDown("x"))
    assert is_passing(TooManyRequests("x"))
    assert is_passing(refusal_of(503, "1", b""))
    assert is_passing(refusal_of(502, None, b"<html>"))
    assert not is_passing(refusal_of(500, None, b""))
    assert not is_passing(refusal_of(302, None, b""))
    assert not is_passing(QueueFull("x"))
    assert not is_passing(AgentUnavailable("x"))
    assert not is_passing(SessionBusy("x"))
