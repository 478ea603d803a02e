"""Prompts with malformed content over ACP: refused as invalid params, and nothing begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.server.acp.http_client import request
from tests.server.acp.socket_client import started
from tests.support.daemons import running_daemon

from turnwire.ids import SessionId

pytestmark = pytest.mark.anyio

MALFORMED: list[list[Any]] = [
    [{"type": "text"}],
    [{"type": "text", "text": None}],
    [{"type": "text", "text": "a"}, {"type": "resource_link"}],
    [{"type": "hologram"}],
    [],
]


@pytest.mark.parametrize("version", [1, 2])
async def test_malformed_content_is_refused_as_invalid_params_and_starts_no_turn(
    tmp_path: Path, version: int
) -> None:
    async with (
        running_daemon(tmp_path / "data", log="memory") as running,
        started(running, version) as socket,
    ):
        session_id = await socket.new()
        await socket.send(
            request("session/prompt", {"sessionId": session_id, "prompt": [_text("say 1 a")]}, "first")
        )
        assert "result" in await socket.answer("first")
        node = running.daemon.node
        [accepted] = (await node.view(SessionId(session_id))).turns
        for number, blocks in enumerate(MALFORMED):
            await socket.send(request("session/prompt", {"sessionId": session_id, "prompt": blocks}, f"r{number}"))
            error = (await socket.answer(f"r{number}"))["error"]
            assert (error["code"], error["data"]["code"]) == (-32602, "content_refused")
        assert list((await node.view(SessionId(session_id))).turns) == [accepted]
        newer: dict[str, Any] = {"annotations": {"priority": 1, "newer": 2}, "_meta": {"x": 1}, "newer": 3}
        await socket.send(
            request("session/prompt", {"sessionId": session_id, "prompt": [{**_text("say 1 b"), **newer}]}, "last")
        )
        assert "result" in await socket.answer("last")


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}
