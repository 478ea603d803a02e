"""Daemons that share a log: they beat, they stop in time, and an operator lists, drains and buries them."""

from __future__ import annotations

import json
import signal
import socket
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.cli.rig import Ran, Served, run, served
from tests.process.starting import needs_linux, watching
from tests.server.reading import ended, open_session, prompt
from tests.support.daemons import Running, running_daemon
from tests.support.postgres import CLUSTER_KEY, PostgresServer, schema_of

from turnwire.errors import LogLocked, NotOwner
from turnwire.hosting.guard import descendants
from turnwire.limits import Limits
from turnwire_testing.patience import WAIT_S, quiet

pytestmark = pytest.mark.anyio

CALM = Limits(beat_s=0.1, self_s=20, lease_s=25, outage_s=120, database_s=10, log_retry_s=0.05)
"""No node is lost because the machine that runs the tests stood still for a moment."""
QUICK = replace(CALM, self_s=3, lease_s=4, database_s=1)
"""Settings for tests that wait until a node has stopped acting."""
SHORT = replace(CALM, self_s=6, lease_s=8, outage_s=15, database_s=5)
"""Settings for tests that wait until an unseen node is declared gone."""
LIFE_OVER = 75


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"127.0.0.1:{taken.getsockname()[1]}"


def node_in(data: Path, log: str, limits: Limits = CALM, **settings: Any) -> AbstractAsyncContextManager[Running]:
    return running_daemon(
        data, log=log, limits=limits, cluster_listen=free_address(), cluster_key=CLUSTER_KEY, **settings
    )


async def ready(running: Running) -> tuple[int, str]:
    async with running.client() as client:
        answer = await client.get("/ready")
    return answer.status_code, answer.json().get("reason", answer.json()["status"])


async def until_ready_is(running: Running, *wanted: object) -> None:
    with anyio.fail_after(WAIT_S):
        while await ready(running) != wanted:
            await quiet()


# -- a daemon that is one of several ---------------------------------------------------------------------------


async def test_nodes_beat_beside_each_other_and_tell_so(postgres: PostgresServer, tmp_path: Path) -> None:
    log = postgres.new_log()
    async with (
        node_in(tmp_path / "1", log, node="one", place="p") as one,
        node_in(tmp_path / "2", log, node="two", place="p") as two,
    ):
        members = one.daemon.members
        assert members is not None
        with anyio.fail_after(WAIT_S):
            while members.beats < 3 or [each.name for each in members.others] != ["two"]:
                await quiet()
        session_id = await open_session(one)
        await prompt(one, session_id, "say 1 hello")
        await ended(one, session_id)
        assert await one.daemon.owners.owner(session_id) == one.daemon.owners.life
        assert await two.daemon.owners.owner(session_id) == one.daemon.owners.life
        assert await ready(one) == (200, "ready")
        async with one.client() as client:
            told = (await client.get("/metrics")).text
        for name in ("node_beats", "nodes_gone", "sessions_taken_over", "fence_refusals"):
            assert f"turnwire_{name}_total" in told
        assert "turnwire_node_beat_age_seconds 0." in told
    assert postgres.ask("select count(*) from tw_nodes where not gone", schema_of(log)) == [["0"]]


