"""A token for one session has no effect on an agent that other sessions share, except through that session."""

from __future__ import annotations

import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.security.intruding import attacked
from tests.server.acp.http_client import load, notification, request
from tests.server.acp.socket_client import Socket, started
from tests.support.daemons import OWN_PROCESS, Running

from turnwire.ids import SessionId
from turnwire.server.access.tokens import Role

pytestmark = [pytest.mark.anyio, pytest.mark.guarantee("G13")]

AGENT = Path(__file__).with_name("noting_agent.py")


class Stage:
    """A daemon with an owner connected, and a guest with a token for one session."""

    def __init__(self, running: Running, owner: Socket, guest: Socket, session_id: str, notes: Path) -> None:
        self.running, self.owner, self.guest = running, owner, guest
        self.session_id = session_id
        self._notes = notes

    @property
    def heard(self) -> list[str]:
        """Return the frames sent to the agent."""
        return self._notes.read_text(encoding="utf-8").split()


async def staged(stack: AsyncExitStack, tmp_path: Path, **options: Any) -> Stage:
    notes = tmp_path / "notes"
    agent = (sys.executable, str(AGENT), str(notes))
    running = await stack.enter_async_context(attacked(tmp_path, agent=agent, **options))
    owner = await stack.enter_async_context(started(running))
    session_id = await owner.new()
    _, secret = await running.daemon.tokens.issue("guest", Role.CONTROLLER, SessionId(session_id))
    guest = await stack.enter_async_context(started(running._replace(token=secret)))
    await guest.send(load(session_id, tmp_path, "l"))
    await guest.answer("l")
    return Stage(running, owner, guest, session_id, notes)


async def error_of(socket: Socket, method: str, params: dict[str, Any]) -> dict[str, Any]:
    await socket.send(request(method, params, "x"))
    return (await socket.answer("x")).get("error", {})


async def test_a_token_of_one_session_does_not_log_in_at_a_shared_agent(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        stage = await staged(stack, tmp_path)
        error = await error_of(stage.guest, "authenticate", {"methodId": "key"})
        assert error["data"]["code"] == "forbidden"
        assert "authenticate" not in stage.heard
        assert await error_of(stage.owner, "authenticate", {"methodId": "key"}) == {}
        assert "authenticate" in stage.heard


async def test_a_token_of_one_session_calls_no_foreign_method_at_a_shared_agent(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        stage = await staged(stack, tmp_path)
        for params in ({}, {"sessionId": stage.session_id}):
            error = await error_of(stage.guest, "_noting/reset", params)
            assert error["data"]["code"] == "forbidden", params
            await stage.guest.send(notification("_noting/told", params))
        assert (await stage.guest.answer(await stage.guest.prompt(stage.session_id, "go")))["result"]
        assert [each for each in stage.heard if each.startswith("_")] == []
        assert await error_of(stage.owner, "_noting/reset", {}) == {}
        assert "_noting/reset" in stage.heard


async def test_what_a_shared_agent_says_to_everybody_is_not_for_a_token_of_one_session(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        stage = await staged(stack, tmp_path)
        prompted = await stage.owner.prompt(stage.session_id, "go")
        heard = await stage.owner.until(lambda each: each.message.get("id") == prompted)
        assert [each.method for each in heard if each.method == "_noting/account"] == ["_noting/account"]
        await stage.guest.send(request("session/list", {}, "list"))
        heard = await stage.guest.until(lambda each: each.message.get("id") == "list")
        assert [each for each in heard if each.method == "_noting/account"] == []


async def test_with_an_agent_of_its_own_a_token_of_one_session_logs_in_and_calls_its_methods(
    tmp_path: Path,
) -> None:
    async with AsyncExitStack() as stack:
        stage = await staged(stack, tmp_path, **OWN_PROCESS)
        assert await error_of(stage.guest, "authenticate", {"methodId": "key"}) == {}
        assert await error_of(stage.guest, "_noting/reset", {"sessionId": stage.session_id}) == {}
        assert (await error_of(stage.guest, "_noting/reset", {}))["data"]["code"] == "forbidden"
        assert stage.heard.count("_noting/reset") == 1
