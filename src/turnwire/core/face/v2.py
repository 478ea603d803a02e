"""A session's events as a v2 client reads them.

Takes an event and what was agreed; gives frames. A prompt is answered when its message is in the conversation; the
state tells the rest: running, requires_action, idle with how it ended. Written in this order: message, answer,
running. The agent's own words on its state only add what runs in the background.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Raw, json

from turnwire.core import events as ev
from turnwire.core.face.dialect import Dialect, Known
from turnwire.core.face.outgoing import Answer, Fail, Outgoing, Tell
from turnwire.core.face.v1 import error_of
from turnwire.wire.jsonrpc import REQUEST_CANCELLED, raw
from turnwire.wire.peek import peek_update


def take(dialect: Dialect, known: Known, event: ev.AnyEvent, *, own: bool) -> list[Outgoing]:
    """Frames of an event that is no update and no question."""
    match event:
        case ev.PromptAccepted():
            known.waiting.add(event.prompt_id)
            return []
        case ev.UserMessage():
            return _user_message(known, event, own=own)
        case ev.TurnStarted():
            known.active = event.prompt_id
            return _state(known, "running")
        case ev.TurnBlocked():
            return _state(known, "requires_action")
        case ev.TurnUnblocked():
            return _state(known, "running")
        case ev.TurnCompleted():
            return _completed(known, event, own=own)
        case ev.TurnFailed():
            return _failed(known, event, own=own)
        case ev.AgentExited():
            return _nothing_runs(dialect, known)
        case ev.SessionRenamed():
            return [Tell(raw({"sessionUpdate": "session_info_update", "title": event.title}))]
        case _:
            return []


def state(dialect: Dialect, known: Known) -> list[Outgoing]:
    """The current state, with how the last turn ended as context."""
    return _state(known, known.state, **(known.last_stop if known.state == "idle" else {}))


def heard_state(dialect: Dialect, known: Known, update: Raw) -> list[Outgoing]:
    """The agent's word on its foreground: new is only what it says of the background."""
    background = peek_update(update).background
    if background is None or (known.background is not UNSET and bytes(known.background) == bytes(background)):
        return []
    known.background = background
    return state(dialect, known)


def _nothing_runs(dialect: Dialect, known: Known) -> list[Outgoing]:
    """What ran in the background of an agent that is gone does not run any more."""
    if known.background is UNSET or bytes(known.background) == b"[]":
        return []
    known.background = Raw(b"[]")
    return state(dialect, known)


def _user_message(known: Known, event: ev.UserMessage, *, own: bool) -> list[Outgoing]:
    known.waiting.discard(event.prompt_id)
    blocks = json.decode(event.content, type=list[Raw])
    update = {"sessionUpdate": "user_message", "messageId": event.message_id, "content": blocks}
    frames: list[Outgoing] = [Tell(raw(update))]
    if own:
        frames.append(Answer(event.prompt_id, raw({"messageId": event.message_id})))
    return frames


def _state(known: Known, state: str, **members: Any) -> list[Outgoing]:
    known.state = state
    update: dict[str, Any] = {"sessionUpdate": "state_update", "state": state, **members}
    if known.background is not UNSET:
        update["background"] = known.background
    return [Tell(raw(update))]


def _idle(known: Known, **members: Any) -> list[Outgoing]:
    known.last_stop = {key: value for key, value in members.items() if key != "usage"}
    return _state(known, "idle", **members)


def _completed(known: Known, event: ev.TurnCompleted, *, own: bool) -> list[Outgoing]:
    if event.prompt_id in known.waiting:
        # Removed before its message was inserted: that is the only case in which v2 refuses what was accepted.
        known.waiting.discard(event.prompt_id)
        return [Fail(event.prompt_id, raw(_REMOVED))] if own else []
    if not known.ends(event.prompt_id):
        return []
    usage = {} if event.usage is UNSET else {"usage": event.usage}
    return _idle(known, stopReason=event.stop_reason, **usage)


_REMOVED = {"code": REQUEST_CANCELLED, "message": "the prompt was taken out of the queue"}


def _failed(known: Known, event: ev.TurnFailed, *, own: bool) -> list[Outgoing]:
    if event.prompt_id in known.waiting:
        known.waiting.discard(event.prompt_id)
        return [Fail(event.prompt_id, error_of(event))] if own else []
    return _idle(known, stopReason="error", error=error_of(event)) if known.ends(event.prompt_id) else []
