"""Where a session stands, for a reader that joins late: what it would know had it followed from the start.

Takes a session's view and the offset it is folded to; gives the data of a `session_snapshot`. Payloads of the agent
are given as they came. Never holds the transcript: that is read as events.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct, UnsetType

from turnwire.core.codec import encode
from turnwire.core.envelope import to_envelope
from turnwire.core.events import PermissionRequested
from turnwire.core.state import Phase, Turn
from turnwire.core.turn import TurnState
from turnwire.core.view import View
from turnwire.ids import Epoch, SessionId


class _Envelope(Struct):
    data: Raw


_read_envelope = msgspec.json.Decoder(_Envelope).decode


def snapshot_of(
    session_id: SessionId, view: View, epoch: Epoch, offset: int, queue: Sequence[Turn]
) -> dict[str, Any]:
    """The latest values, the running turn, the queue and the open questions, as of `offset`.

    `queue` says in which order prompts wait; which of them do is known from the view.
    """
    latest = view.latest
    known: dict[str, Any] = {
        "sessionId": session_id,
        "lastEventId": offset,
        "eventEpoch": epoch,
        "isClosed": view.session.phase is Phase.CLOSED,
        "state": view.state,
        "hasActivePrompt": view.active is not None,
        "activePromptId": view.active,
        "title": view.session.title,
        "commands": latest.commands,
        "mode": latest.mode,
        "modes": latest.modes,
        "model": latest.model,
        "models": latest.models,
        "configOptions": latest.config_options,
        "usage": latest.usage,
        "background": view.background,
    }
    data = {key: value for key, value in known.items() if value is not None and not isinstance(value, UnsetType)}
    return data | {
        # Clients of this contract know the two under these names, and want to see that there is none.
        "currentModelId": latest.model,
        "currentApprovalMode": latest.mode,
        "plans": latest.plans,
        "queue": _waiting(view, queue),
        "permissions": [_question(session_id, each) for each in view.permissions.values()],
    }


def _waiting(view: View, queue: Sequence[Turn]) -> list[dict[str, Any]]:
    places = {each.prompt_id: place for place, each in enumerate(queue)}
    waiting = [each for each in view.turns.values() if each.state is TurnState.QUEUED]
    waiting.sort(key=lambda each: places.get(each.prompt_id, len(places)))
    return [
        {"promptId": each.prompt_id, "text": view.user_text(each.prompt_id) or "", "queuedAt": each.queued_at}
        for each in waiting
    ]


def _question(session_id: SessionId, asked: PermissionRequested) -> Raw:
    """The question as its event showed it."""
    return _read_envelope(to_envelope(session_id, 1, encode(asked))).data
