"""One session's events in one shape of ACP, whatever its agent speaks: a fold over the log that gives envelopes.

Takes stored events in order; gives for each what a reader of that shape is told of it, with who prompted its turn.
One fold serves all readers of a shape. The words of an agent of the other version are translated by the code that
ACP clients are served with (`core.translate`); those of the same version are passed on byte for byte.

Theory of operation
-------------------
A translation has memory, and its beginning is the beginning of the log. Most folds need none of it, because the
agent speaks the version that is asked for. So a fold may also begin in the middle, with the parties of that place
alone. If it then meets what only a whole fold can tell, it stops before it (`is_stuck`), and somebody makes a whole
one.

    E1  One event is one item of `take`: one envelope or more, of which the last has the event's number. So numbers
        are the same in every shape, and a cursor stands behind all that an event is told as.
    E2  Where a fold began is not seen in what it gives.
    E3  What only repeats the turn's own events is left out: an agent's states, its marks of the end, its copies of
        prompts. Of a child session no other event tells what it does, so its states are told. What is left out, and
        what has no words in the shape, is told as `session_update_omitted`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import StrEnum
from typing import Final

from msgspec import UNSET, Raw
from msgspec.structs import replace

from turnwire.core import events as ev
from turnwire.core.child_names import renamed
from turnwire.core.codec import STORED_UPDATE, around_update, decode, encode, end_of_run, one_line
from turnwire.core.envelope import (
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
from turnwire.core.json_members import entries, members, raw, read_entries
from turnwire.core.parties import Parties, Prompter
from turnwire.core.translate.permissions import translate_permission_request
from turnwire.core.translate.sessions import session_result, updates_after
from turnwire.core.translate.updates import NO_OFFERS, Translator, translator_for
from turnwire.ids import AgentSessionId, ChildId, PromptId, SessionId
from turnwire.wire.schema.update import MARKERS, STATES
from turnwire.wire.sse import in_ascii

_OF_THE_TURN: Final = MARKERS | STATES
"""Updates whose meaning the turn's own events carry."""
_PARTS: Final = (ev.UserMessage, ev.TurnCompleted, ev.TurnFailed)
"""Events before which nothing may be held back."""
_MESSAGE_META: Final = b',"event":"user_message"'


_TIME: Final = len(b"1700000000000}")
"""As many bytes at the end of a stored update are its time."""
_FEW: Final = 3
"""So many updates of one time are not worth a look at what they have in common."""


class Shape(StrEnum):
    """In whose words an agent's updates are shown."""

    V1 = "1"
    V2 = "2"
    AGENT = "agent"
    """The agent's own, byte for byte: an event is one envelope, which reads back as the event."""

    @property
    def version(self) -> int | None:
        """Of ACP; none for the agent's own, whichever that is."""
        return None if self is Shape.AGENT else int(self)


