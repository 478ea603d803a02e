"""A permission request is shown completely before the user is asked, and nothing in it can be hidden."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec import Raw, json
from rich.text import Text

from turnwire.cli.output import printable
from turnwire.cli.permissions import HIDDEN, ask_here, details
from turnwire.client.permission import PermissionRequest
from turnwire.ids import PermissionId, SessionId
from turnwire.session.events import PermissionRequested

pytestmark = pytest.mark.anyio


def request(command: str) -> PermissionRequest:
    params = {
        "toolCall": {"toolCallId": "t1", "title": "Run", "kind": "execute", "rawInput": {"command": command}},
        "options": [{"optionId": "yes", "name": "Allow", "kind": "allow_once"}],
    }
    event = PermissionRequested(
        at=0,
        request_id=PermissionId("q1"),
        agent_request_id=1,
        method="session/request_permission",
        params=Raw(json.encode(params)),
        options=("yes",),
    )
    return PermissionRequest(event, SessionId("s_1"))


class Reader:
    """A person who reads a number of pages and then chooses the first option."""

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self.shown = ""
        self.was_asked = False

    def show(self, block: Text) -> None:
        self.shown += block.plain

    async def line(self, prompt: str) -> str | None:
        self.pages -= 1
        return "" if self.pages > 0 else None

    async def choose(self, choices: Sequence[str]) -> int | None:
        self.was_asked = True
        return 0


@pytest.mark.parametrize("filler", ["a", "a\n"], ids=["one line", "many lines"])
async def test_long_command_is_shown_to_its_end_before_the_question(filler: str) -> None:
    reader = Reader(pages=1000)
    reply = await ask_here(request(f"echo {filler * 5000}; rm -rf ~/precious"), reader)
    assert "rm -rf ~/precious" in reader.shown
    assert "…" not in reader.shown
    assert reply is not None


async def test_request_stays_open_when_its_last_page_was_not_shown() -> None:
    reader = Reader(pages=2)
    assert await ask_here(request(f"echo {'a' * 50_000}; rm -rf ~/precious"), reader) is None
    assert "rm -rf" not in reader.shown
    assert not reader.was_asked


def test_hidden_characters_are_shown_as_marks_with_a_warning() -> None:
    shown = details(request("echo '\u202e' ; rm -rf ~ '\u2066# \u2069\u200b'"))
    assert shown is not None
    assert "echo '⟨U+202E⟩' ; rm -rf ~ '⟨U+2066⟩# ⟨U+2069⟩⟨U+200B⟩'" in shown.plain
    assert HIDDEN in shown.plain
    plain = details(request("echo hello"))
    assert plain is not None
    assert HIDDEN not in plain.plain


def test_printable_text_has_no_control_characters_and_keeps_words_apart() -> None:
    text = "a\x1b]52;c;x\x07b\u202ec\r\nd\te\x9b1m\u00a0f\U000e0041"
    assert printable(text) == "a]52;c;xb⟨U+202E⟩c\nd\te1m f⟨U+E0041⟩"
