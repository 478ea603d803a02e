"""The methods of the scripted agent beside the prompt: handshake, sessions, readiness, extensions."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from turnwire.errors import ConfigError
from turnwire_testing import AgentOptions, BareClient, Gates, Profile, scripted_agent
from turnwire_testing.scripted.client import prompt_params
from turnwire_testing.scripted.options import PROFILES
from turnwire_testing.scripted.shapes import member

pytestmark = pytest.mark.anyio

ALL = pytest.mark.parametrize("profile", PROFILES)


@asynccontextmanager
async def connected(
    profile: Profile = "v1", options: AgentOptions | None = None, *, gates: Gates | None = None
) -> AsyncGenerator[BareClient]:
    async with scripted_agent(profile, options, gates=gates) as link:
        client = BareClient(link)
        await client.initialize(2 if profile == "v2" else 1)
        yield client


def code(answer: dict[str, Any]) -> int:
    return answer["error"]["code"]


@pytest.mark.parametrize(
    ("profile", "accepts_v1", "asked", "spoken"),
    [
        ("v1", False, 1, 1),
        ("v1", False, 2, 1),
        ("v1plus", False, 2, 1),
        ("v2", False, 2, 2),
        ("v2", False, 3, 2),
        ("v2", True, 1, 1),
        ("v2", True, 2, 2),
    ],
)
async def test_the_version_is_negotiated(profile: Profile, accepts_v1: bool, asked: int, spoken: int) -> None:
    async with scripted_agent(profile, AgentOptions(accept_v1=accepts_v1)) as link:
        client = BareClient(link)
        result = await client.initialize(asked)
        assert result["protocolVersion"] == spoken
        assert ("info" in result, "agentInfo" in result) == (spoken == 2, spoken == 1)
        end = await client.prompt(await client.new_session(), "hello")
        assert ("result" in end) == (spoken == 1)


@pytest.mark.parametrize(("accepts_v1", "asked", "supported"), [(False, 1, [2]), (True, 0, [1, 2])])
async def test_without_a_common_version_there_is_an_error(
    accepts_v1: bool, asked: int, supported: list[int]
) -> None:
    async with scripted_agent("v2", AgentOptions(accept_v1=accepts_v1)) as link:
        answer = await BareClient(link).call("initialize", {"protocolVersion": asked})
        assert answer["error"]["code"] == -32022
        assert answer["error"]["data"] == {"requested": asked, "supported": supported}


@pytest.mark.parametrize("version", ["1", True, None])
async def test_a_version_that_is_no_integer_is_refused(version: Any) -> None:
    async with scripted_agent() as link:
        assert code(await BareClient(link).call("initialize", {"protocolVersion": version})) == -32602


async def test_v1plus_offers_turn_complete_and_ready_in_both_places() -> None:
    async with scripted_agent("v1plus") as link:
        result = await BareClient(link).initialize()
        offered = result["agentCapabilities"]["sessionCapabilities"]
        assert (offered["turnComplete"], offered["ready"]) == ({}, {})
        assert result["capabilities"] == {"session": {"ready": True, "turnComplete": {}}}


async def test_plain_v1_offers_neither() -> None:
    async with scripted_agent("v1") as link:
        result = await BareClient(link).initialize()
        assert not {"turnComplete", "ready"} & set(result["agentCapabilities"]["sessionCapabilities"])
        assert "capabilities" not in result


async def test_session_methods_before_initialize_are_refused() -> None:
    async with scripted_agent() as link:
        assert code(await BareClient(link).call("session/new", {"cwd": "/"})) == -32600


@ALL
async def test_unknown_requests_are_refused_and_unknown_notifications_ignored(profile: Profile) -> None:
    async with connected(profile) as client:
        await client.notify("_nobody/knows", {})
        assert code(await client.call("_nobody/knows", {})) == -32601
        assert code(await client.call("_session/steering", {})) == -32601
        assert (await client.call("_echo", {"a": [1]}))["result"] == {"a": [1]}


async def test_bytes_that_are_no_frame_are_answered_unless_they_were_an_answer() -> None:
    async with scripted_agent() as link:
        client = BareClient(link)
        for line in (
            b"no json",
            b"[1]",
            b'{"jsonrpc":"2.0","id":5}',
            b'{"jsonrpc":"1.0","id":6,"result":{}}',
            b'{"jsonrpc":"2.0","id":7,"result":{}}',
        ):
            await link.send(line)
        await client.initialize()
        answers = [(frame["id"], code(frame)) for frame in client.seen[:-1]]
        assert answers == [(None, -32700), (None, -32600), (5, -32600)]


@pytest.mark.parametrize(
    ("profile", "login", "out"), [("v1", "authenticate", "logout"), ("v2", "auth/login", "auth/logout")]
)
async def test_sessions_need_authentication_where_it_is_required(profile: Profile, login: str, out: str) -> None:
    async with connected(profile, AgentOptions(auth_required=True)) as client:
        key = "methodId" if profile == "v2" else "id"
        methods = client.seen[0]["result"]["authMethods"]
        assert [method[key] for method in methods] == ["token"]
        assert code(await client.call("session/new", {"cwd": "/"})) == -32000
        assert code(await client.call(login, {"methodId": "other"})) == -32602
        assert (await client.call(login, {"methodId": "token"}))["result"] == {}
        assert await client.new_session() == "session-1"
        await client.call(out, {})
        assert code(await client.call("session/new", {"cwd": "/"})) == -32000


EARLY = AgentOptions(before="commands a", inside="usage 1 2", after="title later", session_prefix="early")


@pytest.mark.parametrize("profile", ["v1", "v2"])
async def test_a_session_can_speak_before_right_behind_and_after_its_answer(profile: Profile) -> None:
    async with connected(profile, EARLY) as client:
        assert await client.new_session() == "early-1"
        await client.update("session_info_update")
        kinds = [member(frame, "params", "update", "sessionUpdate") or "answer" for frame in client.seen[1:]]
        assert kinds == ["available_commands_update", "answer", "usage_update", "session_info_update"]


async def test_the_burst_behind_the_answer_is_one_burst() -> None:
    async with scripted_agent("v1", EARLY) as link:
        client = BareClient(link)
        await client.initialize()
        await client.request("session/new", {"cwd": "/"})
        bursts = [len(await link.receive()) for _ in range(3)]
        assert bursts == [1, 2, 1]


async def test_an_extension_can_notify_before_the_answer_although_the_client_is_not_ready() -> None:
    options = AgentOptions(before='notify _auth/status_update {"authStatus":{"kind":"none"}}')
    async with connected("v1plus", options) as client:
        await client.new_session()
        assert [frame.get("method") for frame in client.seen[1:]] == ["_auth/status_update", None]


@pytest.mark.parametrize("method", ["session/ready", "_session/ready"])
async def test_unsolicited_updates_wait_until_the_client_is_ready(method: str) -> None:
    async with connected("v1plus", EARLY) as client:
        session_id = await client.new_session()
        await client.notify(method, {"sessionId": "another"})
        await client.call("_echo", {})
        assert client.updates() == []
        await client.notify(method, {"sessionId": session_id})
        await client.notify(method, {"sessionId": session_id})
        await client.call("_echo", {})
        kinds = [each["sessionUpdate"] for each in client.updates()]
        assert kinds == ["available_commands_update", "usage_update", "session_info_update"]


async def test_a_prompt_counts_as_ready() -> None:
    async with connected("v1plus", AgentOptions(inside="usage 1 2")) as client:
        await client.prompt(await client.new_session(), "say 1 x")
        assert [each["sessionUpdate"] for each in client.updates()] == [
            "usage_update",
            "agent_message_chunk",
            "turn_complete",
        ]


@pytest.mark.parametrize("profile", ["v1", "v1plus"])
async def test_load_replays_the_history_and_then_answers(profile: Profile) -> None:
    async with connected(profile) as client:
        session_id = await client.new_session()
        await client.prompt(session_id, "say 1 'said '\ntool t\nflood 3")
        seen = len(client.seen)
        await client.call("session/load", {"sessionId": session_id, "cwd": "/", "mcpServers": []})
        replay = [member(frame, "params", "update", "sessionUpdate") for frame in client.seen[seen:]]
        told = ["user_message_chunk", "agent_message_chunk", "tool_call", "tool_call_update", "tool_call_update"]
        assert replay == [*told, None]


async def test_v2_resume_replays_on_request_and_always_tells_the_state() -> None:
    async with connected("v2") as client:
        session_id = await client.new_session()
        await client.prompt(session_id, "say 1 x\nstop refusal")
        params: dict[str, Any] = {"sessionId": session_id, "cwd": "/"}
        for replay_from, expected in (
            (None, ["state_update", None]),
            ({"type": "start"}, ["user_message", "agent_message_chunk", "state_update", None]),
        ):
            seen = len(client.seen)
            await client.call("session/resume", {**params, "replayFrom": replay_from})
            kinds = [member(frame, "params", "update", "sessionUpdate") for frame in client.seen[seen:]]
            assert kinds == expected
            assert client.updates()[-1]["stopReason"] == "refusal"
        assert code(await client.call("session/resume", {**params, "replayFrom": {"type": "?"}})) == -32602
        assert code(await client.call("session/load", params)) == -32601


async def test_v2_resume_of_a_running_session_says_running(gates: Gates) -> None:
    async with connected("v2", gates=gates) as client:
        session_id = await client.new_session()
        await client.request("session/prompt", prompt_params(session_id, "gate g"))
        await gates.reached("g")
        await client.call("session/resume", {"sessionId": session_id, "cwd": "/"})
        assert client.updates()[-1]["state"] == "running"


@pytest.mark.parametrize("profile", ["v1", "v1plus"])
async def test_v1_resume_replays_nothing(profile: Profile) -> None:
    async with connected(profile) as client:
        session_id = await client.new_session()
        await client.prompt(session_id, "say 1 x")
        seen = len(client.seen)
        answer = await client.call("session/resume", {"sessionId": session_id, "cwd": "/"})
        assert client.seen[seen:] == [answer]
        assert "modes" in answer["result"]


@pytest.mark.parametrize(
    ("profile", "method"), [("v1", "session/load"), ("v1plus", "session/load"), ("v2", "session/resume")]
)
async def test_a_history_from_the_options_is_replayed_for_an_unknown_session(profile: Profile, method: str) -> None:
    params: dict[str, Any] = {"sessionId": "from-before", "cwd": "/", "mcpServers": []}
    if profile == "v2":
        params |= {"replayFrom": {"type": "start"}}
    async with connected(profile, AgentOptions(history="user hello\nsay 1 hi")) as client:
        assert "result" in await client.call(method, params)
        assert client.text() == "hi"
        assert client.updates()[0]["sessionUpdate"].startswith("user_message")
        await client.prompt("from-before", "say 1 ' again'")
        assert client.text() == "hi again"
    async with connected(profile) as client:
        answer = await client.call(method, params)
        assert (code(answer), answer["error"]["data"]) == (-32002, {"sessionId": "from-before"})


@ALL
async def test_a_fork_has_the_past_of_its_origin(profile: Profile) -> None:
    async with connected(profile) as client:
        origin = await client.new_session()
        await client.prompt(origin, "say 1 x\ntitle Name")
        forked = (await client.call("session/fork", {"sessionId": origin, "cwd": "/"}))["result"]["sessionId"]
        assert forked != origin
        listed = (await client.call("session/list", {}))["result"]["sessions"]
        assert [entry.get("title") for entry in listed] == ["Name", "Name"]


async def test_sessions_are_listed_in_pages_and_by_directory() -> None:
    async with connected() as client:
        for number in range(103):
            await client.new_session("/odd" if number % 2 else "/even")
        first = (await client.call("session/list", {}))["result"]
        rest = (await client.call("session/list", {"cursor": first["nextCursor"]}))["result"]
        assert (len(first["sessions"]), len(rest["sessions"])) == (100, 3)
        assert "nextCursor" not in rest
        odd = (await client.call("session/list", {"cwd": "/odd"}))["result"]["sessions"]
        assert len(odd) == 51
        assert code(await client.call("session/list", {"cursor": "?"})) == -32602


@ALL
@pytest.mark.parametrize("method", ["session/close", "session/delete"])
async def test_closing_ends_the_running_turn_first_even_one_that_ignores_cancel(
    profile: Profile, method: str, gates: Gates
) -> None:
    async with connected(profile, gates=gates) as client:
        session_id = await client.new_session()
        await client.request("session/prompt", prompt_params(session_id, "ignore-cancel\ngate g"))
        await gates.reached("g")
        closed = await client.call(method, {"sessionId": session_id})
        assert closed["result"] == {}
        ends = [place for place, frame in enumerate(client.seen) if "'cancelled'" in str(frame)]
        assert ends
        assert ends[-1] < client.seen.index(closed)
        assert code(await client.call("session/prompt", prompt_params(session_id, "hello"))) == -32002
        listed = (await client.call("session/list", {}))["result"]["sessions"]
        assert len(listed) == (1 if method == "session/close" else 0)


@ALL
async def test_closing_stops_what_goes_on_while_idle(profile: Profile, gates: Gates) -> None:
    async with connected(profile, gates=gates) as client:
        session_id = await client.new_session()
        await client.prompt(session_id, "idle-speak gate g\nidle-speak say 1 never")
        await gates.reached("g")
        await client.call("session/close", {"sessionId": session_id})
        gates.open("g")
        await client.call("_echo", {})
        assert client.text() == ""


async def test_a_closed_session_can_be_loaded_again_and_deleting_an_unknown_one_succeeds() -> None:
    async with connected() as client:
        session_id = await client.new_session()
        await client.call("session/close", {"sessionId": session_id})
        await client.call("session/load", {"sessionId": session_id, "cwd": "/", "mcpServers": []})
        assert "result" in await client.prompt(session_id, "hello")
        assert (await client.call("session/delete", {"sessionId": "unknown"}))["result"] == {}


async def test_mode_and_options_stay_in_step() -> None:
    async with connected() as client:
        session_id = await client.new_session()
        params = {"sessionId": session_id}
        assert (await client.call("session/set_mode", {**params, "modeId": "code"}))["result"] == {}
        assert code(await client.call("session/set_mode", {**params, "modeId": "?"})) == -32602
        answer = await client.call("session/set_config_option", {**params, "configId": "model", "value": "large"})
        values = [option["currentValue"] for option in answer["result"]["configOptions"]]
        assert values == ["code", "large"]
        for bad in ({"configId": "model", "value": "?"}, {"configId": "?", "value": "large"}, {}):
            assert code(await client.call("session/set_config_option", {**params, **bad})) == -32602


async def test_v2_options_use_config_ids_and_there_are_no_modes() -> None:
    async with connected("v2") as client:
        session_id = await client.new_session()
        params = {"sessionId": session_id, "configId": "mode", "type": "id", "value": "code"}
        answer = await client.call("session/set_config_option", params)
        assert [option["configId"] for option in answer["result"]["configOptions"]] == ["mode", "model"]
        assert code(await client.call("session/set_mode", {**params, "modeId": "ask"})) == -32601


@pytest.mark.parametrize("profile", ["v1", "v2"])
async def test_steering_reaches_the_running_turn_and_is_advertised(profile: Profile, gates: Gates) -> None:
    async with connected(profile, AgentOptions(steering=True), gates=gates) as client:
        result = client.seen[0]["result"]
        place = result["capabilities"]["session"] if profile == "v2" else result["agentCapabilities"]
        assert place["_meta"] == {"steering": {}}
        session_id = await client.new_session()
        steering = prompt_params(session_id, "left a bit")
        assert (await client.call("_session/steering", steering))["result"] == {"outcome": "promptRequired"}
        await client.request("session/prompt", prompt_params(session_id, "gate g\nsay 1 ' then on'"))
        await gates.reached("g")
        assert (await client.call("_session/steering", steering))["result"] == {"outcome": "injected"}
        gates.open("g")
        await client.until(lambda frame: "end_turn" in str(frame))
        assert client.text() == "steered left a bit then on"


@ALL
@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"sessionId": "unknown", "prompt": [{"type": "text", "text": "x"}]}, -32002),
        ({"prompt": [{"type": "text", "text": "x"}]}, -32602),
        ({"sessionId": "session-1", "prompt": []}, -32602),
        ({"sessionId": "session-1", "prompt": "x"}, -32602),
        ({"sessionId": "session-1", "prompt": ["x"]}, -32602),
        ({"sessionId": "session-1"}, -32602),
        ({"sessionId": "session-1", "prompt": [{"type": "text"}]}, -32602),
        ({"sessionId": "session-1", "prompt": [{"type": "text", "text": 5}]}, -32602),
        ({"sessionId": "session-1", "prompt": [{"type": "resource_link"}]}, -32602),
    ],
)
async def test_a_malformed_prompt_is_refused_and_leaves_no_trace(
    profile: Profile, params: dict[str, Any], expected: int
) -> None:
    async with connected(profile) as client:
        await client.new_session()
        seen = len(client.seen)
        answer = await client.call("session/prompt", params)
        assert code(answer) == expected
        assert client.seen[seen:] == [answer]
        await client.prompt("session-1", "say 1 still here")
        assert client.text() == "still here"


@pytest.mark.parametrize(
    "build",
    [
        lambda: AgentOptions(script="nonsense"),
        lambda: AgentOptions(before="say"),
        lambda: AgentOptions(order=("response", "running")),
        lambda: AgentOptions(repeat_idle=-1),
    ],
)
def test_options_that_make_no_sense_are_refused(build: Any) -> None:
    with pytest.raises(ConfigError):
        build()
