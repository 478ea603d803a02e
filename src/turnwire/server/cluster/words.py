"""The words between two nodes: the params and the result of each method, and errors that stay what they are.

Everything is JSON-RPC. An input travels as the core has it, under the name of its kind; payloads stay raw. A
refusal is an error object whose `data` names it, and is raised at the other end as the same class; one that this
version does not know is an error all the same. Members that are not known are skipped: two releases may talk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar, cast, get_args, get_type_hints

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import replace

from turnwire.core.ending import Cancelled
from turnwire.core.inputs import AgentUpdate, AnswerPermission, AnyInput, Cancel, Prompt
from turnwire.core.permissions import PermissionAnswer
from turnwire.core.queue import Accepted
from turnwire.errors import RemoteProtocolError, Shown, TurnwireError, kind_of, tree
from turnwire.ids import ClientId, PromptId, RequestId, SessionId
from turnwire.server.daemon.clients import There
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
"""How an agent says something beside updates: about a session, about none, that an elicitation is over."""


class Word(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The params of one method."""


class Submit(Word, frozen=True):
    """Of `submit` and `accept`. The answer is a `Submitted`."""

    session: SessionId
    ask: int
    """Names it among all that this life asks: asked again by the same name, it is not done again."""
    kind: str
    input: Raw


class Submitted(Word, frozen=True):
    answer: Raw
    head: int


class Told(Word, frozen=True):
    """The client of an accepted prompt has its answer."""

    prompt: PromptId


class OfSession(Word, frozen=True):
    """Of `delete` and `wake`."""

    session: SessionId


class Retain(Word, frozen=True):
    """The answer is the oldest offset that is kept."""

    session: SessionId
    keep_events: int


class Fork(Word, frozen=True):
    """A session that goes on from another one, at its agent."""

    session: SessionId
    """The one it goes on from."""
    fork: SessionId
    cwd: str
    mcp_servers: Raw
    additional_directories: tuple[str, ...] = ()
    meta: Raw | UnsetType = UNSET
    author: str | None = None
    title: str | None = None


class Explain(Word, frozen=True):
    """The answer is an `Explanation`."""

    session: SessionId
    for_owner: bool


class Authenticate(Word, frozen=True):
    session: SessionId
    method_id: str


class ToAgent(Word, frozen=True):
    """Of `configure`, `call` and `notify`: a method of the agent's, with its params."""

    session: SessionId
    method: str
    params: Raw


class Called(Word, frozen=True):
    """What the agent answers to `call`: one of the two."""

    result: Raw | UnsetType = UNSET
    error: ErrorObject | UnsetType = UNSET


class Offer(Word, frozen=True):
    """A client of the node that says it does these for the session's agent, which `serve` asks of it."""

    session: SessionId
    client: ClientId
    methods: tuple[str, ...]
    foreign: bool
    """Also every method that is somebody's own."""
    same: int | None
    """One number for one client, of whichever session, while it is there."""
    owner: str | None = None


class Retract(Word, frozen=True):
    session: SessionId
    client: ClientId


class Serve(Word, frozen=True):
    """A request of the agent for a client that offered to do it."""

    session: SessionId
    client: ClientId
    method: str
    params: Raw
    after: int


class Listen(Word, frozen=True):
    """A client of the node that says it hears what the session's agent says beside updates: `heard`."""

    session: SessionId
    listener: int
    same: int


class Leave(Word, frozen=True):
    listener: int


class Heard(Word, frozen=True):
    """What an agent said, and behind which event of which listener's session."""

    how: str
    method: str
    params: Raw
    behind: dict[str, int]
    """Listener → offset."""


class Present(Word, frozen=True):
    """Who is at which sessions, at the node that says it."""

    sessions: dict[SessionId, There]
    whole: bool
    """There is nobody at any other one; else those are as they were."""


class Cut(Word, frozen=True):
    """The answer to `cut?`."""

    cut: bool


class Withdraw(Word, frozen=True):
    """Nobody waits for the answer to this request any more."""

    request: RequestId


NOTHING: Final = Raw(b"null")

INPUTS: Final[dict[str, type[AnyInput]]] = {each.__name__: each for each in get_args(AnyInput)}
_ANSWERS: Final[dict[type[Any], Any]] = {
    Prompt: Accepted,
    AnswerPermission: PermissionAnswer,
    Cancel: Cancelled,
}
"""What a session answers to an input; to the others, nothing."""


def submit_of(session_id: SessionId, input: AnyInput, ask: int) -> Submit:
    """An input on its way."""
    return Submit(session_id, ask, type(input).__name__, raw(input))


def input_of(word: Submit) -> AnyInput:
    """The same input. Raises `RemoteProtocolError`."""
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
"""The members that may be any JSON or none, which no reader of JSON tells apart."""


def answer_of(kind: type[AnyInput], answer: Raw) -> object:
    """What the session answered to an input of this kind. Raises `RemoteProtocolError`."""
    return read(answer, _ANSWERS.get(kind, type(None)))


def read(payload: Raw, shape: type[T]) -> T:
    """Params or a result. Raises `RemoteProtocolError`."""
    try:
        return msgspec.json.decode(payload, type=shape)
    except UNREADABLE:
        raise RemoteProtocolError("a node sent what this version cannot read", shape=shape.__name__) from None


# -- refusals ------------------------------------------------------------------------------------------------

_BY_CODE: Final = {each.code: each for each in tree()}
_SAID: Final = ("methods", "agent_error", "data")
"""What some errors carry beside their context: words of an agent or a client, as JSON."""


class _Refusal(Struct, frozen=True, omit_defaults=True):
    code: str
    context: dict[str, str | int | float | bool | tuple[str, ...] | None] = {}
    said: dict[str, Raw] = {}


def refusal_of(error: BaseException) -> ErrorObject:
    """An error for the other node. The text of an exception that is not ours stays here."""
    kind = kind_of(error)
    if not isinstance(error, TurnwireError):
        return ErrorObject(INTERNAL_ERROR, "the session's node failed; its log says why", raw(_Refusal(kind.code)))
    said = {name: _json(value) for name in _SAID if (value := getattr(error, name, None)) is not None}
    return ErrorObject(kind.jsonrpc_code, str(error), raw(_Refusal(kind.code, error.context, said)))


def error_of(error: ErrorObject) -> TurnwireError:
    """The error that another node raised."""
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
    """Some have it as bytes of JSON, one as a value."""
    return Raw(value) if isinstance(value, bytes) else raw(value)