class ShapeFold:
    """The fold."""

    def __init__(
        self,
        session_id: SessionId,
        shape: Shape,
        offset: int = 0,
        parties: Parties | None = None,
        *,
        is_whole: bool = True,
    ) -> None:
        """`is_whole`: it begins where the log does; else `parties` are those of the place where it begins."""
        self.offset = offset
        """The event that it stands behind."""
        self.is_stuck = False
        """The next event needs what came before this fold began."""
        self._envelopes = Envelopes(session_id)
        self._shape = shape
        self._version = shape.version
        self._looked_at: Collection[str] = () if self._version is None else _OF_THE_TURN
        self._parties = parties or Parties()
        self._is_whole = is_whole
        version = self._parties.agent_version
        self._passes_on = self._version in {None, version} or (version is None and is_whole)
        """The agent's words are those of the shape."""
        self._facts: dict[PromptId | None, bytes] = {}
        """By turn, what is between the payload of an update and its time."""
        self._translator: Translator | None = None
        self.translates = False
        """The agent speaks another version, so that an event costs more."""
        self._children: dict[ChildId, Translator] = {}
        """Of each child session: its ids are its own."""
        self._agent: tuple[int, AgentSessionId] | None = None
        self._life = 0
        """How often the agent's ids began to mean something new."""
        self._active: PromptId | None = None
        """The turn that the agent works on, as far as this fold has seen it begin."""

    def copy(self) -> ShapeFold | None:
        """A fold that stands here and goes on by itself. None if it translates: that is as long as the session."""
        if self._translator is not None:
            return None
        session_id, parties = self._envelopes.session_id, self._parties.copy()
        other = ShapeFold(session_id, self._shape, self.offset, parties, is_whole=self._is_whole)
        other._agent, other._life, other._active = self._agent, self._life, self._active
        return other

    def start(self, event: ev.AgentStarted) -> None:
        """This agent was there before the first event that is kept."""
        self._parties.take(event)
        self._started(event)

    def take(self, bodies: Sequence[bytes], form: Form = Form.SSE) -> list[bytes]:
        """The frames of the next events, one item each; of fewer events if it gets stuck.

        Raises `LogCorrupt`, `LogTooNew`.
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
            # Nearly every frame is in ASCII, so that is asked right here.
            taken.append(frame if form is not Form.SSE or frame.isascii() else in_ascii(frame))
            self.offset += 1
        return taken

    def _one(self, body: bytes, form: Form) -> bytes | None:
        """The frames of the next event; none if it needs more than is known."""
        offset = self.offset + 1
        if not body.startswith(STORED_UPDATE):
            return self._event(offset, decode(one_line(body)), form)
        stored = read_stored_update(body)
        if self._is_plain(stored):
            told = self._facts.get(stored.prompt_id) or self._facts_of(stored)
            return self._envelopes.update_frame(offset, stored, told, form)
        return self._update(offset, stored, form)

    def _is_plain(self, stored: StoredUpdate) -> bool:
        """Whether it is told as it is stored. Nearly every event is."""
        return self._passes_on and not (stored.kind in self._looked_at or _is_special(stored))

    def _alike(self, bodies: Sequence[bytes], first: int, form: Form) -> list[bytes]:
        """The frames of a plain update and of those behind it that differ from it in their payload alone.

        What an agent writes in one go has one turn and time, so there are many, and only the first need be decoded.
        None if it is not plain or of no turn, or holds a line end, which is kept out of a frame one by one.
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
        """The next events, told to nobody: cheap where nothing is translated. Stops where it gets stuck."""
        for body in bodies:
            if self._translator is None and self._passes_on and body.startswith(STORED_UPDATE):
                self.offset += 1
            elif not self.take((body,)):
                return

    def _prompter(self, prompt_id: PromptId | None) -> Prompter | None:
        """Who prompted a turn; none without one, or if nobody knows."""
        return None if prompt_id is None else self._parties.prompters.get(prompt_id)

    # -- what the agent says -------------------------------------------------------------------------------------

    def _facts_of(self, stored: StoredUpdate) -> bytes:
        """Remembered for the plain updates of an open turn, which are many."""
        facts = facts_of_update(stored, self._prompter(stored.prompt_id), names=self._version is None)
        if not _is_special(stored):
            self._facts[stored.prompt_id] = facts
        return facts

    def _update(self, offset: int, stored: StoredUpdate, form: Form) -> bytes | None:
        """The frames of an update that needs a look; none if it needs more than is known."""
        updates = self._told(stored)
        if updates is None:
            return None
        facts = self._facts_of(stored)
        if not updates:
            return self._envelopes.omitted(offset, stored.kind, facts, stored.at, form)
        return self._envelopes.updates(offset, updates, facts, stored.at, form)

    def _told(self, stored: StoredUpdate) -> Sequence[Raw] | None:
        """What a reader is told of an update; none if it needs more than is known."""
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
        """What translates the words of a child; none if it is not known what has been said before."""
        version, wanted = self._parties.agent_version, self._version
        if self._translator is None or version is None or wanted is None:
            return None
        known = self._children.get(child_id) or translator_for(version, wanted, NO_OFFERS, life=self._life)
        if known is not None:
            self._children[child_id] = known
        return known

    def _tells_background(self, stored: StoredUpdate) -> bool:
        """Whether it lists what runs in the background: only v2 has words for that, and no other event tells it."""
        if stored.kind != "state_update" or self._version != 2:
            return False
        background = members(stored.update).get("background")
        return background is not None and read_entries(background) is not None

    def _started(self, event: ev.AgentStarted) -> ev.AgentStarted:
        """Another agent speaks from here on; gives the event with its offers in the words of the shape."""
        version, wanted = event.protocol_version, self._version
        self._passes_on = wanted in {None, version}
        if wanted is None:
            return event
        # As for ACP clients: the ids of a v2 agent that comes back mean what they meant.
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

    # -- everything else -----------------------------------------------------------------------------------------

    def _event(self, offset: int, event: ev.AnyEvent, form: Form) -> bytes | None:
        """The frames of an event that does not begin as an update; none if it needs more than is known."""
        if isinstance(event, ev.SessionUpdated):
            # An update too, with its fields in another order.
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
        """The event with what it holds of the agent in the words of the shape."""
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
        """A prompt, as the agent of the shape's version would tell it."""
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
        """The updates that are told with an event, before its own envelope."""
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
    """Whether there is more to tell of an update than its turn."""
    return bool(stored.echo or stored.after or stored.child or stored.names) or stored.beside is not UNSET
