"""Extensions that the published texts allow: `_meta` and unknown members, and vendor methods.

Both versions agree: intermediaries preserve unknown members; a vendor method begins with `_`, an unknown request is
rejected with -32601, and an unknown notification is ignored.
"""

from __future__ import annotations

import pytest
from tests.literal.agents import MARKER, PLAIN, PUBLISHED, AgentSession, AgentText, RawAgent
from tests.literal.clients import NAMELESS, V2, RawClient
from tests.literal.heard import Frame, about, member
from tests.literal.links import SocketLink
from tests.literal.stages import House, Served, Talk, wire

META: Frame = {"example.com": {"trace": "ünï", "n": [1, 2]}}
OWN: Frame = {"_meta": META, "exampleMember": {"kept": True}}
"""Members that an agent adds to anything."""
BOTH = pytest.mark.parametrize("client", [NAMELESS, V2], ids=["v1", "v2"])
AGENTS = pytest.mark.parametrize("agent", [PLAIN, PUBLISHED], ids=["v1 agent", "v2 agent"])


def is_kept(told: Frame) -> bool:
    """Return True if all of `OWN` is in it; `_meta` may have more members."""
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


# -- requests of an agent's own ------------------------------------------------------------------------------

METHODS = pytest.mark.parametrize("method", ["_example.com/ask", "example/ask"], ids=["own", "of a vendor"])
REFUSED: Frame = {"code": -32601, "message": "not here"}


def refuse(client: RawClient, request: Frame, error: Frame) -> None:
    client.link.send({"jsonrpc": "2.0", "id": request["id"], "error": error})


def begun(talk: Talk) -> AgentSession:
    """The session at the agent, at work on a prompt."""
    talk.prompt("go")
    talk.agent.begin(talk.agent.asked())
    return talk.agent


def asked_all(client: RawClient, method: str) -> list[Frame]:
    return [frame for frame in client.heard.all() if frame.get("method") == method]


def sentence(talk: Talk) -> list[object]:
    """Return the texts and the methods that the client received about the session, in order."""
    frames = talk.client.frames(talk.id)
    told = [member(each, "params", "update", "content", "text") or each["method"] for each in frames]
    return [each for each in told if each != "session/update"]


@METHODS
@BOTH
def test_a_request_of_an_agents_own_reaches_the_client_in_its_place_and_the_answer_comes_back(
    house: House, transport: str, client: Frame, method: str
) -> None:
    talk = house.stage(transport, client, PLAIN).open()
    agent = begun(talk)
    request = agent.agent.request(method, {"sessionId": agent.id, "question": "ünï?", **OWN})
    before = [agent.update(agent.chunk(str(number))) for number in range(20)]
    agent.agent.send(*before, request, agent.update(agent.chunk("behind")))
    asked = talk.client.asked(method, talk.id)
    assert asked["params"] == {"sessionId": talk.id, "question": "ünï?", **OWN}
    result = {"sessionId": "as it is", "answer": [1, None], **OWN}
    talk.client.answer(asked, result)
    assert agent.agent.told(request["id"])["result"] == result
    # Clients are shared by tests, so this one may have received the same text before.
    talk.client.heard.until(
        lambda frame: about(frame) == talk.id and member(frame, "params", "update", "content", "text") == "behind"
    )
    assert sentence(talk)[-22:] == [*map(str, range(20)), method, "behind"]


@BOTH
@AGENTS
def test_a_clients_error_comes_back_as_it_is(house: House, client: Frame, agent: AgentText) -> None:
    talk = house.stage("websocket", client, agent).open()
    asking = begun(talk)
    asked = asking.agent.ask("_example.com/ask", {"sessionId": asking.id})
    error = {"code": -32050, "message": "the user is away", "data": {"until": [1, 2]}}
    refuse(talk.client, talk.client.asked("_example.com/ask", talk.id), error)
    assert asking.agent.told(asked)["error"] == error


def test_a_client_that_does_not_know_the_method_leaves_it_to_the_next(house: House) -> None:
    stage = house.stage("websocket", NAMELESS, PLAIN)
    first = stage.open()
    second, third = stage.join(first, V2), stage.join(first, NAMELESS)
    agent = begun(first)
    asked = agent.agent.ask("_example.com/ask", {"sessionId": agent.id})
    refuse(first.client, first.client.asked("_example.com/ask", first.id), REFUSED)
    refuse(second.client, second.client.asked("_example.com/ask", first.id), REFUSED)
    third.client.answer(third.client.asked("_example.com/ask", first.id), {"who": "third"})
    assert agent.agent.told(asked)["result"] == {"who": "third"}
    assert len(asked_all(first.client, "_example.com/ask")) == 1


def test_what_no_client_knows_is_refused_as_an_unknown_method(house: House) -> None:
    stage = house.stage("websocket", NAMELESS, PLAIN)
    first = stage.open()
    second = stage.join(first, V2)
    agent = begun(first)
    asked = agent.agent.ask("_example.com/ask", {"sessionId": agent.id})
    for each in (first, second):
        refuse(each.client, each.client.asked("_example.com/ask", first.id), REFUSED)
    assert agent.agent.told(asked)["error"]["code"] == -32601


