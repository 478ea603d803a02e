"""A client's parameters for opening a session reach its agent, now and later: servers, directories, `_meta`."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.server.acp.http_client import load, request
from tests.server.acp.socket_client import Socket, open_socket, started
from tests.support.daemons import Running, running_daemon

from turnwire.ids import SessionId
from turnwire.server.access.tokens import Role

pytestmark = pytest.mark.anyio

AGENT = str(Path(__file__).with_name("telling_agent.py"))
SERVER: dict[str, Any] = {"name": "m", "command": "/m", "args": [], "env": []}
OTHER = {**SERVER, "name": "other"}


@asynccontextmanager
async def telling(data: Path, *offers: str, **settings: Any) -> AsyncGenerator[Running]:
    async with running_daemon(data, agent=(sys.executable, AGENT, *offers), **settings) as running:
        yield running


async def told(socket: Socket) -> dict[str, Any]:
    """The request that opened the session at the agent, as the agent had it."""
    return json.loads((await socket.until(lambda each: '"method"' in each.text))[-1].text)


async def opened(socket: Socket, **members: Any) -> tuple[str, dict[str, Any]]:
    """Return a new session, and its agent's request for it."""
    named = await socket.call("session/new", {"cwd": str(socket.cwd), "mcpServers": [], **members})
    return named["sessionId"], await told(socket)


async def failure(socket: Socket, method: str, **params: Any) -> dict[str, Any]:
    await socket.send(request(method, params, "f"))
    return (await socket.answer("f"))["error"]


async def lose_agent(socket: Socket, session_id: str) -> None:
    """The agent dies, so that the next prompt needs another."""
    assert "error" in await socket.answer(await socket.prompt(session_id, "die"))


@pytest.mark.parametrize("version", [1, 2])
async def test_what_a_new_session_is_opened_with_reaches_the_agent(tmp_path: Path, version: int) -> None:
    more = tmp_path / "more"
    more.mkdir()
    async with telling(tmp_path / "data", "directories") as running, started(running, version) as socket:
        session_id, asked = await opened(
            socket,
            mcpServers=[SERVER if version == 1 else {"type": "stdio", **SERVER}],
            additionalDirectories=[str(more)],
            _meta={"vendor": {"x": 1}, "turnwire": {"ours": True}},
        )
        assert asked == {
            "method": "session/new",
            "cwd": str(tmp_path),
            "mcpServers": [SERVER],
            "additionalDirectories": [str(more)],
            "_meta": {"vendor": {"x": 1}},
        }
        listed = (await socket.call("session/list", {}))["sessions"]
        assert [(each["sessionId"], each["additionalDirectories"]) for each in listed] == [
            (session_id, [str(more)])
        ]


async def test_an_archived_session_is_not_listed_and_can_be_opened(tmp_path: Path) -> None:
    async with telling(tmp_path / "data") as running, started(running) as socket, running.client() as client:
        session_id, _ = await opened(socket)
        assert (await client.post(f"/session/{session_id}/archive")).status_code == 204
        assert (await socket.call("session/list", {}))["sessions"] == []
        where: dict[str, Any] = {"sessionId": session_id, "cwd": str(tmp_path), "mcpServers": []}
        await socket.call("session/resume", where)
        assert (await socket.call("session/list", {}))["sessions"] == [], "a look changes nothing"


async def test_an_agent_that_comes_back_is_opened_with_the_same(tmp_path: Path) -> None:
    async with telling(tmp_path / "data") as running, started(running) as socket:
        session_id, _ = await opened(socket, mcpServers=[SERVER], _meta={"vendor": 1})
        await lose_agent(socket, session_id)
        await socket.prompt(session_id, "again")
        asked = await told(socket)
        assert (asked["method"], asked["mcpServers"], asked["_meta"]) == ("session/resume", [SERVER], {"vendor": 1})


@pytest.mark.parametrize("method", ["session/load", "session/resume"])
async def test_what_a_session_is_loaded_with_is_what_its_agent_is_opened_with_next(
    tmp_path: Path, method: str
) -> None:
    more = tmp_path / "more"
    more.mkdir()
    async with telling(tmp_path / "data", "directories") as running, started(running) as socket:
        session_id, _ = await opened(
            socket, mcpServers=[SERVER], additionalDirectories=[str(more)], _meta={"vendor": 1}
        )
        again = {"sessionId": session_id, "cwd": f"{tmp_path}/more/..", "mcpServers": [OTHER]}
        await socket.call(method, {**again, "_meta": {"vendor": 2}})
        await lose_agent(socket, session_id)
        await socket.prompt(session_id, "again")
        asked = await told(socket)
        assert (asked["mcpServers"], asked["_meta"]) == ([OTHER], {"vendor": 2})
        assert "additionalDirectories" not in asked, "roots that were not named again are not granted again"


async def test_it_is_kept_over_a_restart_of_the_daemon(tmp_path: Path) -> None:
    async with telling(tmp_path / "data") as running, started(running) as socket:
        session_id, _ = await opened(socket, _meta={"vendor": 1})
        await socket.send(load(session_id, tmp_path, "l", mcpServers=[OTHER]))
        await socket.answer("l")
    async with telling(tmp_path / "data") as running, started(running) as socket:
        await socket.call("session/attach", {"sessionId": session_id, "historyPolicy": "none"})
        await socket.prompt(session_id, "again")
        asked = await told(socket)
        assert (asked["mcpServers"], asked["_meta"]) == ([OTHER], {"vendor": 1})


