"""Kills and cuts while an agent has a prompt that it has not answered: one end, no text lost, nothing twice.

002 and 003 together: a prompt over REST is accepted by the record, one over ACP by the agent.
"""

from __future__ import annotations

import pytest
from tests.literal.agents import LIFECYCLE, PLAIN, PUBLISHED, AgentSession, AgentText, text_block
from tests.literal.clients import V2, EventReader, ends
from tests.literal.heard import Frame
from tests.literal.stages import House, Talk, wire

EVERY_V2 = pytest.mark.parametrize("agent", [LIFECYCLE, PUBLISHED], ids=["state_change", "state_update"])
WORDS = "precious words"
MOMENTS = ("before any word", "behind the user message", "behind the answer", "at work")
FULL = pytest.mark.full("restarts a daemon")
EVERY_MOMENT = pytest.mark.parametrize(
    ("agent", "moment"),
    [
        pytest.param(PUBLISHED, MOMENTS[0], id=MOMENTS[0]),
        *(pytest.param(PUBLISHED, moment, id=moment, marks=FULL) for moment in MOMENTS[1:-1]),
        pytest.param(PUBLISHED, MOMENTS[-1], id=MOMENTS[-1]),
        pytest.param(LIFECYCLE, MOMENTS[0], id=f"{MOMENTS[0]}, state_change", marks=FULL),
    ],
)


def advance(agent: AgentSession, prompt: Frame, moment: str) -> None:
    """Let the agent process the prompt up to this point."""
    steps = [
        agent.update(agent.user_message(prompt, "of-the-agent")),
        agent.accept(prompt, "of-the-agent"),
        agent.update(agent.state("running")),
        agent.update(agent.chunk("begun")),
    ]
    agent.agent.send(*steps[: (0, 1, 2, 4)[MOMENTS.index(moment)]])


def reach(events: EventReader, moment: str) -> None:
    """Wait until the daemon has recorded the agent's messages up to this point."""
    if moment != MOMENTS[0]:
        events.heard.until(lambda event: "of-the-agent" in event["sse"]["data"], what="user message")
    if moment == MOMENTS[3]:
        events.heard.until(lambda event: '"begun"' in event["sse"]["data"], what="first piece")


def users(events: EventReader) -> list[Frame]:
    return [each for each in events.updates() if each["sessionUpdate"].startswith("user_message")]


@EVERY_MOMENT
def test_a_daemon_that_is_killed_while_the_agent_has_a_prompt_ends_it_once_and_keeps_its_text(
    house: House, agent: AgentText, moment: str
) -> None:
    """002, 003: SIGKILL, and a new daemon on the same data."""
    with house.serve(agent) as served:
        talk = house.rest_talk(agent, served=served)
        prompt_id = talk.prompt(WORDS)
        prompt = talk.agent.asked()
        advance(talk.agent, prompt, moment)
        reach(talk.events(), moment)
        served.restart()
        events = talk.events()
        terminal = events.terminal(prompt_id)
        assert terminal["type"] == "turn_error"
        assert talk.turn(prompt_id)["promptText"] == WORDS
        after = talk.prompt("and now")
        back = served.agents.returned(talk.agent.id, 1)
        next_prompt = back.asked()
        back.begin(next_prompt, "u-2")
        back.end(next_prompt)
        assert events.terminal(after)["data"]["stopReason"] == "end_turn"
        assert ends(events.heard.all()) == [prompt_id, after]
        assert back.prompts() == ["and now"]
        shown = [each["messageId"] for each in users(events)]
        assert shown == (["u-2"] if moment == MOMENTS[0] else ["of-the-agent", "u-2"])
        numbers = [event["id"] for event in events.heard.all() if "id" in event]
        assert numbers == list(range(1, len(numbers) + 1))


