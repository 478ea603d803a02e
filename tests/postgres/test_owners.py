"""Nodes that share a log in PostgreSQL: permitted combinations, failure detection, takeover."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, cast

import anyio
import asyncpg  # pyright: ignore[reportMissingTypeStubs]
import pytest
from tests.support.postgres import PostgresServer, schema_of

from turnwire.errors import LifeOver, LogLocked, LogUnavailable, NotOwner, SessionNotFound
from turnwire.ids import SessionId
from turnwire.limits import Limits
from turnwire.log.owners import NodeIdentity
from turnwire.log.postgres import PostgresEventLog, open_postgres_log
from turnwire.log.postgres_nodes import open_nodes
from turnwire.log.postgres_schema import BURY
from turnwire_testing.patience import WAIT_S

pytestmark = pytest.mark.anyio

A = SessionId("a")
QUICK = Limits(busy_timeout_s=0.2)


def opened(
    address: str, name: str = "one", *, place: str = "", folder: str = "", alone: bool = False
) -> AbstractAsyncContextManager[PostgresEventLog]:
    node = NodeIdentity(name, place or name, f"ws://{name}", f"digest of {name}", folder)
    return open_postgres_log(address, limits=QUICK, node=node, alone=alone)


async def add(log: PostgresEventLog, session_id: SessionId) -> None:
    head = (await log.head(session_id)).head
    await log.append(session_id, [b"x"], expected=head, unsettled=True, durable=True)


# -- which may be there together -------------------------------------------------------------------------------


async def test_nodes_that_share_and_a_daemon_that_is_alone_keep_each_other_out(postgres: PostgresServer) -> None:
    address = postgres.new_log()
    async with opened(address, "one"), opened(address, "two"):
        with pytest.raises(LogLocked, match="another daemon uses this database, on two"):
            async with opened(address, "three", alone=True):
                pass
    async with opened(address, "alone", alone=True):
        with pytest.raises(LogLocked, match="on alone; start that one with --cluster-listen"):
            async with opened(address, "one"):
                pass
    async with opened(address, "one"):
        pass


async def test_a_daemon_that_is_alone_waits_until_nodes_that_did_not_say_goodbye_are_buried(
    postgres: PostgresServer,
) -> None:
    """They may be cut off from the database, and act on for as long as they were promised."""
    address = postgres.new_log()
    async with opened(address, "lost", folder="f"):
        pass
    postgres.ask("update tw_nodes set gone = false", schema_of(address))
    with pytest.raises(LogLocked, match=r"have not left it: lost; .*turnwire nodes bury"):
        async with opened(address, "other", alone=True):
            pass
    async with opened(address, "lost", folder="f", alone=True):
        assert postgres.ask("select count(*) from tw_nodes where not gone", schema_of(address)) == [["1"]]


async def test_a_daemon_that_lost_its_lock_to_nodes_that_share_appends_no_more(postgres: PostgresServer) -> None:
    address = postgres.new_log()
    async with opened(address, "alone", alone=True) as old:
        await old.create(A)
        postgres.ask(
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity where application_name = 'turnwire node'"
        )
        async with opened(address, "alone") as new:
            assert (await new.owners.claim(A)).head.head == 0
            with pytest.raises((LogLocked, NotOwner)):
                await add(old, A)


# -- lives -----------------------------------------------------------------------------------------------------


async def test_lives_are_told_with_what_others_need_of_them(postgres: PostgresServer) -> None:
    address = postgres.new_log()
    async with opened(address, "one", place="p") as one, opened(address, "two") as two:
        await two.owners.beat()
        await two.owners.set_draining()
        first, second = await one.owners.lives()
        assert (first.number, second.number) == (one.owners.life, two.owners.life)
        assert first[1:5] == ("one", "p", "ws://one", "digest of one")
        assert (first.beat, first.draining, second.beat, second.draining) == (0, False, 1, True)
    async with opened(address, "one") as again:
        assert [each.number for each in await again.owners.lives()] == [again.owners.life]
        assert again.owners.life > second.number


async def test_only_who_has_not_beaten_is_buried_and_never_beats_again(postgres: PostgresServer) -> None:
    address = postgres.new_log()
    async with opened(address, "one", place="p") as one, opened(address, "two", place="p") as two:
        await one.owners.beat()
        seen = await two.owners.beat()
        await two.owners.beat()
        assert not await one.owners.bury(two.owners.life, seen), "it has beaten"
        assert await one.owners.bury(two.owners.life, seen + 1)
        assert not await one.owners.bury(two.owners.life, seen + 1), "it is gone already"
        with pytest.raises(LifeOver):
            await two.owners.beat()
        await one.create(A)
        await one.owners.release(A)
        with pytest.raises(LifeOver):
            await two.owners.claim(A)
        assert not await one.owners.bury(one.owners.life, 1), "nobody buries itself"
        assert not await two.owners.bury(one.owners.life, 1), "who is gone buries nobody"


async def test_what_was_asked_before_a_beat_buries_nobody_after_it(postgres: PostgresServer) -> None:
    """N5: a statement that was held up in the network finds another number in its watcher's row."""
    address = postgres.new_log()
    async with opened(address, "one") as one, opened(address, "two") as two:
        await one.owners.beat()
        asked = await two.owners.beat()
        late = await cast("Any", asyncpg).connect(address)
        try:
            await one.owners.beat()
            assert await late.fetchval(BURY, two.owners.life, asked, one.owners.life, 1) is None
            # And one that runs makes the watcher's next beat wait for it.
            transaction = late.transaction()
            await transaction.start()
            assert await late.fetchval(BURY, two.owners.life, asked, one.owners.life, 2) == two.owners.life
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(one.owners.beat)
                with anyio.fail_after(WAIT_S):
                    while not await late.fetchval("select count(*) from pg_locks where not granted"):
                        pass
                await transaction.commit()
        finally:
            await late.close()
        with pytest.raises(LifeOver):
            await two.owners.beat()


