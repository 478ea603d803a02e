"""Credentials that all nodes share, as one node caches them: the lifetime of entries, and its queries."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import anyio
import pytest

from turnwire.errors import CredentialsNotStored, LogUnavailable, NotFound
from turnwire.log.credentials import CredentialRow
from turnwire.server.access import token_table
from turnwire.server.access.token_table import LOOK_S, OUTAGE_S, TRUST_S, TokenTable
from turnwire.server.access.tokens import Identity, Role, Tokens
from turnwire_testing import ManualClock
from turnwire_testing.patience import WAIT_S

pytestmark = [pytest.mark.anyio, pytest.mark.guarantee("G13")]

GIVEN = "an-operators-own-token"
UNKNOWN = "tw_{}_" + "x" * 43


class Kept:
    """A table that other nodes change as well, and that may be unavailable or slow."""

    def __init__(self) -> None:
        self.rows: dict[str, CredentialRow] = {}
        self.is_away = False
        self.asked: list[list[str]] = []
        self.looks = 0
        self.answers = anyio.Event()
        self.answers.set()
        self.rung = anyio.Event()

    def _reach(self) -> None:
        if self.is_away:
            raise LogUnavailable("away")

    async def find(self, ids: Collection[str]) -> list[CredentialRow]:
        self.asked.append(sorted(ids))
        self._reach()
        found = [self.rows[each] for each in ids if each in self.rows]
        await self.answers.wait()
        return found

    async def missing(self, ids: Collection[str]) -> list[str]:
        self.looks += 1
        self._reach()
        return [each for each in ids if each not in self.rows]

    async def all(self) -> list[CredentialRow]:
        self._reach()
        return list(self.rows.values())

    async def add(self, row: CredentialRow, most: int) -> bool:
        self._reach()
        self.rows[row.id] = row
        return True

    async def add_first(self, row: CredentialRow) -> bool:
        return await self.add(row, 1)

    async def take_over(self, rows: Sequence[CredentialRow], mark: str) -> bool:
        raise NotImplementedError

    async def remove(self, token_id: str) -> list[str]:
        self._reach()
        return [] if self.rows.pop(token_id, None) is None else [token_id]

    async def heard(self) -> None:
        await self.rung.wait()
        self.rung = anyio.Event()

    async def put_link(self, digest: bytes, seconds: float, granted_by: str | None, most: int) -> None:
        raise NotImplementedError

    async def take_link(self, digest: bytes) -> tuple[float, str | None] | None:
        raise NotImplementedError


class Rig:
    """Two nodes over one table. The second one is observed."""

    def __init__(self) -> None:
        self.kept, self.clock = Kept(), ManualClock()
        self.other = Tokens(TokenTable(self.kept, self.clock), self.clock, GIVEN)
        self.tokens = Tokens(TokenTable(self.kept, self.clock), self.clock, GIVEN)

    async def met(self) -> tuple[str, str, Identity]:
        """Return a credential that the node has seen: its id, its secret, its holder."""
        record, secret = await self.other.issue("ci", Role.OBSERVER)
        identity = await self.tokens.check(secret)
        assert identity is not None
        return record.id, secret, identity


async def looked(rig: Rig) -> None:
    """Wait for one poll of the node, and its pause."""
    before = rig.kept.looks
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rig.tokens.run)
        await rig.clock.wait_for_sleepers(1)
        tasks.cancel_scope.cancel()
    assert rig.kept.looks > before


async def test_what_was_looked_at_is_believed_for_two_seconds_and_then_looked_up() -> None:
    rig = Rig()
    token_id, secret, who = await rig.met()
    await looked(rig)
    rig.kept.asked.clear()
    rig.clock.advance(TRUST_S)
    assert await rig.tokens.check(secret) is not None
    assert rig.kept.asked == []
    del rig.kept.rows[token_id]
    rig.clock.advance(0.1)
    assert await rig.tokens.check(secret) is None
    assert rig.kept.asked == [[token_id]]
    with anyio.fail_after(WAIT_S), rig.tokens.closing(who) as scope:
        await anyio.sleep_forever()
    assert scope.cancelled_caught


async def test_what_a_lookup_finds_to_have_ended_is_cut_with_the_next_look() -> None:
    rig = Rig()
    token_id, secret, who = await rig.met()
    await looked(rig)
    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            with rig.tokens.closing(who) as scope:
                del rig.kept.rows[token_id]
                rig.clock.advance(TRUST_S + 0.1)
                assert await rig.tokens.check(secret) is None
                tasks.start_soon(rig.tokens.run)
                await anyio.sleep_forever()
            assert scope.cancelled_caught
            tasks.cancel_scope.cancel()


async def test_what_has_ended_elsewhere_is_cut_with_the_next_look_and_with_a_ring_at_once() -> None:
    rig = Rig()
    token_id, _, who = await rig.met()
    other_id, _, other = await rig.met()
    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(rig.tokens.run)
            with rig.tokens.closing(who) as one:
                await rig.clock.wait_for_sleepers(1)
                await rig.other.revoke(token_id)
                rig.clock.advance(LOOK_S)
                await anyio.sleep_forever()
            with rig.tokens.closing(other) as two:
                await rig.clock.wait_for_sleepers(1)
                await rig.other.revoke(other_id)
                rig.kept.rung.set()
                await anyio.sleep_forever()
            assert one.cancelled_caught
            assert two.cancelled_caught
            tasks.cancel_scope.cancel()
    assert not rig.tokens.is_valid(who)


async def test_while_the_database_is_away_who_is_known_gets_in_for_five_minutes() -> None:
    rig = Rig()
    _, secret, _ = await rig.met()
    _, stranger = await rig.other.issue("ci", Role.OBSERVER)
    await looked(rig)
    rig.kept.is_away = True
    rig.clock.advance(OUTAGE_S)
    assert await rig.tokens.check(secret) is not None
    with pytest.raises(LogUnavailable):
        await rig.tokens.check(stranger)
    rig.clock.advance(0.1)
    with pytest.raises(LogUnavailable):
        await rig.tokens.check(secret)
    assert await rig.tokens.check(GIVEN) is not None
    rig.kept.is_away = False
    assert await rig.tokens.check(secret) is not None


async def test_while_the_database_is_away_requests_do_not_ask_it_each() -> None:
    rig = Rig()
    _, secret, _ = await rig.met()
    await looked(rig)
    rig.kept.is_away = True
    rig.clock.advance(TRUST_S + 0.1)
    rig.kept.asked.clear()
    for _ in range(10):
        assert await rig.tokens.check(secret) is not None
    assert len(rig.kept.asked) == 1


async def test_a_flood_of_made_up_tokens_is_one_question_at_a_time() -> None:
    rig = Rig()
    _, secret = await rig.other.issue("ci", Role.OBSERVER)
    rig.kept.answers = anyio.Event()
    found: list[Identity | None] = []

    async def check(shown: str) -> None:
        found.append(await rig.tokens.check(shown))

    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            for number in range(100):
                tasks.start_soon(check, UNKNOWN.format(f"{number:012x}"))
            tasks.start_soon(check, secret)
            while not rig.kept.asked:
                await anyio.lowlevel.checkpoint()
            rig.kept.answers.set()
    assert len(found) == 101
    assert [each.name for each in found if each is not None] == ["ci"]
    assert len(rig.kept.asked) <= 2


@pytest.mark.parametrize("shown", ["tw_x_y", "tw__", "tw_ABCDEFABCDEF_y", "tw_00000000000\0_y", "x" * 64, ""])
async def test_what_is_no_id_is_not_asked_for(shown: str) -> None:
    rig = Rig()
    assert await rig.tokens.check(shown) is None
    with pytest.raises(NotFound):
        await rig.tokens.revoke(shown)
    assert rig.kept.asked == []


async def test_who_waits_goes_on_when_the_one_who_asked_for_all_has_left() -> None:
    rig = Rig()
    _, secret = await rig.other.issue("ci", Role.OBSERVER)
    rig.kept.answers = anyio.Event()
    found: list[Identity | None] = []

    async def check(scope: anyio.CancelScope) -> None:
        with scope:
            found.append(await rig.tokens.check(secret))

    leaving, staying = anyio.CancelScope(), anyio.CancelScope()
    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(check, leaving)
            tasks.start_soon(check, staying)
            while not rig.kept.asked:
                await anyio.lowlevel.checkpoint()
            leaving.cancel()
            await anyio.wait_all_tasks_blocked()
            rig.kept.answers.set()
    [who] = found
    assert who is not None


async def test_an_answer_that_was_on_its_way_brings_nobody_back() -> None:
    rig = Rig()
    record, secret = await rig.other.issue("ci", Role.OBSERVER)
    rig.kept.answers = anyio.Event()
    found: list[Identity | None] = []

    async def check() -> None:
        found.append(await rig.tokens.check(secret))

    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(check)
            while not rig.kept.asked:
                await anyio.lowlevel.checkpoint()
            await rig.tokens.revoke(record.id)
            rig.kept.answers.set()
    assert found == [None]
    assert await rig.tokens.check(secret) is None


async def test_a_revocation_that_the_database_did_not_take_holds_here_and_is_tried_again() -> None:
    rig = Rig()
    token_id, secret, _ = await rig.met()
    rig.kept.is_away = True
    with pytest.raises(CredentialsNotStored, match="has ended on this node"):
        await rig.tokens.revoke(token_id)
    rig.kept.is_away = False
    assert await rig.tokens.check(secret) is None
    assert await rig.tokens.list() == ()
    assert await rig.other.check(secret) is not None
    await rig.met()
    await looked(rig)
    assert token_id not in rig.kept.rows
    with pytest.raises(NotFound):
        await rig.tokens.revoke(token_id)


async def test_what_another_node_has_met_is_recalled() -> None:
    rig = Rig()
    record, secret = await rig.other.issue("ci", Role.OBSERVER)
    who = await rig.other.check(secret)
    assert who is not None
    assert not rig.tokens.is_valid(who)
    assert await rig.tokens.recall(who)
    assert rig.tokens.is_valid(who)
    await rig.other.revoke(record.id)
    await looked(rig)
    assert not await rig.tokens.recall(who)


async def test_ids_of_what_has_ended_are_remembered_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_table, "MOST_ENDED", 2)
    rig = Rig()
    for _ in range(4):
        token_id, secret, _ = await rig.met()
        await rig.tokens.revoke(token_id)
        assert await rig.tokens.check(secret) is None
