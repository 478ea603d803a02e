"""Encoder of one session's events as frames for one client.

`projections.encoder` decides what an event means to the client; request ids, in both directions, are the client's.
Nearly every event is an update that is passed on unchanged: its payload is spliced into a frame and never decoded,
which makes many readers cheap. An observer is sent no requests.

Theory of operation of plain updates
------------------------------------
Consecutive stored events are grouped into runs that differ only in the payload (`envelope.Splice`); their frames
are the same for every client of the session. Each client's writer decides whether the client may receive them;
events outside a run go to the fold.

    U1  Between such a prefix and a suffix that starts with the turn there is one payload and nothing else
        (`codec.around_update`).
    U2  A run has no echo, no members next to the update, no child session and no names.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Collection, Sequence
from enum import Enum, auto
from functools import lru_cache
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

from msgspec import UNSET, Raw, UnsetType
from msgspec.structs import replace

from turnwire.errors import RemoteProtocolError
from turnwire.ids import ChildId, PermissionId
from turnwire.projections.encoder import (
    FOLDED,
    Answer,
    Ask,
    Fail,
    Outgoing,
    SessionEncoder,
    Tell,
    TellBlocked,
    Withdraw,
)
from turnwire.projections.encoder.encoder import Dialect
from turnwire.projections.envelope import find_splice, read_update
from turnwire.runtime.session import Readable
from turnwire.runtime.tail import Tail
from turnwire.server.access.tokens import Role
from turnwire.server.acp.client_state import ELICITATION_ID, ClientState
from turnwire.server.acp.subscription import Subscription
from turnwire.session import events as ev
from turnwire.session.codec import decode
from turnwire.session.json_members import members, named, text_of, without_nulls
from turnwire.wire.jsonrpc import Notification, Request, Result, encode, encode_failure, raw
from turnwire.wire.methods import CANCEL_REQUEST, ELICITATION_CREATE, VENDOR
from turnwire.wire.peek import peek_update
from turnwire.wire.schema.update import TOOL_CALLS, update_head

KEPT: Final = 4096
"""Frames cached per session for its other readers: some pages of the log."""
END: Final = b"}}"
"""The end of a plain update's frame."""


class PlainRun(NamedTuple):
    """A run of updates of one kind."""

    kind: str
    frames: list[bytes]


class PlainRuns:
    """The newest runs of one session, built by the first reader that reaches them and reused by all others.

    Readers of live events reach the same positions, whatever their dialect. A single reader caches nothing.
    """

    def __init__(self) -> None:
        self._readers = 0
        self._kept: OrderedDict[int, PlainRun] = OrderedDict()
        """Runs keyed by the offset of their first update."""
        self._size = 0
        """The number of cached frames."""

    def get(self, offset: int) -> PlainRun | None:
        """Return the run that begins with this event, as long as it was when cached."""
        return self._kept.get(offset)

    def keep(self, offset: int, run: PlainRun) -> None:
        """Cache a new run that begins with this event, for the other readers."""
        if self._readers > 1:
            self._kept[offset] = run
            self._size += len(run.frames)
            while self._size > KEPT:
                self._size -= len(self._kept.popitem(last=False)[1].frames)

    def enter(self) -> None:
        """Count one more reader."""
        self._readers += 1

    def leave(self) -> None:
        """Count one reader less; a last one needs no cache."""
        self._readers -= 1
        if self._readers <= 1:
            self._kept.clear()
            self._size = 0


_EVENT_ID = b',"_meta":{"%b":{"eventId":%%d}}}}' % VENDOR.encode()
"""The end of the params of a frame with an event id."""


_LIVE_ONLY = frozenset({"notice"})
"""Updates that are not part of the history: clients that were absent do not receive them."""

_NUMBERED = (Tell, TellBlocked, Ask)
"""Outgoing messages with params, which can carry an event id."""

AT_ONCE = 256
"""Events folded per call, which takes some milliseconds. Updates passed on unchanged cost next to nothing."""

WORTH = 1024
"""Minimum distance between cached folds, in events; fewer are folded again in some milliseconds."""