@EVERY_MOMENT
def test_an_agent_that_is_killed_with_a_prompt_ends_it_once_and_the_next_one_runs(
    house: House, agent: AgentText, moment: str
) -> None:
    """002, 003: refused if it was not in the conversation yet, failed if it was."""
    with house.serve(agent) as served:
        client = house.connect(served.daemon.socket(), V2)
        cwd = house.folder()
        talk = Talk(client, client.new_session(cwd), cwd, served.agents)
        rest = house.rest(served.daemon)
        events = rest.events(talk.id)
        asked = talk.prompt(WORDS)
        prompt = talk.agent.asked()
        advance(talk.agent, prompt, moment)
        reach(events, moment)
        if moment in MOMENTS[2:]:
            assert client.response(asked)["result"]["messageId"] == "of-the-agent"
        talk.agent.agent.kill()
        failed = events.until("turn_error")["data"]["promptId"]
        assert rest.get(f"/session/{talk.id}/turns/{failed}")["promptText"] == WORDS
        if moment == MOMENTS[0]:
            assert "error" in client.response(asked)
        if moment == MOMENTS[3]:
            talk.update("state_update", state="idle", stopReason="error")
        talk.prompt("and now")
        back = served.agents.returned(talk.agent.id, 1)
        next_prompt = back.asked()
        back.begin(next_prompt, "u-2")
        back.end(next_prompt)
        done = events.until("turn_complete")["data"]["promptId"]
        assert ends(events.heard.all()) == [failed, done]
        assert back.prompts() == ["and now"]
        shown = [each["messageId"] for each in users(events)]
        assert shown == (["u-2"] if moment == MOMENTS[0] else ["of-the-agent", "u-2"])


@EVERY_V2
def test_two_prompts_that_the_agent_has_both_end_once_when_the_daemon_is_killed(
    house: House, agent: AgentText
) -> None:
    """003: one it works on, one it holds."""
    with house.serve(agent) as served:
        talk = house.rest_talk(agent, served=served)
        first = talk.prompt("first")
        prompt = talk.agent.asked()
        talk.agent.begin(prompt, "of-the-agent")
        reach(talk.events(), MOMENTS[1])
        second = talk.prompt("second", whenBusy="agent")
        talk.agent.asked(words="second")
        served.restart()
        events = talk.events()
        events.terminal(first)
        events.terminal(second)
        assert sorted(ends(events.heard.all())) == sorted([first, second])
        assert [talk.turn(each)["promptText"] for each in (first, second)] == ["first", "second"]
        assert [each["messageId"] for each in users(events)] == ["of-the-agent"]


@pytest.mark.parametrize("way", ["http", "websocket"])
@pytest.mark.parametrize("agent", [PLAIN, LIFECYCLE, PUBLISHED], ids=lambda text: text.name)
def test_a_client_that_is_cut_off_before_the_acceptance_finds_its_prompt_once_when_it_comes_back(
    house: House, way: str, agent: AgentText
) -> None:
    """003, 002: the turn continues without it."""
    stage = house.stage(way, V2, agent)
    talk = stage.open()
    events = stage.rest().events(talk.id)
    talk.prompt(WORDS)
    prompt = talk.agent.asked()
    talk.client.link.cut()
    talk.agent.begin(prompt, "of-the-agent")
    talk.agent.say(talk.agent.chunk("unheard"))
    talk.agent.end(prompt)
    events.until("turn_complete", stopReason="end_turn")
    back = house.connect(wire(way, stage.daemon), V2)
    back.link.follow(talk.id)
    opened = {"sessionId": talk.id, "cwd": str(talk.cwd), "replayFrom": {"type": "start"}}
    back.call("session/resume", opened)
    back.update(talk.id, "state_update", state="idle")
    shown = [each for each in back.updates(talk.id) if each["sessionUpdate"] == "user_message"]
    assert [each["content"] for each in shown] == [[text_block(WORDS)]]
    if agent.is_accepting:
        assert shown[0]["messageId"] == "of-the-agent"
    assert len(ends(events.heard.all())) == 1


def test_a_prompt_over_the_relay_is_answered_once_when_the_daemon_is_killed_and_comes_back(house: House) -> None:
    """002, 003: the agent had received it and not answered."""
    with house.serve(PUBLISHED) as served:
        client = house.relayed(served, V2)
        cwd = house.folder()
        talk = Talk(client, client.new_session(cwd), cwd, served.agents)
        asked = talk.prompt(WORDS)
        talk.agent.asked()
        served.restart()
        assert "error" in client.response(asked)
        events = house.rest(served.daemon).events(talk.id)
        lost = events.until("turn_error")["data"]["promptId"]
        again = talk.prompt("and now")
        back = served.agents.returned(talk.agent.id, 1)
        prompt = back.asked()
        back.begin(prompt, "u-2")
        back.end(prompt)
        assert client.response(again)["result"]["messageId"] == "u-2"
        done = events.until("turn_complete")["data"]["promptId"]
        assert ends(events.heard.all()) == [lost, done]
        assert back.prompts() == ["and now"]
        answered = [frame for frame in client.heard.all() if frame.get("id") == asked and "method" not in frame]
        assert len(answered) == 1
