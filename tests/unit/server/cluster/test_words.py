"""The messages between nodes: every input, answer and error is decoded as it was encoded."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec import Raw

from turnwire.errors import (
    AgentLaunchFailed,
    AuthRequired,
    LocalProtocolError,
    NotOwner,
    QueueFull,
    RemoteProtocolError,
    RequestRefused,
    TurnwireError,
)
from turnwire.ids import AgentName, AgentSessionId, ChildId, ClientId, PermissionId, PromptId, SessionId
from turnwire.server.cluster import words
from turnwire.session import inputs as given
from turnwire.session.ending import Cancelled
from turnwire.session.events import CancelRung, LostChoice, OpeningRefused, TurnEnd
from turnwire.session.permissions import PermissionAnswer
from turnwire.session.queue import Accepted
from turnwire.session.state import Setup
from turnwire.wire.jsonrpc import ErrorObject, raw
from turnwire.wire.peek import peek_update

P, C, Q = PromptId("p_1"), ClientId("c_1"), PermissionId("q_1")
UPDATE = raw({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "ä\u2028"}})

INPUTS: list[given.AnyInput] = [
    given.CreateSession(
        at=1,
        session_id=SessionId("s"),
        cwd="/w",
        setup=Setup(raw([{"name": "m"}]), ("/a",), raw({"k": 1})),
        fork_of=SessionId("o"),
        title="t",
        agent_name=AgentName("x"),
        context="before",
        author="ann",
        client_id=C,
    ),
    given.ChangeSetup(at=1, setup=Setup()),
    given.Prompt(
        at=1,
        prompt_id=P,
        content=raw([{"type": "text", "text": "hi"}]),
        when_busy=given.WhenBusy.STEER,
        prompt_request_id="7",
        key="k",
        digest="d",
        meta=raw({"m": [1]}),
        deadline_at=9,
        author="ann",
        client_id=C,
    ),
    given.Prompt(at=1, prompt_id=P, content=raw([]), prompt_request_id=7),
    given.UpdatePrompt(at=1, prompt_id=P, content=raw([]), position=0),
    given.RemovePrompt(at=1, prompt_id=P),
    given.Cancel(at=1, prompt_id=P),
    given.Cancel(at=1),
    given.CancelChild(at=1, child=ChildId("ch")),
    given.AnswerPermission(at=1, request_id=Q, answer=raw({"outcome": "x"}), option_id="o"),
    given.Settle(at=1, prompt_id=P),
    given.HoldQueue(at=1, reason="why"),
    given.ReleaseQueue(at=1),
    given.ModeSet(at=1, mode="m", previous="n", config_id="c"),
    given.ModelSet(at=1, model_id="m"),
    given.OptionChosen(at=1, config_id="c", value=True),
    given.OptionChosen(at=1, config_id="c", value="true"),
    given.Rename(at=1, title=None),
    given.Archive(at=1, archived=True),
    given.Attach(at=1, client_id=C, role="observer", author="ann"),
    given.Detach(at=1, client_id=C),
    given.Close(at=1),
    given.AgentReady(
        at=1,
        agent_session_id=AgentSessionId("a"),
        protocol_version=2,
        turn_end=TurnEnd.IDLE,
        steering=True,
        capabilities=raw({"a": {}}),
        refused=(OpeningRefused("load", raw({"code": 1, "message": "m"})),),
    ),
    given.AgentUpdate(at=1, update=UPDATE, peek=peek_update(UPDATE), ends=P, beside=raw({"x": 1}), child="a2"),
    given.AgentPieces(at=1, kind="agent_message_chunk", updates=[UPDATE, UPDATE]),
    given.AgentHasPrompt(at=1, prompt_id=P, agent_request_id=3),
    given.AgentReplayed(at=1, replayed=1, matched=1, missing=0),
    given.AgentAnswered(at=1, prompt_id=P, stop_reason="end_turn", usage=raw({"n": 1}), beside=raw({})),
    given.AgentRefused(at=1, prompt_id=P, error=raw({"code": 1, "message": "m"})),
    given.AgentAsks(
        at=1,
        request_id=Q,
        agent_request_id="r",
        method="session/request_permission",
        params=raw({}),
        options=("a", "b"),
        verdict=given.Verdict("r", raw({})),
    ),
    given.AgentWithdraws(at=1, agent_request_id=1),
    given.SteerAnswered(at=1, prompt_id=P, outcome=given.SteerOutcome.STARTED),
    given.AgentGone(at=1, code="agent_exited", message="m", exit_code=1, stderr_tail="t"),
    given.DeadlinePassed(at=1, prompt_id=P, rung=CancelRung.REQUEST),
    given.AnswerOverdue(at=1, prompt_id=P),
    given.TimeLimitPassed(at=1, prompt_id=P),
    given.ChoicesTold(at=1, lost=(LostChoice("mode", "m", "why"),)),
    given.Recover(at=1),
    given.Adopt(at=1, agent_session_id=AgentSessionId("a"), sent=((P, 3),), steered=(P,)),
]


def over_the_wire(word: words.Word) -> Any:
    return words.read(Raw(msgspec.json.encode(word)), type(word))


@pytest.mark.parametrize("input", INPUTS, ids=lambda each: type(each).__name__)
def test_an_input_comes_out_as_it_went_in(input: given.AnyInput) -> None:
    sent = over_the_wire(words.submit_of(SessionId("s"), input, 5))
    found = words.input_of(sent)
    assert type(found) is type(input)
    assert msgspec.json.encode(found) == msgspec.json.encode(input)
    assert (sent.session, sent.ask) == ("s", 5)


def test_every_kind_of_input_is_in_the_table() -> None:
    assert {type(each).__name__ for each in INPUTS} == set(words.INPUTS)


@pytest.mark.parametrize(
    ("input", "answer"),
    [
        (INPUTS[2], Accepted(P, 7, repeated=True)),
        (INPUTS[6], Cancelled(P)),
        (INPUTS[6], Cancelled(None)),
        (INPUTS[9], PermissionAnswer(True, raw({"outcome": "x"}), C)),
        (INPUTS[17], None),
    ],
)
def test_an_answer_comes_out_as_it_went_in(input: given.AnyInput, answer: object) -> None:
    sent = over_the_wire(words.Submitted(raw(answer), 3))
    found = words.answer_of(type(input), sent.answer)
    assert type(found) is type(answer)
    assert found == answer


def test_what_this_version_does_not_know_is_refused() -> None:
    with pytest.raises(RemoteProtocolError):
        words.input_of(words.Submit(SessionId("s"), 1, "Rewind", raw({})))
    with pytest.raises(RemoteProtocolError):
        words.input_of(words.Submit(SessionId("s"), 1, "Prompt", raw({"at": "noon"})))
    assert words.read(raw({"session": "s", "since": 1}), words.OfSession) == words.OfSession(SessionId("s"))


ERRORS: list[TurnwireError] = [
    QueueFull("full", session_id="s", limit=3, pending_count=3),
    NotOwner("not ours", owner=4),
    LocalProtocolError("no"),
    AuthRequired("log in", methods=b'[{"id":"m"}]'),
    AgentLaunchFailed("none", definite=True, agent_error=b'{"code":1}', names=("a", "b")),
    RequestRefused("gone", jsonrpc=-32002, reason="missing", data={"uri": "file:///a"}),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda each: each.code)
def test_a_refusal_is_raised_as_the_same_class_with_the_same_words(error: TurnwireError) -> None:
    sent = msgspec.json.decode(msgspec.json.encode(words.refusal_of(error)), type=ErrorObject)
    found = words.error_of(sent)
    assert type(found) is type(error)
    assert (str(found), found.context) == (str(error), error.context)
    for name in ("methods", "agent_error", "definite", "jsonrpc", "reason"):
        assert getattr(found, name, None) == getattr(error, name, None)
    data = getattr(found, "data", None)
    assert data is None or msgspec.json.decode(data) == getattr(error, "data", None)


def test_the_text_of_a_foreign_exception_stays_at_home() -> None:
    told = words.refusal_of(ValueError("/home/ann/secret"))
    assert b"secret" not in msgspec.json.encode(told)
    assert type(words.error_of(told)) is TurnwireError


def test_an_error_that_this_version_does_not_know_is_an_error_all_the_same() -> None:
    found = words.error_of(ErrorObject(-32603, "what is new", raw({"code": "of_next_year"})))
    assert (type(found), str(found)) == (TurnwireError, "what is new")
    assert str(words.error_of(ErrorObject(-1, "bare"))) == "bare"
