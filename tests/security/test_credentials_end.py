"""A credential that has ended acts no more: neither by a request in progress, nor by one that waits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from tests.patience import SOON_S
from tests.security.intruding import attacked, bearer, issue, log_in, open_session
from tests.security.slow_request import slow_request
from tests.server.acp.http_client import initialize
from tests.support.daemons import Running
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from turnwire.server.access.tokens import Role

pytestmark = [pytest.mark.anyio, pytest.mark.guarantee("G13")]

SHORT_S = 1.5
"""Lifetime of a token that expires in a test."""
NEW_TOKEN = json.dumps({"name": "mole", "role": "owner"}).encode()
ENDS = pytest.mark.parametrize("how", ["revoked", "expired"])


async def ended(daemon: Running, token_id: str, how: str) -> None:
    """The credential has ended, in this way."""
    if how == "revoked":
        await daemon.daemon.tokens.revoke(token_id)
        return
    with anyio.fail_after(SOON_S):
        while await daemon.daemon.tokens.find(token_id) is not None:  # noqa: ASYNC110 time passes by itself
            await anyio.sleep(0.01)


def lifetime(how: str) -> dict[str, Any]:
    return {"expires_in_s": SHORT_S} if how == "expired" else {}


@ENDS
async def test_a_body_that_is_held_back_does_not_outlive_its_token(tmp_path: Path, how: str) -> None:
    async with attacked(tmp_path) as daemon:
        token_id, secret = await issue(daemon, Role.OWNER, **lifetime(how))
        async with slow_request(daemon, "POST", "/tokens", bearer(secret), size=len(NEW_TOKEN)) as request:
            await request.send_body(NEW_TOKEN[:1])
            await ended(daemon, token_id, how)
            # It is answered at once, not when the rest arrives.
            answer = await request.answer(SOON_S)
            await request.send_body(NEW_TOKEN[1:])
        assert answer.status == 401
        assert await daemon.daemon.tokens.list() == ()


async def test_a_body_that_is_whole_as_its_token_ends_is_not_acted_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with attacked(tmp_path) as daemon:
        token_id, secret = await issue(daemon, Role.OWNER)
        read = daemon.daemon.bodies.read

        async def revoking(*args: Any, **options: Any) -> bytes:
            body = await read(*args, **options)
            await daemon.daemon.tokens.revoke(token_id)
            return body

        monkeypatch.setattr(daemon.daemon.bodies, "read", revoking)
        async with daemon.client(headers=bearer(secret)) as client:
            answer = await client.post("/tokens", content=NEW_TOKEN, headers={"Content-Type": "application/json"})
        assert answer.status_code == 401
        assert await daemon.daemon.tokens.list() == ()


@ENDS
async def test_an_answer_that_waits_ends_with_its_token_and_the_turn_goes_on(tmp_path: Path, how: str) -> None:
    async with attacked(tmp_path) as daemon, daemon.client() as owner:
        session_id = await open_session(owner, tmp_path)
        token_id, secret = await issue(daemon, Role.CONTROLLER, **lifetime(how))
        answers: list[httpx.Response] = []
        async with daemon.client(headers=bearer(secret)) as client, anyio.create_task_group() as tasks:

            async def prompt() -> None:
                body = {"prompt": [{"type": "text", "text": "never"}]}
                headers = {"Prefer": "wait=60"}
                answers.append(await client.post(f"/session/{session_id}/prompt", json=body, headers=headers))

            tasks.start_soon(prompt)
            await running_turn(owner, session_id)
            await ended(daemon, token_id, how)
            with anyio.fail_after(SOON_S):
                while not answers:  # noqa: ASYNC110
                    await anyio.sleep(0.01)
        assert answers[0].status_code == 401
        assert (await owner.get(f"/session/{session_id}/status")).json()["hasActivePrompt"] is True


async def running_turn(client: httpx.AsyncClient, session_id: str) -> None:
    with anyio.fail_after(SOON_S):
        while not (await client.get(f"/session/{session_id}/status")).json()["hasActivePrompt"]:
            pass


async def test_an_export_is_cut_when_its_token_is_revoked(tmp_path: Path) -> None:
    async with attacked(tmp_path) as daemon, daemon.client() as owner:
        session_id = await open_session(owner, tmp_path)
        prompt = {"prompt": [{"type": "text", "text": "flood 20000 2000"}]}
        said = await owner.post(f"/session/{session_id}/prompt", json=prompt, headers={"Prefer": "wait=60"})
        assert said.status_code == 200, said.text
        token_id, secret = await issue(daemon, Role.OBSERVER)
        async with slow_request(daemon, "GET", f"/session/{session_id}/export", bearer(secret)) as request:
            await request.begun()
            await daemon.daemon.tokens.revoke(token_id)
            answer = await request.answer(SOON_S)
        assert not answer.is_whole


@ENDS
async def test_an_event_stream_ends_with_its_token(tmp_path: Path, how: str) -> None:
    async with attacked(tmp_path) as daemon, daemon.client() as owner:
        session_id = await open_session(owner, tmp_path)
        token_id, secret = await issue(daemon, Role.OBSERVER, **lifetime(how))
        async with (
            daemon.client(headers=bearer(secret)) as client,
            client.stream("GET", f"/session/{session_id}/events") as stream,
        ):
            lines = stream.aiter_lines()
            await anext(lines)
            await ended(daemon, token_id, how)
            with anyio.fail_after(SOON_S):
                rest = [line async for line in lines]
        assert ": the credential is not valid any more" in rest


@ENDS
async def test_a_socket_ends_with_its_token(tmp_path: Path, how: str) -> None:
    async with attacked(tmp_path) as daemon:
        token_id, secret = await issue(daemon, Role.OWNER, **lifetime(how))
        url = daemon.url.replace("http", "ws", 1) + "/acp"
        async with connect(url, additional_headers=bearer(secret)) as socket:
            await ended(daemon, token_id, how)
            with pytest.raises(ConnectionClosed) as closed, anyio.fail_after(SOON_S):
                await socket.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1008


async def test_an_acp_connection_is_over_with_its_token(tmp_path: Path) -> None:
    async with attacked(tmp_path) as daemon:
        token_id, secret = await issue(daemon, Role.OWNER)
        async with daemon.client(headers=bearer(secret)) as client:
            opened = await client.post("/acp", json=initialize())
            named = {"Acp-Connection-Id": opened.headers["acp-connection-id"]}
        await daemon.daemon.tokens.revoke(token_id)
        async with daemon.client() as owner:
            with anyio.fail_after(SOON_S):
                listed = await owner.post(
                    "/acp", json={"jsonrpc": "2.0", "id": 1, "method": "session/list", "params": {}}, headers=named
                )
        assert listed.status_code == 404


async def test_whoever_revokes_its_own_token_hears_that_it_is_done(tmp_path: Path) -> None:
    async with attacked(tmp_path) as daemon:
        token_id, secret = await issue(daemon, Role.OWNER)
        async with daemon.client(headers=bearer(secret)) as client:
            assert (await client.delete(f"/tokens/{token_id}")).status_code == 204
            assert (await client.get("/capabilities")).status_code == 401


async def test_a_login_ends_with_the_token_that_granted_it(tmp_path: Path) -> None:
    async with attacked(tmp_path) as daemon, daemon.client() as owner:
        token_id, secret = await issue(daemon, Role.OWNER)
        session_id = await open_session(owner, tmp_path)
        async with daemon.stranger() as browser:
            await log_in(browser, secret)
            async with browser.stream("GET", f"/session/{session_id}/events") as stream:
                lines = stream.aiter_lines()
                await anext(lines)
                await daemon.daemon.tokens.revoke(token_id)
                with anyio.fail_after(SOON_S):
                    assert ": the credential is not valid any more" in [line async for line in lines]
            assert (await browser.get("/capabilities")).status_code == 401
