"""The operator's rules at one session: a request is decided by all updates of the call in this turn."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import json

from turnwire.hosting.permission_rules import Rules, SessionRules
from turnwire.ids import AgentSessionId, PermissionId, PromptId, SessionId
from turnwire.limits import REMEMBERED_TOOLS
from turnwire.session.events import TurnEnd
from turnwire.session.inputs import AgentAsks, AgentGone, AgentHasPrompt, AgentReady, AgentUpdate, AnyInput
from turnwire.session.policy import read_rules
from turnwire.wire.jsonrpc import raw
from turnwire.wire.peek import peek_update

ENV, OPEN = [{"path": "/w/.env"}], [{"path": "/w/open"}]
RULES = [
    {"answer": "reject_once", "path": "*/.env"},
    {"answer": "allow_once", "kind": "read", "path": "{cwd}/*"},
    {"answer": "allow_once", "kind": "other"},
    {"answer": "allow_once", "argv": ["git", "status"]},
]
OPTIONS = [{"optionId": each, "kind": each} for each in ("allow_once", "reject_once")]
PROMPTED = AgentHasPrompt(at=1, prompt_id=PromptId("p2"), agent_request_id=7)
GONE = AgentGone(at=1, code="agent_exited", message="the agent is gone")


def ready(version: int) -> AgentReady:
    ended = TurnEnd.IDLE if version == 2 else TurnEnd.RESPONSE
    return AgentReady(at=1, agent_session_id=AgentSessionId("a"), protocol_version=version, turn_end=ended)


class Heard:
    """The rules, with an agent's updates supplied by a test."""

    def __init__(self, *rules: dict[str, Any], version: int = 1) -> None:
        self._rules = SessionRules(Rules(read_rules(rules or RULES)), SessionId("s1"))
        self.hear(ready(version))

    def hear(self, given: AnyInput) -> AnyInput:
        return self._rules.judged(given, "/w")

    def update(
        self, kind: str = "tool_call_update", call: str = "t", /, child: str | None = None, **said: Any
    ) -> None:
        update = raw({"sessionUpdate": kind, "toolCallId": call, **said})
        given = AgentUpdate(at=1, update=update, peek=peek_update(update), child=child)
        assert self.hear(given) is given

    def ask(self, call: str = "t", /, child: str | None = None, **said: Any) -> str | None:
        """The option that a rule chooses."""
        params = raw({"options": OPTIONS, "toolCall": {"toolCallId": call, **said}})
        asks = AgentAsks(
            at=1,
            request_id=PermissionId("q"),
            agent_request_id=1,
            method="session/request_permission",
            params=params,
            child=child,
        )
        asked = self.hear(asks)
        assert isinstance(asked, AgentAsks)
        return None if asked.verdict is None else json.decode(asked.verdict.answer)["outcome"]["optionId"]


def test_a_question_that_names_only_its_call_is_judged_by_what_was_said_of_it() -> None:
    heard = Heard()
    heard.update("tool_call", "env", kind="read", locations=ENV)
    heard.update("tool_call", "open", kind="read", locations=OPEN)
    heard.update("tool_call", "rm", kind="execute", rawInput={"command": "rm -rf /"}, locations=OPEN)
    heard.update("tool_call", "git", kind="execute", rawInput={"command": "git status"}, locations=OPEN)
    assert heard.ask("env") == "reject_once"
    assert heard.ask("open") == "allow_once"
    assert heard.ask("rm") is None, "no rule is about it"
    assert heard.ask("git") == "allow_once"
    assert heard.ask("never heard of") is None, "an unknown call is not of the kind `other`"


def test_what_is_said_later_replaces_field_by_field() -> None:
    heard = Heard()
    heard.update("tool_call", kind="read")
    assert heard.ask() is None
    heard.update(locations=OPEN)
    assert heard.ask() == "allow_once"
    assert heard.ask(locations=ENV) == "reject_once"
    assert heard.ask() == "reject_once", "a question is news of its call too"


def test_a_call_that_is_announced_again_is_another_one() -> None:
    heard = Heard()
    heard.update("tool_call", kind="read", locations=OPEN)
    heard.update("tool_call", title="again")
    assert heard.ask() is None


def test_an_update_that_cannot_be_read_leaves_nothing_known() -> None:
    heard = Heard()
    heard.update("tool_call", kind="read", locations=OPEN)
    heard.update(locations=[{"path": 7}])
    assert heard.ask() is None
    heard.update("tool_call", kind="read", locations=OPEN)
    assert heard.ask(locations=7) is None
    assert heard.ask() is None


@pytest.mark.parametrize(("version", "answer"), [(1, "allow_once"), (2, None)])
def test_null_means_what_the_agents_version_says(version: int, answer: str | None) -> None:
    heard = Heard(version=version)
    heard.update(kind="read", locations=OPEN)
    assert heard.ask(kind=None) == answer


@pytest.mark.parametrize("given", [PROMPTED, GONE, ready(1)])
def test_calls_are_forgotten_with_their_turn_and_their_agent(given: AnyInput) -> None:
    heard = Heard()
    heard.update("tool_call", kind="read", locations=OPEN)
    heard.hear(given)
    assert heard.ask() is None


def test_only_so_many_calls_are_remembered_and_the_rest_is_asked_about() -> None:
    heard = Heard()
    for number in range(REMEMBERED_TOOLS + 1):
        heard.update("tool_call", f"t{number}", kind="read", locations=OPEN)
    assert heard.ask("t1") == "allow_once"
    assert heard.ask("t0") is None


def test_a_call_too_large_to_remember_is_judged_only_by_its_question() -> None:
    heard, many = Heard(), [{"path": f"/w/{number}"} for number in range(5000)]
    heard.update("tool_call", kind="read", locations=many)
    assert heard.ask() is None
    assert heard.ask(kind="read", locations=many) == "allow_once"
    assert heard.ask() is None


def test_a_call_of_a_child_is_not_the_one_of_its_session_that_has_the_same_id() -> None:
    heard = Heard()
    heard.update("subagent_update", sessionId="c")
    heard.update("tool_call", kind="read", locations=OPEN)
    assert heard.ask() == "allow_once"
    assert heard.ask(child="c") is None
    heard.update("tool_call", kind="read", locations=OPEN, child="c")
    assert heard.ask(child="c") == "allow_once"


def test_a_child_that_works_elsewhere_or_nobody_knows_where_is_judged_by_users() -> None:
    heard = Heard()
    heard.update("subagent_update", sessionId="here", cwd="/w")
    heard.update("subagent_update", sessionId="away", cwd="/")
    heard.update("subagent_update", child="away", sessionId="inner")
    for child, answer in (("here", "allow_once"), ("away", None), ("inner", None), ("stranger", None)):
        assert heard.ask(child=child, kind="read", locations=OPEN) == answer
    heard.update("subagent_update", sessionId="here", cwd="/x")
    assert heard.ask(child="here", kind="read", locations=OPEN) is None
