"""The allowed content of a prompt, by the agent's capabilities."""

from __future__ import annotations

import pytest
from msgspec import Raw
from tests.unit.session.driving import Session, edit, prompt, raw, ready

from turnwire.errors import ContentRefused
from turnwire.session import inputs as i
from turnwire.session.content import ALWAYS, check_content, content_types
from turnwire.session.events import TurnEnd

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


MALFORMED = [
    {"type": "text"},
    {"type": "text", "text": 5},
    {"type": "text", "text": None},
    {"type": "resource_link"},
    {"type": "resource_link", "uri": "file:///a"},
    {"type": "resource_link", "uri": 1, "name": "a"},
    {"type": "image", "data": "AA=="},
    {"type": "image", "mimeType": "image/png"},
    {"type": "audio", "data": ["AA=="], "mimeType": "audio/wav"},
    {"type": "resource"},
    {"type": "resource", "resource": "file:///a"},
    {"type": "resource", "resource": {"text": "a"}},
    {"type": "resource", "resource": {"uri": "file:///a"}},
    {"type": "resource", "resource": {"uri": "file:///a", "text": 5}},
]


@pytest.mark.parametrize("block", MALFORMED)
@pytest.mark.parametrize("accepts", [None, ("audio", "image", "resource", "resource_link", "text")])
def test_a_block_without_what_its_type_requires_is_refused(block: object, accepts: tuple[str, ...] | None) -> None:
    given = raw([{"type": "text", "text": "fine"}, block])
    with pytest.raises(ContentRefused, match="content block 2 is malformed") as refused:
        check_content(given, accepts)
    assert refused.value.context == {"block": 2}


@pytest.mark.parametrize(
    "block",
    [
        {"type": "text", "text": ""},
        {"type": "text", "text": "a", "annotations": 5, "_meta": 7, "newer": {"text": 1}},
        {"type": "text", "text": "a", "annotations": {"priority": "high", "audience": "user"}},
        {"type": "resource_link", "uri": "a", "name": "b", "size": 1.5, "icons": 3, "title": {}},
        {"type": "resource", "resource": {"uri": "a", "blob": "", "mimeType": 3}, "annotations": None},
        {"type": "resource", "resource": {"uri": "a", "text": "", "blob": None, "newer": []}},
        {"type": "image", "data": "", "mimeType": "", "uri": 4},
        {"type": "hologram"},
    ],
)
def test_what_no_schema_requires_is_the_agent_s_to_read(block: object) -> None:
    check_content(raw([block]), None)


@pytest.mark.parametrize(
    "content",
    [
        b'[{"type":"text","text":"a","deep":' + b"[" * 5000 + b"]" * 5000 + b"}]",
        b'[{"type":"text","text":"\xff"}]',
    ],
)
def test_what_cannot_be_read_at_all_is_refused_like_anything_else(content: bytes) -> None:
    with pytest.raises(ContentRefused):
        check_content(Raw(content), None)


def test_a_waiting_prompt_is_not_edited_into_something_malformed() -> None:
    session = Session()
    session.take(prompt("p1"), prompt("p2"))
    given, block = edit("p2", "x"), raw([{"type": "text"}])
    session.refuses(i.UpdatePrompt(at=given.at, prompt_id=given.prompt_id, content=block), ContentRefused)


def test_content_that_the_agent_does_not_take_is_refused_before_it_is_a_turn() -> None:
    session = Session(None)
    session.take(ready(TurnEnd.RESPONSE))
    refusal = session.refuses(i.Prompt(at=1, prompt_id=prompt("p1").prompt_id, content=IMAGE), ContentRefused)
    assert "image" in str(refusal)
    assert session.running() is None


def test_a_waiting_prompt_is_not_edited_into_what_the_agent_does_not_take() -> None:
    session = Session()
    session.take(prompt("p1"), prompt("p2"))
    given = edit("p2", "x")
    session.refuses(i.UpdatePrompt(at=given.at, prompt_id=given.prompt_id, content=IMAGE), ContentRefused)


def test_before_the_agent_is_known_only_the_shape_counts() -> None:
    session = Session(None)
    session.take(i.Prompt(at=1, prompt_id=prompt("p1").prompt_id, content=IMAGE))
    assert session.running() == "p1"