async def test_a_watcher_hears_of_it_when_its_connection_broke(postgres: PostgresServer) -> None:
    """N1: observations over the last connection are void, although an append has opened a new one meanwhile."""
    address = postgres.new_log()
    async with opened(address) as log:
        await log.create(A)
        await log.owners.beat()
        postgres.ask(
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity where application_name = 'turnwire node'"
        )
        with anyio.fail_after(WAIT_S):
            await log.owners.claim(A)
            await add(log, A)
        with pytest.raises(LogUnavailable):
            await log.owners.lives()
        assert len(await log.owners.lives()) == 1
        assert await log.owners.beat() == 2


async def test_a_node_succeeds_the_lives_of_its_own_name_and_folder(postgres: PostgresServer) -> None:
    address = postgres.new_log()
    async with (
        opened(address, "one", folder="f") as old,
        opened(address, "one", folder="other") as namesake,
        opened(address, "two", folder="f") as two,
        opened(address, "one", folder="f") as new,
    ):
        assert await new.owners.succeed() == [old.owners.life]
        assert await new.owners.succeed() == []
        lives = [each.number for each in await new.owners.lives()]
        assert lives == [namesake.owners.life, two.owners.life, new.owners.life]


# -- who takes over --------------------------------------------------------------------------------------------


async def test_the_unsettled_sessions_of_a_life_that_is_gone_are_shared_out(postgres: PostgresServer) -> None:
    address = postgres.new_log()
    async with opened(address, "one", place="p") as one, opened(address, "two", place="p") as two:
        async with opened(address, "lost", place="p") as lost:
            for number in range(40):
                name = SessionId(f"s{number:02}")
                await lost.create(name)
                await lost.append(name, [b"x"], expected=0, unsettled=number < 35, durable=True)
            gone = lost.owners.life
        assert await one.owners.gone_with_sessions() == [gone]
        mine = await one.owners.steal(gone, 32)
        rest = await two.owners.steal(gone, 32)
        assert (len(mine), len(rest)) == (32, 3)
        assert not {each.head.session_id for each in mine} & {each.head.session_id for each in rest}
        assert {each.place for each in mine} == {"p"}
        assert await one.owners.gone_with_sessions() == []
        for each in (*mine, *rest):
            await add(one if each in mine else two, each.head.session_id)
        # A session that owes nothing stays unchanged until it is requested.
        assert await one.owners.owner(SessionId("s39")) is None
        assert (await one.owners.claim(SessionId("s39"))).head.head == 1


async def test_a_session_without_a_place_is_of_the_one_who_hosts_it_first(postgres: PostgresServer) -> None:
    address = postgres.new_log()
    async with opened(address, "old", alone=True) as log:
        await log.create(A)
    postgres.ask("update tw_sessions set place = ''", schema_of(address))
    async with opened(address, "one") as one, opened(address, "two") as two:
        assert (await one.owners.claim(A)).place == "one"
        await one.owners.release(A)
        with pytest.raises(NotOwner) as refusal:
            await two.owners.claim(A)
        assert refusal.value.context["owner"] is None


async def test_a_release_that_was_not_answered_leaves_it_to_the_head_whose_it_is(postgres: PostgresServer) -> None:
    address = postgres.new_log()
    async with opened(address) as log:
        await log.create(A)
        await add(log, A)
        await anyio.to_thread.run_sync(postgres.stop)
        try:
            with pytest.raises(LogUnavailable):
                await log.owners.release(A)
        finally:
            await anyio.to_thread.run_sync(postgres.start)
        assert (await log.head(A)).head == 1
        await add(log, A)


async def test_what_is_no_session_has_no_owner(postgres: PostgresServer) -> None:
    async with opened(postgres.new_log()) as log:
        for odd in map(SessionId, ("", "none", "a\0b")):
            with pytest.raises(SessionNotFound):
                await log.owners.owner(odd)
            with pytest.raises(SessionNotFound):
                await log.owners.claim(odd)
            await log.owners.release(odd)


# -- who hears of it -------------------------------------------------------------------------------------------


class Looks:
    """A listener of a bell that waits for a reason to look."""

    def __init__(self) -> None:
        self.missing = anyio.Event()

    def grown(self, heads: Mapping[SessionId, int]) -> None:
        """Count growth as another reason."""

    def missed(self) -> None:
        self.missing.set()


async def hearing(log: PostgresEventLog) -> Looks:
    """Return a listener that was notified that it may have missed earlier events."""
    with anyio.fail_after(WAIT_S):
        while log.bell.is_deaf:
            await anyio.lowlevel.checkpoint()
    looks = Looks()
    log.bell.add_listener(looks)
    return looks


@pytest.mark.parametrize("how", ["left", "succeeded", "buried"])
async def test_whoever_ends_a_life_lets_the_others_look(postgres: PostgresServer, how: str) -> None:
    address = postgres.new_log()
    async with opened(address, "watcher") as watcher, AsyncExitStack() as stack:
        await stack.enter_async_context(opened(address, "one", folder="f"))
        looks = await hearing(watcher)
        if how == "left":
            await stack.aclose()
        elif how == "succeeded":
            again = await stack.enter_async_context(opened(address, "one", folder="f"))
            assert len(await again.owners.succeed()) == 1
        else:
            nodes = await stack.enter_async_context(open_nodes(address, QUICK))
            [row] = [each for each in await nodes.list() if each.name == "one"]
            assert await nodes.bury(row)
        with anyio.fail_after(WAIT_S):
            await looks.missing.wait()
