"""One connection: the handshake, rejections and their errors, unchanged ids, and no message that blocks the
next.
"""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from tests.agent.kit import CWD, DIALECTS, V1, V1_PLUS, V2, Driver, Json, say_nothing, served, text_prompt

from turnwire.agent import Agent, AgentFailure, AgentOptions, AuthMethod, Session, Turn
from turnwire.hosting.memory import memory_pair
from turnwire.projections.dialect import read_initialize
from turnwire.wire.jsonrpc import raw
from turnwire_testing.patience import WAIT_S

pytestmark = pytest.mark.anyio

each_dialect = pytest.mark.parametrize("hello", DIALECTS.values(), ids=DIALECTS.keys())


def plain(**options: Any) -> Agent:
    agent = Agent("plain", title="Plain", version="3", options=AgentOptions(**options))
    agent.prompt(say_nothing)
    return agent


async def hello_to(agent: Agent, hello: Json) -> Json:
    """The whole answer to `initialize`."""
    ours, theirs = memory_pair()
    driver = Driver(ours, hello)
    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(agent.serve, theirs)
            tasks.start_soon(driver.read)
            await driver.answer(await driver.ask("initialize", **hello))
            await ours.aclose()
    [answer] = driver.frames
    return answer


# -- the handshake -------------------------------------------------------------------------------------------------


async def test_the_drafts_are_offered_in_every_place_or_nowhere() -> None:
    v1 = (await hello_to(plain(), V1_PLUS))["result"]
    assert v1["agentInfo"] == {"name": "plain", "title": "Plain", "version": "3"}
    assert {"turnComplete": {}, "ready": {}}.items() <= v1["agentCapabilities"]["sessionCapabilities"].items()
    assert v1["capabilities"] == {"session": {"turnComplete": {}, "ready": True}}
    off = (await hello_to(plain(turn_complete="off", ready_s=0), V1_PLUS))["result"]
    assert not {"turnComplete", "ready", "turnwire"} & set(str(off).replace("'", " ").split())
    unmarked = (await hello_to(plain(turn_complete="off"), V1_PLUS))["result"]
    assert "turnComplete" not in str(unmarked)
    v2 = (await hello_to(plain(), V2))["result"]
    assert v2["capabilities"]["session"]["ready"] is True
    assert v2["capabilities"]["session"]["mcp"] == {"stdio": {}}
    assert "turnComplete" not in str(v2)
    for answer in (v1, v2):
        assert read_initialize(raw(answer)).ready
    assert not read_initialize(raw(off)).ready


async def test_what_prompts_may_hold_and_how_to_log_in_is_offered_as_each_version_has_it() -> None:
    methods = (
        AuthMethod(id="key", name="A key", description="of yours"),
        AuthMethod(id="tty", name="Log in", type="terminal", args=("login",), env=(("A", "b"),)),
    )
    options = {"image": True, "embedded_context": True, "mcp_http": True, "auth_methods": methods}
    agent = plain(**options)

    @agent.steer
    def steer(turn: Turn, blocks: list[Json]) -> bool:
        return False

    v1 = (await hello_to(agent, V1))["result"]
    assert v1["agentCapabilities"]["promptCapabilities"] == {"image": True, "embeddedContext": True}
    assert v1["agentCapabilities"]["mcpCapabilities"] == {"http": True}
    assert v1["authMethods"] == [{"id": "key", "name": "A key", "description": "of yours"}]
    assert v1["agentCapabilities"]["auth"] == {"logout": {}}
    v2 = (await hello_to(agent, {**V2, "capabilities": {"auth": {"terminal": {}}}}))["result"]
    assert v2["capabilities"]["session"]["prompt"] == {"image": {}, "embeddedContext": {}}
    assert [each["type"] for each in v2["authMethods"]] == ["agent", "terminal"]
    assert v2["authMethods"][1]["env"] == [{"name": "A", "value": "b"}]
    assert read_initialize(raw(v1)).steering
    assert read_initialize(raw(v2)).steering


@pytest.mark.parametrize(
    ("hello", "spoken"),
    [
        ({"protocolVersion": 1}, 1),
        ({"protocolVersion": 2, "info": {"name": "x", "version": "1"}}, 2),
        ({"protocolVersion": 7, "info": {"name": "x", "version": "1"}}, 2),
        ({"protocolVersion": 2, "clientInfo": {"name": "x", "version": "1"}}, 1),
    ],
)
async def test_the_highest_version_that_both_speak_is_spoken(hello: Json, spoken: int) -> None:
    assert (await hello_to(plain(), hello))["result"]["protocolVersion"] == spoken