async def test_asking_whether_a_node_is_ready_writes_to_no_session_of_another(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    log = postgres.new_log()
    async with node_in(tmp_path / "1", log, node="one") as one, node_in(tmp_path / "2", log, node="two") as two:
        await open_session(one)
        for _ in range(5):
            assert await ready(two) == (200, "ready")
        assert two.daemon.metrics.log.fence_refusals == 0


async def test_sessions_of_a_daemon_that_was_alone_go_on_at_the_first_node_that_comes(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    log = postgres.new_log()
    async with running_daemon(tmp_path / "1", log=log, limits=CALM) as alone:
        session_id = await open_session(alone)
        await prompt(alone, session_id, "say 1 hello")
        await ended(alone, session_id)
    async with node_in(tmp_path / "2", log, node="a", place="office") as node:
        await prompt(node, session_id, "say 1 again", "p2")
        await ended(node, session_id)
    assert postgres.ask("select place from tw_sessions", schema_of(log)) == [["office"]]


async def test_sessions_of_a_place_that_has_no_node_any_more_are_moved_by_hand(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    log = postgres.new_log()

    def move(*words: str) -> Ran:
        return nodes(tmp_path, log, "move", *words)

    async with node_in(tmp_path / "1", log, node="one", place="attic") as one:
        session_id = await open_session(one)
        await prompt(one, session_id, "say 1 hello")
        await ended(one, session_id)
        refused = await anyio.to_thread.run_sync(move, "attic", "office")
        assert refused.code != 0
        assert "one still has the place attic" in refused.err
    async with node_in(tmp_path / "2", log, node="two", place="office") as two:
        with pytest.raises(NotOwner):
            await two.daemon.node.session(session_id)
        moved = await anyio.to_thread.run_sync(move, "attic", "office")
        assert (moved.code, "1 sessions of attic are of office now" in moved.err) == (0, True)
        await prompt(two, session_id, "say 1 again", "p2")
        await ended(two, session_id)


async def test_a_node_whose_database_is_away_for_everybody_is_not_ready_and_goes_on(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    async with node_in(tmp_path / "1", postgres.new_log(), QUICK) as one:
        await anyio.to_thread.run_sync(postgres.stop)
        try:
            await until_ready_is(one, 503, "log_unavailable")
            members = one.daemon.members
            assert members is not None
            with anyio.fail_after(WAIT_S):
                while members.missing_s < 2 * QUICK.self_s:
                    await quiet()
            assert members.is_cut
        finally:
            await anyio.to_thread.run_sync(postgres.start)
        await until_ready_is(one, 200, "ready")
        assert not one.daemon.lost.is_set()


async def test_a_node_that_another_one_may_watch_stops_acting_in_time(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    log = postgres.new_log()
    async with node_in(tmp_path / "1", log, QUICK, node="one") as one:
        # A node that was seen and cannot be reached.
        postgres.ask("insert into tw_nodes (name, version, alone) values ('two', '0', false)", schema_of(log))
        members = one.daemon.members
        assert members is not None
        with anyio.fail_after(WAIT_S):
            while not members.others:
                await quiet()
        await anyio.to_thread.run_sync(postgres.stop)
        try:
            with anyio.fail_after(WAIT_S):
                await one.daemon.lost.wait()
            assert await ready(one) == (503, "life_over")
            assert one.daemon.stopping.is_set()
        finally:
            await anyio.to_thread.run_sync(postgres.start)


async def test_a_second_node_of_the_same_name_with_another_data_folder_is_refused(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    log = postgres.new_log()
    async with node_in(tmp_path / "1", log, node="one") as one:
        with pytest.raises(LogLocked, match=r"another node is called 'one'.*--node"):
            async with node_in(tmp_path / "2", log, node="one"):
                pass
        assert await ready(one) == (200, "ready")
        assert lives(postgres, log) == [str(one.daemon.owners.life)]
        async with node_in(tmp_path / "2", log, node="two") as two:
            assert await ready(two) == (200, "ready")


async def test_a_node_that_comes_back_with_another_data_folder_is_let_in_beside_what_is_left_of_it(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    log = postgres.new_log()
    async with node_in(tmp_path / "0", log, SHORT, node="zero"):
        # The row of a machine that was lost with its folder.
        row = "insert into tw_nodes (name, version, folder, alone) values ('one', '0', 'lost', false) returning id"
        [[left]] = postgres.ask(row, schema_of(log))
        async with node_in(tmp_path / "1", log, SHORT, node="one") as one:
            assert await ready(one) == (200, "ready")
            assert left in lives(postgres, log), "it may still act, for as long as it was promised"
            with anyio.fail_after(WAIT_S):
                while left in await anyio.to_thread.run_sync(lives, postgres, log):
                    await quiet()


# -- its process -----------------------------------------------------------------------------------------------


def node(home: Path, log: str, name: str, **limits: float) -> AbstractContextManager[Served]:
    (home / name).mkdir()
    flags = [word for each, value in limits.items() for word in ("--limit", f"{each}={value}")]
    shared = (
        "--log",
        log,
        "--node",
        name,
        "--place",
        "p",
        "--cluster-listen",
        free_address(),
        "--cluster-key",
        CLUSTER_KEY,
    )
    return served(home / name, *shared, *flags)


def lives(postgres: PostgresServer, log: str) -> list[str]:
    return [row[0] for row in postgres.ask("select id from tw_nodes where not gone order by id", schema_of(log))]


def test_a_node_that_was_declared_gone_ends_and_comes_back_as_another_life(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    log = postgres.new_log()
    with node(tmp_path, log, "one", beat_s=0.1) as one:
        session = one.session()
        one.prompt(session, "never")
        one.until(session, "prompt_sent")
        [first] = lives(postgres, log)
        postgres.ask("update tw_nodes set gone = true", schema_of(log))
        assert one.process.wait(WAIT_S) == LIFE_OVER
        assert "start it again" in one.err.read_text()
    owed = postgres.ask("select unsettled, owner from tw_sessions", schema_of(log))
    assert owed == [["t", first]], "nothing was told to the log"
    (tmp_path / "one").rename(tmp_path / "again")
    (tmp_path / "one").mkdir()
    with node(tmp_path / "one", log, "one"):
        [second] = lives(postgres, log)
        assert int(second) > int(first)


@needs_linux
async def test_the_agents_of_a_node_that_is_frozen_end_before_others_may_act(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    log = postgres.new_log()
    with node(tmp_path, log, "one", beat_s=0.1, self_s=4, lease_s=5) as one:
        session = one.session()
        one.prompt(session, "never")
        one.until(session, "prompt_sent")
        below = descendants(one.process.pid)
        assert below
        with watching(*below) as tree:
            one.process.send_signal(signal.SIGSTOP)
            await tree.gone()
            one.process.send_signal(signal.SIGCONT)
            assert await anyio.to_thread.run_sync(one.process.wait, WAIT_S) == LIFE_OVER


# -- the command -----------------------------------------------------------------------------------------------


def test_looking_for_nodes_makes_no_tables(postgres: PostgresServer, tmp_path: Path) -> None:
    log = postgres.new_log()
    refused = nodes(tmp_path, log, "list")
    assert refused.code == 78
    assert "no node has used this database yet" in refused.err
    assert postgres.ask(f"select count(*) from pg_tables where schemaname = '{schema_of(log)}'") == [["0"]]


def nodes(home: Path, log: str, *words: str) -> Ran:
    return run("nodes", *words, "--log", log, home=home)


def test_nodes_are_listed_drained_and_buried(postgres: PostgresServer, tmp_path: Path) -> None:
    log = postgres.new_log()
    # None of them declares the other one gone by itself.
    slow = {"beat_s": 0.1, "lease_s": 200}
    with node(tmp_path, log, "one", **slow) as one, node(tmp_path, log, "two", **slow) as two:
        one.session()
        first, second = json.loads(nodes(tmp_path, log, "list", "--json").out)
        assert (first["name"], first["place"], first["beats"], first["sessions"]) == ("one", "p", True, 1)
        assert "secret" not in first
        two.process.send_signal(signal.SIGKILL)
        two.process.wait(WAIT_S)
        rows = [line.split("\t") for line in nodes(tmp_path, log, "list").out.splitlines()]
        assert [row[:3] for row in rows] == [
            ["one", str(first["life"]), "beats"],
            ["two", str(second["life"]), "silent"],
        ]
        refused = nodes(tmp_path, log, "bury", "one")
        assert refused.code != 0
        assert "one still runs" in refused.err
        assert nodes(tmp_path, log, "bury", "two").code == 0
        assert lives(postgres, log) == [str(first["life"])]
        unknown = nodes(tmp_path, log, "drain", "two")
        assert "there is no node 'two' that is not gone; there is: one" in unknown.err
        assert nodes(tmp_path, log, "drain", "one").code == 0
        assert one.process.wait(WAIT_S) == 0
        assert lives(postgres, log) == []


def test_nodes_of_a_log_that_is_not_shared_are_refused(tmp_path: Path) -> None:
    refused = run("nodes", "list", home=tmp_path)
    assert refused.code == 78
    assert "only a log in PostgreSQL is shared" in refused.err
    alone = run("serve", "--cluster-listen", "127.0.0.1:4171", "--cluster-key", CLUSTER_KEY, home=tmp_path)
    assert alone.code == 78
    assert "only a log in PostgreSQL can be shared" in alone.err
