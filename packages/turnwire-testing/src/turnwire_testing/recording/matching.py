"""Matching of live client frames to recorded ones, and translation of the names in which they differ.

A client's request ids, terminals and work folders are its own. An agent's session ids are its own and stay as
recorded unless the client names another one, for example when it loads a session. `Names` learns these from each
pair of frames, and translates recorded frames to the live client's names. A frame in which no name differs stays
byte for byte.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Any, Final, cast

import msgspec
from msgspec.structs import replace

from turnwire.ids import RequestId
from turnwire.server.telemetry.logs import MASK
from turnwire.session.correlation import ExactId, exact
from turnwire.wire.jsonrpc import Failure, Frame, Notification, Request, Result, encode
from turnwire.wire.methods import SESSION_PROMPT
from turnwire_testing.recording.format import Entry, prompt_text

CWD: Final = "cwd"
SESSION: Final = "sessionId"
OWN_NAMES: Final = (SESSION, CWD, "messageId", "terminalId")
"""Payload members that hold names chosen by the client."""
DECISIONS: Final = ("outcome", "action")
"""Members of an answer that decide how the agent continues."""
_PROMPT_ID: Final = "promptRequestId"
_NOT_COMPARED: Final = frozenset(
    {
        *OWN_NAMES,
        *("prompt", "requestId", "mcpServers", "additionalDirectories", "_meta"),
        *("protocolVersion", "clientCapabilities", "capabilities", "clientInfo", "info"),
    }
)
"""Members that may differ between two equivalent clients."""


class Match(StrEnum):
    """Condition under which a client frame matches a recorded one."""

    STRICT = "strict"
    """The same prompt text, the same params except for names, the same answers to permission requests."""
    LOOSE = "loose"
    """White space and case of a prompt may differ, as may params of other methods. Frames other than prompts may be
    missing.
    """
    ORDER = "order"
    """Any next frame with the same method."""


class Names:
    """Translation of names between the recording and the live client."""

    def __init__(self) -> None:
        self._live_ids: dict[ExactId, RequestId] = {}
        self._sessions: dict[str, str] = {}
        self._others: dict[str, str] = {}
        self._folders: dict[str, str] = {}

    def learn(self, recorded: Entry, live: Frame, payload: dict[str, Any]) -> None:
        """These two are the same frame of the client; `payload` is the live one's."""
        if isinstance(recorded.message, Request) and isinstance(live, Request):
            self._live_ids[exact(recorded.message.id)] = live.id
        for name in OWN_NAMES:
            old, new = recorded.payload.get(name), payload.get(name)
            if isinstance(old, str) and isinstance(new, str) and old:
                self._table(name)[old] = new

    def is_session(self, recorded: Any, live: Any) -> bool:
        """Return True if a frame of this live session can match one of that recorded session."""
        known = self._sessions.get(recorded) if isinstance(recorded, str) else None
        return live == (known or live)

    def told(self, entry: Entry) -> bytes:
        """Return a frame of the agent, translated to the live client's names."""
        message, line = entry.message, entry.line
        if isinstance(message, Result) and isinstance(entry.payload.get(SESSION), str):
            self._sessions.setdefault(entry.payload[SESSION], entry.payload[SESSION])
        if isinstance(message, Result | Failure) and message.id is not None:
            live_id = self._live_ids.get(exact(message.id), message.id)
            if exact(live_id) != exact(message.id):
                line = encode(replace(message, id=live_id))
        return self._in_live_names(line)

    def _table(self, name: str) -> dict[str, str]:
        return {SESSION: self._sessions, CWD: self._folders}.get(name, self._others)

    def _in_live_names(self, line: bytes) -> bytes:
        plain = {old: new for table in (self._sessions, self._others) for old, new in table.items() if old != new}
        # Every path is below the root, and a redacted value is not a folder.
        folders = {old: new for old, new in self._folders.items() if old != new and re.match(r"/.", old)}
        changed = (json_text(each) in line for each in (*plain, *folders))
        if not (any(changed) or (_PROMPT_ID.encode() in line and self._live_ids)):
            return line
        value: Any = msgspec.json.decode(line)
        shown = self._value(value, plain, folders)
        return line if shown == value else msgspec.json.encode(shown)

    def _value(self, value: Any, plain: dict[str, str], folders: dict[str, str]) -> Any:
        if isinstance(value, str):
            if value in plain:
                return plain[value]
            for old, new in folders.items():
                value = re.sub(rf"{re.escape(old)}(?![\w.-])", lambda _, new=new: new, value)
            return value
        if isinstance(value, list):
            return [self._value(each, plain, folders) for each in cast("list[Any]", value)]
        if isinstance(value, dict):
            return {
                key: self._live_id(each) if key == _PROMPT_ID else self._value(each, plain, folders)
                for key, each in cast("dict[str, Any]", value).items()
            }
        return value

    def _live_id(self, recorded: Any) -> Any:
        return self._live_ids.get(exact(recorded), recorded) if isinstance(recorded, int | str) else recorded


def json_text(text: str) -> bytes:
    """Return a text as JSON, without its quotes."""
    return msgspec.json.encode(text)[1:-1]


def fits(
    recorded: Entry, live: Request | Notification, payload: dict[str, Any], match: Match, names: Names
) -> bool:
    """Return True if the client's frame matches the recorded one."""
    if type(recorded.message) is not type(live) or recorded.method != live.method:
        return False
    if not names.is_session(recorded.payload.get(SESSION), payload.get(SESSION)):
        return False
    if match is Match.ORDER:
        return True
    if live.method == SESSION_PROMPT:
        old, new = prompt_text(recorded.payload) or "", prompt_text(payload) or ""
        if match is Match.LOOSE:
            old, new = (" ".join(each.casefold().split()) for each in (old, new))
        return _is_alike(old, new)
    return match is Match.LOOSE or _is_alike(_compared(recorded.payload), _compared(payload))


def decides_the_same(recorded: Entry, live: Result | Failure, payload: dict[str, Any]) -> bool:
    """Return True if the agent would continue after this answer as it did in the recording."""
    if type(recorded.message) is not type(live):
        return False
    return all(recorded.payload.get(each) == payload.get(each) for each in DECISIONS)


def _is_alike(recorded: Any, live: Any) -> bool:
    """Return True if the two are equal, where a redacted value matches anything."""
    if isinstance(recorded, str) and isinstance(live, str) and MASK in recorded:
        return re.fullmatch(".*".join(map(re.escape, recorded.split(MASK))), live, re.DOTALL) is not None
    if isinstance(recorded, list) and isinstance(live, list):
        old, new = cast("list[Any]", recorded), cast("list[Any]", live)
        return len(old) == len(new) and all(map(_is_alike, old, new))
    if isinstance(recorded, dict) and isinstance(live, dict):
        ours, theirs = cast("dict[str, Any]", recorded), cast("dict[str, Any]", live)
        return ours.keys() == theirs.keys() and all(_is_alike(each, theirs[name]) for name, each in ours.items())
    return recorded == live


def _compared(params: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in params.items() if name not in _NOT_COMPARED}
