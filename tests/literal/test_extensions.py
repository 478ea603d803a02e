"""What the published texts let peers add: `_meta` and members that no version has, and methods of their own.

Both versions say it alike: what is unknown is kept by whoever passes it on; a method of somebody's own begins with
`_`, a request by an unknown one is refused with -32601, and a notification is ignored.
"""

from __future__ import annotations

import pytest
from tests.literal.agents import MARKER, PLAIN, PUBLISHED, AgentText, RawAgent
from tests.literal.clients import NAMELESS, V2
from tests.literal.heard import Frame, member
from tests.literal.stages import House

META: Frame = {"example.com": {"trace": "ünï", "n": [1, 2]}}
OWN: Frame = {"_meta": META, "exampleMember": {"kept": True}}
"""What an agent adds to anything."""
BOTH = pytest.mark.parametrize("client", [NAMELESS, V2], ids=["v1", "v2"])
AGENTS = pytest.mark.parametrize("agent", [PLAIN, PUBLISHED], ids=["v1 agent", "v2 agent"])


def is_kept(told: Frame) -> bool:
    """Whether all of `OWN` is in it, `_meta` possibly with more beside."""
    return told.get("exampleMember") == OWN["exampleMember"] and META.items() <= told.get("_meta", {}).items()


# -- members -------------------------------------------------------------------------------------------------


@BOTH
@AGENTS
def test_what_an_agent_adds_beside_an_update_reaches_every_client(
    house: House, client: Frame, agent: AgentText
) -> None:
    talk = house.stage("websocket", client, agent).open()
    talk.prompt("go")
    prompt = talk.agent.asked()
    talk.agent.begin(prompt)
    told = talk.agent.update(talk.agent.chunk("with more"))
    talk.agent.agent.send(told | {"params": told["params"] | OWN}, talk.agent.update(talk.agent.chunk("plain")))
    talk.agent.end(prompt)

    def words(frame: Frame) -> object:
        return member(frame, "params", "update", "content", "text")

    heard = talk.client.heard.until(lambda frame: words(frame) == "with more")["params"]
    assert is_kept(heard)
    assert heard["sessionId"] == talk.id
    plain = talk.client.heard.until(lambda frame: words(frame) == "plain")["params"]
    assert plain.keys() <= {"sessionId", "update"}


@BOTH
def test_what_a_v1_agent_adds_to_its_answer_reaches_who_prompted(house: House, client: Frame) -> None:
    talk = house.stage("websocket", client, PLAIN).open()
    asked = talk.prompt("go")
    prompt = talk.agent.asked()
    talk.agent.agent.answer(prompt, {"stopReason": "end_turn", **OWN})
    if client is V2:
        assert is_kept(talk.update("state_update", state="idle", stopReason="end_turn"))
    else:
        assert is_kept(talk.client.response(asked)["result"])


def test_what_an_agent_adds_to_its_answer_beside_a_marker_reaches_who_prompted(house: House) -> None:
    talk = house.stage("websocket", NAMELESS, MARKER).open()
    asked = talk.prompt("go")
    prompt = talk.agent.asked()
    talk.agent.agent.answer(prompt, {"stopReason": "end_turn", **OWN})
    talk.agent.say(talk.agent.marker(prompt, "end_turn"))
    assert is_kept(talk.client.response(asked)["result"])


@BOTH
def test_what_a_v2_agent_adds_to_its_idle_state_reaches_who_prompted(house: House, client: Frame) -> None:
    talk = house.stage("websocket", client, PUBLISHED).open()
    asked = talk.prompt("go")
    prompt = talk.agent.asked()
    talk.agent.begin(prompt)
    talk.agent.say(talk.agent.state("idle", "end_turn", **OWN))
    if client is V2:
        assert is_kept(talk.update("state_update", state="idle", stopReason="end_turn"))
    else:
        assert is_kept(talk.client.response(asked)["result"])


@pytest.mark.parametrize("shown_first", [True, False])
def test_what_a_v2_agent_adds_when_it_takes_a_prompt_is_in_the_answer_of_a_v2_client(
    house: House, shown_first: bool
) -> None:
    talk = house.stage("websocket", V2, PUBLISHED).open()
    asked = talk.prompt("go")
    prompt = talk.agent.asked()
    shown = talk.agent.update(talk.agent.user_message(prompt, "u-1"))
    answer = {"id": prompt["id"], "result": {"messageId": "u-1", **OWN}}
    talk.agent.agent.send(*((shown, answer) if shown_first else (answer, shown)))
    assert is_kept(talk.client.response(asked)["result"])


@BOTH
@AGENTS
def test_what_an_agent_adds_to_the_answer_that_opens_a_session_reaches_the_client(
    house: House, client: Frame, agent: AgentText
) -> None:
    with house.serve(agent) as served:

        def opened(raw: RawAgent, frame: Frame) -> None:
            raw.answer(frame, {"sessionId": "theirs", **OWN})

        served.agents.replies["session/new"] = opened
        raw = house.connect(served.daemon.socket(), client)
        result = raw.call("session/new", {"cwd": str(house.folder()), "mcpServers": []})
        assert is_kept(result)
        assert result["sessionId"] != "theirs"


def test_rest_shows_what_an_agent_adds_to_an_update_and_to_an_end(house: House) -> None:
    talk = house.rest_talk(PLAIN)
    prompt_id = talk.prompt("go")
    prompt = talk.agent.asked()
    told = talk.agent.update(talk.agent.chunk("with more"))
    talk.agent.agent.send(told | {"params": told["params"] | OWN})
    talk.agent.agent.answer(prompt, {"stopReason": "end_turn", **OWN})
    events = talk.events()
    assert events.terminal(prompt_id)["data"]["beside"] == OWN
    assert [each["data"].get("beside") for each in events.heard.all() if each["type"] == "session_update"] == [
        None,
        OWN,
    ]
