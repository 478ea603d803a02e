"""The daemon's log output: one line per record to stderr, as JSON or as readable text, without secrets.

Tokens, `Authorization` and cookies are masked in every field when a line is written, so no caller has to do it.
Text of peers cannot break or forge a line: control characters are escaped.
"""

from __future__ import annotations

import logging
import re
import sys
import traceback
import unicodedata
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from itertools import islice
from typing import Any, Literal, TextIO, cast

import msgspec

MASK = "***"
MOST_CAUSES = 8
"""Causes shown of one exception. A group may hold thousands."""

AUDIT = "turnwire.audit"
OURS = "turnwire"
"""The logger that the level applies to. Others write warnings only: their details do not help an operator."""

_OWN_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}
"""Attributes of every record. All others were passed as `extra`."""

_SECRET_NAMES = frozenset({"authorization", "proxy-authorization", "cookie", "set-cookie", "token", "secret"})
_SECRETS = re.compile(
    r"""
    \btw_[\w-]+                                          # a token of ours
    | (?P<bearer>\bbearer\s+)[^\s'",;]+                   # a credential in a header
    | (?P<header>\b(?:proxy-)?authorization\b|\b(?:set-)?cookie\b)
      (?P<between>['"]?\s*[:=]\s*b?|['"]\s*,\s*b?)       # as a header, in a mapping, or in a pair
      (?:'[^'\r\n]*'|"[^"\r\n]*"|[^\r\n]+)
    """,
    re.IGNORECASE | re.VERBOSE,
)
_CONTROL = {code: f"\\x{code:02x}" for code in (*range(32), 127, *range(128, 160))} | {
    0x2028: "\\u2028",
    0x2029: "\\u2029",
    ord("\n"): "\\n",
    ord("\r"): "\\r",
    ord("\t"): "\\t",
}


class Redaction:
    """Masks text that looks like a secret, and registered secrets."""

    def __init__(self, secrets: Sequence[str] = ()) -> None:
        self._secrets = sorted((each for each in secrets if each), key=len, reverse=True)

    def text(self, value: str) -> str:
        for secret in self._secrets:
            value = value.replace(secret, MASK)
        return _SECRETS.sub(_masked, value) if _may_have_secrets(value) else value

    @staticmethod
    def found(value: str) -> Iterator[tuple[int, int, str]]:
        """Return the start, end and replacement of each text that looks like a secret."""
        if _may_have_secrets(value):
            for match in _SECRETS.finditer(value):
                yield match.start(), match.end(), _masked(match)

    def field(self, name: str, value: object) -> object:
        """Return a field as a plain, masked value that can be written."""
        if name.lower() in _SECRET_NAMES and value is not None:
            return MASK
        if type(value) is str:
            return self.text(value)
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, Mapping):
            pairs = cast("Mapping[object, object]", value).items()
            return {self.text(str(key)): self.field(str(key), each) for key, each in pairs}
        if isinstance(value, list | tuple):
            return [self.field("", each) for each in cast("Sequence[object]", value)]
        return self.text(value if isinstance(value, str) else str(value))


REPEATED = frozenset({"append_failed", "checkpoint_failed", "log_unavailable", "snapshot_not_kept"})
"""Events that a log that cannot be written causes many times a second."""
REPEATED_S = 60.0


class RepeatFilter(logging.Filter):
    """Lets a record of `REPEATED` events through once a minute, with the number of records left out."""

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[str, float] = {}
        self._left_out: Counter[str] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        event = getattr(record, "event", None)
        if event not in REPEATED:
            return True
        if record.created - self._last.get(event, -REPEATED_S) < REPEATED_S:
            self._left_out[event] += 1
            return False
        self._last[event] = record.created
        record.left_out = self._left_out.pop(event, None)
        return True


class JsonLines(logging.Formatter):
    """A record as one line of JSON: `ts`, `level`, `logger`, `event`, `message`, then its extra fields."""

    def __init__(self, redaction: Redaction) -> None:
        super().__init__()
        self._redaction = redaction

    def format(self, record: logging.LogRecord) -> str:
        fields = _fields(record)
        line = {
            "ts": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": fields.pop("event", None),
            "message": _message(record),
        }
        line |= {name: value for name, value in fields.items() if name not in line}
        error = _error(record)
        if error is not None:
            line["error"] = error
        safe = {name: self._redaction.field(name, value) for name, value in line.items() if value is not None}
        return msgspec.json.encode(safe).decode()