def test_a_method_of_acp_that_clients_do_not_have_is_asked_of_nobody(house: House) -> None:
    talk = house.stage("websocket", NAMELESS, PLAIN).open()
    agent = begun(talk)
    asked = agent.agent.ask("session/prompt", {"sessionId": agent.id, "prompt": []})
    assert agent.agent.told(asked)["error"]["code"] == -32601
    assert asked_all(talk.client, "session/prompt") == []


def test_a_client_that_leaves_hands_the_request_on(house: House) -> None:
    stage = house.stage("websocket", NAMELESS, PLAIN)
    first = stage.open()
    second = stage.join(first, V2)
    agent = begun(first)
    asked = agent.agent.ask("_example.com/ask", {"sessionId": agent.id})
    first.client.asked("_example.com/ask", first.id)
    first.client.link.cut()
    second.client.answer(second.client.asked("_example.com/ask", first.id), {"who": "second"})
    assert agent.agent.told(asked)["result"] == {"who": "second"}


@BOTH
def test_a_request_that_the_agent_takes_back_is_taken_back_from_the_client(
    house: House, served_by: str, client: Frame
) -> None:
    talk = house.stage(served_by, client, PLAIN).open()
    agent = begun(talk)
    asked = agent.agent.ask("_example.com/ask", {"sessionId": agent.id})
    request = talk.client.asked("_example.com/ask", talk.id)
    agent.agent.send({"method": "$/cancel_request", "params": {"requestId": asked}})
    assert agent.agent.told(asked)["error"]["code"] == -32800
    talk.client.heard.until(
        lambda frame: frame.get("method") == "$/cancel_request" and frame["params"]["requestId"] == request["id"]
    )


# -- requests about no session -------------------------------------------------------------------------------


def alone(house: House, served: Served, client: Frame, transport: str = "websocket") -> Talk:
    """Open a session at a daemon that only this test uses."""
    cwd = house.folder()
    raw = house.connect(wire(transport, served.daemon), client)
    return Talk(raw, raw.new_session(cwd), cwd, served.agents)


@METHODS
@BOTH
@pytest.mark.parametrize("way", ["http", "websocket"])
def test_a_request_about_no_session_is_asked_of_the_only_user_of_the_agent(
    house: House, client: Frame, way: str, method: str
) -> None:
    with house.serve(PLAIN) as served:
        talk = alone(house, served, client, way)
        agent = begun(talk)
        other = alone(house, served, client)
        begun(other)
        request = agent.agent.request(method, {"question": 1})
        before = [agent.update(agent.chunk(str(number))) for number in range(20)]
        agent.agent.send(*before, request)
        asked = talk.client.heard.until(lambda frame: frame.get("method") == method)
        assert asked["params"] == {"question": 1}
        if way == "websocket":
            assert sentence(talk)[-20:] == [*map(str, range(20))]
        refuse(talk.client, asked, REFUSED)
        asked = other.client.heard.until(lambda frame: frame.get("method") == method)
        other.client.answer(asked, {"who": "other"})
        assert agent.agent.told(request["id"])["result"] == {"who": "other"}
        assert len(asked_all(talk.client, method)) == 1


def test_a_request_about_no_session_is_taken_back_from_the_client(house: House) -> None:
    with house.serve(PLAIN) as served:
        talk = alone(house, served, NAMELESS)
        agent = begun(talk)
        number = agent.agent.ask("_example.com/ask", {})
        asked = talk.client.heard.until(lambda frame: frame.get("method") == "_example.com/ask")
        agent.agent.send({"method": "$/cancel_request", "params": {"requestId": number}})
        assert agent.agent.told(number)["error"]["code"] == -32800
        told = talk.client.heard.until(lambda frame: frame.get("method") == "$/cancel_request")
        assert told["params"] == {"requestId": asked["id"]}


def test_a_request_about_no_session_is_asked_of_nobody_where_several_users_share_the_agent(house: House) -> None:
    with house.serve(PLAIN) as served:
        talk = alone(house, served, NAMELESS)
        agent = begun(talk)
        rest = house.rest(served.daemon)
        token = rest.ask("POST", "/tokens", {"name": "bob", "role": "controller"}).json()["token"]
        bobs = house.connect(SocketLink(served.daemon.url, token), NAMELESS)
        cwd = house.folder()
        other = Talk(bobs, bobs.new_session(cwd), cwd, served.agents)
        begun(other)
        number = agent.agent.ask("_example.com/ask", {})
        assert agent.agent.told(number)["error"]["code"] == -32601
        for each in (talk, other):
            assert asked_all(each.client, "_example.com/ask") == []


def test_an_observer_is_asked_nothing(house: House) -> None:
    with house.serve(PLAIN) as served:
        rest = house.rest(served.daemon)
        token = rest.ask("POST", "/tokens", {"name": "eve", "role": "observer"}).json()["token"]
        talk = alone(house, served, NAMELESS)
        agent = begun(talk)
        eve = house.connect(SocketLink(served.daemon.url, token), NAMELESS)
        eve.call("session/load", {"sessionId": talk.id, "cwd": str(talk.cwd), "mcpServers": []})
        for params in ({"sessionId": agent.id}, {}):
            number = agent.agent.ask("_example.com/ask", params)
            asked = talk.client.heard.several(lambda frame: "ask" in frame.get("method", ""), 1 + (not params))[-1]
            refuse(talk.client, asked, REFUSED)
            assert agent.agent.told(number)["error"]["code"] == -32601
        assert asked_all(eve, "_example.com/ask") == []
