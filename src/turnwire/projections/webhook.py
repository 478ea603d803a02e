"""The events of one session as webhook deliveries: REST envelopes of the kinds that a receiver chose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from turnwire.ids import PromptId, SessionId
from turnwire.projections.envelope import Envelopes, Parties
from turnwire.projections.translate.permissions import translate_permission_request
from turnwire.session.codec import STORED_UPDATE, decode
from turnwire.session.events import AnyEvent, Event, PermissionRequested

SHOWN_VERSION: Final = 1
"""Permission requests are sent in the shape of ACP v1, the default of REST."""


class WebhookProjection:
    """The projection for one receiver, begun with the parties at its offset. Implements `Projection`."""

    is_stuck = False
    translates = False

    def __init__(
        self, session_id: SessionId, kinds: frozenset[type[Event]], offset: int, parties: Parties | None = None
    ) -> None:
        self.offset = offset
        self.parties = parties or Parties()
        self._session_id = session_id
        self._kinds = kinds
        self._envelopes = Envelopes(session_id)

    def project(self, bodies: Sequence[bytes]) -> list[bytes]:
        """Return one envelope per event, empty if its kind was not chosen.

        Raises `LogCorrupt`, `LogVersionMismatch`.
        """
        return [self._one(body) for body in bodies]

    def pass_over(self, bodies: Sequence[bytes]) -> None:
        self.parties.pass_over(bodies)
        self.offset += len(bodies)

    def copy(self) -> WebhookProjection:
        return WebhookProjection(self._session_id, self._kinds, self.offset, self.parties.copy())

    def _one(self, body: bytes) -> bytes:
        self.offset += 1
        if body.startswith(STORED_UPDATE):
            return b""
        event = decode(body)
        envelope = self._envelope(event) if type(event) in self._kinds else b""
        # After the envelope: the end of a turn removes its prompter.
        self.parties.take(event)
        return envelope

    def _envelope(self, event: AnyEvent) -> bytes:
        version = self.parties.agent_version
        if isinstance(event, PermissionRequested) and version is not None and version != SHOWN_VERSION:
            asker = event.child or self._session_id
            params = translate_permission_request(event.method, event.params, version, SHOWN_VERSION, asker)
            event = replace(event, params=params)
        prompt_id: PromptId | None = getattr(event, "prompt_id", None)
        prompter = None if prompt_id is None else self.parties.prompters.get(prompt_id)
        return self._envelopes.of_event(self.offset, event, prompter)