class TextLines(logging.Formatter):
    """A record as one readable line; the stack of an exception follows on separate lines."""

    def __init__(self, redaction: Redaction, *, is_short: bool = False) -> None:
        """`is_short`: for a terminal, without the date and the logger."""
        super().__init__()
        self._redaction = redaction
        self._is_short = is_short

    def format(self, record: logging.LogRecord) -> str:
        message = _escaped(self._redaction.text(_message(record)))
        words = [_time(record), f"{record.levelname.lower():<7}", f"{record.name}:", message]
        fields = _fields(record)
        if self._is_short:
            words = [_time(record)[11:19], words[1], message]
            fields.pop("event", None)
        for name, value in fields.items():
            field = self._redaction.field(name, value)
            # The parts of a composite field were masked one by one, and only the whole may be a secret.
            shown = _escaped(field if isinstance(field, str) else self._redaction.text(str(field)))
            words.append(f"{name}={shown!r}" if " " in shown or not shown else f"{name}={shown}")
        error = _error(record)
        if error is None:
            return " ".join(words)
        lines = [" ".join(words)]
        for each in (error, *error.get("causes", ())):
            lines.append(f"  {each['type']}: {self._shown(each['message'])}")
            lines += [f"    {self._shown(place)}" for place in each["stack"]]
        return "\n".join(lines)

    def _shown(self, value: object) -> str:
        return _escaped(self._redaction.text(str(value)))


def configure_logging(
    format: Literal["text", "json"],
    level: Literal["debug", "info", "warning", "error"],
    *,
    secrets: Sequence[str] = (),
    stream: TextIO | None = None,
) -> None:
    """Write every record of this process to stderr, in one format. Call it once, before anything is served.

    On a terminal lines of text are short, and the audit log is written at level `debug` only.
    """
    # Do not collect fields that are not written: the source line, thread and process of a record.
    logging._srcfile = None  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue] its documented switch
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    redaction = Redaction(secrets)
    lines = logging.StreamHandler(stream or sys.stderr)
    is_short = format == "text" and lines.stream.isatty()
    lines.setFormatter(JsonLines(redaction) if format == "json" else TextLines(redaction, is_short=is_short))
    logging.getLogger(AUDIT).setLevel(logging.WARNING if is_short and level != "debug" else logging.NOTSET)
    lines.addFilter(RepeatFilter())
    root = logging.getLogger()
    root.handlers[:] = [lines]
    root.setLevel(logging.WARNING)
    ours = logging.getLogger(OURS)
    ours.handlers.clear()
    ours.propagate = True
    ours.setLevel(level.upper())


def _escaped(text: str) -> str:
    if text.isprintable():
        return text
    # Bidirectional controls, zero-width and tag characters would disguise a line as another one.
    return "".join(
        f"⟨U+{ord(each):04X}⟩" if unicodedata.category(each) == "Cf" else each for each in text.translate(_CONTROL)
    )


def _may_have_secrets(value: str) -> bool:
    """Return whether the text has a mark of secrets. Most have none, and this is much cheaper than the search."""
    if not value.isascii():
        return True
    plain = value.lower()
    return "tw_" in plain or "bearer" in plain or "authorization" in plain or "cookie" in plain


def _masked(match: re.Match[str]) -> str:
    if match["bearer"] is not None:
        return match["bearer"] + MASK
    if match["header"] is not None:
        return match["header"] + match["between"] + MASK
    return "tw_" + MASK


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except (TypeError, ValueError, KeyError):
        # A message that does not match its arguments must not lose the line.
        return f"{record.msg} {record.args}"


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name not in _OWN_FIELDS and value is not None}


def _time(record: logging.LogRecord) -> str:
    seconds, micros = divmod(round(record.created * 1_000_000), 1_000_000)
    return f"{_second(seconds)}.{micros // 1000:03d}Z"


@lru_cache(maxsize=1)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _error(record: logging.LogRecord) -> dict[str, Any] | None:
    """Return the exception of a record (type, message, origin), followed by the same of its causes."""
    if record.exc_info is None or record.exc_info[1] is None:
        return None
    error = record.exc_info[1]
    told = _told(error)
    causes = [_told(each) for each in islice(_causes(error), MOST_CAUSES)]
    return told | {"causes": causes} if causes else told


def _told(error: BaseException) -> dict[str, Any]:
    frames = traceback.extract_tb(error.__traceback__)
    stack = [f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in frames]
    return {"type": type(error).__qualname__, "message": str(error), "stack": stack}


def _causes(error: BaseException) -> Iterator[BaseException]:
    waiting, seen = deque([error]), {id(error)}
    while waiting:
        each = waiting.popleft()
        members = cast("tuple[BaseException, ...]", each.exceptions) if isinstance(each, BaseExceptionGroup) else ()
        context = None if each.__suppress_context__ else each.__context__
        for cause in (*members, each.__cause__ or context):
            if cause is not None and id(cause) not in seen:
                seen.add(id(cause))
                waiting.append(cause)
                yield cause