# -- the fold ------------------------------------------------------------------------------------------------


class Fold(NamedTuple):
    """A reader's knowledge of a session after an event.

    The frames for a client depend on the events and on its dialect alone, so a fold serves every client with the
    same dialect. Each reader continues with its own copy; all are dropped when the session is unloaded.
    """

    offset: int
    encoder: SessionEncoder
    open: dict[str, Ask]
    """Permission requests without an answer."""

    @classmethod
    def begin(cls, session: Readable, dialect: Dialect, first: int, upto: int) -> Fold:
        """Return the furthest cached fold up to this event, or a new one.

        `first`: the oldest position of the log; an earlier fold is of no use.
        """
        known = _kept.get(session.tail, {}).get(dialect)
        if known is not None and first <= known.offset <= upto and (copy := known.copy()) is not None:
            return copy
        return cls(first, SessionEncoder(dialect, session.session_id), {})

    def keep(self, session: Readable, dialect: Dialect) -> None:
        """Cache the fold of a reader that has sent its client nothing, if it is far enough past the cached one."""
        folds = _kept.setdefault(session.tail, {})
        known = folds.get(dialect)
        if self.offset - (0 if known is None else known.offset) >= WORTH and (copy := self.copy()) is not None:
            folds[dialect] = copy

    def copy(self) -> Fold | None:
        """Return a copy; None if the agent speaks another version, as such a fold grows with the session."""
        encoder = self.encoder.copy()
        return None if encoder is None else Fold(self.offset, encoder, dict(self.open))


_kept: WeakKeyDictionary[Tail, dict[Dialect, Fold]] = WeakKeyDictionary()
"""Cached folds, keyed by the tail, which a session has wherever its loop runs."""


# -- frames --------------------------------------------------------------------------------------------------


class FramePage(NamedTuple):
    """Frames of a session. Only the last frame of an event has an offset: the cursor moves past the event with it.

    An empty frame is not sent: on a session's own stream it marks that everything up to its offset was delivered.
    """

    frames: list[bytes]
    offsets: list[int | None]
    """The offset of each frame."""

    @classmethod
    def of(cls, frames: list[bytes]) -> FramePage:
        """Return a page of frames that belong to no event."""
        return cls(frames, [None] * len(frames))

    def add(self, offset: int, frames: Sequence[bytes]) -> None:
        """Append all frames of an event, possibly none."""
        if frames:
            self.frames.extend(frames)
            self.offsets.extend([*[None] * (len(frames) - 1), offset])


class WriterMode(Enum):
    """The part of an event that is sent."""

    QUIET = auto()
    """Nothing: the client has the event, or does not want it."""
    REPLAY = auto()
    """The event's addition to the conversation, without past responses and permission requests."""
    RESUME = auto()
    """Like `REPLAY`, for a returning client: includes live-only updates and recognises its own prompts."""
    LIVE = auto()


@lru_cache(64)
def _looked_at(withheld: frozenset[str]) -> frozenset[str]:
    """Return the kinds of update that are not passed on unread. Cached, since clients differ little."""
    return FOLDED | withheld


