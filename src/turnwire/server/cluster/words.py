"""The messages between two nodes: the params and the result of each method, and errors that retain their class.

Everything is JSON-RPC. An input is encoded as the core has it, under the name of its kind; payloads stay raw. An
error is an error object whose `data` names it, and is raised at the other end as the same class; one that this
version does not know is a general error. Unknown members are skipped, so that two releases can communicate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar, cast, get_args, get_type_hints

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import replace

from turnwire.errors import RemoteProtocolError, Shown, TurnwireError, kind_of, tree
from turnwire.ids import ClientId, PromptId, RequestId, SessionId
from turnwire.server.daemon.clients import There
from turnwire.session.ending import Cancelled
from turnwire.session.inputs import AgentUpdate, AnswerPermission, AnyInput, Cancel, Prompt
from turnwire.session.permissions import PermissionAnswer
from turnwire.session.queue import Accepted
from turnwire.wire.jsonrpc import INTERNAL_ERROR, UNREADABLE, ErrorObject, raw
from turnwire.wire.peek import peek_update

T = TypeVar("T")

SUBMIT: Final = "submit"
ACCEPT: Final = "accept"
TOLD: Final = "told"
DELETE: Final = "delete"
RETAIN: Final = "retain"
FORK: Final = "fork"
EXPLAIN: Final = "explain"
AUTHENTICATE: Final = "authenticate"
CONFIGURE: Final = "configure"
WAKE: Final = "wake"
CALL: Final = "call"
NOTIFY: Final = "notify"
OFFER: Final = "offer"
RETRACT: Final = "retract"
SERVE: Final = "serve"
LISTEN: Final = "listen"
LEAVE: Final = "leave"
HEARD: Final = "heard"
PRESENT: Final = "present"
CUT: Final = "cut?"
WITHDRAW: Final = "withdraw"

IN_SESSION: Final = "session"
TO_ALL: Final = "all"
COMPLETED: Final = "completed"
"""The scope of an agent's notification: a session, no session, or the end of an elicitation."""


