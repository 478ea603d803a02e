"""Single events as published in a shape; the rules for all of them are in `tests/properties/test_shape.py`."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw
from msgspec.json import decode as plain
from msgspec.json import encode as written
from msgspec.structs import replace
from tests.unit.projections.translate.speaking import raw, text

from turnwire.ids import AgentSessionId, ClientId, MessageId, PromptId, SessionId
from turnwire.projections.envelope import Form, Parties, Prompter, Shape, ShapeFold
from turnwire.session import events as ev
from turnwire.session.codec import encode

S1, P1, C1, C2 = SessionId("s1"), PromptId("p1"), ClientId("c1"), ClientId("c2")
CHUNK = raw({"sessionUpdate": "agent_message_chunk", "content": text("hi"), "messageId": "m1"})
BOTH = pytest.mark.parametrize("shape", [Shape.V1, Shape.V2])


def fold(shape: Shape, version: int | None = 1, **prompters: Prompter) -> ShapeFold:
    parties = Parties(version, {PromptId(name): each for name, each in prompters.items()})
    return ShapeFold(S1, shape, 6, parties, is_whole=False)


def told(folding: ShapeFold, event: ev.AnyEvent) -> list[dict[str, Any]]:
    (lines,) = folding.project([encode(event)], Form.LINE)
    return [json.loads(line) for line in lines.splitlines()]


def started(version: int, offers: object = None) -> ev.AgentStarted:
    agent = AgentSessionId("a")
    end = ev.TurnEnd.RESPONSE if version == 1 else ev.TurnEnd.IDLE
    return ev.AgentStarted(
        at=1, agent_session_id=agent, protocol_version=version, turn_end=end, offers=raw(offers or {})
    )


def said(update: Raw, kind: str | None = None) -> ev.SessionUpdated:
    return ev.SessionUpdated(at=1, kind=kind or plain(update)["sessionUpdate"], update=update, prompt_id=P1)


@pytest.mark.parametrize("shape", list(Shape))
def test_the_originator_is_who_prompted_and_the_author_who_did_it(shape: Shape) -> None:
    folding = fold(shape, p1=Prompter("ann", C1))
    (cancel,) = told(folding, ev.CancelAsked(at=1, prompt_id=P1, author="bob", client_id=C2))
    assert (cancel["author"], cancel["originatorClientId"], cancel["data"]["clientId"]) == ("bob", C1, C2)
    (harder,) = told(folding, ev.CancelEscalated(at=1, prompt_id=P1, rung=ev.CancelRung.KILL))
    assert (harder["author"], harder["originatorClientId"]) == ("ann", C1)
    (mode,) = told(folding, ev.ModeChanged(at=1, mode="code", author="bob", client_id=C2))
    assert (mode["author"], mode["originatorClientId"]) == ("bob", C2)


@pytest.mark.parametrize("shape", list(Shape))
def test_who_cancels_a_turn_that_the_agent_began_did_not_prompt_it(shape: Shape) -> None:
    folding = fold(shape)
    (began,) = told(folding, ev.TurnStarted(at=1, prompt_id=P1, origin=ev.Origin.AGENT))
    assert not {"author", "originatorClientId"} & began.keys()
    (cancel,) = told(folding, ev.CancelAsked(at=1, prompt_id=P1, author="bob", client_id=C2))
    assert cancel["author"] == "bob"
    assert "originatorClientId" not in cancel


def test_an_update_in_the_asked_version_is_passed_on_byte_for_byte() -> None:
    odd = Raw(b'{"sessionUpdate":"x",  "n":1.50, "n":2e0,"u":"\\u00e9%d"}')
    (frame,) = fold(Shape.V1, p1=Prompter("ann", C1)).project([encode(said(odd, "x"))])
    assert frame == (
        b'id: 7\nevent: session_update\ndata: {"id":7,"v":1,"type":"session_update",'
        b'"data":{"sessionId":"s1","update":%b},'
        b'"promptId":"p1","author":"ann","originatorClientId":"c1","_meta":{"serverTimestamp":1}}\n\n' % odd
    )


@pytest.mark.parametrize("shape", list(Shape))
def test_an_update_of_no_turn_is_no_model_for_one_of_a_turn(shape: Shape) -> None:
    bodies = [encode(replace(said(CHUNK), prompt_id=turn)) for turn in (None, P1, P1, None, None, P1)]
    together, alone = fold(shape, p1=Prompter("ann", C1)), fold(shape, p1=Prompter("ann", C1))
    assert together.project(bodies) == [frame for body in bodies for frame in alone.project([body])]


def test_an_update_whose_fields_are_stored_in_another_order_is_told_the_same() -> None:
    body = encode(said(CHUNK))
    turned = written(dict(reversed(plain(body, type=dict[str, Raw]).items())))
    assert turned != body
    assert fold(Shape.V1).project([turned]) == fold(Shape.V1).project([body])


@BOTH
@pytest.mark.parametrize("kind", ["turn_complete", "_turn_complete", "state_update", "state_change"])
@pytest.mark.parametrize("version", [1, 2])
def test_an_agents_own_states_and_ends_are_left_out(shape: Shape, kind: str, version: int) -> None:
    folding = ShapeFold(S1, shape)
    folding.project([encode(started(version))])
    (only,) = told(folding, said(raw({"sessionUpdate": kind, "state": "idle", "stopReason": "end_turn"})))
    assert (only["id"], only["type"]) == (2, "session_update_omitted")
    assert only["data"] == {"sessionId": "s1", "sessionUpdate": kind}


@BOTH
def test_a_message_without_blocks_keeps_its_number(shape: Shape) -> None:
    message = ev.UserMessage(at=1, prompt_id=P1, message_id=MessageId("m"), content=Raw(b"[]"))
    (only,) = told(fold(shape), message)
    assert only["id"] == 7
    assert only["type"] == ("session_update" if shape is Shape.V2 else "session_update_omitted")


def test_the_commands_that_a_v2_agent_opens_with_are_an_update_in_v1() -> None:
    offers = {"configOptions": [], "availableCommands": [{"type": "command", "name": "a", "description": "A"}]}
    commands, start = told(ShapeFold(S1, Shape.V1), started(2, offers))
    assert commands["data"]["update"]["availableCommands"] == [{"name": "a", "description": "A"}]
    assert (commands["_meta"]["partOf"], start["id"], start["type"]) == (1, 1, "agent_started")
    assert start["data"]["offers"] == {"configOptions": []}
    (alone,) = told(ShapeFold(S1, Shape.V2), started(2, offers))
    assert alone["data"]["offers"] == offers


@BOTH
def test_a_fold_from_the_middle_stops_where_it_would_have_to_translate(shape: Shape) -> None:
    other = 2 if shape is Shape.V1 else 1
    accepted = ev.PromptAccepted(at=1, prompt_id=P1, after_offset=0)
    for version, event in ((other, said(CHUNK)), (None, said(CHUNK)), (shape.version, started(other))):
        folding = fold(shape, version)
        assert len(folding.project([encode(accepted), encode(event), encode(accepted)])) == 1
        assert folding.is_stuck
        assert folding.offset == 7


def test_a_fold_that_translates_cannot_be_copied() -> None:
    folding = ShapeFold(S1, Shape.V1)
    assert folding.copy() is not None
    folding.project([encode(started(2))])
    assert folding.translates
    assert folding.copy() is None
