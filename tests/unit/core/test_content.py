"""What a prompt may hold, by what the agent offered."""

from __future__ import annotations

import pytest
from msgspec import Raw
from tests.unit.core.driving import Session, edit, prompt, raw, ready

from turnwire.core import inputs as i
from turnwire.core.content import ALWAYS, check_content, content_types
from turnwire.core.events import TurnEnd
from turnwire.errors import ContentRefused

IMAGE = raw([{"type": "text", "text": "see"}, {"type": "image", "data": "", "mimeType": "image/png"}])


@pytest.mark.parametrize(
    ("version", "capabilities", "more"),
    [
        (1, {}, set[str]()),
        (1, {"promptCapabilities": {"image": True, "audio": False}}, {"image"}),
        (1, {"promptCapabilities": {"embeddedContext": True, "audio": True}}, {"resource", "audio"}),
        (1, {"promptCapabilities": None}, set[str]()),
        (1, {"promptCapabilities": "all"}, set[str]()),
        (2, {"session": {"prompt": {"image": {}, "embeddedContext": None}}}, {"image"}),
        (2, {"session": None}, set[str]()),
        (2, {"promptCapabilities": {"image": True}}, set[str]()),
    ],
)
def test_the_offer_of_the_handshake_decides(version: int, capabilities: object, more: set[str]) -> None:
    assert content_types(raw(capabilities), version) == tuple(sorted({*ALWAYS, *more}))


@pytest.mark.parametrize(
    "content", [b"[]", b"{}", b"[1]", b'[{"text":"x"}]', b'[{"type":1}]', b"null", b"nonsense"]
)
def test_what_is_no_prompt_is_refused(content: bytes) -> None:
    with pytest.raises(ContentRefused):
        check_content(Raw(content), None)


@pytest.mark.requirement("R51")
def test_content_that_the_agent_does_not_take_is_refused_before_it_is_a_turn() -> None:
    session = Session(None)
    session.take(ready(TurnEnd.RESPONSE))
    refusal = session.refuses(i.Prompt(at=1, prompt_id=prompt("p1").prompt_id, content=IMAGE), ContentRefused)
    assert "image" in str(refusal)
    assert session.running() is None


@pytest.mark.requirement("R51")
def test_a_waiting_prompt_is_not_edited_into_what_the_agent_does_not_take() -> None:
    session = Session()
    session.take(prompt("p1"), prompt("p2"))
    given = edit("p2", "x")
    session.refuses(i.UpdatePrompt(at=given.at, prompt_id=given.prompt_id, content=IMAGE), ContentRefused)


def test_before_the_agent_is_known_only_the_shape_counts() -> None:
    session = Session(None)
    session.take(i.Prompt(at=1, prompt_id=prompt("p1").prompt_id, content=IMAGE))
    assert session.running() == "p1"