class Word(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The params of one method."""


class Submit(Word, frozen=True):
    """Params of `submit` and `accept`. The result is a `Submitted`."""

    session: SessionId
    ask: int
    """The idempotency number of the request within its incarnation: a repeated number is not processed again."""
    kind: str
    input: Raw


class Submitted(Word, frozen=True):
    answer: Raw
    head: int


class Told(Word, frozen=True):
    """Acknowledgement that the client of an accepted prompt has its response."""

    prompt: PromptId


class OfSession(Word, frozen=True):
    """Params of `delete` and `wake`."""

    session: SessionId


class Retain(Word, frozen=True):
    """Params of `retain`. The result is the oldest offset that is retained."""

    session: SessionId
    keep_events: int


class Fork(Word, frozen=True):
    """A session forked from another one, at its agent."""

    session: SessionId
    """The parent session."""
    fork: SessionId
    cwd: str
    mcp_servers: Raw
    additional_directories: tuple[str, ...] = ()
    meta: Raw | UnsetType = UNSET
    extra: Raw | UnsetType = UNSET
    author: str | None = None
    title: str | None = None


class Explain(Word, frozen=True):
    """Params of `explain`. The result is an `Explanation`."""

    session: SessionId
    for_owner: bool


class Authenticate(Word, frozen=True):
    session: SessionId
    method_id: str


class ToAgent(Word, frozen=True):
    """Params of `configure`, `call` and `notify`: a method of the agent's, with its params."""

    session: SessionId
    method: str
    params: Raw


class Called(Word, frozen=True):
    """The agent's response to `call`: one of the two."""

    result: Raw | UnsetType = UNSET
    error: ErrorObject | UnsetType = UNSET


class Offer(Word, frozen=True):
    """An offer of a client of the sending node to serve these methods of the session's agent (`serve`)."""

    session: SessionId
    client: ClientId
    methods: tuple[str, ...]
    foreign: bool
    """True if the offer includes all extension methods."""
    same: int | None
    """The number of a client while it is connected, the same for all its sessions."""
    owner: str | None = None


class Retract(Word, frozen=True):
    session: SessionId
    client: ClientId


class Serve(Word, frozen=True):
    """A request of the agent for a client that offered to serve it."""

    session: SessionId
    client: ClientId
    method: str
    params: Raw
    after: int


class Listen(Word, frozen=True):
    """A subscription by a client of the sending node to the agent's other messages, sent as `heard`."""

    session: SessionId
    listener: int
    same: int


class Leave(Word, frozen=True):
    listener: int


class Heard(Word, frozen=True):
    """An agent's notification, and for each listener the event of its session that it follows."""

    how: str
    method: str
    params: Raw
    behind: dict[str, int]
    """Listener number → offset."""


class Present(Word, frozen=True):
    """The clients at sessions of the sending node."""

    sessions: dict[SessionId, There]
    whole: bool
    """True if other sessions have no clients; else they are unchanged."""


class Cut(Word, frozen=True):
    """The result of `cut?`."""

    cut: bool


class Withdraw(Word, frozen=True):
    """Cancellation of a request whose response is no longer awaited."""

    request: RequestId


NOTHING: Final = Raw(b"null")

INPUTS: Final[dict[str, type[AnyInput]]] = {each.__name__: each for each in get_args(AnyInput)}
_ANSWERS: Final[dict[type[Any], Any]] = {
    Prompt: Accepted,
    AnswerPermission: PermissionAnswer,
    Cancel: Cancelled,
}
"""The session's result by kind of input; other inputs have none."""


def submit_of(session_id: SessionId, input: AnyInput, ask: int) -> Submit:
    """Return the message for an input."""
    return Submit(session_id, ask, type(input).__name__, raw(input))


def input_of(word: Submit) -> AnyInput:
    """Return the input of a message. Raises `RemoteProtocolError`."""
    kind = INPUTS.get(word.kind)
    if kind is None:
        raise RemoteProtocolError("a node sent an input that this version does not know", kind=word.kind)
    members = read(word.input, dict[str, Raw])
    payloads = {name: value for name in _PAYLOADS[kind] if (value := members.pop(name, NOTHING)) != NOTHING}
    if kind is AgentUpdate:
        members["peek"] = raw(peek_update(members.get("update", NOTHING)))
    return replace(read(raw(members), kind), **payloads)


def _payloads(kind: type[AnyInput]) -> frozenset[str]:
    return frozenset(name for name, hint in get_type_hints(kind).items() if hint == Raw | None)


_PAYLOADS: Final = {kind: _payloads(kind) for kind in INPUTS.values()}
"""Members that may be any JSON or absent, which a JSON decoder does not distinguish."""


def answer_of(kind: type[AnyInput], answer: Raw) -> object:
    """Return the session's result of an input of this kind. Raises `RemoteProtocolError`."""
    return read(answer, _ANSWERS.get(kind, type(None)))


def read(payload: Raw, shape: type[T]) -> T:
    """Decode params or a result. Raises `RemoteProtocolError`."""
    try:
        return msgspec.json.decode(payload, type=shape)
    except UNREADABLE:
        raise RemoteProtocolError("a node sent what this version cannot read", shape=shape.__name__) from None


# -- errors --------------------------------------------------------------------------------------------------

_BY_CODE: Final = {each.code: each for each in tree()}
_SAID: Final = ("methods", "agent_error", "data")
"""Members of some errors in addition to their context: data of an agent or a client, as JSON."""


class _Refusal(Struct, frozen=True, omit_defaults=True):
    code: str
    context: dict[str, str | int | float | bool | tuple[str, ...] | None] = {}
    said: dict[str, Raw] = {}


def refusal_of(error: BaseException) -> ErrorObject:
    """Return the error object for the other node. The text of a foreign exception is not sent."""
    kind = kind_of(error)
    if not isinstance(error, TurnwireError):
        return ErrorObject(INTERNAL_ERROR, "the session's node failed; its log says why", raw(_Refusal(kind.code)))
    said = {name: _json(value) for name in _SAID if (value := getattr(error, name, None)) is not None}
    return ErrorObject(kind.jsonrpc_code, str(error), raw(_Refusal(kind.code, error.context, said)))


def error_of(error: ErrorObject) -> TurnwireError:
    """Return the error that another node raised."""
    try:
        told = None if error.data is UNSET else msgspec.json.decode(error.data, type=_Refusal)
    except UNREADABLE:
        told = None
    kind = None if told is None else _BY_CODE.get(told.code)
    if told is None or kind is None:
        return TurnwireError(error.message)
    make = cast("Callable[..., TurnwireError]", kind)
    said: dict[str, Shown | bytes | Raw] = {
        name: Raw(value) if kind.code == "request_refused" else bytes(value) for name, value in told.said.items()
    }
    return make(error.message, **told.context, **said)


def _json(value: object) -> Raw:
    """Return the value as JSON; some errors store bytes of JSON, one stores a value."""
    return Raw(value) if isinstance(value, bytes) else raw(value)