@pytest.mark.parametrize(("version", "code"), [(0, -32022), ("1", -32602), (None, -32602)])
async def test_a_version_that_is_none_is_refused(version: Any, code: int) -> None:
    error = (await hello_to(plain(), {"protocolVersion": version}))["error"]
    assert error["code"] == code
    if code == -32022:
        assert error["data"] == {"requested": 0, "supported": [1, 2]}


async def test_nothing_is_answered_before_initialize_and_it_comes_once() -> None:
    ours, theirs = memory_pair()
    driver, agent = Driver(ours, V1), plain()
    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(agent.serve, theirs)
            tasks.start_soon(driver.read)
            await driver.notify("session/cancel", sessionId="x")
            assert (await driver.fails("session/new", cwd=CWD, mcpServers=[]))["code"] == -32600
            await driver.call("initialize", **V1)
            assert (await driver.call("initialize", **V2))["protocolVersion"] == 2
            await driver.call("session/list")
            assert (await driver.fails("initialize", **V1))["code"] == -32600
            await ours.aclose()


async def test_sessions_are_refused_until_the_client_has_logged_in() -> None:
    agent = plain(auth_methods=(AuthMethod(id="key", name="Key"),), auth_required=True)

    @agent.authenticate
    async def login(method_id: str) -> None:
        tries.append(method_id)
        if len(tries) == 1:
            raise AgentFailure("wrong key", jsonrpc=-32000)

    tries: list[str] = []
    async with served(agent, V1) as driver:
        assert (await driver.fails("session/new", cwd=CWD, mcpServers=[]))["code"] == -32000
        assert (await driver.fails("authenticate", methodId="other"))["code"] == -32602
        assert (await driver.fails("authenticate", methodId="key"))["message"] == "wrong key"
        assert (await driver.fails("session/prompt", sessionId="x", prompt=[]))["code"] == -32000
        assert await driver.call("authenticate", methodId="key") == {}
        await driver.new()
        assert await driver.call("logout") == {}
        assert (await driver.fails("session/list"))["code"] == -32000
        assert (await driver.fails("auth/login", methodId="key"))["code"] == -32601


# -- what is refused -----------------------------------------------------------------------------------------------


@each_dialect
async def test_unknown_methods_params_and_sessions_are_refused_with_their_codes(hello: Json) -> None:
    async with served(plain(), hello) as driver:
        session = await driver.new()
        text = text_prompt("x")
        image = [{"type": "image", "data": "AAAA", "mimeType": "image/png"}]
        wrong: list[tuple[str, Json, int]] = [
            ("session/nothing", {}, -32601),
            ("_custom/nothing", {}, -32601),
            ("session/load" if driver.version == 2 else "auth/login", {}, -32601),
            ("session/new", {}, -32602),
            ("session/new", {"cwd": "relative", "mcpServers": []}, -32602),
            ("session/new", {"cwd": CWD, "mcpServers": [], "additionalDirectories": ["x"]}, -32602),
            ("session/new", {"cwd": CWD, "mcpServers": [], "additionalDirectories": [3]}, -32602),
            ("session/new", {"cwd": CWD, "mcpServers": [{"type": "http", "name": "a", "url": "b"}]}, -32602),
            ("session/resume", {"sessionId": session, "cwd": CWD, "replayFrom": {"type": "odd"}}, -32602),
            ("session/prompt", {"sessionId": session}, -32602),
            ("session/prompt", {"sessionId": session, "prompt": []}, -32602),
            ("session/prompt", {"sessionId": session, "prompt": "x"}, -32602),
            ("session/prompt", {"sessionId": session, "prompt": [{"type": "text"}]}, -32602),
            ("session/prompt", {"sessionId": session, "prompt": image}, -32602),
            ("session/prompt", {"prompt": text}, -32602),
            ("session/prompt", {"sessionId": "nobody", "prompt": text}, -32002),
            (
                "session/set_config_option",
                {"sessionId": "nobody", "configId": "m", "value": "x", "type": "id"},
                -32002,
            ),
            ("session/close", {}, -32602),
        ]
        for method, params, code in wrong:
            if method == "session/resume" and driver.version == 1:
                continue
            assert (await driver.fails(method, **params))["code"] == code, (method, params)
        assert driver.updates("user_message") == []
        assert await driver.take_turn(session) == "end_turn"