class FrameWriter:
    """Writer of one reader's frames; it folds the log as it proceeds."""

    def __init__(
        self, client: ClientState, subscription: Subscription, fold: Fold, runs: PlainRuns | None = None
    ) -> None:
        """`runs`: plain updates shared by all readers of the session."""
        self._client = client
        self._subscription = subscription
        self._runs = runs or PlainRuns()
        self._encoder = fold.encoder
        self._is_asked = client.who.role is not Role.OBSERVER
        kinds = sorted(client.profile.withheld)
        self._withheld = re.compile(b"|".join(each.encode() for each in kinds)) if kinds else None
        self._looked_at = _looked_at(client.profile.withheld)
        self._open = fold.open
        """Permission requests without an answer at `offset`."""
        self.offset = fold.offset
        """The offset of the last event that was written."""
        self._asked: set[str] = set()
        """Permission requests that this reader has sent to the client."""
        self._calls = ReplayedCalls() if client.dialect.version == 1 else None
        self._head = update_head(subscription.session_id)

    def take(self, first: int, bodies: Sequence[bytes], mode: WriterMode) -> FramePage:
        """Return the frames of consecutive events: of all, or up to `offset` if folding takes long."""
        page, place, folded = FramePage([], []), 0, 0
        while place < len(bodies) and folded < AT_ONCE:
            passes_on = self._encoder.passes_on
            end = self._pass_on(page, first, bodies, place, mode) if passes_on else place
            if end == place:
                page.add(first + place, self._one(first + place, bodies[place], mode, passes_on=passes_on))
                end, folded = place + 1, folded + 1
            place = end
        self.offset = first + place - 1
        return page

    def _pass_on(self, page: FramePage, first: int, bodies: Sequence[bytes], place: int, mode: WriterMode) -> int:
        """Append updates that are passed on unchanged, from this position on. Return the position after them."""
        run = self._runs.get(first + place)
        if run is None:
            splice = find_splice(bodies[place])
            if splice is None or not self._passes(splice.stored.kind, mode):
                return place
            end = splice.end(bodies, place)
            if mode is WriterMode.QUIET:
                return end
            payloads = splice.payloads(bodies[place:end])
            run = PlainRun(splice.stored.kind, [self._head + each + END for each in payloads])
            self._runs.keep(first + place, run)
        elif not self._passes(run.kind, mode):
            return place
        frames = run.frames[: len(bodies) - place]
        if mode is not WriterMode.QUIET:
            self._add(page, first + place, frames)
        return place + len(frames)

    def _passes(self, kind: str, mode: WriterMode) -> bool:
        """Return whether plain updates of this kind are passed on unchanged."""
        is_retold = mode is WriterMode.REPLAY and (kind in _LIVE_ONLY or kind in TOOL_CALLS)
        return not (is_retold or kind in self._looked_at)

    def _add(self, page: FramePage, first: int, frames: list[bytes]) -> None:
        """Append the frames of consecutive updates."""
        offsets = range(first, first + len(frames))
        if self._client.shows_offsets:
            numbered = zip(offsets, frames, strict=True)
            frames = [frame[: -len(END)] + _EVENT_ID % offset for offset, frame in numbered]
        page.frames.extend(frames)
        page.offsets.extend(offsets)

    def _one(self, offset: int, body: bytes, mode: WriterMode, *, passes_on: bool) -> list[bytes]:
        """Return the frames of one event of any kind."""
        self.offset = offset
        stored = read_update(body) if passes_on else None
        if stored is None or stored.kind in self._looked_at or stored.child or stored.names:
            return self._take(offset, body, mode)
        if mode is WriterMode.QUIET or stored.echo or _is_past(stored.kind, mode):
            return []
        update, shown = stored.update, offset if self._client.shows_offsets else None
        if mode is WriterMode.REPLAY and self._calls is not None:
            update = self._calls.told(stored.kind, update)
        return [self._update(update, shown, stored.beside)]

    def _take(self, offset: int, body: bytes, mode: WriterMode) -> list[bytes]:
        """Return the frames of one event, as the fold encodes them."""
        event = decode(body)
        if isinstance(event, ev.AgentStarted):
            self._subscription.agent_started()
        own = mode is not WriterMode.REPLAY and getattr(event, "prompt_id", None) in self._client.prompts
        if isinstance(event, ev.TurnCompleted | ev.TurnFailed):
            event, own = self._addressed(event, mode, own=own)
        outgoing = [each for each in self._encoder.take(event, own=own) if not self._is_withheld(each)]
        self._remember(outgoing)
        if mode is WriterMode.QUIET or (isinstance(event, ev.SessionUpdated) and _is_past(event.kind, mode)):
            return []
        if mode is WriterMode.REPLAY and self._calls is not None:
            outgoing = [self._calls.replayed(each) for each in outgoing]
        if mode is not WriterMode.LIVE:
            outgoing = [each for each in outgoing if isinstance(each, Tell | TellBlocked)]
        shown = offset if self._client.shows_offsets else None
        # A response cannot carry the event id; if it is lost after that frame, its request is sent again.
        last = max((place for place, each in enumerate(outgoing) if isinstance(each, _NUMBERED)), default=-1)
        frames = [self._write(each, shown if place == last else None) for place, each in enumerate(outgoing)]
        return [each for each in frames if each]

    def _addressed(
        self, event: ev.TurnCompleted | ev.TurnFailed, mode: WriterMode, *, own: bool
    ) -> tuple[ev.TurnCompleted | ev.TurnFailed, bool]:
        """Return the end of a turn as this client may match it, and whether the prompt is its own.

        Request ids are local to a connection, and most clients count from the same number. Only the connection
        that sent the prompt sees its request id; the encoder names the turn by its `promptId` for everyone else.
        A client that waits for its own id is therefore never released by another client's turn or a replayed one.
        """
        if mode is WriterMode.REPLAY:
            return replace(event, prompt_request_id=None), False
        request_id = self._client.prompts.request_of(event.prompt_id)
        if request_id is not None:
            return replace(event, prompt_request_id=request_id), True
        return (event, True) if own else (replace(event, prompt_request_id=None), False)

    def fold(self) -> Fold:
        """Return the fold after the last event."""
        return Fold(self.offset, self._encoder, self._open)

    def state(self) -> list[bytes]:
        """Return the frames of the session's running state."""
        return self._write_all(self._encoder.state())

    def greet(self, updates: Sequence[Raw]) -> list[bytes]:
        """Return frames for updates that are not in the log, translated from the agent's version."""
        frames: list[bytes] = []
        for update in updates:
            event = ev.SessionUpdated(at=0, kind=peek_update(update).kind, update=update)
            frames += self._write_all(self._encoder.take(event, own=False))
        return frames

    def children(self) -> list[bytes]:
        """Return the frames of the existing child sessions, for a client without the history."""
        return self._write_all(self._encoder.children())

    def open_requests(self) -> list[bytes]:
        """Return the frames of open permission requests that this reader has not sent."""
        return self._write_all([each for each in self._open.values() if each.request_id not in self._asked])

    def settled_requests(self, still_open: Collection[str]) -> list[bytes]:
        """Return withdrawals of earlier requests that were settled while the client had no reader.

        `still_open`: the session's open requests. The log may have forgotten the events that asked them.
        """
        asked = self._client.outgoing.unsettled(self._subscription.session_id, self.offset)
        return self._write_all([Withdraw(each) for each in asked if each not in {*self._open, *still_open}])

    def _write_all(self, outgoing: Sequence[Outgoing]) -> list[bytes]:
        return [frame for each in outgoing if not self._is_withheld(each) and (frame := self._write(each, None))]

    def _remember(self, outgoing: Sequence[Outgoing]) -> None:
        for each in outgoing:
            if isinstance(each, Ask):
                self._open[each.request_id] = each
            elif isinstance(each, Withdraw):
                self._open.pop(each.request_id, None)

    def _is_withheld(self, outgoing: Outgoing) -> bool:
        """Return whether this is an update of a kind that the client did not ask for."""
        if not isinstance(outgoing, Tell) or self._withheld is None or not self._withheld.search(outgoing.update):
            return False
        # The name occurs somewhere in the update; the kind is decoded only now, which is rare.
        try:
            return peek_update(outgoing.update).kind in self._client.profile.withheld
        except RemoteProtocolError:
            return False

    def _write(self, outgoing: Outgoing, offset: int | None) -> bytes:
        """Return the frame; empty if this client is not sent one."""
        match outgoing:
            case Tell(update, beside, child):
                return self._update(update, offset, beside, child)
            case TellBlocked(update, waits):
                return self._update(self._waiting(update, waits), offset)
            case Answer(prompt_id, result):
                request_id = self._client.prompts.answer(prompt_id)
                return b"" if request_id is None else encode(Result(request_id, result))
            case Fail(prompt_id, error):
                request_id = self._client.prompts.answer(prompt_id)
                return b"" if request_id is None else encode_failure(request_id, error)
            case Ask():
                return self._ask(outgoing, offset)
            case Withdraw(permission_id):
                request_id = self._client.outgoing.settle(permission_id)
                return b"" if request_id is None else encode(_cancel(request_id))

    def _waiting(self, update: Raw, waits: Sequence[tuple[PermissionId, str]]) -> Raw:
        """Return the update with the requests that the turn waits for, under the ids that this client was sent."""
        told: list[dict[str, object]] = []
        for permission_id, kind in waits:
            request_id = self._client.outgoing.asked_as(permission_id)
            named = {} if request_id is None else {"requestId": request_id}
            told.append({**named, "kind": kind, "permissionId": permission_id})
        return raw({**members(update), "_meta": {VENDOR: {"waitsFor": told}}})

    def _update(
        self, update: Raw, offset: int | None, beside: Raw | UnsetType = UNSET, child: ChildId | None = None
    ) -> bytes:
        head = self._head if child is None else update_head(child)
        if beside is not UNSET:
            # Few agents send other members, so these are decoded only if present.
            others = _with_offset(beside, offset)
            return b"".join((head, update, b",", bytes(others)[1:], b"}"))
        end = b"}}" if offset is None else _EVENT_ID % offset
        return b"".join((head, update, end))

    def _ask(self, ask: Ask, offset: int | None) -> bytes:
        if not self._is_asked or not self._client.can_answer(ask.method, ask.params):
            return b""
        elicitation_id = named(ask.params, ELICITATION_ID) if ask.method == ELICITATION_CREATE else None
        request_id = self._client.outgoing.ask(
            ask.request_id, self._subscription.session_id, ask.method, self.offset, elicitation_id
        )
        if request_id is None:
            return b""
        self._asked.add(ask.request_id)
        return encode(Request(request_id, ask.method, _with_offset(ask.params, offset)))


