"""A fold over one session's log that produces envelopes in one version of ACP, independent of the agent's version.

It maps each stored event to the envelopes for readers of that shape, with the prompter of its turn. One fold serves
all readers of a shape. Updates of an agent of the other version are translated by the code that serves ACP clients
(`projections.translate`); those of the same version are forwarded byte for byte.

Theory of operation
-------------------
A translation has memory, and it begins at the start of the log. Most folds need no translation, because the agent
speaks the requested version. So a fold may also begin in the middle, with only the parties at that offset. If it
then meets an event that only a whole fold can show, it stops before it (`is_stuck`), and the caller makes a whole
fold.

  E1  One event is one item of `project`: one envelope or more, of which the last has the event's number. So numbers
      are equal in every shape, and a cursor is after all envelopes of its event.
  E2  The output does not depend on where the fold began.
  E3  Updates that only repeat the turn's events are omitted: an agent's states, its end markers, its copies of
      prompts. No other event reports the state of a child session, so its states are shown. An omitted update, or
      one without an equivalent in the shape, becomes `session_update_omitted`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import StrEnum
from typing import Final

from msgspec import UNSET, Raw
from msgspec.structs import replace

from turnwire.ids import AgentSessionId, ChildId, PromptId, SessionId
from turnwire.projections.envelope import (
    MESSAGE,
    MESSAGE_PIECE,
    SESSION_UPDATE,
    Envelopes,
    Form,
    StoredUpdate,
    facts_of,
    facts_of_update,
    read_stored_update,
)
from turnwire.projections.parties import Parties, Prompter
from turnwire.projections.translate.permissions import translate_permission_request
from turnwire.projections.translate.sessions import session_result, updates_after
from turnwire.projections.translate.updates import NO_OFFERS, Translator, translator_for
from turnwire.session import events as ev
from turnwire.session.child_names import renamed
from turnwire.session.codec import STORED_UPDATE, around_update, decode, encode, end_of_run, one_line
from turnwire.session.json_members import entries, members, raw, read_entries
from turnwire.wire.schema.update import MARKERS, STATES
from turnwire.wire.sse import in_ascii

_OF_THE_TURN: Final = MARKERS | STATES
"""Updates whose meaning the turn's events carry."""
_PARTS: Final = (ev.UserMessage, ev.TurnCompleted, ev.TurnFailed)
"""Events before which all withheld updates must be sent."""
_MESSAGE_META: Final = b',"event":"user_message"'


_TIME: Final = len(b"1700000000000}")
"""The length of the time at the end of a stored update."""
_FEW: Final = 3
"""Minimum number of updates with one time for which a search for common bytes pays off."""


class Shape(StrEnum):
    """The version in which an agent's updates are shown."""

    V1 = "1"
    V2 = "2"
    AGENT = "agent"
    """The agent's version, byte for byte: an event is one envelope, which decodes to the event."""

    @property
    def version(self) -> int | None:
        """The ACP version; `None` for the agent's version, which may be any."""
        return None if self is Shape.AGENT else int(self)


