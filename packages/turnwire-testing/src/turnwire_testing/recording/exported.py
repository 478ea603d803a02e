"""Conversion of an exported session to a recording: the agent's output from the log, with the requests that belong
to it.

The input is the file of `turnwire export`, or the envelopes of a redacted export; the output is the frames of one
agent, as far as the log has them. It has every update, permission request and end. It has no files, terminals or
choices of clients: a log does not contain those frames. An agent that was restarted while no turn ran continues as
one agent; if it died in a turn, the recording ends there.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from turnwire.errors import LogCorrupt, LogVersionMismatch, RecordingUnreadable, RemoteProtocolError
from turnwire.ids import PermissionId, PromptId, RequestId
from turnwire.projections.envelope import read_envelope
from turnwire.session import events as ev
from turnwire.session.codec import decode
from turnwire.session.correlation import exact
from turnwire.session.stored_file import read_body, read_head
from turnwire.wire import methods as acp
from turnwire.wire.jsonrpc import ErrorObject, Failure, Frame, Notification, Request, Result, encode, raw
from turnwire_testing.recording.format import (
    FORMAT,
    VERSION,
    Entry,
    Header,
    Recording,
    Side,
    members,
    read_recording,
)

UNKNOWN_SIGNAL: Final = signal.SIGKILL
CANCELLED: Final = raw({"outcome": {"outcome": "cancelled"}})


def read_any(path: Path) -> Recording:
    """Read a recording, or convert an export to one. Raises `RecordingUnreadable`."""
    with path.open("rb") as file:
        first = file.readline()
    if read_head(first) is not None:
        return Recording(Header(FORMAT, VERSION), entries_of(_stored_events(path)))
    if b'"serverTimestamp"' in first:
        return Recording(Header(FORMAT, VERSION), entries_of(_events(path)))
    return read_recording(path)


def _stored_events(path: Path) -> Iterable[ev.AnyEvent]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            body = None if number == 1 else read_body(line)
            if body is None:
                continue
            try:
                yield decode(body)
            except (LogCorrupt, LogVersionMismatch) as error:
                raise RecordingUnreadable(
                    f"line {number} of {path} cannot be read as an event: {error}", path=str(path)
                ) from None


def _events(path: Path) -> Iterable[ev.AnyEvent]:
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            _, event = read_envelope(line)
        except RemoteProtocolError:
            raise RecordingUnreadable(f"line {number} of {path} is no event of an export", path=str(path)) from None
        if event is not None:
            yield event


def entries_of(events: Iterable[ev.AnyEvent]) -> list[Entry]:
    """The frames of an agent, as far as these events have them."""
    known = list(events)
    frames = _Frames(known)
    for event in known:
        frames.take(event)
        if frames.is_over:
            break
    return frames.entries


class _Frames:
    """The frames so far."""

    def __init__(self, events: list[ev.AnyEvent]) -> None:
        self.entries: list[Entry] = []
        self.is_over = False
        self._begun = events[0].at if events else 0
        self._sent = {each.prompt_id: each.agent_request_id for each in events if isinstance(each, ev.PromptSent)}
        self._content: dict[PromptId, Raw] = {}
        self._prompts: dict[PromptId, RequestId] = {}
        """Prompts that the agent was asked, by the id of the request."""
        self._answered: set[PromptId] = set()
        self._permissions: dict[PermissionId, RequestId] = {}
        self._cwd = "/"
        self._session_id = ""
        """The agent's own; empty before it has opened the session."""

    def take(self, event: ev.AnyEvent) -> None:
        """Append the frames that the agent and its client exchanged for this event."""
        act = _ACTS.get(type(event))
        if act is not None:
            act(self, event)

    # -- the opening ---------------------------------------------------------------------------------------

    def created(self, event: ev.SessionCreated) -> None:
        self._cwd = event.cwd

    def started(self, event: ev.AgentStarted) -> None:
        if self._session_id:
            return
        self._session_id = event.agent_session_id
        is_v2 = event.protocol_version == 2
        about = {"name": "replayed", "version": "1"}
        told: dict[str, Any] = {"capabilities": event.capabilities, "info": about}
        if not is_v2:
            told = {"agentCapabilities": event.capabilities, "agentInfo": about, "authMethods": []}
        version = {"protocolVersion": event.protocol_version}
        self._exchange(event.at, acp.INITIALIZE, version, {**version, **told})
        opened = {**members(event.offers), "sessionId": event.agent_session_id}
        self._exchange(event.at, acp.SESSION_NEW, {"cwd": self._cwd, "mcpServers": []}, opened)

    def _exchange(self, at: int, method: str, params: Mapping[str, Any], result: Mapping[str, Any]) -> None:
        self._add(at, "client", Request(method, method, raw(params)))
        self._add(at, "agent", Result(method, raw(result)))

    # -- prompts -------------------------------------------------------------------------------------------

    def accepted(self, event: ev.PromptAccepted | ev.PromptQueued | ev.PromptUpdated | ev.UserMessage) -> None:
        if isinstance(event.content, Raw) and event.prompt_id not in self._prompts:
            self._content[event.prompt_id] = event.content

    def sent(self, event: ev.PromptSent) -> None:
        self._ask(event.at, event.prompt_id)

    def _ask(self, at: int, prompt_id: PromptId | None) -> None:
        """Append the prompt before any of the agent's output for it."""
        if prompt_id is None or prompt_id in self._prompts or prompt_id not in self._sent:
            return
        used = {exact(each) for each in self._prompts.values()}
        wanted = self._sent[prompt_id]
        request_id = wanted if exact(wanted) not in used else f"{wanted}/{prompt_id}"
        self._prompts[prompt_id] = request_id
        params = {"sessionId": self._session_id, "prompt": self._content.get(prompt_id, Raw(b"[]"))}
        self._add(at, "client", Request(request_id, acp.SESSION_PROMPT, raw(params)))

    def _answer(self, at: int, prompt_id: PromptId, answer: Callable[[RequestId], Frame]) -> None:
        if prompt_id in self._prompts and prompt_id not in self._answered:
            self._answered.add(prompt_id)
            self._add(at, "agent", answer(self._prompts[prompt_id]))

    def inserted(self, event: ev.PromptInserted) -> None:
        self._ask(event.at, event.prompt_id)
        told = {"messageId": event.agent_message_id, **_beside(event.beside)}
        self._answer(event.at, event.prompt_id, lambda number: Result(number, raw(told)))

    def answered(self, event: ev.PromptAnswered) -> None:
        self._ask(event.at, event.prompt_id)
        told = _end(event.stop_reason, event.usage, event.beside)
        self._answer(event.at, event.prompt_id, lambda number: Result(number, told))

    # -- the turn ------------------------------------------------------------------------------------------

    def updated(self, event: ev.SessionUpdated) -> None:
        self._ask(event.at, event.prompt_id)
        told = {"sessionId": event.child or self._session_id, "update": event.update, **_beside(event.beside)}
        self._add(event.at, "agent", Notification(acp.SESSION_UPDATE, raw(told)))

    def asked(self, event: ev.PermissionRequested) -> None:
        self._ask(event.at, event.prompt_id)
        self._permissions[event.request_id] = event.agent_request_id
        self._add(event.at, "agent", Request(event.agent_request_id, event.method, event.params))

    def resolved(self, event: ev.PermissionResolved) -> None:
        number = self._permissions.get(event.request_id)
        # A permission request that the agent withdrew has no answer.
        if number is not None and event.end is not ev.PermissionEnd.WITHDRAWN:
            answer = event.answer if event.end is ev.PermissionEnd.ANSWERED else CANCELLED
            self._add(event.at, "client", Result(number, answer))

    def cancelled(self, event: ev.CancelAsked) -> None:
        if event.prompt_id in self._prompts:
            self._add(event.at, "client", Notification(acp.SESSION_CANCEL, raw({"sessionId": self._session_id})))

    def completed(self, event: ev.TurnCompleted) -> None:
        if event.ending is ev.Ending.SETTLED:
            return
        self._ask(event.at, event.prompt_id)
        if isinstance(event.agent_error, Raw):
            self._fail(event.at, event.prompt_id, event.agent_error)
            return
        reason = None if event.assumed else event.agent_stop_reason or event.stop_reason
        told = _end(reason, event.usage, event.beside)
        self._answer(event.at, event.prompt_id, lambda number: Result(number, told))

    def failed(self, event: ev.TurnFailed) -> None:
        self._ask(event.at, event.prompt_id)
        if event.exit_code is not None or event.signal is not None:
            number = getattr(signal, event.signal or "", UNKNOWN_SIGNAL)
            self.is_over = True
            self._end(event.at, event.exit_code if event.exit_code is not None else -int(number))
        elif isinstance(event.agent_error, Raw):
            self._fail(event.at, event.prompt_id, event.agent_error)

    def _fail(self, at: int, prompt_id: PromptId, error: Raw) -> None:
        told = msgspec.json.decode(error, type=ErrorObject)
        self._answer(at, prompt_id, lambda number: Failure(number, told))

    def _add(self, at: int, side: Side, frame: Frame) -> None:
        self.entries.append(Entry(len(self.entries) + 1, max(at - self._begun, 0), side, encode(frame)))

    def _end(self, at: int, exit_code: int) -> None:
        self.entries.append(Entry(len(self.entries) + 1, max(at - self._begun, 0), "agent", b"", exit_code))


def _beside(others: Raw | UnsetType) -> dict[str, Any]:
    return members(others) if isinstance(others, Raw) else {}


def _end(reason: str | None, usage: Raw | UnsetType, others: Raw | UnsetType) -> Raw:
    told = {"stopReason": reason, "usage": usage, **_beside(others)}
    return raw({name: value for name, value in told.items() if value is not None and value is not UNSET})


_ACTS: Final[dict[type[ev.Event], Callable[[_Frames, Any], None]]] = {
    ev.SessionCreated: _Frames.created,
    ev.AgentStarted: _Frames.started,
    ev.PromptAccepted: _Frames.accepted,
    ev.PromptQueued: _Frames.accepted,
    ev.PromptUpdated: _Frames.accepted,
    ev.UserMessage: _Frames.accepted,
    ev.PromptSent: _Frames.sent,
    ev.PromptInserted: _Frames.inserted,
    ev.PromptAnswered: _Frames.answered,
    ev.SessionUpdated: _Frames.updated,
    ev.PermissionRequested: _Frames.asked,
    ev.PermissionResolved: _Frames.resolved,
    ev.CancelAsked: _Frames.cancelled,
    ev.TurnCompleted: _Frames.completed,
    ev.TurnFailed: _Frames.failed,
}