async def test_an_observer_changes_nothing_of_it(tmp_path: Path) -> None:
    async with telling(tmp_path / "data") as running, started(running) as socket:
        session_id, _ = await opened(socket, mcpServers=[SERVER])
        _, secret = await running.daemon.tokens.issue("eve", Role.OBSERVER)
        async with started(running._replace(token=secret)) as observer:
            await observer.call(
                "session/load", {"sessionId": session_id, "cwd": str(tmp_path), "mcpServers": [OTHER]}
            )
        state = (await running.daemon.node.session(SessionId(session_id))).state
        assert b'"other"' not in bytes(state.setup.mcp_servers)


async def test_a_fork_has_what_it_names_and_else_what_its_origin_has(tmp_path: Path) -> None:
    async with telling(tmp_path / "data") as running, started(running) as socket:
        session_id, _ = await opened(socket, mcpServers=[SERVER], _meta={"vendor": 1})
        await socket.call("session/fork", {"sessionId": session_id, "cwd": str(tmp_path)})
        asked = await told(socket)
        assert (asked["method"], asked["mcpServers"], asked["_meta"]) == ("session/fork", [SERVER], {"vendor": 1})
        other = {"mcpServers": [OTHER], "_meta": {"vendor": 2}}
        await socket.call("session/fork", {"sessionId": session_id, "cwd": str(tmp_path), **other})
        asked = await told(socket)
        assert (asked["mcpServers"], asked["_meta"]) == ([OTHER], {"vendor": 2})


async def test_a_session_is_loaded_in_its_own_directory_only(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "other").mkdir()
    async with telling(tmp_path / "data") as running, started(running) as socket:
        session_id, _ = await opened(socket)
        for wrong in (str(tmp_path / "other"), "relative", "", "/\0"):
            error = await failure(socket, "session/resume", sessionId=session_id, cwd=wrong, mcpServers=[])
            assert (error["code"], "session/list" in error["message"]) == (-32602, True)
        await socket.call("session/load", {"sessionId": session_id, "cwd": f"{tmp_path}/link/", "mcpServers": []})


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("offers", ["directories", ""])
async def test_directories_are_offered_and_taken_only_if_the_agent_offers_them(
    tmp_path: Path, version: int, offers: str
) -> None:
    async with telling(tmp_path / "data", offers, log="memory") as running, open_socket(running) as socket:
        agreed = await socket.start(version)
        place = ("agentCapabilities", "sessionCapabilities") if version == 1 else ("capabilities", "session")
        assert ("additionalDirectories" in agreed[place[0]][place[1]]) == bool(offers)
        given: dict[str, Any] = {"cwd": str(tmp_path), "mcpServers": [], "additionalDirectories": [str(tmp_path)]}
        if offers:
            await socket.call("session/new", given)
        else:
            error = await failure(socket, "session/new", **given)
            assert (error["code"], "leave them out" in error["message"]) == (-32602, True)


async def test_what_is_no_list_of_absolute_paths_is_refused(tmp_path: Path, subtests: pytest.Subtests) -> None:
    cases: list[Any] = ["/x", [1], [""], ["relative"], ["/\0"], {"a": 1}]
    async with telling(tmp_path / "data", "directories", log="memory") as running, started(running) as socket:
        for wrong in cases:
            with subtests.test(repr(wrong)):
                session_id, _ = await opened(socket)
                given: dict[str, Any] = {"cwd": str(tmp_path), "mcpServers": [], "additionalDirectories": wrong}
                assert (await failure(socket, "session/new", **given))["code"] == -32602
                for method in ("session/load", "session/resume", "session/fork"):
                    assert (await failure(socket, method, sessionId=session_id, **given))["code"] == -32602


async def test_a_directory_that_cannot_be_granted_is_refused_by_acp_and_rest(tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to("/")
    async with telling(tmp_path / "data", "directories", log="memory") as running, started(running) as socket:
        for wrong, code, status in (("/", "forbidden", 403), ("out/etc", "forbidden", 403), ("none", None, 400)):
            path = str(tmp_path / wrong)
            given: dict[str, Any] = {"cwd": str(tmp_path), "mcpServers": [], "additionalDirectories": [path]}
            error = await failure(socket, "session/new", **given)
            assert "an additional directory" in error["message"]
            assert error["data"]["code"] == code if code else error["code"] == -32602
            async with running.client() as http:
                answer = await http.post("/session", json=given)
            assert answer.status_code == status


async def test_rest_takes_the_same(tmp_path: Path) -> None:
    async with telling(tmp_path / "data", "directories", log="memory") as running, running.client() as http:
        given = {"cwd": str(tmp_path), "additionalDirectories": [str(tmp_path)], "_meta": {"vendor": 1}}
        session_id = (await http.post("/session", json=given)).json()["sessionId"]
        assert (await http.get(f"/session/{session_id}")).json()["additionalDirectories"] == [str(tmp_path)]
        async with started(running) as socket:
            await socket.send(load(session_id, tmp_path, "l"))
            asked = await told(socket)
            assert (asked["additionalDirectories"], asked["_meta"]) == ([str(tmp_path)], {"vendor": 1})


async def test_the_daemon_reads_files_for_the_agent_in_all_directories_of_the_session(tmp_path: Path) -> None:
    for name in ("own", "more", "else"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(f"text of {name}")
    async with telling(tmp_path / "data", "directories") as running, started(running) as socket:
        given = {"cwd": str(tmp_path / "own"), "additionalDirectories": [str(tmp_path / "more")]}
        session_id, _ = await opened(socket, **given)
        heard: list[str] = []
        for name in ("own", "more", "else"):
            request_id = await socket.prompt(session_id, f"read {tmp_path / name / 'file'}")
            heard.append((await socket.until(lambda each: bool(each.text)))[-1].text)
            await socket.answer(request_id)
        assert heard == ["text of own", "text of more", "refused"]
