"""The text of a turn's result equals the view's, however the agent's message was split into chunks."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from turnwire.client.progress import FOLDED_AT_ONCE, Progress
from turnwire.ids import PromptId
from turnwire.projections.view import View
from turnwire.session import events as ev

pytestmark = pytest.mark.anyio

TURN = PromptId("p1")
BEGIN = [ev.PromptAccepted(at=1, prompt_id=TURN, after_offset=0), ev.TurnStarted(at=1, prompt_id=TURN)]
END = ev.TurnCompleted(at=2, prompt_id=TURN, stop_reason="end_turn", ending=ev.Ending.RESPONSE)


def updated(kind: str, **fields: Any) -> ev.SessionUpdated:
    update = Raw(msgspec.json.encode({"sessionUpdate": kind, **fields}))
    return ev.SessionUpdated(at=1, kind=kind, update=update, prompt_id=TURN)


def said(text: str, **fields: Any) -> ev.SessionUpdated:
    return updated("agent_message_chunk", content={"type": "text", "text": text}, **fields)


async def text_of(updates: list[ev.SessionUpdated]) -> str:
    progress = Progress(TURN, None, None)
    for event in (*BEGIN, *updates):
        progress.apply(event)
    progress.end(END)
    return (await progress.drained()).text


def text_by_view(updates: list[ev.SessionUpdated]) -> str:
    view = View()
    for event in (*BEGIN, *updates, END):
        view.apply(event)
    return view.result_text(TURN) or ""


ANY_UPDATE = st.one_of(
    st.builds(said, st.text()),
    st.builds(said, st.text(), messageId=st.sampled_from(["a", "b", None])),
    st.just(updated("agent_thought_chunk", content={"type": "text", "text": "hm"})),
    st.just(updated("tool_call", toolCallId="t", title="a tool")),
    st.just(updated("agent_message_chunk", content={"type": "image", "data": "", "mimeType": "image/png"})),
    st.just(updated("agent_message_chunk", content={"type": "text", "text": "x", "annotations": {"priority": 1}})),
    st.just(updated("agent_message_chunk", content="no block")),
    st.just(updated("agent_message_chunk")),
)


@given(st.lists(ANY_UPDATE, max_size=30))
async def test_any_mixture_of_updates_gives_the_text_of_the_view(updates: list[ev.SessionUpdated]) -> None:
    assert await text_of(updates) == text_by_view(updates)


@pytest.mark.parametrize("count", [1, FOLDED_AT_ONCE - 1, FOLDED_AT_ONCE, FOLDED_AT_ONCE + 1, 3 * FOLDED_AT_ONCE])
async def test_no_piece_is_lost_where_pieces_are_folded_together(count: int) -> None:
    pieces = [f"{number} é\n" for number in range(count)]
    assert await text_of([said(piece) for piece in pieces]) == "".join(pieces)