async def test_what_is_no_message_is_answered_once_or_not_at_all() -> None:
    async with served(plain(), V1) as driver:
        for line, request_id, code in (
            (b"not json", None, -32700),
            (b'{"jsonrpc":"2.0","id":9,"method":3}', 9, -32600),
            (b"[]", None, -32600),
            (b'[{"jsonrpc":"2.0","id":1,"method":"session/list"},{}]', None, -32600),
            (b'{"jsonrpc":"2.0","id":1.5,"method":"session/list"}', None, -32600),
        ):
            before = len(driver.frames)
            await driver.send(line)
            answer = await driver.until(lambda each: "error" in each, before)
            assert (answer["id"], answer["error"]["code"]) == (request_id, code)
        before = len(driver.frames)
        for line in (
            b'{"jsonrpc":"2.0","id":77,"result":{}}',
            b'{"jsonrpc":"2.0","id":77,"result":{},"error":{}}',
            b'{"jsonrpc":"2.0","method":"_unknown/note"}',
            b'{"jsonrpc":"2.0","method":"session/unknown","params":[1]}',
            b'{"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":5}}',
        ):
            await driver.send(line)
        await driver.call("session/list")
        assert len(driver.frames) == before + 1


async def test_ids_come_back_with_value_and_type_and_two_that_look_alike_are_two() -> None:
    agent, go = plain(), anyio.Event()

    @agent.extension("_slow/echo")
    async def echo(params: Json, session: Session | None) -> Json:
        await go.wait()
        return params

    async with served(agent, V1) as driver:
        ids: list[int | str] = [102, "102", 2**53, "", -1]
        for each in ids:
            await driver.ask("_slow/echo", each, said=str(type(each)))
        # The same id again, while the first is open, cannot be answered apart.
        await driver.ask("_slow/echo", 102, said="again")
        go.set()
        for each in ids:
            assert (await driver.answer(each))["result"] == {"said": str(type(each))}
        await driver.call("session/list")
        assert len([each for each in driver.frames if each.get("id") == 102]) == 1


@pytest.mark.parametrize(
    ("block", "words"),
    [
        ({"type": "image"}, ["block 2", "image", "`data`", "`mimeType`"]),
        ({"type": "image", "data": "aGk="}, ["block 2", "image", "`mimeType`"]),
        ({"type": "resource_link", "uri": 3, "name": "x"}, ["block 2", "resource_link", "`uri`"]),
        ({"type": "text", "text": None}, ["block 2", "text", "`text`"]),
    ],
)
async def test_a_malformed_block_is_refused_with_its_place_and_what_it_needs(block: Json, words: list[str]) -> None:
    async with served(plain(image=True), V1, checks=False) as driver:
        session = await driver.new()
        prompt = [*text_prompt("look"), block]
        refused = await driver.fails("session/prompt", sessionId=session, prompt=prompt)
        assert refused["code"] == -32602
        assert all(each in refused["message"] for each in words), refused["message"]
        assert "Annotated" not in refused["message"]


async def test_a_request_that_hangs_holds_up_nothing_and_can_be_cancelled() -> None:
    agent, stopped = plain(), list[str]()

    @agent.extension("_hang/on")
    async def hang(params: Json, session: Session | None) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            stopped.append(params["sessionId"] if session else "none")

    async with served(agent, V1) as driver:
        session = await driver.new()
        hanging = await driver.ask("_hang/on", sessionId=session)
        assert await driver.take_turn(session) == "end_turn"
        await driver.notify("$/cancel_request", requestId=hanging)
        assert (await driver.answer(hanging))["error"]["code"] == -32800
        assert stopped == [session]


async def test_extensions_answer_requests_and_hear_notifications(caplog: pytest.LogCaptureFixture) -> None:
    agent, heard = plain(), list[Any]()

    @agent.extension("_x/add")
    def add(params: Json, session: Session | None) -> Json | None:
        heard.append(params)
        if "fail" in params:
            raise ValueError("a secret")
        return {"sum": sum(params["numbers"])} if "numbers" in params else None

    async with served(agent, V2) as driver:
        assert await driver.call("_x/add", numbers=[1, 2]) == {"sum": 3}
        assert await driver.call("_x/add") == {}
        assert (await driver.fails("_x/add", fail=1))["code"] == -32603
        await driver.notify("_x/add", numbers=[3])
        await driver.notify("_x/add", fail=2)
        await driver.call("session/list")
        assert heard[-2:] == [{"numbers": [3]}, {"fail": 2}]
        assert "secret" not in str(driver.frames)
        assert "a secret" in caplog.text


async def test_a_session_that_its_author_refuses_is_not_opened() -> None:
    agent, sessions = plain(), list[Session]()

    @agent.opened
    async def opened(session: Session) -> None:
        sessions.append(session)
        session.title = "never told"
        raise AgentFailure("log in at the provider", jsonrpc=-32000)

    async with served(agent, V1) as driver:
        error = await driver.fails("session/new", cwd=CWD, mcpServers=[])
        assert (error["code"], error["message"]) == (-32000, "log in at the provider")
        await driver.call("session/list")
        assert driver.updates() == []
        [session] = sessions
        assert (await driver.fails("session/prompt", sessionId=session.id, prompt=text_prompt("x")))[
            "code"
        ] == -32002
