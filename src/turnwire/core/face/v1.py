"""A session's events as a v1 client reads them.

Takes an event and what was agreed; gives frames. A turn ends with the answer to its prompt. Before the answer come
the marks of the end, in the forms that the client can take: the `turn_complete` update if it asked for it, a
notification and a `_meta` member for the others.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Raw, json

from turnwire.core import events as ev
from turnwire.core.face.dialect import VENDOR, Dialect, Emission, Known
from turnwire.core.face.outgoing import Answer, Fail, Notify, Outgoing, Tell
from turnwire.errors import ContentRefused
from turnwire.wire.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS, raw

AGENT_FAILED = INTERNAL_ERROR
STOP_REASONS = frozenset({"end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled"})
_UNKNOWN_REASON = "the turn ended for a reason that ACP v1 does not have"


def take(dialect: Dialect, known: Known, event: ev.AnyEvent, *, own: bool) -> list[Outgoing]:
    """Frames of an event that is no update and no question."""
    match event:
        case ev.UserMessage():
            return _user_message(dialect, event, own=own)
        case ev.TurnStarted():
            known.active = event.prompt_id
            return _state(dialect, known, "running")
        case ev.TurnBlocked():
            return _state(dialect, known, "requires_action")
        case ev.TurnUnblocked():
            return _state(dialect, known, "running")
        case ev.TurnCompleted():
            return _completed(dialect, known, event, own=own)
        case ev.TurnFailed():
            return _failed(dialect, known, event, own=own)
        case ev.SessionRenamed():
            return [_tell("session_info_update", title=event.title)]
        case _:
            return []


def state(dialect: Dialect, known: Known) -> list[Outgoing]:
    """A v1 client has no word for it, but for one that speaks the lifecycle draft."""
    return [_tell("state_change", state=known.state)] if dialect.lifecycle else []


def heard_state(dialect: Dialect, known: Known, update: Raw) -> list[Outgoing]:
    """What a v2 agent says of its foreground is told by the turn's own events."""
    return []


def _tell(kind: str, **members: Any) -> Tell:
    return Tell(raw({"sessionUpdate": kind, **members}))


def _user_message(dialect: Dialect, event: ev.UserMessage, *, own: bool) -> list[Outgoing]:
    """Others' prompts are shown (R55); the sender knows its own, unless it asked to have all of them told."""
    blocks = json.decode(event.content, type=list[Raw])
    if dialect.lifecycle:
        return [_tell("user_message", messageId=event.message_id, content=blocks)]
    if own:
        return []
    return [_tell("user_message_chunk", content=each, messageId=event.message_id) for each in blocks]


def _state(dialect: Dialect, known: Known, state: str, **members: Any) -> list[Outgoing]:
    known.state = state
    return [_tell("state_change", state=state, **members)] if dialect.lifecycle else []


def _completed(dialect: Dialect, known: Known, event: ev.TurnCompleted, *, own: bool) -> list[Outgoing]:
    reason = _stop_reason(known, event.stop_reason)
    frames: list[Outgoing] = []
    if known.ends(event.prompt_id):
        frames += _state(dialect, known, "idle", stop_reason=event.stop_reason)
    mark = _mark(event, reason, own=own)
    frames += _marks(dialect, known, event, mark)
    if own and reason is None:
        frames.append(Fail(event.prompt_id, raw({"code": AGENT_FAILED, "message": _UNKNOWN_REASON})))
    elif own:
        result: dict[str, Any] = {"stopReason": reason}
        if event.usage is not UNSET:
            result["usage"] = event.usage
        if dialect.emission is not Emission.OFF:
            result["_meta"] = {VENDOR: {"turnComplete": mark}}
        frames.append(Answer(event.prompt_id, raw(result)))
    return frames


def _stop_reason(known: Known, reason: str) -> str | None:
    """One of v1's five. An agent's own reason is none of them and no success; one of a later ACP is an end."""
    if reason in STOP_REASONS:
        return reason
    known.losses["stop_reason"] += 1
    return None if reason.startswith("_") else "end_turn"


def _failed(dialect: Dialect, known: Known, event: ev.TurnFailed, *, own: bool) -> list[Outgoing]:
    frames = _state(dialect, known, "idle") if known.ends(event.prompt_id) else []
    frames += _marks(dialect, known, event, _mark(event, None, own=own))
    if own:
        frames.append(Fail(event.prompt_id, error_of(event)))
    return frames


def _marks(
    dialect: Dialect, known: Known, event: ev.TurnCompleted | ev.TurnFailed, mark: dict[str, Any]
) -> list[Outgoing]:
    """The end in all its forms, in the order in which they are written (R22)."""
    if dialect.emission is Emission.OFF or event.prompt_id.startswith("agent-"):
        return []
    frames: list[Outgoing] = []
    if dialect.emission is Emission.ALWAYS or not dialect.turn_complete:
        frames.append(_tell("session_info_update", _meta={VENDOR: {"turnComplete": mark}}))
    if dialect.marks:
        # Our own name has no place among the members that the draft defines.
        defined = {name: value for name, value in mark.items() if name != "promptId"}
        frames.append(_tell("turn_complete", **defined, _meta={"promptId": event.prompt_id}))
    frames.append(Notify(f"_{VENDOR}/turn_complete", raw({"sessionId": known.session_id, **mark})))
    return frames


def _mark(event: ev.TurnCompleted | ev.TurnFailed, stop_reason: str | None, *, own: bool) -> dict[str, Any]:
    """Request ids are local to a connection: to another one the same number is a request of its own."""
    mark: dict[str, Any] = {"promptId": event.prompt_id}
    if own and event.prompt_request_id is not None:
        mark["promptRequestId"] = event.prompt_request_id
    if stop_reason is not None:
        mark["stopReason"] = stop_reason
    return mark


def error_of(event: ev.TurnFailed) -> Raw:
    """The failure as a JSON-RPC error: the agent's own if it gave one, else with how the agent ended."""
    if event.agent_error is not UNSET:
        return event.agent_error
    data = {
        "code": event.code,
        "exitCode": event.exit_code,
        "signal": event.signal,
        "stderrTail": event.stderr_tail,
    }
    known = {name: value for name, value in data.items() if value is not None}
    code = INVALID_PARAMS if event.code == ContentRefused.code else AGENT_FAILED
    return raw({"code": code, "message": event.message, "data": known})
