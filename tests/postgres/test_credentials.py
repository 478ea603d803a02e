"""Credentials in the database: a change at one node applies to all; and the rules while the database is away."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from tests.server.reading import after, open_session, prompt, reading
from tests.support.daemons import SCRIPTED, TOKEN, Running, running_daemon
from tests.support.postgres import PostgresServer, schema_of, share_log

from turnwire.limits import Limits
from turnwire.log import postgres as engine
from turnwire.log.credentials import CredentialRow
from turnwire.server.access.login import PAGE_KEY
from turnwire.server.access.token_file import TokenFile
from turnwire.server.access.tokens import Role, Tokens
from turnwire_testing import ManualClock
from turnwire_testing.patience import WAIT_S, quiet

pytestmark = [pytest.mark.anyio, pytest.mark.guarantee("G13")]

SOON = Limits(database_s=1, log_retry_s=0.05)
OBSERVER = {"name": "eve", "role": "observer"}


@pytest.fixture(autouse=True)
def nodes_share_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    share_log(monkeypatch)


@asynccontextmanager
async def two_nodes(postgres: PostgresServer, folder: Path, **settings: Any) -> AsyncGenerator[list[Running]]:
    log = settings.pop("log", None) or postgres.new_log()
    async with AsyncExitStack() as stack:
        started = [
            running_daemon(folder / name, log=log, limits=SOON, cwd=(folder,), **settings) for name in ("a", "b")
        ]
        yield [await stack.enter_async_context(each) for each in started]


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


async def made(node: Running, **wanted: str) -> tuple[str, str]:
    async with node.client() as client:
        answer = await client.post("/tokens", json=OBSERVER | wanted)
        assert answer.status_code == 201, answer.text
        return answer.json()["id"], answer.json()["token"]


async def status(node: Running, secret: str, path: str = "/capabilities") -> int:
    async with node.stranger(headers=bearer(secret)) as client:
        return (await client.get(path)).status_code


async def until(node: Running, secret: str, wanted: int) -> None:
    with anyio.fail_after(WAIT_S):
        while await status(node, secret) != wanted:
            await quiet()


async def test_a_token_that_one_node_makes_is_good_on_every_node_at_once(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    async with two_nodes(postgres, tmp_path) as (a, b):
        token_id, secret = await made(a)
        assert await status(b, secret) == 200
        async with b.client() as client:
            assert [each["id"] for each in (await client.get("/tokens")).json()["tokens"]] == [token_id]
        assert not (tmp_path / "a" / "tokens.json").exists()


async def test_a_token_that_one_node_revokes_ends_its_streams_on_the_others(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    async with two_nodes(postgres, tmp_path) as (a, b):
        session_id = await open_session(b)
        token_id, secret = await made(a)
        _, other = await made(a)
        async with (
            b.stranger(headers=bearer(secret)) as eve,
            b.stranger(headers=bearer(other)) as bob,
            reading(eve, f"/session/{session_id}/events", **after(0)) as cut,
            reading(bob, f"/session/{session_id}/events", **after(0)) as kept,
            a.client() as owner,
        ):
            await cut.until(lambda each: each.type == "replay_complete")
            await kept.until(lambda each: each.type == "replay_complete")
            assert (await owner.delete(f"/tokens/{token_id}")).status_code == 204
            await cut.to_the_end()
            assert await status(b, secret) == 401
            assert await status(b, other) == 200
            await prompt(b, session_id, "say 1 on")
            await kept.until(lambda each: each.type == "turn_complete")


async def test_what_a_token_granted_on_one_node_ends_with_it_on_another(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    async with two_nodes(postgres, tmp_path) as (a, b):
        token_id, secret = await made(a, role="owner")
        login = await logged_in(b, await code_of(b, bearer(secret)))
        assert (await paged(b, login)).status_code == 200
        assert (await paged(a, login)).status_code == 200
        waiting = await code_of(a, bearer(secret))
        async with a.client() as owner:
            assert (await owner.delete(f"/tokens/{token_id}")).status_code == 204
        assert (await paged(a, login)).status_code == 401
        with anyio.fail_after(WAIT_S):
            while (await paged(b, login)).status_code != 401:
                await quiet()
        assert (await redeemed(b, waiting)).status_code == 401


async def code_of(node: Running, headers: dict[str, str]) -> str:
    async with node.stranger(headers=headers) as client:
        return (await client.post("/login-link")).json()["url"].partition("#")[2]


async def redeemed(node: Running, code: str) -> httpx.Response:
    async with node.stranger(headers={"Host": "localhost:4170"}) as client:
        return await client.post("/login", json={"code": code})


async def logged_in(node: Running, code: str) -> dict[str, str]:
    """Return the headers of a browser that has redeemed a code."""
    answer = await redeemed(node, code)
    assert answer.status_code == 204, answer.text
    return {"Cookie": answer.headers["set-cookie"].partition(";")[0], PAGE_KEY: answer.headers[PAGE_KEY]}


async def paged(node: Running, login: dict[str, str]) -> httpx.Response:
    async with node.stranger(headers={"Host": "localhost:4170", **login}) as client:
        return await client.get("/capabilities")


async def test_a_login_link_works_once_on_all_nodes_together(postgres: PostgresServer, tmp_path: Path) -> None:
    async with two_nodes(postgres, tmp_path) as (a, b):
        for _ in range(5):
            code = await code_of(a, a.headers)
            answers: list[int] = []

            async def use(node: Running, code: str = code, answers: list[int] = answers) -> None:
                answers.append((await redeemed(node, code)).status_code)

            async with anyio.create_task_group() as tasks:
                for node in (a, b, a, b):
                    tasks.start_soon(use, node)
            assert sorted(answers) == [204, 401, 401, 401]


async def test_of_nodes_that_start_at_once_one_makes_the_first_token(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    log = postgres.new_log()
    async with anyio.create_task_group() as tasks:
        nodes: list[Running] = []
        stop = anyio.Event()

        async def run(name: str) -> None:
            async with running_daemon(tmp_path / name, log=log, cwd=(tmp_path,), token=None) as node:
                nodes.append(node)
                await stop.wait()

        for name in "abcd":
            tasks.start_soon(run, name)
        with anyio.fail_after(WAIT_S):
            while len(nodes) < 4:
                await quiet()
        [first] = [node.daemon.first_token for node in nodes if node.daemon.first_token is not None]
        assert [await status(node, first) for node in nodes] == [200] * 4
        assert len(await nodes[0].daemon.tokens.list()) == 1
        stop.set()


async def test_of_many_first_tokens_at_one_instant_one_is_kept(postgres: PostgresServer) -> None:
    log = postgres.new_log()
    async with engine.open_postgres_log(log, limits=Limits()) as opened:
        for number in range(10):
            kept: list[bool] = []

            async def ask(each: int, number: int = number, kept: list[bool] = kept) -> None:
                row = CredentialRow(f"{number:06}{each:06}", "owner", "owner", "x", 1, None, None, "token", None)
                kept.append(await opened.credentials.add_first(row))

            async with anyio.create_task_group() as tasks:
                for each in range(8):
                    tasks.start_soon(ask, each)
            assert sorted(kept) == [False] * 7 + [True]
            [first] = await opened.credentials.all()
            await opened.credentials.remove(first.id)


async def test_the_tokens_of_a_file_are_taken_into_the_table_once(postgres: PostgresServer, tmp_path: Path) -> None:
    path, clock = tmp_path / "a" / "tokens.json", ManualClock()
    before, first = await Tokens.open(TokenFile(path, clock), clock)
    parent, owner = await before.issue("laptop", Role.OWNER)
    _, login = await before.issue("page", Role.OWNER, kind="login", granted_by=parent.id)
    content = path.read_bytes()
    log = postgres.new_log()
    async with running_daemon(tmp_path / "a", log=log, token=None) as node:
        assert node.daemon.first_token is None
        assert first is not None
        assert [await status(node, each) for each in (first, owner)] == [200, 200]
        assert await node.daemon.tokens.check(login, "login") is not None
        assert not path.exists()
        await node.daemon.tokens.revoke(parent.id)
        assert await node.daemon.tokens.check(login, "login") is None
    # As if the daemon had been killed before it put the file away.
    path.write_bytes(content)
    path.chmod(0o600)
    async with running_daemon(tmp_path / "a", log=log, token=None) as node:
        assert [await status(node, each) for each in (first, owner)] == [200, 401]
        assert not path.exists()


async def test_who_is_known_gets_in_while_the_database_is_away_and_nobody_else(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    async with two_nodes(postgres, tmp_path) as (a, b):
        token_id, known = await made(a)
        _, unknown = await made(b)
        _, other = await made(a)
        await anyio.to_thread.run_sync(postgres.stop)
        try:
            for _ in range(3):
                assert await status(a, known) == 200
            async with a.stranger(headers=bearer(unknown)) as client:
                refused = await client.get("/capabilities")
            assert (refused.status_code, refused.json()["code"]) == (503, "log_unavailable")
            async with a.client() as client:
                told = await client.post("/tokens", json=OBSERVER)
                assert (told.status_code, told.json()["code"]) == (507, "credentials_not_stored")
                told = await client.post("/login-link")
                assert (told.status_code, told.json()["code"]) == (507, "credentials_not_stored")
                told = await client.delete(f"/tokens/{token_id}")
                assert (told.status_code, told.json()["code"]) == (507, "credentials_not_stored")
            assert await status(a, known) == 401
            assert await status(a, other) == 200
        finally:
            await anyio.to_thread.run_sync(postgres.start)
        await until(a, unknown, 200)
        await until(b, known, 401)
        assert await status(a, known) == 401
        async with a.client() as client:
            assert (await client.delete(f"/tokens/{token_id}")).status_code == 404


# -- commands --------------------------------------------------------------------------------------------------


def turnwire(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "turnwire", *words],
        capture_output=True,
        text=True,
        env={name: value for name, value in os.environ.items() if not name.startswith("TURNWIRE_")} | environment,
        timeout=WAIT_S,
        check=False,
    )


async def test_commands_change_the_table_when_no_daemon_answers(postgres: PostgresServer, tmp_path: Path) -> None:
    log = postgres.new_log()
    where = {"TURNWIRE_LOG": log, "TURNWIRE_URL": "http://127.0.0.1:1", "XDG_RUNTIME_DIR": str(tmp_path)}
    data = ("--data", str(tmp_path / "b"))
    nobody = await anyio.to_thread.run_sync(lambda: turnwire("token", "create", "ci", *data, **where))
    assert nobody.returncode == 69, nobody.stderr
    async with running_daemon(tmp_path / "a", log=log) as node:
        told = await anyio.to_thread.run_sync(lambda: turnwire("token", "create", "ci", *data, **where))
        assert told.returncode == 0, told.stderr
        assert "its database, postgresql://postgres@127.0.0.1" in told.stderr
        secret = told.stdout.strip()
        assert await status(node, secret) == 200
        token_id = secret.split("_")[1]
        listed = await anyio.to_thread.run_sync(lambda: turnwire("token", "list", "--json", *data, **where))
        assert [each["id"] for each in json.loads(listed.stdout)] == [token_id]
        gone = await anyio.to_thread.run_sync(lambda: turnwire("token", "revoke", token_id, *data, **where))
        assert gone.returncode == 0, gone.stderr
        await until(node, secret, 401)


async def test_doctor_says_how_many_credentials_the_database_has(postgres: PostgresServer, tmp_path: Path) -> None:
    log = postgres.new_log()

    def tokens() -> dict[str, str]:
        usual = ("doctor", "--json", "--data", str(tmp_path / "d"), "--port", "0", "--cwd", str(tmp_path))
        told = turnwire(*usual, "--log", log, "--", *SCRIPTED, TURNWIRE_TOKEN=TOKEN)
        [line] = [each for each in map(json.loads, told.stdout.splitlines()) if each["name"] == "tokens"]
        return line

    assert "none yet" in (await anyio.to_thread.run_sync(tokens))["words"]
    async with running_daemon(tmp_path / "d", log=log) as node:
        await made(node)
    assert (await anyio.to_thread.run_sync(tokens))["words"].startswith("1 in the database; ")


async def test_a_copy_takes_the_credentials_along_and_back(postgres: PostgresServer, tmp_path: Path) -> None:
    log = postgres.new_log()
    async with running_daemon(tmp_path / "d") as node:
        _, secret = await made(node)
    there = turnwire("copy", "--from", f"sqlite://{tmp_path / 'd'}", "--to", log)
    assert there.returncode == 0, there.stderr
    async with running_daemon(tmp_path / "elsewhere", log=log) as node:
        assert await status(node, secret) == 200
    assert postgres.ask("select count(*) from tw_tokens", schema_of(log)) == [["1"]]
    back = turnwire("copy", "--from", log, "--to", f"sqlite://{tmp_path / 'back' / 'turnwire.db'}")
    assert back.returncode == 0, back.stderr
    async with running_daemon(tmp_path / "back") as node:
        assert await status(node, secret) == 200
