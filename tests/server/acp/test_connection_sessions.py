"""Opening sessions over ACP: updates before the answer, after it, and those that wait for `session/ready`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import pytest
from tests.support.acp import DIALECTS, MARKED, V1, V2, Client, Json, acp_daemon, connected, said

from turnwire.ids import SessionId
from turnwire.server.access.tokens import Identity, Role
from turnwire.session.turn import TurnState
from turnwire_testing import AgentOptions, ManualClock, Profile
from turnwire_testing.patience import WAIT_S, quiet

pytestmark = pytest.mark.anyio

PROFILES: tuple[Profile, ...] = ("v1", "v1plus", "v2")
TALKS = AgentOptions(before="commands early", inside="commands inside\ntitle Named", after="usage 1 2")


def position(client: Client, fits: Callable[[Json], Any]) -> int:
    return next(place for place, each in enumerate(client.frames) if fits(each))


# -- session/ready: advertised means held --------------------------------------------------------------------

SAYS_NOTHING = pytest.mark.parametrize("hello", [MARKED, V2], ids=["v1", "v2"])


@SAYS_NOTHING
async def test_a_client_that_never_says_ready_is_waited_for_once(
    hello: Json, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    caplog.set_level("INFO")
    async with acp_daemon("v1", TALKS, clock=clock) as place, connected(place, hello) as client:
        first = await client.new(is_ready=False)
        await quiet()
        assert not client.updates()
        clock.advance(1.9)
        await quiet()
        assert not client.updates()
        clock.advance(0.1)
        await client.update("usage_update")
        # The client's behaviour is known: nothing waits for it any more, and no notice is repeated.
        second = await client.new(is_ready=False)
        await client.until(lambda _: len(client.updates(second)) == len(client.updates(first)))
        assert [each.message for each in caplog.records if "session/ready" in each.message] == [
            "a client did not send session/ready in time; it is told everything now"
        ]


def is_about(frame: Json, session_id: str, kind: str) -> bool:
    params: Json = frame.get("params", {})
    return params.get("sessionId") == session_id and params.get("update", {}).get("sessionUpdate") == kind


async def test_a_client_that_has_said_ready_once_is_waited_for_each_time() -> None:
    clock = ManualClock()
    async with acp_daemon("v1", TALKS, clock=clock) as place, connected(place, MARKED) as client:
        await client.new()
        for _ in range(2):
            slow = await client.new(is_ready=False)
            await quiet()
            assert not client.updates(slow)
            clock.advance(2)
            await client.until(lambda each, named=slow: is_about(each, named, "usage_update"))


async def test_the_time_begins_with_the_answer_and_not_with_the_history() -> None:
    clock = ManualClock()
    async with acp_daemon("v1", TALKS, clock=clock) as place, connected(place, MARKED) as first:
        session_id = await first.new()
        await first.answer(await first.prompt(session_id, "say 1 x"))
        slow = Client(place)
        slow.read()
        await slow.call("initialize", **MARKED)
        slow.stop_reading()
        await slow.ask("session/load", sessionId=session_id, cwd=place.cwd, mcpServers=[])
        await quiet()
        clock.advance(100)
        slow.read()
        await slow.answer(2)
        await first.answer(await first.prompt(session_id, "say 1 news"))
        await quiet()
        assert "says news" not in slow.kinds()
        clock.advance(2)
        await slow.until(lambda _: "says news" in slow.kinds())
        await slow.connection.aclose()


@pytest.mark.parametrize(
    ("method", "params"), [("session/set_mode", {"modeId": "code"}), ("session/close", {}), ("_own/thing", {})]
)
async def test_who_asks_about_a_session_is_answered_at_once(method: str, params: Json) -> None:
    clock = ManualClock()
    async with acp_daemon("v1", TALKS, clock=clock) as place, connected(place, MARKED) as client:
        session_id = await client.new(is_ready=False)
        answer = await client.answer(await client.ask(method, sessionId=session_id, **params))
        assert client.frames[-1] is answer


@pytest.mark.parametrize("dialect", ["v1", "lifecycle", "v2"])
async def test_who_resumes_a_running_session_hears_what_is_now_and_no_history(dialect: str) -> None:
    async with acp_daemon("v1", TALKS) as place, connected(place, V1) as first:
        session_id = await first.new()
        request_id = await first.prompt(session_id, "say 1 history\nplan a; b\nmode code\ngate g\nsay 1 live")
        await first.update("current_mode_update")
        async with connected(place, DIALECTS[dialect]) as client:
            await client.open("session/resume", session_id)
            await client.until(lambda each: "plan" in str(each))
            answered = position(client, lambda each: each.get("id") == 2)
            before = [said(each["params"]["update"]) for each in client.frames[1:answered]]
            assert (
                before == {"v1": [], "lifecycle": ["state_change running"], "v2": ["state_update running"]}[dialect]
            )
            assert "says history" not in client.kinds()
            assert {"available_commands_update", "usage_update", "session_info_update"} <= set(client.kinds())
            place.source.gates.open("g")
            await first.answer(request_id)
            await client.until(lambda _: "says live" in client.kinds())
            if dialect == "v2":
                await client.idle()
                assert client.updates()[-1]["stopReason"] == "end_turn"


@pytest.mark.parametrize("policy", ["full", "pending_only", "none"])
async def test_attaching_gives_the_history_that_was_asked_for(policy: str) -> None:
    async with acp_daemon() as place, connected(place, V1) as first:
        session_id = await first.new()
        await first.prompt(session_id, "say 1 history\nusage 3 4\nask t1 yes,no")
        await first.until(lambda each: each.get("method") == "session/request_permission")
        async with connected(place, V1) as client:
            answer = await client.call("session/attach", sessionId=session_id, historyPolicy=policy)
            assert answer["sessionId"] == session_id
            if policy == "none":
                await client.call("session/list")
                assert not client.updates()
            else:
                await client.until(lambda each: each.get("method") == "session/request_permission")
                assert ("says history" in client.kinds()) == (policy == "full")
                assert "usage_update" in client.kinds()
            assert await client.call("session/detach", sessionId=session_id) == {}
            count = len(client.frames)
            await first.notify("session/cancel", sessionId=session_id)
            await first.until(lambda each: "stopReason" in each.get("result", {}))
            await client.call("session/list")
            assert len(client.frames) == count + 1


@pytest.mark.guarantee("G9")
@pytest.mark.parametrize("method", ["session/load", "session/resume"])
async def test_a_client_resumes_behind_an_event_on_any_transport(method: str) -> None:
    shows: Json = {"_meta": {"turnwire": {"eventIds": {}}}}
    async with acp_daemon() as place, connected(place, {**V1, "clientCapabilities": shows}) as first:
        session_id = await first.new()
        await first.answer(await first.prompt(session_id, "say 1 one\nsay 1 two\nsay 1 three"))
        seen = await first.until(lambda each: "two" in str(each))
        after = seen["params"]["_meta"]["turnwire"]["eventId"]
        async with connected(place, V1) as client:
            await client.open(method, session_id, _meta={"turnwire": {"after": after}})
            assert client.kinds() == ["says three"]
            error = await client.fails(
                method, sessionId=session_id, cwd=place.cwd, mcpServers=[], _meta={"turnwire": {"after": 10**6}}
            )
            assert error["data"]["code"] == "position_lost"


async def test_a_second_load_on_one_connection_tells_the_history_again() -> None:
    async with acp_daemon() as place, connected(place, V1) as client:
        session_id = await client.new()
        await client.answer(await client.prompt(session_id, "say 1 one"))
        before = len(client.updates())
        await client.open("session/load", session_id)
        assert [each["sessionUpdate"] for each in client.updates()[before:]] == [
            "user_message_chunk",
            "agent_message_chunk",
        ]
        assert (await client.answer(await client.prompt(session_id, "say 1 two")))["result"][
            "stopReason"
        ] == "end_turn"


@pytest.mark.parametrize("replay", [{"type": "offset"}, {"type": "start", "x": 1}, {}])
async def test_a_replay_from_elsewhere_is_refused(replay: dict[str, Any]) -> None:
    async with acp_daemon() as place, connected(place, V2) as client:
        session_id = await client.new()
        request_id = await client.ask(
            "session/resume", sessionId=session_id, cwd=place.cwd, mcpServers=[], replayFrom=replay
        )
        answer = await client.answer(request_id)
        assert ("result" in answer) == (replay.get("type") == "start")
        assert answer.get("error", {}).get("code", -32602) == -32602


async def test_closing_a_session_that_was_left_does_not_close_it_when_it_is_opened_again() -> None:
    async with acp_daemon() as place, connected(place, V1) as client:
        session_id = await client.new()
        await client.call("session/detach", sessionId=session_id)
        assert await client.call("session/close", sessionId=session_id) == {}
        await client.open("session/load", session_id)
        assert "result" in await client.answer(await client.prompt(session_id, "say 1 still"))
        assert "says still" in client.kinds()


async def test_sessions_are_listed_closed_and_come_back() -> None:
    async with acp_daemon() as place, connected(place, V1) as client:
        first, second = await client.new(), await client.new()
        listed = (await client.call("session/list", cwd=place.cwd))["sessions"]
        assert {each["sessionId"] for each in listed} == {first, second}
        request_id = await client.prompt(first, "say 1 begun\nnever")
        await client.update("agent_message_chunk")
        assert await client.call("session/close", sessionId=first) == {}
        assert (await client.answer(request_id))["result"]["stopReason"] == "cancelled"
        assert "result" in client.frames[-1]
        assert client.frames[-1]["result"] == {}
        assert client.connection.sessions() == [second]
        assert (await client.fails("session/prompt", sessionId=first, prompt=[]))["code"] == -32002
        await client.open("session/load", first)
        assert "result" in await client.answer(await client.prompt(first, "say 1 again"))
        assert await client.call("session/close", sessionId="s_none") == {}


@pytest.mark.guarantee("G8")
async def test_closing_a_session_ends_no_turn_of_another_client() -> None:
    async with acp_daemon() as place, connected(place, V1) as client, connected(place, V1) as other:
        session_id = await client.new()
        await other.open("session/load", session_id)
        request_id = await client.prompt(session_id, "say 1 begun\nnever")
        await client.update("agent_message_chunk")
        assert await other.call("session/close", sessionId=session_id) == {}
        assert other.connection.sessions() == []
        state = (await place.daemon.node.peek(session_id)).state
        assert state.turn is not None
        assert state.turn.state is TurnState.RUNNING
        assert not any(each.get("id") == request_id and "result" in each for each in client.frames)


async def test_a_deleted_session_is_gone_and_may_be_deleted_twice() -> None:
    async with acp_daemon() as place, connected(place, V1) as client:
        session_id = await client.new()
        assert await client.call("session/delete", sessionId=session_id) == {}
        assert await client.call("session/delete", sessionId=session_id) == {}
        assert (await client.call("session/list"))["sessions"] == []
        error = await client.fails("session/load", sessionId=session_id, cwd=place.cwd, mcpServers=[])
        assert error["code"] == -32002


@pytest.mark.parametrize("profile", PROFILES)
async def test_a_fork_goes_on_from_another_session(profile: Profile) -> None:
    async with acp_daemon(profile) as place, connected(place, V1) as client:
        session_id = await client.new()
        await client.answer(await client.prompt(session_id, "say 1 x"))
        fork = (await client.call("session/fork", sessionId=session_id, cwd=place.cwd))["sessionId"]
        assert fork != session_id
        assert "result" in await client.answer(await client.prompt(fork, "say 1 forked"))


async def test_a_setting_brings_back_the_agent_of_a_loaded_session() -> None:
    async with acp_daemon() as place, connected(place, V1) as client:
        session_id = await client.new()
        await place.source.cut()
        await client.open("session/load", session_id)
        with anyio.fail_after(WAIT_S):
            while place.daemon.node.loaded[session_id].state.agent is not None:
                await quiet()
        assert await client.call("session/set_mode", sessionId=session_id, modeId="code") == {}
        assert place.source.started == 2


async def test_a_directory_outside_the_roots_is_refused() -> None:
    async with acp_daemon() as place, connected(place, V1) as client:
        assert (await client.fails("session/new", cwd="/", mcpServers=[]))["data"]["code"] == "forbidden"
        error = await client.fails("session/new", cwd=place.cwd, mcpServers=[], additionalDirectories=["/tmp"])
        assert error["code"] == -32602


ACTIONS: list[tuple[str, Json]] = [
    ("session/new", {"mcpServers": []}),
    ("session/fork", {"mcpServers": []}),
    ("session/set_mode", {"modeId": "code"}),
    ("session/set_model", {"modelId": "m"}),
    ("session/set_config_option", {"configId": "c", "value": "v"}),
    ("_turnwire/session/settle", {}),
    ("session/close", {}),
    ("session/delete", {}),
]
"""Every request but the prompt that changes a session."""


@pytest.mark.guarantee("G13")
async def test_an_observer_reads_and_does_nothing_else() -> None:
    async with acp_daemon() as place, connected(place, V1) as first:
        session_id = await first.new()
        async with connected(place, V1, Identity("eve", Role.OBSERVER)) as observer:
            await observer.open("session/load", session_id)
            for method, params in ACTIONS:
                error = await observer.fails(method, sessionId=session_id, cwd=place.cwd, **params)
                assert error["data"]["code"] == "forbidden", method
            refused = await observer.answer(await observer.prompt(session_id, "say 1 x"))
            assert refused["error"]["data"]["code"] == "forbidden"
            request_id = await first.prompt(session_id, "say 1 x\nnever")
            await observer.update("agent_message_chunk")
            await observer.notify("session/cancel", sessionId=session_id)
            await observer.call("session/list")
            assert not any(each.get("id") == request_id for each in first.frames)


@pytest.mark.guarantee("G13")
async def test_a_token_for_one_session_sees_no_other() -> None:
    async with acp_daemon() as place, connected(place, V1) as first:
        own, other = await first.new(), await first.new()
        async with connected(place, V1, Identity("kim", Role.CONTROLLER, SessionId(own))) as client:
            listed = (await client.call("session/list"))["sessions"]
            assert [each["sessionId"] for each in listed] == [own]
            error = await client.fails("session/load", sessionId=other, cwd=place.cwd, mcpServers=[])
            unknown = await client.fails("session/load", sessionId="s_none", cwd=place.cwd, mcpServers=[])
            assert error["code"] == unknown["code"] == -32002
            assert not client.connection.may_read(other)
            await client.open("session/load", own)
            assert "result" in await client.answer(await client.prompt(own, "say 1 x"))
