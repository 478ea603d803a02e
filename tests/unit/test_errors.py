"""Every error in one table: its code, its numbers on each surface, and that it survives the way to a client."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from turnwire.client.http import refusal_of
from turnwire.errors import (
    AgentFailure,
    DaemonRefused,
    LimitExceeded,
    LogLocked,
    LogUnavailable,
    ModelFailed,
    PartNeeded,
    QueueFull,
    RequestRefused,
    TurnError,
    TurnwireError,
    kind_of,
    tree,
)
from turnwire.server.cluster import words
from turnwire.server.refusals import problem_of

TABLE = """
    TurnwireError           internal                    500  -32603  70  -
    ProtocolError           protocol_error              400  -32600  65  -
    LocalProtocolError      not_legal_now               409  -32600  70  -
    RemoteProtocolError     peer_broke_protocol         502  -32600  76  -
    SessionError            session_error               400  -32602  65  -
    SessionNotFound         session_not_found           404  -32002  66  -
    SessionExists           session_id_conflict         409  -32602  65  -
    SessionClosed           session_closed              410  -32002  66  -
    ContentRefused          content_refused             400  -32602  65  -
    SessionBusy             busy                        409  -32602  75  retry
    QueueFull               prompt_queue_full           503  -32602  75  retry
    QueueTooLarge prompt_queue_too_large 429 -32602  75  retry
    IdempotencyConflict     idempotency_conflict        409  -32602  65  -
    PromptNotFound          prompt_not_found            404  -32002  66  -
    PromptNotQueued         prompt_not_queued           409  -32602  65  -
    PermissionNotFound      permission_not_found        404  -32002  66  -
    ChildRestricted         child_restricted            409  -32602  65  -
    InvalidOption           invalid_option_id           400  -32602  65  -
    InvalidMode             invalid_approval_mode       400  -32602  65  -
    InvalidMetadata         invalid_metadata            400  -32602  65  -
    SessionLimitReached     session_limit_exceeded      503  -32602  75  retry
    SessionMoving           session_moving              503  -32602  75  retry
    RequestRefused          request_refused             400  -32602  65  -
    LogError                log_error                   500  -32603  74  -
    AppendConflict          append_conflict             409  -32603  75  retry
    NotOwner                not_owner                   409  -32603  75  retry
    LifeOver                life_over                   503  -32603  75  -
    PositionLost            position_lost               410  -32002  66  -
    LogUnavailable          log_unavailable             503  -32603  75  retry
    LogLocked               log_locked                  503  -32603  75  retry
    LogFull                 log_full                    507  -32603  75  retry
    LogCorrupt              log_corrupt                 500  -32603  74  -
    PartNeeded              part_needed                 500  -32603  74  -
    LogVersionMismatch      log_version_mismatch        500  -32603  78  -
    LinkError               link_error                  502  -32603  76  -
    LinkClosed              link_closed                 503  -32603  75  -
    LinkBroken              link_broken                 502  -32603  76  retry
    NodeUnreachable         node_unreachable            503  -32603  75  retry
    AnswerLost              answer_lost                 503  -32603  75  retry
    AgentError              agent_error                 502  -32603  69  -
    AgentLaunchFailed       agent_launch_failed         502  -32603  69  -
    AgentUnavailable        agent_unavailable           503  -32603  75  retry
    AuthRequired            auth_required               424  -32000  77  -
    AgentFailure            agent_failure               502  -32603  69  -
    NotOffered              not_offered                 502  -32603  69  -
    ModelFailed             model_failed                502  -32603  69  -
    TurnError               turn_failed                 502  -32603  76  -
    DaemonUnreachable       daemon_unreachable          502  -32603  69  retry
    DaemonRefused           daemon_refused              502  -32603  76  -
    ClientClosed            client_closed               503  -32603  75  -
    RequestError            request_error               400  -32600  65  -
    BadRequest              bad_request                 400  -32600  65  -
    InvalidCwd              invalid_cwd                 400  -32602  65  -
    HeadersTooLarge         headers_too_large           431  -32600  65  -
    BodyTooSlow             body_too_slow               408  -32600  75  retry
    UnsupportedMedia        unsupported_media_type      415  -32600  65  -
    NotAcceptable           not_acceptable              406  -32600  65  -
    Unauthenticated         unauthenticated             401  -32000  77  -
    Forbidden               forbidden                   403  -32600  77  -
    NotFound                not_found                   404  -32002  66  -
    MethodNotAllowed        method_not_allowed          405  -32601  65  -
    UnknownClient           invalid_client_id           400  -32602  65  -
    UnknownAgent            unknown_agent               400  -32602  65  -
    TooManyRequests         rate_limited                429  -32600  75  retry
    ConnectionLimitReached  connection_limit_exceeded   503  -32600  75  retry
    ShuttingDown            shutting_down               503  -32603  75  retry
    RuleBroken              rule_broken                 500  -32603  65  -
    NotScored               not_scored                  500  -32603  65  -
    CredentialsNotStored    credentials_not_stored      507  -32603  74  retry
    RecordingUnreadable     recording_unreadable        400  -32600  65  -
    RecordingMismatch       recording_mismatch          400  -32600  65  -
    LimitExceeded           limit_exceeded              413  -32602  65  -
    ConfigError             config_error                500  -32603  78  -
