"""One update, for handlers and loops over a turn.

Its fields, its text and its typed view are decoded on access. `raw` has the agent's bytes unchanged.
"""

from __future__ import annotations

import msgspec
from msgspec import Raw, Struct

from turnwire.ids import ChildId, PromptId, SessionId
from turnwire.session.events import SessionUpdated
from turnwire.wire.schema import Update as TypedUpdate
from turnwire.wire.schema import decode_update


class UpdateOrigin:
    """The session of the updates, and its agent's ACP version."""

    __slots__ = ("protocol_version", "session_id")

    def __init__(self, session_id: SessionId) -> None:
        self.session_id = session_id
        self.protocol_version = 1


class _Text(Struct, frozen=True, gc=False):
    type: str
    text: str


class _Chunk(Struct, frozen=True, gc=False):
    content: _Text


_read_chunk = msgspec.json.Decoder(_Chunk).decode


class Update(Struct, frozen=True, eq=False, gc=False):
    """A `session/update` of the agent."""

    _event: SessionUpdated
    offset: int
    """Its offset in the session's log."""
    _origin: UpdateOrigin

    @property
    def kind(self) -> str:
        """`agent_message_chunk`, `tool_call`, `plan` …"""
        return self._event.kind

    @property
    def text(self) -> str:
        """The text that this chunk adds to the agent's message; empty for other kinds and for a child's."""
        if self._event.kind != "agent_message_chunk" or self._event.child is not None:
            return ""
        try:
            return _read_chunk(self._event.update).content.text
        except (msgspec.DecodeError, UnicodeDecodeError):
            return ""

    @property
    def raw(self) -> Raw:
        """The update as JSON, byte for byte as the agent sent it."""
        return self._event.update

    @property
    def typed(self) -> TypedUpdate:
        """The update as a struct of `turnwire.wire.schema`. Raises `RemoteProtocolError` if it is malformed."""
        return decode_update(self._event.update, self._origin.protocol_version)

    @property
    def session_id(self) -> SessionId:
        return self._origin.session_id

    @property
    def prompt_id(self) -> PromptId | None:
        """The turn it belongs to; `None` for background and late updates."""
        return self._event.prompt_id

    @property
    def child(self) -> ChildId | None:
        """The child session it belongs to; `None` for the session itself."""
        return self._event.child

    @property
    def late(self) -> bool:
        """True if it came after the end of the turn that it followed."""
        return self._event.after is not None

    @property
    def after(self) -> PromptId | None:
        """The ended turn that a late update followed."""
        return self._event.after

    @property
    def echo(self) -> bool:
        """True for the agent's own copy of the prompt."""
        return self._event.echo

    def __repr__(self) -> str:
        return f"<Update {self.offset} {self.kind} of {self.prompt_id or 'no turn'}>"
