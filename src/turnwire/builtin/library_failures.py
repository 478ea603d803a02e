"""What went wrong with a request, in our words.

Takes an exception of the model library; gives a `Failure`: a reason, a text for people that says what to do,
whether it may pass by itself. What the provider said stays in `words`, for a log, and never gets into the text.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from pydantic_ai.exceptions import (
    AgentRunError,
    ModelAPIError,
    ModelAuthenticationError,
    ModelConnectionError,
    ModelContextWindowExceededError,
    ModelHTTPError,
    ModelNotFoundError,
    ModelQuotaExceededError,
    ModelRateLimitError,
    ModelRequestRejectedError,
    ModelServerError,
    ModelUnavailableError,
    UserError,
)

from turnwire.builtin.library_choice import ModelChoice
from turnwire.builtin.model import FailureReason
from turnwire.errors import ModelFailed

ERRORS = (AgentRunError, UserError)
"""What a request through the library raises."""

_CODE = re.compile(r"[A-Za-z0-9_.-]{1,60}")
"""A code of a provider is a word of its documentation. What looks otherwise may be anything."""


class Failure(NamedTuple):
    """A request that failed."""

    reason: FailureReason
    text: str
    may_pass: bool = False
    """Whether the same request may work a little later."""
    asked_wait_s: float | None = None
    """What the provider asked to wait."""
    words: str = ""

    def error(self) -> ModelFailed:
        return ModelFailed(self.text, reason=self.reason)


class _Kind(NamedTuple):
    error: type[Exception]
    reason: FailureReason
    may_pass: bool
    text: str


# In order: what is more exact comes first.
_KINDS = (
    _Kind(
        ModelQuotaExceededError, "rate_limited", False, "{name} has no quota or credit left{code}; see the account"
    ),
    _Kind(
        ModelRateLimitError, "rate_limited", True, "{name} takes no more requests for now{code}; try again later"
    ),
    _Kind(ModelUnavailableError, "overloaded", True, "{name} is overloaded or down{code}; try again later"),
    _Kind(ModelServerError, "overloaded", True, "the server of {name} failed{code}; try again later"),
    _Kind(
        ModelContextWindowExceededError, "too_long", False, "the conversation is too long for {name}; shorten it"
    ),
    _Kind(ModelAuthenticationError, "unauthorized", False, "{name} does not take the key{code}; check {variable}"),
    _Kind(ModelNotFoundError, "bad_request", False, "there is no model {name} at {place}{code}; check its name"),
    _Kind(UserError, "bad_request", False, "the conversation cannot be put to {name}; the log says why"),
    _Kind(
        ModelRequestRejectedError, "bad_request", False, "{name} does not take the request{code}; the log says why"
    ),
)


def failure(error: Exception, choice: ModelChoice, *, seen: bool) -> Failure:
    """What `error` means. `seen` says that pieces of the answer were given: then it is a cut, whatever it was."""
    kind = _kind(error)
    text = kind.text.format(name=choice.name, place=_place(choice), code=_code(error), variable=choice.key_variable)
    if seen:
        why = "try again" if kind.reason == "cut" else text
        return Failure("cut", f"the answer of {choice.name} broke off; {why}", words=str(error))
    asked_s = error.retry_after if isinstance(error, ModelAPIError) else None
    says_no = isinstance(error, ModelHTTPError) and error.provider_retry_hint is False
    return Failure(kind.reason, text, kind.may_pass and not says_no, asked_s, str(error))


def _kind(error: Exception) -> _Kind:
    if isinstance(error, ModelConnectionError):
        if error.phase == "read":
            return _Kind(ModelConnectionError, "cut", True, "the connection to {name} broke; try again")
        return _Kind(
            ModelConnectionError, "unreachable", True, "nothing answers at {place}; check the network or URL"
        )
    for kind in _KINDS:
        if isinstance(error, kind.error):
            return kind
    return _Kind(Exception, "unknown", False, "{name} gave no answer that can be read{code}; the log says why")


def _place(choice: ModelChoice) -> str:
    # A URL may hold a name and a password before its host, and they are nobody's business.
    return "the provider" if choice.url is None else choice.url.partition("://")[2].rpartition("@")[2]


def _code(error: Exception) -> str:
    """The status and the code of a provider, if they are there."""
    status = str(error.status_code) if isinstance(error, ModelHTTPError) else ""
    words = [error.provider_error_code, error.provider_error_type] if isinstance(error, ModelAPIError) else []
    code = next((word for word in words if word and _CODE.fullmatch(word)), "")
    told = " ".join(each for each in (status, code) if each)
    return f" ({told})" if told else ""