class ReplayedCalls:
    """Tool calls of a history that is replayed to a v1 client: each begins with its announcement.

    An agent may announce a call with a permission request and continue with updates of it. Permission requests of
    the past are not sent again, so the first update includes their content.
    """

    def __init__(self) -> None:
        self._asked: dict[str, dict[str, Raw]] = {}
        """Calls of permission requests that no update has announced yet."""
        self._told: set[str] = set()

    def replayed(self, outgoing: Outgoing) -> Outgoing:
        """Return an outgoing message with its call announced; record the call of a permission request."""
        if isinstance(outgoing, Tell):
            return outgoing._replace(update=self.told(peek_update(outgoing.update).kind, outgoing.update))
        if isinstance(outgoing, Ask):
            call = members(members(outgoing.params).get("toolCall"))
            if (tool_call_id := text_of(call, "toolCallId")) is not None:
                self._asked[tool_call_id] = {**self._asked.get(tool_call_id, {}), **without_nulls(call)}
        return outgoing

    def told(self, kind: str, update: Raw) -> Raw:
        """Return the update, as an announcement if it is the first of its call."""
        if kind not in TOOL_CALLS:
            return update
        fields = members(update)
        tool_call_id = text_of(fields, "toolCallId")
        if tool_call_id is None or tool_call_id in self._told:
            return update
        self._told.add(tool_call_id)
        asked = self._asked.pop(tool_call_id, {})
        if kind == "tool_call":
            return update
        return raw({"title": tool_call_id, **asked, **without_nulls(fields), "sessionUpdate": "tool_call"})


def _is_past(kind: str, mode: WriterMode) -> bool:
    """Return whether an update was only for clients that were present."""
    return mode is WriterMode.REPLAY and kind in _LIVE_ONLY


def _cancel(request_id: int) -> Notification:
    return Notification(CANCEL_REQUEST, raw({"requestId": request_id}))


def _with_offset(params: Raw, offset: int | None) -> Raw:
    if offset is None:
        return params
    told = members(params)
    meta = members(told.get("_meta", Raw(b"{}")))
    return raw({**told, "_meta": {**meta, VENDOR: {"eventId": offset}}})
