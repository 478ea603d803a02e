"""A daemon whose log is in PostgreSQL: its behaviour while the database is away, and the output of its commands."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from tests.server.reading import after, ended, offsets, open_session, prompt, reading
from tests.support.daemons import SCRIPTED, TOKEN, Running, running_daemon
from tests.support.postgres import PostgresServer, schema_of

from turnwire.errors import ConfigError, LogLocked
from turnwire.limits import Limits
from turnwire.log import address, file_lock
from turnwire_testing.patience import WAIT_S, quiet

pytestmark = pytest.mark.anyio

SOON = Limits(database_s=1, log_retry_s=0.05, busy_timeout_s=0.2)


def turnwire(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "turnwire", *words],
        capture_output=True,
        text=True,
        env={name: value for name, value in os.environ.items() if not name.startswith("TURNWIRE_")} | environment,
        timeout=WAIT_S,
        check=False,
    )


async def send(client: httpx.AsyncClient, session_id: str, text: str) -> httpx.Response:
    body = {"prompt": [{"type": "text", "text": text}]}
    return await client.post(f"/session/{session_id}/prompt", json=body)


async def until_accepted(client: httpx.AsyncClient, session_id: str, text: str) -> dict[str, Any]:
    with anyio.fail_after(WAIT_S):
        while (answer := await send(client, session_id, text)).status_code != 202:
            assert answer.status_code == 503, answer.text
            await quiet()
    return answer.json()


async def whole(running: Running, session_id: str) -> list[int]:
    async with running.client() as client, reading(client, f"/session/{session_id}/events", **after(0)) as reader:
        return offsets(await reader.until(lambda each: each.type == "replay_complete"))


@pytest.mark.every_log
async def test_a_test_for_every_log_has_its_daemon_on_each(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    # Not by the fixture: a test that does not ask for it must have it all the same.
    place = request.node.callspec.params["log_of_daemons"]
    async with running_daemon(tmp_path / "d") as running:
        await open_session(running)
        is_far = (running.daemon.settings.log or "").startswith("postgresql://")
    assert is_far == (place == "postgresql")
    assert (tmp_path / "d" / "turnwire.db").exists() == (place == "sqlite")


@pytest.mark.guarantee("G2", "G3")
async def test_prompts_are_refused_while_the_database_is_away_and_taken_when_it_is_back(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    log = postgres.new_log()
    async with running_daemon(tmp_path / "d", log=log, limits=SOON) as running, running.client() as client:
        session_id = await open_session(running)
        await prompt(running, session_id, "say 2 before")
        before = await ended(running, session_id)
        await anyio.to_thread.run_sync(postgres.stop)
        try:
            for _ in range(3):
                refused = await send(client, session_id, "say 1 meanwhile")
                assert (refused.status_code, refused.json()["code"]) == (503, "log_unavailable")
        finally:
            await anyio.to_thread.run_sync(postgres.start)
        accepted = await until_accepted(client, session_id, "say 1 after")
        assert accepted["lastEventId"] >= before
        head = await ended(running, session_id)
        assert await whole(running, session_id) == [*range(1, head + 1)]


@pytest.mark.guarantee("G1", "G2", "G3")
async def test_a_turn_that_runs_goes_on_although_the_database_is_killed(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    log = postgres.new_log()
    async with running_daemon(tmp_path / "d", log=log, limits=SOON) as running, running.client() as client:
        session_id = await open_session(running)
        await prompt(running, session_id, "flood 3000 50\nsay 1 last")
        session = await running.daemon.node.session(session_id)
        with anyio.fail_after(WAIT_S):
            while session.head < 300:
                await session.tail.wait(session.head)
        postgres.kill()
        with anyio.fail_after(WAIT_S):
            refused = await send(client, session_id, "say 1 meanwhile")
        assert (refused.status_code, refused.json()["code"]) == (503, "log_unavailable")
        await anyio.to_thread.run_sync(postgres.start)
        head = await ended(running, session_id)
        assert head > 3000
        assert await whole(running, session_id) == [*range(1, head + 1)]
        told = (await client.get(f"/session/{session_id}/transcript")).text
        assert "last" in told


async def test_a_restart_goes_on_with_the_same_sessions(postgres: PostgresServer, tmp_path: Path) -> None:
    log = postgres.new_log()
    async with running_daemon(tmp_path / "d", log=log) as running:
        session_id = await open_session(running, "s1")
        await prompt(running, session_id, "never")
    async with running_daemon(tmp_path / "elsewhere", log=log) as running, running.client() as client:
        head = await ended(running, session_id)
        told = (await client.get(f"/session/{session_id}/log?after=0&limit=100")).text
        assert "daemon_restarted" in told or "daemon_stopped" in told
        assert await whole(running, session_id) == [*range(1, head + 1)]


async def test_two_daemons_do_not_share_a_data_folder(postgres: PostgresServer, tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "d", log=postgres.new_log()):
        with pytest.raises(LogLocked, match="another path"):
            file_lock.lock_file(tmp_path / "d" / "turnwire.db")


# -- commands --------------------------------------------------------------------------------------------------


async def test_a_data_folder_is_copied_by_a_command(postgres: PostgresServer, tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "d") as running:
        session_id = await open_session(running, "s1")
        await prompt(running, session_id, "say 3 hello")
        head = await ended(running, session_id)
        epoch = (await running.daemon.node.head(session_id)).epoch
    log = postgres.new_log()
    copied = turnwire("copy", "--from", f"sqlite://{tmp_path / 'd'}", "--to", log, "--json")
    assert copied.returncode == 0, copied.stderr
    assert json.loads(copied.stdout)["copied"] == head
    again = turnwire("copy", "--from", f"sqlite://{tmp_path / 'd'}", "--to", log)
    assert "1 sessions, 0 events copied now" in again.stdout
    # It has no zone yet, so that any node can continue it.
    assert postgres.ask("select place from tw_sessions", schema_of(log)) == [[""]]
    async with running_daemon(tmp_path / "d", log=log) as running:
        there = await running.daemon.node.head(session_id)
        assert (there.epoch, there.head) == (epoch, head)
    missing = turnwire("copy", "--from", f"sqlite://{tmp_path / 'none'}", "--to", log)
    assert missing.returncode == 78
    assert "there is no log at" in missing.stderr


def test_doctor_looks_at_the_database(postgres: PostgresServer, tmp_path: Path) -> None:
    usual = ("doctor", "--json", "--data", str(tmp_path / "d"), "--port", "0", "--cwd", str(tmp_path))
    agent = ("--", *SCRIPTED)

    def lines(log: str) -> list[dict[str, str]]:
        told = turnwire(*usual, "--log", log, *agent, TURNWIRE_TOKEN=TOKEN)
        assert "hidden" not in told.stdout + told.stderr
        return [each for each in map(json.loads, told.stdout.splitlines()) if each["name"] == "log"]

    fine = lines(postgres.new_log())
    assert [each["level"] for each in fine] == ["ok", "ok"]
    assert "no tables yet" in fine[0]["words"]
    weak = lines(postgres.new_log() + "&synchronous_commit=off")
    assert "synchronous_commit" in weak[1]["words"]
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        # It accepts connections, and never answers.
        hosts = f"127.0.0.1:{hanging.getsockname()[1]},127.0.0.1:{postgres.port}"
        second = lines(postgres.new_log().replace(f"127.0.0.1:{postgres.port}", hosts))
    assert [each["level"] for each in second] == ["ok", "ok"]
    [away] = lines("postgresql://u:hidden@127.0.0.1:1/db")
    assert away["level"] == "fail"
    assert "127.0.0.1:1" in away["words"]


def test_the_password_of_an_address_is_never_shown(tmp_path: Path) -> None:
    told = turnwire("config", "--log", "postgresql://u:hid%40den@h1,h2/db?password=hidden&sslmode=require")
    assert "postgresql://u@h1,h2/db?sslmode=require" in told.stdout
    assert "hid" not in told.stdout + told.stderr
    for wrong in ("postgre://u:hidden@h/db", "postgresql:u:hidden@h", "postgresql://u:hidden@h:port/db"):
        refused = turnwire("config", "--log", wrong)
        assert refused.returncode == 78, refused.stdout
        assert "postgresql://USER@HOST/DATABASE" in refused.stderr
        assert "hidden" not in refused.stdout + refused.stderr
    file = tmp_path / "turnwire.toml"
    file.write_text('log = "postgresql://u:hidden@h/db"\n', encoding="utf-8")
    file.chmod(0o644)
    refused = turnwire("config", "--config", str(file))
    assert "chmod 600" in refused.stderr


def test_without_the_driver_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [each for each in sys.modules if each.startswith("turnwire.log.postgres")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "asyncpg", None)

    async def start() -> None:
        with pytest.raises(ConfigError, match=r"pip install '\.\[postgres\]'"):
            async with running_daemon(tmp_path / "d", log="postgresql://h/db"):
                pass

    anyio.run(start)
    assert address.NO_DRIVER
