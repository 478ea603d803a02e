"""The newest frames of one session at its agent, redacted, for diagnosing a stuck session.

Frames are stored per session, because one agent serves several, and their users need not know of each other. Parts
that may hold a credential are redacted before a frame is cut to its beginning, so that no fragment remains: the MCP
servers of a session, `_meta`, variables of a command, headers, and the content of custom methods. An update is
stored unchanged: it is in the session's log anyway. So are a short prompt and its answer, which every turn has:
they are redacted only when read.
"""

from __future__ import annotations

from collections import deque
from typing import Final, cast

import msgspec
from msgspec import Raw

from turnwire.ids import RequestId
from turnwire.wire.jsonrpc import (
    UNREADABLE,
    ErrorObject,
    Failure,
    Frame,
    Notification,
    Request,
    Result,
    encode,
    raw,
)
from turnwire.wire.methods import SESSION_PROMPT, SESSION_UPDATE, is_foreign

KEPT_FRAMES = 16
KEPT_BYTES = 256
SHORT_BYTES = 1024
"""Maximum size of a prompt, or of its answer, that is stored unchanged."""
LOOKED_THROUGH = 64 * 1024
"""Maximum size of a payload that is searched for secrets; of a larger one only its size is stored."""
HIDDEN: Final = "[hidden]"
SECRET = frozenset(
    {"mcpServers", "_meta", "env", "headers", "authorization", "token", "apiKey", "password", "secret"}
)
"""Members whose values are redacted at any depth."""

_UPDATE = f'{{"jsonrpc":"2.0","method":"{SESSION_UPDATE}","params":{{"update":'.encode()


class LastFrames:
    """The beginnings of the newest frames, in both directions."""

    def __init__(self) -> None:
        self._received: deque[bytes | Frame] = deque(maxlen=KEPT_FRAMES)
        self._uncut: deque[Raw] = deque(maxlen=KEPT_FRAMES)
        """Updates of the current batch. There may be thousands in one, and only the last are worth cutting."""
        self._sent: deque[bytes | Frame] = deque(maxlen=KEPT_FRAMES)

    @property
    def received(self) -> list[str]:
        self.cut()
        return [_words(each) for each in self._received]

    @property
    def sent(self) -> list[str]:
        return [_words(each) for each in self._sent]

    def updated(self, update: Raw) -> None:
        """Record an update from the agent."""
        self._uncut.append(update)

    def cut(self) -> None:
        """Cut the updates of a finished batch to their beginnings."""
        while self._uncut:
            self._received.append(_UPDATE + memoryview(self._uncut.popleft())[:KEPT_BYTES])

    def heard(self, frame: Frame, *, method: str | None = None) -> None:
        """Record a frame from the agent; `method` is the method it answers."""
        self.cut()
        self._received.append(_kept(frame, method))

    def told(self, frame: Frame, *, method: str | None = None) -> None:
        """Record a frame sent to the agent."""
        self._sent.append(_kept(frame, method))


def _kept(frame: Frame, method: str | None) -> bytes | Frame:
    if isinstance(frame, Request) and frame.method == SESSION_PROMPT and _is_short(frame.params):
        return frame
    if isinstance(frame, Result) and method == SESSION_PROMPT and _is_short(frame.result):
        # A copy, so that the rest of the input buffer is not retained.
        return Result(frame.id, frame.result.copy())
    return _shown(frame, method)


def _is_short(payload: Raw) -> bool:
    return memoryview(payload).nbytes <= SHORT_BYTES


def _words(kept: bytes | Frame) -> str:
    return (kept if isinstance(kept, bytes) else _shown(kept, SESSION_PROMPT)).decode(errors="replace")


def _shown(frame: Frame, method: str | None) -> bytes:
    if isinstance(frame, Request | Notification):
        method = frame.method
    is_theirs = method is not None and is_foreign(method)

    def seen(payload: Raw) -> Raw:
        return raw(HIDDEN) if is_theirs and payload else hidden(payload)

    match frame:
        case Request(request_id, name, params):
            shown: Frame = Request(request_id, name, seen(params))
        case Notification(name, params):
            shown = Notification(name, seen(params))
        case Result(request_id, result):
            shown = Result(request_id, seen(result))
        case Failure(request_id, error):
            shown = _failed(request_id, error)
    return encode(shown)[:KEPT_BYTES]


def _failed(request_id: RequestId | None, error: ErrorObject) -> Failure:
    # The data in an agent's error may be anything; code and message suffice.
    return Failure(request_id, ErrorObject(error.code, error.message))


def hidden(payload: Raw) -> Raw:
    """Return a redacted payload."""
    if not payload:
        return payload
    if len(bytes(payload)) > LOOKED_THROUGH:
        return raw(f"[{len(bytes(payload))} bytes]")
    try:
        return raw(_without_secrets(msgspec.json.decode(payload)))
    except UNREADABLE:
        return raw(HIDDEN)


def _without_secrets(value: object) -> object:
    if isinstance(value, dict):
        members = cast("dict[str, object]", value)
        return {
            name: HIDDEN if name in SECRET and each else _without_secrets(each) for name, each in members.items()
        }
    if isinstance(value, list):
        return [_without_secrets(each) for each in cast("list[object]", value)]
    return value