"""
"""Class, code, HTTP status, JSON-RPC code, exit status, and whether the same request may succeed later."""
NEEDED: dict[str, dict[str, Any]] = {
    "agent_launch_failed": {"definite": False},
    "model_failed": {"reason": "r"},
    "request_refused": {"jsonrpc": 1, "reason": "r"},
    "turn_failed": {"reason": "r", "prompt_id": "p"},
}
"""Arguments without which an error cannot be made."""


def row(error: type[TurnwireError]) -> list[str]:
    numbers = (error.http_status, error.jsonrpc_code, error.exit_status)
    return [error.__name__, error.code, *map(str, numbers), "retry" if error.retryable else "-"]


def test_every_error_has_the_code_and_the_numbers_of_the_table() -> None:
    wanted = sorted(line.split() for line in TABLE.strip().splitlines())
    assert sorted(map(row, tree())) == wanted
    assert len({code for _, code, *_ in wanted}) == len(wanted), "codes are unique"


def test_every_error_reaches_a_client_over_http_and_another_node() -> None:
    for kind in tree():
        error = kind("what is wrong", **NEEDED.get(kind.code, {}))
        if kind not in (PartNeeded, TurnError):
            assert type(words.error_of(words.refusal_of(error))) is kind, kind
        # Errors raised by an SDK, and those sent to agents only, never cross HTTP.
        if kind not in (TurnError, RequestRefused, DaemonRefused, AgentFailure, ModelFailed):
            status, headers, body = problem_of(error)
            found = refusal_of(status, headers.get("Retry-After"), msgspec.json.encode(body))
            assert (type(found), str(found)) == (kind, "what is wrong"), kind


def test_an_error_carries_its_message_and_what_may_be_shown() -> None:
    error = QueueFull("the queue is full", limit=3, pending=3)
    assert str(error) == "the queue is full"
    assert error.context == {"limit": 3, "pending": 3}
    assert TurnwireError("no").context == {}


def test_a_class_without_a_number_has_the_one_of_its_parent() -> None:
    class Derived(LimitExceeded):
        """A subclass as a program may define it."""

    told = kind_of(Derived("x"))
    assert (told.http_status, told.jsonrpc_code, told.exit_status) == (413, -32602, 65)
    assert Derived not in set(tree())
    assert issubclass(LogLocked, LogUnavailable)


@pytest.mark.parametrize("foreign", [ValueError("secret"), KeyboardInterrupt(), OSError(2, "secret")])
def test_a_foreign_error_is_an_internal_one(foreign: BaseException) -> None:
    assert kind_of(foreign) is TurnwireError
