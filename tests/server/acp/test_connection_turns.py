"""Turns over ACP: every dialect of clients with every kind of agent."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from tests.support.acp import DIALECTS, LIFECYCLE, MARKED, V1, V2, Client, Json, acp_daemon, connected, reason_of
from tests.support.driving import events_of

from turnwire.core.events import PromptAccepted
from turnwire.testing import Profile

pytestmark = pytest.mark.anyio

PROFILES: tuple[Profile, ...] = ("v1", "v1plus", "v2")
ALL = list(product(PROFILES, DIALECTS))


def script(*lines: str) -> str:
    return "\n".join(lines)


async def run(client: Client, session_id: str, text: str) -> Any:
    """Prompt and wait for the end, in whatever form the client hears it; gives the answer."""
    ends = client.ends()
    answer = await client.answer(await client.prompt(session_id, text))
    if client.answers_early and "result" in answer:
        await client.idle(ends + 1)
    return answer


def marks(client: Client) -> list[dict[str, Any]]:
    return [each for each in client.updates() if each["sessionUpdate"] == "turn_complete"]


@pytest.mark.requirement("R2", "R10", "R16")
@pytest.mark.parametrize(("profile", "dialect"), ALL)
async def test_a_turn_is_told_in_order_and_ends_once(profile: Profile, dialect: str) -> None:
    async with acp_daemon(profile) as place, connected(place, DIALECTS[dialect]) as client:
        session_id = await client.new()
        answer = await run(client, session_id, script("think hm", "say 1 one", "tool t1 read look", "say 1 two"))
        told = client.kinds()
        assert told.index("agent_thought_chunk") < told.index("says one") < told.index("says two")
        if client.answers_early:
            word = "state_update" if client.version == 2 else "state_change"
            assert answer["result"].keys() == ({"messageId"} if client.version == 2 else set())
            assert [each for each in told if each.startswith(word)] == [f"{word} running", f"{word} idle"]
            assert told[-1] == f"{word} idle"
        else:
            assert answer["result"]["stopReason"] == "end_turn"
            assert client.frames[-1] is answer


@pytest.mark.requirement("R18", "R19", "R20", "R21", "R22")
@pytest.mark.parametrize("profile", PROFILES)
async def test_who_says_nothing_gets_one_marker_behind_the_turn_and_before_the_answer(
    profile: Profile,
) -> None:
    async with acp_daemon(profile) as place, connected(place, MARKED) as client:
        session_id = await client.new()
        for count in (1, 2):
            answer = await run(client, session_id, "say 3 x")
            assert len(marks(client)) == count
            mark = marks(client)[-1]
            assert (mark["promptRequestId"], mark["stopReason"]) == (answer["id"], answer["result"]["stopReason"])
            assert client.kinds()[-1] == "turn_complete"
            assert client.frames[-1] is answer


def offers(client: Client) -> bool:
    """Whether the client was offered the marker; in both places, or in none."""
    agreed = client.frames[0]["result"]
    places = (agreed["agentCapabilities"]["sessionCapabilities"], agreed.get("capabilities", {}).get("session", {}))
    [offered] = {"turnComplete" in each for each in places}
    return offered


@pytest.mark.requirement("R25")
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("lacking", [V1, {**MARKED, "clientInfo": {"name": "Zed", "version": "1.18.0"}}])
async def test_a_client_that_lacks_it_is_neither_offered_the_marker_nor_sent_it(
    profile: Profile, lacking: Json
) -> None:
    async with acp_daemon(profile) as place, connected(place, lacking) as client:
        answer = await run(client, await client.new(), "say 1 x")
        assert (offers(client), marks(client)) == (False, [])
        assert [each.get("method") for each in client.frames[-2:]] == ["session/update", None]
        assert client.kinds()[-1] == "says x"
        named = answer["result"]["_meta"]["turnwire"]["turnComplete"]
        assert (named["promptRequestId"], named["stopReason"]) == (answer["id"], "end_turn")


ASKS: Json = {"session": {"turnComplete": {}}}


@pytest.mark.requirement("R6", "R18", "R25")
@pytest.mark.parametrize(
    ("policy", "name", "capabilities", "gets"),
    [
        ("auto", "zed", ASKS, True),
        ("always", "zed", {}, True),
        ("asked", "test", {}, False),
        ("asked", "test", ASKS, True),
        ("off", "test", ASKS, False),
    ],
)
async def test_an_operator_says_who_gets_the_marker_and_offered_is_what_is_sent(
    policy: str, name: str, capabilities: Json, gets: bool
) -> None:
    hello: Json = {
        "protocolVersion": 1,
        "clientInfo": {"name": name, "version": "1"},
        "clientCapabilities": capabilities,
    }
    async with acp_daemon("v1plus", turn_complete=policy) as place, connected(place, hello) as client:
        await run(client, await client.new(), "say 1 x")
        assert (offers(client), len(marks(client))) == (gets, gets)


@pytest.mark.requirement("R20")
async def test_everybody_can_tell_which_turn_has_ended_and_whose_it_was() -> None:
    async with acp_daemon() as place, connected(place, MARKED) as sender, connected(place, MARKED) as other:
        session_id = await sender.new()
        await other.open("session/load", session_id)
        gated = {"sessionId": session_id, "prompt": [{"type": "text", "text": "gate g\nstop max_tokens"}]}
        waiting = {"sessionId": session_id, "prompt": [{"type": "text", "text": "say 1 x\nstop refusal"}]}
        # The other one has a prompt of the same id open when the first one's ends.
        await sender.ask("session/prompt", request_id=7, **gated)
        await other.ask("session/prompt", request_id="7", **waiting)
        place.source.gates.open("g")
        await sender.answer(7)
        await other.answer("7")
        await sender.update("turn_complete", stopReason="refusal")
        first, second = (each["_meta"]["turnwire"]["promptId"] for each in marks(sender))
        assert [(each["promptRequestId"], each["_meta"]["turnwire"]["own"]) for each in marks(sender)] == [
            (7, True),
            ("7", False),
        ]
        assert [(each["promptRequestId"], each["_meta"]["turnwire"]["own"]) for each in marks(other)] == [
            (first, False),
            ("7", True),
        ]
        # A history has both, and they are nobody's.
        async with connected(place, MARKED) as late:
            await late.open("session/load", session_id)
            told = [(each["promptRequestId"], each["_meta"]["turnwire"]) for each in marks(late)]
            assert told == [(7, {"promptId": first, "own": False}), ("7", {"promptId": second, "own": False})]


@pytest.mark.requirement("R18", "R20")
async def test_a_prompt_that_never_ran_ends_for_its_sender_alone() -> None:
    async with acp_daemon() as place, connected(place, MARKED) as sender, connected(place, MARKED) as other:
        session_id = await sender.new()
        await other.open("session/load", session_id)
        running = await sender.prompt(session_id, "say 1 begun\ngate g")
        waiting = await sender.prompt(session_id, "say 1 unsaid")
        await other.until(lambda _: "says begun" in other.kinds())
        await sender.notify("$/cancel_request", requestId=waiting)
        await sender.answer(waiting)
        place.source.gates.open("g")
        await sender.answer(running)
        await other.update("turn_complete")
        assert [each["promptRequestId"] for each in marks(sender)] == [waiting, running]
        assert [each["promptRequestId"] for each in marks(other)] == [running]


@pytest.mark.requirement("R9", "R15", "R17", "R23")
@pytest.mark.parametrize(("profile", "dialect"), ALL)
async def test_a_cancel_is_heard_while_the_turn_runs(profile: Profile, dialect: str) -> None:
    async with acp_daemon(profile) as place, connected(place, DIALECTS[dialect]) as client:
        session_id = await client.new()
        request_id = await client.prompt(session_id, script("on-cancel say 1 late", "say 1 begun", "never"))
        await client.update("agent_message_chunk")
        await client.notify("session/cancel", sessionId=session_id)
        answer = await client.answer(request_id)
        if client.answers_early:
            await client.idle()
            assert reason_of(client.updates()[-1]) == "cancelled"
        else:
            assert answer["result"]["stopReason"] == "cancelled"
            assert [each["stopReason"] for each in marks(client)] == (["cancelled"] if dialect == "marked" else [])
        assert "says late" in client.kinds()


@pytest.mark.requirement("R24", "R36")
@pytest.mark.parametrize(("profile", "dialect"), ALL)
async def test_a_turn_that_fails_says_why(profile: Profile, dialect: str) -> None:
    async with acp_daemon(profile) as place, connected(place, DIALECTS[dialect]) as client:
        session_id = await client.new()
        answer = await client.answer(
            await client.prompt(session_id, script("say 1 x", "error -32050 no more fuel"))
        )
        if client.answers_early:
            await client.idle()
            end = client.updates()[-1]
            assert (reason_of(end), end["error"]["code"]) == ("error", -32050)
        else:
            assert answer["error"]["code"] == -32050
            assert ["stopReason" in each for each in marks(client)] == ([False] if dialect == "marked" else [])
        # The session goes on.
        assert "result" in await run(client, session_id, "say 1 y")


@pytest.mark.requirement("R24", "R33")
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_prompt_that_is_refused_is_no_turn(dialect: str) -> None:
    async with acp_daemon() as place, connected(place, DIALECTS[dialect]) as client:
        session_id = await client.new()
        for prompt in ([], [{"type": "hologram"}], "text"):
            error = await client.fails("session/prompt", sessionId=session_id, prompt=prompt)
            assert error["code"] == -32602
        assert not client.updates()


async def test_a_prompt_to_a_session_that_is_not_here_is_refused_by_name() -> None:
    async with acp_daemon() as place, connected(place, V2) as client:
        error = await client.fails("session/prompt", sessionId="s_none", prompt=[{"type": "text", "text": "x"}])
        assert (error["code"], error["data"]["sessionId"]) == (-32002, "s_none")


@pytest.mark.requirement("R32", "R34", "R35", "R54")
@pytest.mark.parametrize("profile", PROFILES)
async def test_a_v2_client_is_answered_at_insertion(profile: Profile) -> None:
    async with acp_daemon(profile) as place, connected(place, V2) as client:
        session_id = await client.new()
        answer = await client.answer(await client.prompt(session_id, "gate g"))
        await client.update("state_update", state="running")
        assert client.kinds() == ["user_message", "state_update running"]
        assert client.updates()[0]["messageId"] == answer["result"]["messageId"]
        place.source.gates.open("g")
        await client.idle()


@pytest.mark.requirement("R32", "R42")
@pytest.mark.parametrize("profile", PROFILES)
async def test_a_v2_prompt_that_waits_is_answered_when_it_is_inserted(profile: Profile) -> None:
    async with acp_daemon(profile) as place, connected(place, V2) as client:
        session_id = await client.new()
        first = await client.prompt(session_id, "gate g")
        second = await client.prompt(session_id, "say 1 second")
        await client.update("state_update", state="running")
        assert not any(each.get("id") == second for each in client.frames)
        place.source.gates.open("g")
        await client.idle(2)
        ids = [each["messageId"] for each in client.updates() if each["sessionUpdate"] == "user_message"]
        assert ids == [(await client.answer(each))["result"]["messageId"] for each in (first, second)]


@pytest.mark.requirement("R43")
@pytest.mark.parametrize("how", ["$/cancel_request", "session/cancel"])
async def test_a_v2_prompt_that_waits_can_be_taken_back(how: str) -> None:
    async with acp_daemon() as place, connected(place, V2) as client:
        session_id = await client.new()
        await client.prompt(session_id, script("say 1 begun", "never"))
        waiting = await client.prompt(session_id, "say 1 never said")
        await client.update("agent_message_chunk")
        if how == "$/cancel_request":
            await client.notify(how, requestId=waiting)
        else:
            await client.notify(how, sessionId=session_id)
        assert (await client.answer(waiting))["error"]["code"] == -32800
        assert client.kinds().count("user_message") == 1


async def test_a_running_prompt_can_be_taken_back() -> None:
    async with acp_daemon() as place, connected(place, V1) as client:
        session_id = await client.new()
        request_id = await client.prompt(session_id, script("say 1 begun", "never"))
        await client.update("agent_message_chunk")
        await client.notify("$/cancel_request", requestId=request_id)
        assert (await client.answer(request_id))["result"]["stopReason"] == "cancelled"


async def test_v1_prompts_queue_and_each_is_answered_at_its_own_end() -> None:
    async with acp_daemon() as place, connected(place, V1) as client:
        session_id = await client.new()
        first = await client.prompt(session_id, "gate g")
        second = await client.prompt(session_id, script("say 1 second", "stop max_tokens"))
        place.source.gates.open("g")
        assert (await client.answer(second))["result"]["stopReason"] == "max_tokens"
        assert (await client.answer(first))["result"]["stopReason"] == "end_turn"
        order = [each["id"] for each in client.frames if each.get("id") in (first, second)]
        assert order == [first, second]


async def test_an_id_that_is_open_cannot_be_used_again() -> None:
    async with acp_daemon() as place, connected(place, V1) as client:
        session_id = await client.new()
        block = [{"type": "text", "text": "never"}]
        await client.ask("session/prompt", request_id="p", sessionId=session_id, prompt=block)
        await client.ask("session/prompt", request_id="p", sessionId=session_id, prompt=block)
        assert (await client.answer("p"))["error"]["code"] == -32600


@pytest.mark.requirement("R37")
@pytest.mark.parametrize("profile", PROFILES)
async def test_a_question_blocks_the_turn_and_its_answer_goes_on(profile: Profile) -> None:
    async with acp_daemon(profile) as place, connected(place, V2) as client:
        session_id = await client.new()
        await client.prompt(session_id, "ask t1 yes,no")
        asked = await client.until(lambda each: each.get("method") == "session/request_permission")
        assert asked["params"]["sessionId"] == session_id
        assert asked["params"]["title"]
        await client.update("state_update", state="requires_action")
        outcome = {"outcome": {"outcome": "selected", "optionId": "yes"}}
        await client.send({"jsonrpc": "2.0", "id": asked["id"], "result": outcome})
        await client.idle()
        states = [each["state"] for each in client.updates() if each["sessionUpdate"] == "state_update"]
        assert states == ["running", "requires_action", "running", "idle"]
        assert "says selected yes" in client.kinds()


@pytest.mark.requirement("R13")
@pytest.mark.parametrize("answer", ["unoffered", "error", "cancelled"])
async def test_what_is_no_approval_does_not_approve(answer: str) -> None:
    async with acp_daemon("v2") as place, connected(place, V1) as client:
        session_id = await client.new()
        request_id = await client.prompt(session_id, "ask t1 yes,no")
        asked = await client.until(lambda each: each.get("method") == "session/request_permission")
        assert asked["params"]["toolCall"]["toolCallId"] == "t1"
        said: dict[str, Any] = {"result": {"outcome": {"outcome": "cancelled"}}}
        if answer == "unoffered":
            said = {"result": {"outcome": {"outcome": "selected", "optionId": "maybe"}}}
        elif answer == "error":
            said = {"error": {"code": -32603, "message": "broken"}}
        await client.send({"jsonrpc": "2.0", "id": asked["id"], **said})
        await client.answer(request_id)
        assert "says cancelled" in client.kinds()


@pytest.mark.requirement("R49")
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_cancel_withdraws_open_questions(dialect: str) -> None:
    async with acp_daemon() as place, connected(place, DIALECTS[dialect]) as client:
        session_id = await client.new()
        await client.prompt(session_id, "ask t1 yes,no")
        asked = await client.until(lambda each: each.get("method") == "session/request_permission")
        await client.notify("session/cancel", sessionId=session_id)
        withdrawn = await client.until(lambda each: each.get("method") == "$/cancel_request")
        assert withdrawn["params"]["requestId"] == asked["id"]
        # A late answer does no harm.
        outcome = {"outcome": {"outcome": "selected", "optionId": "yes"}}
        await client.send({"jsonrpc": "2.0", "id": asked["id"], "result": outcome})
        await client.call("session/list")


# -- the lifecycle draft on v1 -------------------------------------------------------------------------------


@pytest.mark.requirement("R92")
@pytest.mark.parametrize("hello", DIALECTS.values(), ids=DIALECTS.keys())
async def test_the_lifecycle_is_offered_to_every_v1_client(hello: Json) -> None:
    async with acp_daemon() as place, connected(place, hello) as client:
        agreed = client.frames[0]["result"]
        if client.version == 1:
            assert agreed["agentCapabilities"]["sessionCapabilities"]["lifecycle"] == {}
        else:
            assert "lifecycle" not in str(agreed)


@pytest.mark.requirement("R92")
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize(
    "wish",
    [{"session": {"lifecycle": {}}}, {"_meta": {"turnwire": {"lifecycle": True}}}, {"_meta": {"lifecycle": {}}}],
    ids=["session", "ours", "meta"],
)
async def test_a_client_of_the_lifecycle_is_answered_at_acceptance_and_told_the_rest(
    profile: Profile, wish: Json
) -> None:
    hello = {**LIFECYCLE, "clientCapabilities": wish}
    async with acp_daemon(profile) as place, connected(place, hello) as client:
        client.lifecycle = True
        session_id = await client.new()
        answer = await client.answer(await client.prompt(session_id, "ask t1 yes,no\nusage 3 9\nsay 1 x"))
        assert answer["result"] == {}
        question = await client.until(lambda each: each.get("method") == "session/request_permission")
        chosen = {"outcome": {"outcome": "selected", "optionId": "yes"}}
        await client.send({"jsonrpc": "2.0", "id": question["id"], "result": chosen})
        await client.idle()
        told = [each for each in client.kinds() if each.startswith(("user_message", "state_change"))]
        assert told == [
            "user_message",
            "state_change running",
            "state_change requires_action",
            "state_change running",
            "state_change idle",
        ]
        [message] = [each for each in client.updates() if each["sessionUpdate"] == "user_message"]
        assert message["content"][0]["type"] == "text"
        assert message["messageId"]
        idle = client.updates()[-1]
        assert idle["stop_reason"] == "end_turn"
        assert not marks(client), "it has an end already"
        answers = [each for each in client.frames if "method" not in each and each["id"] == answer["id"]]
        assert answers == [answer], "and no answer at the end"


@pytest.mark.requirement("R92")
async def test_a_client_of_the_lifecycle_gets_the_marker_if_it_asks_for_it_too() -> None:
    wishes: Json = {"session": {"lifecycle": {}, "turnComplete": {}}}
    async with acp_daemon() as place, connected(place, {**LIFECYCLE, "clientCapabilities": wishes}) as client:
        client.lifecycle = True
        answer = await run(client, await client.new(), "say 1 x")
        mark = await client.update("turn_complete")
        assert mark["params"]["update"]["promptRequestId"] == answer["id"]
        assert client.kinds()[-2:] == ["state_change idle", "turn_complete"]


@pytest.mark.requirement("R92")
async def test_a_prompt_of_the_lifecycle_that_never_entered_the_conversation_is_refused() -> None:
    async with acp_daemon() as place, connected(place, LIFECYCLE) as client:
        session_id = await client.new()
        await client.answer(await client.prompt(session_id, "say 1 begun\nnever"))
        waiting = await client.prompt(session_id, "say 1 unsaid")
        await client.until(lambda _: "says begun" in client.kinds())
        await client.notify("$/cancel_request", requestId=waiting)
        assert (await client.answer(waiting))["error"]["code"] == -32800
        await client.notify("session/cancel", sessionId=session_id)
        await client.idle()
        assert reason_of(client.updates()[-1]) == "cancelled"
        assert client.kinds().count("user_message") == 1


@pytest.mark.requirement("R44", "R92")
async def test_who_loads_a_session_in_the_lifecycle_hears_messages_ends_and_where_it_stands() -> None:
    async with acp_daemon() as place, connected(place, V1) as first:
        session_id = await first.new()
        await first.answer(await first.prompt(session_id, "say 1 one"))
        await first.prompt(session_id, "say 1 two\ngate g")
        await first.until(lambda _: "says two" in first.kinds())
        async with connected(place, LIFECYCLE) as client:
            await client.open("session/load", session_id)
            told = [each for each in client.kinds() if not each.startswith("says")]
            turn = ["user_message", "state_change running"]
            assert told == [*turn, "state_change idle", *turn, "state_change running"]
            place.source.gates.open("g")
            await client.idle(2)


async def test_a_prompts_meta_reaches_the_agent() -> None:
    async with acp_daemon() as place, connected(place, V1) as client:
        session_id = await client.new()
        await client.answer(await client.prompt(session_id, "say 1 x", _meta={"mine": 7}))
        accepted = [
            each for each in await events_of(place.daemon.log, session_id) if isinstance(each, PromptAccepted)
        ]
        assert b'"mine":7' in bytes(accepted[0].meta)  # pyright: ignore[reportArgumentType]


@pytest.mark.requirement("R58")
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_an_operator_may_let_a_prompt_be_refused_while_a_turn_runs(dialect: str) -> None:
    async with acp_daemon(when_busy="reject") as place, connected(place, DIALECTS[dialect]) as client:
        session_id = await client.new()
        first = await client.prompt(session_id, "say 1 begun\ngate g")
        await client.update("agent_message_chunk")
        refused = await client.answer(await client.prompt(session_id, "say 1 second"))
        assert refused["error"]["data"]["code"] == "busy"
        place.source.gates.open("g")
        assert "result" in await client.answer(first)
        events = await events_of(place.daemon.log, session_id)
        assert len([each for each in events if isinstance(each, PromptAccepted)]) == 1
