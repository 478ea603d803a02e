"""One update as handlers see it."""

from __future__ import annotations

import pytest
from msgspec import Raw

from turnwire.client.update import Update, UpdateOrigin
from turnwire.ids import PromptId, SessionId
from turnwire.session.events import SessionUpdated


def update(kind: str, body: str, prompt_id: str | None = "p1", after: str | None = None) -> Update:
    event = SessionUpdated(
        at=1,
        kind=kind,
        update=Raw(body.encode()),
        prompt_id=None if prompt_id is None else PromptId(prompt_id),
        after=None if after is None else PromptId(after),
    )
    return Update(event, 7, UpdateOrigin(SessionId("s1")))


CHUNK = '{"sessionUpdate":"agent_message_chunk","content":%s}'


@pytest.mark.parametrize(
    ("kind", "content", "text"),
    [
        ("agent_message_chunk", '{"type":"text","text":"hé"}', "hé"),
        ("agent_message_chunk", '{"type":"image","data":"AAAA","mimeType":"image/png"}', ""),
        ("agent_message_chunk", '{"type":"text","text":7}', ""),
        ("agent_message_chunk", "null", ""),
        ("agent_thought_chunk", '{"type":"text","text":"hm"}', ""),
        ("user_message_chunk", '{"type":"text","text":"hi"}', ""),
    ],
)
def test_the_text_is_what_a_chunk_adds_to_the_agents_message(kind: str, content: str, text: str) -> None:
    assert update(kind, CHUNK % content).text == text


def test_the_payload_is_kept_byte_for_byte() -> None:
    body = '{ "sessionUpdate":"agent_message_chunk",  "content":{"type":"text","text":"x"}, "more":1 }'
    assert bytes(update("agent_message_chunk", body).raw) == body.encode()


def test_the_typed_view_follows_the_version_that_the_agent_speaks() -> None:
    body = '{"sessionUpdate":"state_update","state":"idle"}'
    one = update("state_update", body)
    assert type(one.typed).__name__ == "Unknown"
    origin = UpdateOrigin(SessionId("s1"))
    origin.protocol_version = 2
    two = Update(SessionUpdated(at=1, kind="state_update", update=Raw(body.encode())), 1, origin)
    assert type(two.typed).__name__ == "StateUpdate"


def test_whose_it_is_can_be_told() -> None:
    in_turn, late = update("plan", "{}"), update("plan", "{}", None, "p0")
    background = update("plan", "{}", None)
    assert [(each.prompt_id, each.late, each.after) for each in (in_turn, late, background)] == [
        ("p1", False, None),
        (None, True, "p0"),
        (None, False, None),
    ]
    assert (in_turn.session_id, in_turn.offset, in_turn.echo) == ("s1", 7, False)
    assert "plan" in repr(in_turn)
