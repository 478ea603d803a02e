"""One session's events as frames for one client.

What an event means to the client is `core.encoder`; the ids of requests, both ways, are the client's. Nearly every
event is an update that is passed on as it is: its payload is spliced into a frame and never decoded, which is what
makes many readers cheap. An observer is asked nothing.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from enum import Enum, auto
from functools import lru_cache
from typing import NamedTuple
from weakref import WeakKeyDictionary

from msgspec import UNSET, Raw, UnsetType
from msgspec.structs import replace

from turnwire.core import events as ev
from turnwire.core.codec import decode
from turnwire.core.correlation import spellings
from turnwire.core.encoder import FOLDED, Answer, Ask, Fail, Outgoing, SessionEncoder, Tell, TellBlocked, Withdraw
from turnwire.core.encoder.encoder import Dialect
from turnwire.core.json_members import members, named, text_of, without_nulls
from turnwire.errors import RemoteProtocolError
from turnwire.ids import ChildId, PermissionId
from turnwire.runtime.session import Readable
from turnwire.runtime.tail import Tail
from turnwire.server.access.identity import Role
from turnwire.server.acp.client_state import ELICITATION_ID, ClientState
from turnwire.server.acp.plain_updates import END, PlainRun, PlainRuns, find_splice, read_update
from turnwire.server.acp.subscription import Subscription
from turnwire.wire.jsonrpc import Notification, Request, Result, encode, encode_failure, raw
from turnwire.wire.methods import CANCEL_REQUEST, ELICITATION_CREATE, VENDOR
from turnwire.wire.peek import peek_update
from turnwire.wire.schema.update import TOOL_CALLS, update_head

_EVENT_ID = b',"_meta":{"%b":{"eventId":%%d}}}}' % VENDOR.encode()
"""How the params of a numbered frame end."""


_LIVE_ONLY = frozenset({"notice"})
"""Updates that are no part of the history: who was not there does not hear of them."""

_NUMBERED = (Tell, TellBlocked, Ask)
"""What has params, and so a place for the number of its event."""

AT_ONCE = 256
"""Events that the fold takes in one go: it takes some milliseconds. What is passed on costs next to nothing."""

WORTH = 1024
"""Events that are folded again rather than kept: they take some milliseconds."""


# -- what a reader knows -------------------------------------------------------------------------------------


class Fold(NamedTuple):
    """What a reader knows of a session behind an event.

    What a client is told depends on the events and on its dialect alone, so a fold is good for every client that
    speaks the same. Each reader goes on with a copy of its own; all are forgotten when the session is put away.
    """

    offset: int
    encoder: SessionEncoder
    open: dict[str, Ask]
    """Permission requests that nobody has answered."""

    @classmethod
    def begin(cls, session: Readable, dialect: Dialect, first: int, upto: int) -> Fold:
        """The furthest fold up to this event.

        `first`: the log reaches back to here; a fold before it leads nowhere.
        """
        known = _kept.get(session.tail, {}).get(dialect)
        if known is not None and first <= known.offset <= upto and (copy := known.copy()) is not None:
            return copy
        return cls(first, SessionEncoder(dialect, session.session_id), {})

    def keep(self, session: Readable, dialect: Dialect) -> None:
        """A reader has come here without a word to its client. Kept if it went far enough beyond what is kept."""
        folds = _kept.setdefault(session.tail, {})
        known = folds.get(dialect)
        if self.offset - (0 if known is None else known.offset) >= WORTH and (copy := self.copy()) is not None:
            folds[dialect] = copy

    def copy(self) -> Fold | None:
        """None for a client whose agent speaks another version: such a fold is as long as the session."""
        encoder = self.encoder.copy()
        return None if encoder is None else Fold(self.offset, encoder, dict(self.open))


_kept: WeakKeyDictionary[Tail, dict[Dialect, Fold]] = WeakKeyDictionary()
"""By what a session has wherever its loop runs."""


# -- what a client is written --------------------------------------------------------------------------------


class FramePage(NamedTuple):
    """Frames of a session. An offset only with the last frame of an event: a cursor stands behind it.

    An empty frame is none: it says, on a stream of the session's own, that everything up to its offset was given.
    """

    frames: list[bytes]
    offsets: list[int | None]
    """One for each frame."""

    @classmethod
    def of(cls, frames: list[bytes]) -> FramePage:
        """Frames of no event."""
        return cls(frames, [None] * len(frames))

    def add(self, offset: int, frames: Sequence[bytes]) -> None:
        """All frames of an event, which may be none."""
        if frames:
            self.frames.extend(frames)
            self.offsets.extend([*[None] * (len(frames) - 1), offset])


class WriterMode(Enum):
    """What is told of an event."""

    QUIET = auto()
    """Nothing: the client knows it, or does not want it."""
    REPLAY = auto()
    """What it added to the conversation. Answers and permission requests of the past are not given again."""
    RESUME = auto()
    """The same for a client that was there before: its own prompts are its own, and it hears what only those do."""
    LIVE = auto()


@lru_cache(64)
def _looked_at(withheld: frozenset[str]) -> frozenset[str]:
    """The kinds of update that are not passed on unseen. Clients are of few kinds, so they share it."""
    return FOLDED | withheld


class FrameWriter:
    """Writes the frames of one reader, and folds the log as it goes."""

    def __init__(
        self, client: ClientState, subscription: Subscription, fold: Fold, runs: PlainRuns | None = None
    ) -> None:
        """`runs`: what all readers of the session share."""
        self._client = client
        self._subscription = subscription
        self._runs = runs or PlainRuns()
        self._encoder = fold.encoder
        self._is_asked = client.who.role is not Role.OBSERVER
        kinds = sorted(client.profile.withheld)
        self._withheld = re.compile(b"|".join(each.encode() for each in kinds)) if kinds else None
        self._looked_at = _looked_at(client.profile.withheld)
        self._open = fold.open
        """Permission requests that nobody has answered, as the log stands here."""
        self.offset = fold.offset
        """Where the log stands here."""
        self._asked: set[str] = set()
        """Those that this reader has asked the client."""
        self._calls = ReplayedCalls() if client.dialect.version == 1 else None
        self._head = update_head(subscription.session_id)

    def take(self, first: int, bodies: Sequence[bytes], mode: WriterMode) -> FramePage:
        """The frames of events that follow each other: of all, or of those up to `offset` if that takes long."""
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
        """Add what is passed on as it is, from this place on. Gives where that ends."""
        run = self._runs.get(first + place)
        if run is None:
            splice = find_splice(bodies[place])
            if splice is None or not self._passes(splice.kind, mode):
                return place
            end = splice.end(bodies, place)
            if mode is WriterMode.QUIET:
                return end
            run = PlainRun(splice.kind, splice.frames(self._head, bodies[place:end]))
            self._runs.keep(first + place, run)
        elif not self._passes(run.kind, mode):
            return place
        frames = run.frames[: len(bodies) - place]
        if mode is not WriterMode.QUIET:
            self._add(page, first + place, frames)
        return place + len(frames)

    def _passes(self, kind: str, mode: WriterMode) -> bool:
        """Whether plain updates of this kind are passed on as they are."""
        is_retold = mode is WriterMode.REPLAY and (kind in _LIVE_ONLY or kind in TOOL_CALLS)
        return not (is_retold or kind in self._looked_at)

    def _add(self, page: FramePage, first: int, frames: list[bytes]) -> None:
        """Frames of updates that follow each other."""
        offsets = range(first, first + len(frames))
        if self._client.shows_offsets:
            numbered = zip(offsets, frames, strict=True)
            frames = [frame[: -len(END)] + _EVENT_ID % offset for offset, frame in numbered]
        page.frames.extend(frames)
        page.offsets.extend(offsets)

    def _one(self, offset: int, body: bytes, mode: WriterMode, *, passes_on: bool) -> list[bytes]:
        """The frames of one event of any kind."""
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
        """The frames of one event, as the fold has them."""
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
        # An answer has no place for the number; should it get lost behind it, its request is asked again.
        last = max((place for place, each in enumerate(outgoing) if isinstance(each, _NUMBERED)), default=-1)
        frames = [self._write(each, shown if place == last else None) for place, each in enumerate(outgoing)]
        return [each for each in frames if each]

    def _addressed(
        self, event: ev.TurnCompleted | ev.TurnFailed, mode: WriterMode, *, own: bool
    ) -> tuple[ev.TurnCompleted | ev.TurnFailed, bool]:
        """The end of a prompt with the request id that it has for this client, and whether it is its own.

        Ids of requests are local to a connection. One that this client has open for another prompt is left out, so
        that nobody takes the end of a stranger's turn for that of its own.
        """
        prompts, named = self._client.prompts, event.prompt_request_id
        asked = prompts.request_of(event.prompt_id) if mode is not WriterMode.REPLAY else None
        if asked is not None:
            return replace(event, prompt_request_id=asked), True
        if not own and named is not None and any(map(prompts.find, spellings(named))):
            return replace(event, prompt_request_id=None), False
        return event, own

    def fold(self) -> Fold:
        """What it knows, behind the last event."""
        return Fold(self.offset, self._encoder, self._open)

    def state(self) -> list[bytes]:
        """Where the session stands."""
        return self._write_all(self._encoder.state())

    def greet(self, updates: Sequence[Raw]) -> list[bytes]:
        """Updates that are in no log, in the words of the session's agent, for the client."""
        frames: list[bytes] = []
        for update in updates:
            event = ev.SessionUpdated(at=0, kind=peek_update(update).kind, update=update)
            frames += self._write_all(self._encoder.take(event, own=False))
        return frames

    def children(self) -> list[bytes]:
        """The child sessions that there are, for a client that has not heard the history."""
        return self._write_all(self._encoder.children())

    def open_requests(self) -> list[bytes]:
        """Permission requests that are open here and that this reader has not asked."""
        return self._write_all([each for each in self._open.values() if each.request_id not in self._asked])

    def settled_requests(self, still_open: Collection[str]) -> list[bytes]:
        """Takes back what the client was asked before, and what was settled while nobody read.

        `still_open`: what the session waits for now. The events that asked may be forgotten here.
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
        """An update of a kind that the client did not ask for."""
        if not isinstance(outgoing, Tell) or self._withheld is None or not self._withheld.search(outgoing.update):
            return False
        # The word is in it somewhere; whether it is the kind is seldom worth a look.
        try:
            return peek_update(outgoing.update).kind in self._client.profile.withheld
        except RemoteProtocolError:
            return False

    def _write(self, outgoing: Outgoing, offset: int | None) -> bytes:
        """The frame; empty if this client is not sent any."""
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
        """The update with what the turn waits for, by the ids of the requests that this client was sent (R97)."""
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
            # Few agents say something here, so the members are read only where one does.
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
    """The tool calls of a history that is told to a v1 client: each begins with its announcement.

    An agent may announce a call by asking for a permission, and go on with updates of it. Permission requests of
    the past are not told again, so the first update says what they said.
    """

    def __init__(self) -> None:
        self._asked: dict[str, dict[str, Raw]] = {}
        """Calls that a permission request was about, and that nothing else has told yet."""
        self._told: set[str] = set()

    def replayed(self, outgoing: Outgoing) -> Outgoing:
        """Anything that the client would have been sent."""
        if isinstance(outgoing, Tell):
            return outgoing._replace(update=self.told(peek_update(outgoing.update).kind, outgoing.update))
        if isinstance(outgoing, Ask):
            call = members(members(outgoing.params).get("toolCall"))
            if (tool_call_id := text_of(call, "toolCallId")) is not None:
                self._asked[tool_call_id] = {**self._asked.get(tool_call_id, {}), **without_nulls(call)}
        return outgoing

    def told(self, kind: str, update: Raw) -> Raw:
        """An update, as an announcement if it is the first of its call."""
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
    """Whether an update was for those who were there."""
    return mode is WriterMode.REPLAY and kind in _LIVE_ONLY


def _cancel(request_id: int) -> Notification:
    return Notification(CANCEL_REQUEST, raw({"requestId": request_id}))


def _with_offset(params: Raw, offset: int | None) -> Raw:
    if offset is None:
        return params
    told = members(params)
    meta = members(told.get("_meta", Raw(b"{}")))
    return raw({**told, "_meta": {**meta, VENDOR: {"eventId": offset}}})