class ShapeFold:
    """The projection for REST readers of one shape. Implements `Projection`."""

    def __init__(
        self,
        session_id: SessionId,
        shape: Shape,
        offset: int = 0,
        parties: Parties | None = None,
        *,
        is_whole: bool = True,
    ) -> None:
        """`is_whole`: the fold begins at the start of the log; otherwise `parties` are those at its offset."""
        self.offset = offset
        """The offset of the last projected event."""
        self.is_stuck = False
        """True if the next event needs the events before this fold began."""
        self._envelopes = Envelopes(session_id)
        self._shape = shape
        self._version = shape.version
        self._looked_at: Collection[str] = () if self._version is None else _OF_THE_TURN
        self._parties = parties or Parties()
        self._is_whole = is_whole
        version = self._parties.agent_version
        self._passes_on = self._version in {None, version} or (version is None and is_whole)
        """True if the agent speaks the version of the shape."""
        self._facts: dict[PromptId | None, bytes] = {}
        """The bytes between the payload of an update and its time, by turn."""
        self._translator: Translator | None = None
        self.translates = False
        """True if the agent speaks another version, so that an event costs more."""
        self._children: dict[ChildId, Translator] = {}
        """The translator of each child session, which has a separate id space."""
        self._agent: tuple[int, AgentSessionId] | None = None
        self._life = 0
        """The number of times that the agent's ids began to mean something new."""
        self._active: PromptId | None = None
        """The active turn, if this fold has seen its beginning."""

    def copy(self) -> ShapeFold | None:
        """Return an independent fold at the same offset; `None` if it translates, because it is as large as the
        session.
        """
        if self._translator is not None:
            return None
        session_id, parties = self._envelopes.session_id, self._parties.copy()
        other = ShapeFold(session_id, self._shape, self.offset, parties, is_whole=self._is_whole)
        other._agent, other._life, other._active = self._agent, self._life, self._active
        return other

    def start(self, event: ev.AgentStarted) -> None:
        """Record the agent that started before the first retained event."""
        self._parties.take(event)
        self._started(event)

    def project(self, bodies: Sequence[bytes], form: Form = Form.SSE) -> list[bytes]:
        """Return the frames of the next events, one item each; fewer items if the fold gets stuck.

        Raises `LogCorrupt`, `LogVersionMismatch`.
        """
        taken: list[bytes] = []
        count = len(bodies)
        while (place := len(taken)) < count:
            body = bodies[place]
            if self._passes_on and place + _FEW < count and body[-_TIME:] == bodies[place + _FEW][-_TIME:]:
                frames = self._alike(bodies, place, form)
                if frames:
                    taken += frames
                    continue
            frame = self._one(body, form)
            if frame is None:
                self.is_stuck = True
                break
            # Nearly every frame is in ASCII, so that is checked inline.
            taken.append(frame if form is not Form.SSE or frame.isascii() else in_ascii(frame))
            self.offset += 1
        return taken

    def _one(self, body: bytes, form: Form) -> bytes | None:
        """Return the frames of the next event; `None` if it needs earlier events."""
        offset = self.offset + 1
        if not body.startswith(STORED_UPDATE):
            return self._event(offset, decode(one_line(body)), form)
        stored = read_stored_update(body)
        if self._is_plain(stored):
            told = self._facts.get(stored.prompt_id) or self._facts_of(stored)
            return self._envelopes.update_frame(offset, stored, told, form)
        return self._update(offset, stored, form)

    def _is_plain(self, stored: StoredUpdate) -> bool:
        """True if the update is shown as it is stored. Nearly every event is."""
        return self._passes_on and not (stored.kind in self._looked_at or _is_special(stored))

    def _alike(self, bodies: Sequence[bytes], first: int, form: Form) -> list[bytes]:
        """Return the frames of a plain update and of the following ones that differ only in their payload.

        An agent's batch has one turn and time, so such runs are long, and only the first update need be decoded.
        Returns an empty list if the update is not plain, has no turn, or contains a line end, which is removed from
        frames individually.
        """
        body = bodies[first]
        stored = read_stored_update(body) if body.startswith(STORED_UPDATE) else None
        if stored is None or stored.prompt_id is None or not self._is_plain(stored):
            return []
        head, tail = around_update(stored.kind, stored.prompt_id, stored.at)
        end = end_of_run(bodies, first, head, tail)
        before, behind = len(head), -len(tail)
        updates = [body[before:behind] for body in bodies[first:end]]
        if one_line(joined := b"".join(updates)) is not joined:
            return []
        told = self._facts.get(stored.prompt_id) or self._facts_of(stored)
        frames = self._envelopes.update_frames(self.offset + 1, updates, told, stored.at, form)
        self.offset += len(frames)
        is_ascii = form is Form.LINE or (joined.isascii() and frames[0].isascii())
        return frames if is_ascii else list(map(in_ascii, frames))

    def pass_over(self, bodies: Sequence[bytes]) -> None:
        """Advance over the next events without frames: cheap if nothing is translated. Stops where it gets
        stuck.
        """
        for body in bodies:
            if self._translator is None and self._passes_on and body.startswith(STORED_UPDATE):
                self.offset += 1
            elif not self.project((body,)):
                return

    def _prompter(self, prompt_id: PromptId | None) -> Prompter | None:
        """Return the prompter of a turn; `None` without a turn, or if it is unknown."""
        return None if prompt_id is None else self._parties.prompters.get(prompt_id)

    # -- updates of the agent ------------------------------------------------------------------------------------

    def _facts_of(self, stored: StoredUpdate) -> bytes:
        """Return the bytes after a payload, cached for the plain updates of an open turn, which are many."""
        facts = facts_of_update(stored, self._prompter(stored.prompt_id), names=self._version is None)
        if not _is_special(stored):
            self._facts[stored.prompt_id] = facts
        return facts

    def _update(self, offset: int, stored: StoredUpdate, form: Form) -> bytes | None:
        """Return the frames of an update that must be decoded; `None` if it needs earlier events."""
        updates = self._told(stored)
        if updates is None:
            return None
        facts = self._facts_of(stored)
        if not updates:
            return self._envelopes.omitted(offset, stored.kind, facts, stored.at, form)
        return self._envelopes.updates(offset, updates, facts, stored.at, form)

    def _told(self, stored: StoredUpdate) -> Sequence[Raw] | None:
        """Return the updates that a reader is sent for an update; `None` if it needs earlier events."""
        if self._version is None:
            return (stored.update,)
        if stored.echo:
            return ()
        update = renamed(stored.kind, stored.update, stored.names)
        if stored.kind in _OF_THE_TURN:
            return (update,) if stored.child is not None or self._tells_background(stored) else ()
        if self._passes_on:
            return (update,)
        translator = self._translator if stored.child is None else self._child(stored.child)
        return None if translator is None else translator.take(update, turn=stored.prompt_id or stored.after)

    def _child(self, child_id: ChildId) -> Translator | None:
        """Return the translator of a child; `None` if its earlier updates are unknown."""
        version, wanted = self._parties.agent_version, self._version
        if self._translator is None or version is None or wanted is None:
            return None
        known = self._children.get(child_id) or translator_for(version, wanted, NO_OFFERS, life=self._life)
        if known is not None:
            self._children[child_id] = known
        return known

    def _tells_background(self, stored: StoredUpdate) -> bool:
        """True if it lists background work: only v2 can express that, and no other event reports it."""
        if stored.kind != "state_update" or self._version != 2:
            return False
        background = members(stored.update).get("background")
        return background is not None and read_entries(background) is not None

    def _started(self, event: ev.AgentStarted) -> ev.AgentStarted:
        """Switch to another agent. Return the event with its offers in the version of the shape."""
        version, wanted = event.protocol_version, self._version
        self._passes_on = wanted in {None, version}
        if wanted is None:
            return event
        # As for ACP clients: the ids of a v2 agent that returns retain their meaning.
        same_life = self._agent == (2, event.agent_session_id) and version == 2 and event.how != "lost"
        self._agent = version, event.agent_session_id
        if not same_life:
            self._life += 1
            self._translator = translator_for(version, wanted, event.offers, life=self._life)
            self.translates = self._translator is not None
            self._children = {}
        elif self._translator is not None:
            self._translator.offers(event.offers)
        return (
            event if self._passes_on else replace(event, offers=session_result(event.offers, version, wanted, None))
        )

    # -- all other events ----------------------------------------------------------------------------------------

    def _event(self, offset: int, event: ev.AnyEvent, form: Form) -> bytes | None:
        """Return the frames of an event that is not stored as an update; `None` if it needs earlier events."""
        if isinstance(event, ev.SessionUpdated):
            # An update as well, with its fields in another order.
            return self._update(offset, read_stored_update(encode(event)), form)
        if self._needs_more(event):
            return None
        parts = self._parts(offset, event, form)
        is_end = isinstance(event, ev.TurnCompleted | ev.TurnFailed)
        if not is_end:
            self._parties.take(event)
        prompter = self._prompter(getattr(event, "prompt_id", None))
        if isinstance(event, ev.UserMessage) and self._version is not None:
            return parts + self._message(offset, event, prompter, form)
        frame = self._envelopes.frame(offset, self._shown(event), prompter, form)
        if is_end:
            self._parties.take(event)
            self._facts.pop(event.prompt_id, None)
        return parts + frame

    def _needs_more(self, event: ev.AnyEvent) -> bool:
        if self._is_whole or self._version is None:
            return False
        if isinstance(event, ev.AgentStarted):
            return event.protocol_version != self._version
        return isinstance(event, ev.PermissionRequested) and not self._passes_on

    def _shown(self, event: ev.AnyEvent) -> ev.AnyEvent:
        """Return the event with its agent payloads in the version of the shape."""
        match event:
            case ev.AgentStarted():
                return self._started(event)
            case ev.PermissionRequested() if not self._passes_on:
                return replace(event, params=self._permission_request(event))
            case ev.ModeChanged() if self._translator is not None:
                self._translator.mode(event.mode)
            case ev.TurnStarted():
                self._active = event.prompt_id
            case ev.TurnCompleted() | ev.TurnFailed() if event.prompt_id == self._active:
                self._active = None
            case _:
                pass
        return event

    def _permission_request(self, event: ev.PermissionRequested) -> Raw:
        version, wanted = self._parties.agent_version, self._version
        assert version is not None, "a fold that does not know the agent's version has stopped before"
        assert wanted is not None, "the agent's own words are passed on"
        return translate_permission_request(
            event.method, event.params, version, wanted, event.child or self._envelopes.session_id
        )

    def _message(self, offset: int, event: ev.UserMessage, prompter: Prompter | None, form: Form) -> bytes:
        """Return a prompt in the form in which an agent of the shape's version would show it."""
        blocks, at = entries(event.content), raw(event.at)
        facts, named = facts_of(event.prompt_id, prompter), {"messageId": event.message_id}
        if self._version == 2:
            updates = [raw({"sessionUpdate": MESSAGE, "content": blocks, **named})]
        else:
            updates = [raw({"sessionUpdate": MESSAGE_PIECE, "content": each, **named}) for each in blocks]
        if not updates:
            return self._envelopes.omitted(offset, MESSAGE, facts, at, form)
        return self._envelopes.updates(offset, updates, facts, at, form, meta=_MESSAGE_META)

    def _parts(self, offset: int, event: ev.AnyEvent, form: Form) -> bytes:
        """Return the updates that precede an event's envelope."""
        turn: PromptId | None = None
        of_children: list[bytes] = []
        if isinstance(event, ev.AgentStarted) and self._version is not None:
            updates = updates_after(event.offers, event.protocol_version, self._version)
        elif isinstance(event, _PARTS) and self._translator is not None:
            updates, turn = self._translator.part(), self._active
            of_children = self._parts_of_children(offset, event.at, form)
        else:
            return b""
        facts, at = facts_of(turn, self._prompter(turn)), raw(event.at)
        own = [self._envelopes.part(offset, each, facts, at, form) for each in updates]
        return b"".join((*own, *of_children))

    def _parts_of_children(self, offset: int, at: int, form: Form) -> list[bytes]:
        parts: list[bytes] = []
        for child_id, translator in self._children.items():
            for each in translator.part():
                stored = StoredUpdate(raw(at), SESSION_UPDATE, each, self._active, child=child_id)
                facts = facts_of_update(stored, self._prompter(self._active))
                parts.append(self._envelopes.part(offset, each, facts, stored.at, form))
        return parts


def _is_special(stored: StoredUpdate) -> bool:
    """True if an update has members besides its turn."""
    return bool(stored.echo or stored.after or stored.child or stored.names) or stored.beside is not UNSET
