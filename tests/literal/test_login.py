"""Logging in at an agent over REST: the agent's methods, in one form, and the outcome of a login."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.literal.agents import PLAIN, PUBLISHED, V1_RESULT, V2_RESULT, AgentText
from tests.literal.heard import Frame
from tests.literal.stages import House

V1_METHODS: list[Frame] = [
    {"id": "oauth", "name": "In a browser", "description": "opens a page"},
    {
        "id": "setup",
        "name": "Set up",
        "type": "terminal",
        "args": ["login", "--now please"],
        "env": {"MODE": "a b"},
    },
]
V2_METHODS: list[Frame] = [
    {"type": "agent", "methodId": "oauth", "name": "In a browser", "description": "opens a page"},
    {
        "type": "terminal",
        "methodId": "setup",
        "name": "Set up",
        "args": ["login", "--now please"],
        "env": [{"name": "MODE", "value": "a b"}],
    },
]
V1_AGENT = replace(PLAIN, name="v1 with logins", initialized=V1_RESULT | {"authMethods": V1_METHODS})
V2_AGENT = replace(PUBLISHED, name="v2 with logins", initialized=V2_RESULT | {"authMethods": V2_METHODS})
AGENTS = pytest.mark.parametrize(
    ("agent", "method"), [(V1_AGENT, "authenticate"), (V2_AGENT, "auth/login")], ids=["v1", "v2"]
)
PATH = "/agents/default/auth"


@AGENTS
def test_the_ways_to_log_in_are_listed_in_one_form(house: House, agent: AgentText, method: str) -> None:
    served = house.served(agent)
    told = house.rest(served.daemon).get(PATH)
    [page, program] = told["methods"]
    assert told["name"] == "default"
    assert page == V2_METHODS[0]
    assert (program["methodId"], program["type"]) == ("setup", "terminal")
    assert program["command"].startswith("MODE='a b' ")
    assert program["command"].endswith(" login '--now please'")


@AGENTS
def test_a_login_is_the_agents_to_take_or_to_refuse(house: House, agent: AgentText, method: str) -> None:
    with house.serve(agent) as served:
        rest = house.rest(served.daemon)
        answers: list[bool] = [True, False]
        served.agents.replies[method] = lambda raw, frame: (
            raw.answer(frame, {}) if answers.pop(0) else raw.refuse(frame, -32000, "no")
        )
        assert rest.ask("POST", PATH, {"methodId": "oauth"}).status == 204
        asked = served.agents.life(0).heard.until(lambda frame: frame.get("method") == method)
        assert asked["params"] == {"methodId": "oauth"}
        refused = rest.ask("POST", PATH, {"methodId": "oauth"})
        assert refused.status == 502, refused


@AGENTS
def test_a_program_is_told_with_its_command_and_never_asked_of_the_agent(
    house: House, agent: AgentText, method: str
) -> None:
    with house.serve(agent) as served:
        refused = house.rest(served.daemon).ask("POST", PATH, {"methodId": "setup"})
        assert (refused.status, refused.json()["code"]) == (400, "bad_request")
        assert "login '--now please'" in refused.json()["error"]
        assert [each for each in served.agents.life(0).heard.all() if each.get("method") == method] == []


def test_what_is_not_there_is_said_so(house: House) -> None:
    rest = house.rest(house.served(V1_AGENT).daemon)
    assert rest.ask("POST", PATH, {"methodId": "magic"}).status == 400
    for method, body in (("GET", None), ("POST", {"methodId": "oauth"})):
        assert rest.ask(method, "/agents/nobody/auth", body).status == 404
    assert house.rest(house.served(PLAIN).daemon).get(PATH) == {"name": "default", "methods": []}


def test_only_who_acts_may_log_in_and_nobody_with_one_session(house: House) -> None:
    served = house.served(V1_AGENT)
    rest = house.rest(served.daemon)
    session = rest.new_session(house.folder())["sessionId"]
    for role, more in (("observer", {}), ("controller", {"sessionId": session})):
        body = {"name": "eve", "role": role, **more}
        token = rest.ask("POST", "/tokens", body).json()["token"]
        own = {"Authorization": f"Bearer {token}"}
        for method, sent in (("GET", None), ("POST", {"methodId": "oauth"})):
            assert rest.ask(method, PATH, sent, own).status == 403
