"""Log lines: whole, structured, and without secrets."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Callable, Iterator
from typing import Any, Literal

import pytest

from turnwire.server.telemetry.logs import configure_logging

TOKEN = "tw_k3y_aBcDeFgHiJkLmNoPqRsTuVwXyZ-0123456789_x"
logger = logging.getLogger("turnwire.test")

Write = Callable[..., io.StringIO]


@pytest.fixture
def configured() -> Iterator[Write]:
    """Configures logging into a buffer; afterwards everything is as it was."""
    loggers = [logging.getLogger(), logging.getLogger("turnwire"), logging.getLogger("turnwire.audit")]
    before = [(each, list(each.handlers), each.level, each.propagate, each.disabled) for each in loggers]

    def configure(
        format: Literal["text", "json"] = "json",
        level: Literal["debug", "info", "warning", "error"] = "info",
        secrets: tuple[str, ...] = (),
    ) -> io.StringIO:
        stream = io.StringIO()
        configure_logging(format, level, secrets=secrets, stream=stream)
        return stream

    yield configure
    for each, lines, level, propagate, disabled in before:
        each.handlers[:] = lines
        each.setLevel(level)
        each.propagate, each.disabled = propagate, disabled


def only(stream: io.StringIO) -> dict[str, Any]:
    [line] = stream.getvalue().splitlines()
    return json.loads(line)


def fail_inside() -> None:
    try:
        raise KeyError("inner")
    except KeyError as error:
        raise ValueError("outer\nsecond") from error


def test_a_record_is_one_line_of_json_with_its_fields(configured: Write) -> None:
    stream = configured()
    logger.warning("a %s happened", "thing", extra={"event": "thing_happened", "session": "s1", "count": 3})
    line = only(stream)
    assert line.pop("ts").endswith("Z")
    assert line == {
        "level": "warning",
        "logger": "turnwire.test",
        "event": "thing_happened",
        "message": "a thing happened",
        "session": "s1",
        "count": 3,
    }


def test_a_field_cannot_replace_what_every_line_has(configured: Write) -> None:
    stream = configured()
    logger.warning("m", extra={"level": "x", "logger": "y", "ts": "z"})
    line = only(stream)
    assert (line["level"], line["logger"], line["ts"][-1]) == ("warning", "turnwire.test", "Z")


def test_an_exception_is_told_in_fields(configured: Write) -> None:
    stream = configured()
    try:
        fail_inside()
    except ValueError:
        logger.exception("it failed", extra={"event": "failed"})
    error = only(stream)["error"]
    assert (error["type"], error["message"]) == ("ValueError", "outer\nsecond")
    assert [place.rpartition(" in ")[2] for place in error["stack"]] == [
        "test_an_exception_is_told_in_fields",
        "fail_inside",
    ]
    assert [(each["type"], each["message"]) for each in error["causes"]] == [("KeyError", "'inner'")]


def test_the_members_of_a_group_are_told(configured: Write) -> None:
    stream = configured()
    group = ExceptionGroup("several", [ValueError(str(number)) for number in range(20)])
    logger.error("it failed", exc_info=group)
    assert [each["message"] for each in only(stream)["error"]["causes"]] == [str(number) for number in range(8)]


def test_text_is_one_line_that_nobody_can_forge(configured: Write) -> None:
    stream = configured("text")
    logger.info("said %s", "x\n2026 error turnwire: forged\x1b[2J\u202e", extra={"event": "said", "who": "a b"})
    [line] = stream.getvalue().splitlines()
    assert line.endswith(
        r"info    turnwire.test: said x\n2026 error turnwire: forged\x1b[2J⟨U+202E⟩ event=said who='a b'"
    )


def test_text_shows_the_stack_below_the_line(configured: Write) -> None:
    stream = configured("text")
    try:
        fail_inside()
    except ValueError:
        logger.exception("it failed")
    lines = stream.getvalue().splitlines()
    assert lines[0].endswith("turnwire.test: it failed")
    assert lines[1] == r"  ValueError: outer\nsecond"
    assert lines[3].endswith("in fail_inside")
    assert "  KeyError: 'inner'" in lines


@pytest.mark.guarantee("G13")
@pytest.mark.parametrize("format", ["text", "json"])
@pytest.mark.parametrize(
    ("message", "extra"),
    [
        (f"the token is {TOKEN}", {}),
        ("Authorization: Bearer abc.SECRET.def", {}),
        ("authorization=Basic SECRET", {}),
        ('Cookie: a="b"; turnwire=SECRET', {}),
        ("headers [(b'cookie', b'turnwire=SECRET'), (b'x', b'y')]", {}),
        ("headers {'Set-Cookie': 'turnwire=SECRET; Path=/'}", {}),
        ("sent Bearer SECRET", {}),
        ("m", {"url": f"http://localhost/?token={TOKEN}"}),
        ("m", {"headers": {"Authorization": "SECRET", "deep": {"cookie": "SECRET"}}}),
        ("m", {"headers": [("authorization", "Bearer SECRET")]}),
        ("m", {"token": "SECRET"}),
        ("m", {"object": ValueError("Bearer SECRET")}),
        ('of the operator: pass"word', {"given": 'pass"word'}),
    ],
)
def test_secrets_are_masked(
    configured: Write, format: Literal["text", "json"], message: str, extra: dict[str, object]
) -> None:
    stream = configured(format, secrets=('pass"word',))
    logger.info(message, extra=extra)
    try:
        raise ValueError(message)
    except ValueError:
        logger.exception("it failed")
    written = stream.getvalue()
    assert "***" in written
    for secret in (TOKEN, "aBcDeF", "SECRET", 'pass"word', r"pass\"word"):
        assert secret not in written


def test_harmless_words_are_left_alone(configured: Write) -> None:
    stream = configured()
    logger.info("no cookie, so refused", extra={"token_id": "k3y", "cookies": 2})
    line = only(stream)
    assert (line["message"], line["token_id"], line["cookies"]) == ("no cookie, so refused", "k3y", 2)


def test_the_level_is_for_our_loggers(configured: Write) -> None:
    stream = configured(level="debug")
    logging.getLogger("turnwire.a").debug("turnwire.a")
    logging.getLogger("websockets").debug("a header")
    logging.getLogger("websockets").warning("a warning")
    messages = [json.loads(line)["message"] for line in stream.getvalue().splitlines()]
    assert messages == ["turnwire.a", "a warning"]


def test_a_log_that_cannot_be_written_is_reported_once_a_minute(configured: Write) -> None:
    stream = configured()
    fields = {"name": logger.name, "levelno": logging.ERROR, "levelname": "ERROR", "msg": "it failed"}
    for second in range(120):
        for event in ("append_failed", "other"):
            logger.handle(logging.makeLogRecord({**fields, "event": event, "created": 1000.0 + second}))
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [each.get("left_out") for each in lines if each["event"] == "append_failed"] == [None, 59]
    assert sum(each["event"] == "other" for each in lines) == 120


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_lines_on_a_terminal_are_short_and_leave_the_audit_out(configured: Write) -> None:
    configured()
    stream = Tty()
    configure_logging("text", "info", stream=stream)
    logging.getLogger("turnwire.audit").info("POST /session 200", extra={"event": "audit"})
    logger.warning("a turn failed", extra={"event": "turn_failed", "code": "agent_error"})
    assert re.fullmatch(r"\d\d:\d\d:\d\d warning a turn failed code=agent_error\n", stream.getvalue())
    configure_logging("text", "debug", stream=stream)
    logging.getLogger("turnwire.audit").info("POST /session 200", extra={"event": "audit"})
    assert "POST /session 200" in stream.getvalue()


def test_a_second_configuration_replaces_the_first(configured: Write) -> None:
    first, second = configured(), configured("text")
    logger.info("once")
    assert first.getvalue() == ""
    assert second.getvalue().count("once") == 1


def test_words_and_arguments_that_do_not_fit_do_not_cost_the_line(configured: Write) -> None:
    stream = configured()
    logger.info("%d things", "many")
    assert only(stream)["message"] == "%d things ('many',)"
