"""Random agents of one version, read by a client of the other.

Two promises. Each resulting update is valid in the other version's own schema. And a v1 agent's updates, translated
to v2 and back to v1, give a client the same view, except for the entries of `LOSSES`: the two views are compared
after these are made alike in both.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import Raw
from tests.properties.saying import MODES, ODD, ODD_SAYS, V1_SAYS, V2_SAYS
from tests.unit.projections.translate.speaking import complaints, plain, raw

from turnwire.ids import AgentSessionId, PromptId
from turnwire.projections.translate.losses import LOSSES
from turnwire.projections.translate.updates import UpdatesV1ToV2, UpdatesV2ToV1
from turnwire.projections.view import View
from turnwire.session import events as ev
from turnwire.wire.schema import Unknown, decode_update

CODES = {each.code for each in LOSSES}


# -- what comes out ------------------------------------------------------------------------------------------


def check(update: Raw, version: int) -> None:
    """Check that both our own reader and the published schema accept it."""
    assert not isinstance(decode_update(update, version), Unknown)
    assert complaints(version, "SessionUpdate", plain(update)) == []


@pytest.mark.guarantee("G11")
@settings(max_examples=300, deadline=None)
@given(says=st.lists(V1_SAYS, max_size=12), with_modes=st.booleans())
def test_what_a_v2_client_is_told_of_a_v1_agent_is_v2(says: list[Any], with_modes: bool) -> None:
    agent = UpdatesV1ToV2(raw({"modes": MODES} if with_modes else {}))
    for turn, update in says:
        for told in agent.take(raw(update), turn=turn):
            check(told, 2)
    assert agent.losses.keys() <= CODES


@pytest.mark.guarantee("G11")
@settings(max_examples=300, deadline=None)
@given(says=st.lists(V2_SAYS, max_size=12))
def test_what_a_v1_client_is_told_of_a_v2_agent_is_v1(says: list[Any]) -> None:
    agent = UpdatesV2ToV1()
    for turn, update in says:
        for told in agent.take(raw(update), turn=turn):
            check(told, 1)
    for told in agent.part():
        check(told, 1)
    assert agent.losses.keys() <= CODES


# -- there and back ------------------------------------------------------------------------------------------


def started() -> ev.AgentStarted:
    return ev.AgentStarted(
        at=0, agent_session_id=AgentSessionId("a"), protocol_version=1, turn_end=ev.TurnEnd.RESPONSE
    )


def apply(view: View, turn: PromptId | None, update: Raw) -> None:
    kind = plain(update)["sessionUpdate"]
    view.apply(ev.SessionUpdated(at=0, kind=kind, update=update, prompt_id=turn))


FORGOTTEN = {
    "tool_title": ("title",),
    "scalar_clear": ("title", "name", "rawInput", "rawOutput"),
    "meta_clear": ("meta",),
}
"""Fields of tool calls that differ once something of them was lost."""


def alike(view: View, losses: Counter[str]) -> Any:
    """Return a view as plain values, with the entries of `LOSSES` made alike."""
    forgotten = {field for code in losses for field in FORGOTTEN.get(code, ())}
    stored: Any = msgspec.json.decode(msgspec.json.encode(view.stored()))
    # A translation may have another number of events.
    stored.pop("offset", None)
    for item in stored.get("items", []):
        item.pop("firstEventId", None)
        item.pop("lastEventId", None)
        # Ids that the agent did not set are generated on the way.
        item.pop("messageId", None)
        if item["item"] == "tool_call":
            # Defaults are omitted only where they were not set explicitly.
            item.setdefault("kind", "other")
            item.setdefault("status", "pending")
            for field in forgotten:
                item.pop(field, None)
        item["content"] = [_content_alike(each) for each in item.get("content", [])]
        for place in item.get("locations", []):
            if place.get("line") == 0:  # line_zero
                del place["line"]
    latest = stored.get("latest", {})
    for name in ("mode", "configOptions"):  # modes are options in v2, and come back as both
        latest.pop(name, None)
    return stored


def _content_alike(item: Any) -> Any:
    """diff_texts, diff_changes and terminal_of_client end as text."""
    kind = item.get("type")
    shown = item.get("content", {}).get("text", "") if kind == "content" else ""
    if kind == "diff" or re.match(r"```diff|(?:add|modify) /f$", shown):
        return "a diff"
    return "a terminal" if kind == "terminal" or shown == "[terminal x]" else item


def named(message_id: str | None) -> dict[str, Any]:
    """Return a chunk of a message."""
    block = {"type": "text", "text": "x"}
    return {"sessionUpdate": "agent_message_chunk", "content": block, "messageId": message_id}


@pytest.mark.guarantee("G11")
@settings(max_examples=400, deadline=None)
@example(says=[("p1", named("m2")), ("p2", named("m2")), ("p1", named(None))])
@example(says=[(None, named("m2")), ("p2", named("m2")), (None, named(None))])
@example(says=[("p1", named("m2")), (None, named("m2")), ("p1", named(None))])
@given(says=st.lists(V1_SAYS, max_size=14))
def test_a_v1_agent_told_in_v2_and_back_in_v1_is_the_same_but_for_the_losses(says: list[Any]) -> None:
    there, back = UpdatesV1ToV2(raw({"modes": MODES})), UpdatesV2ToV1()
    original, returned = View(), View()
    original.apply(started())
    returned.apply(started())
    for turn, update in says:
        apply(original, turn, raw(update))
        for in_v2 in there.take(raw(update), turn=turn):
            for in_v1 in back.take(in_v2, turn=turn):
                apply(returned, turn, in_v1)
    assert alike(returned, back.losses) == alike(original, back.losses)


@pytest.mark.guarantee("G11")
@settings(max_examples=300, deadline=None)
@given(says=st.lists(V1_SAYS, max_size=14))
def test_a_v2_client_has_the_view_that_a_v1_client_has_of_the_same_agent(says: list[Any]) -> None:
    there = UpdatesV1ToV2(raw({"modes": MODES}))
    original, translated = View(), View()
    original.apply(started())
    translated.apply(msgspec.structs.replace(started(), protocol_version=2))
    for turn, update in says:
        apply(original, turn, raw(update))
        for in_v2 in there.take(raw(update), turn=turn):
            apply(translated, turn, in_v2)
    ours, theirs = alike(translated, there.losses), alike(original, there.losses)
    for view in (ours, theirs):
        view.pop("speaker")
        view["latest"].pop("commands", None)  # tagged in v2
        for item in view.get("items", []):
            item["content"] = ["a diff" if _is_diff(each) else each for each in item["content"]]
    assert ours == theirs


def _is_diff(item: Any) -> bool:
    return isinstance(item, dict) and "changes" in item


# -- what nobody should say ---------------------------------------------------------------------------------


@settings(max_examples=600, deadline=None)
@given(says=st.lists(ODD_SAYS, max_size=6), offers=ODD)
def test_nothing_that_an_agent_says_breaks_a_translator(says: list[Any], offers: Any) -> None:
    for agent in (UpdatesV1ToV2(raw(offers)), UpdatesV2ToV1(raw(offers))):
        for update in says:
            for told in agent.take(raw(update), turn=None):
                assert isinstance(plain(told), dict)
        agent.mode("mode")
        agent.part()
        assert agent.losses.keys() <= CODES
