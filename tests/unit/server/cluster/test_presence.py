"""A client at a session on one node is visible to all nodes, until its presence is not renewed."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import pytest
from tests.support.cluster import Pair, linked_pair

from turnwire.ids import ClientId, SessionId
from turnwire.server.access.tokens import Identity, Role
from turnwire.server.cluster.presence import GATHERED_S, LOOKED_EVERY_S, RENEWED_EVERY_S, Presence
from turnwire.server.daemon.clients import LISTED_S, PRESENT_S, Clients, There
from turnwire_testing.patience import quiet

pytestmark = pytest.mark.anyio

S1, S2 = SessionId("s1"), SessionId("s2")
ANN, EVE = Identity("ann", Role.CONTROLLER), Identity("eve", Role.CONTROLLER)
BOB = Identity("bob", Role.OBSERVER)


@asynccontextmanager
async def attended_pair() -> AsyncGenerator[tuple[Pair, Clients, Clients]]:
    async with linked_pair() as pair, anyio.create_task_group() as tasks:
        both = {life: Clients(node, pair.clock) for life, node in pair.nodes.items()}
        for life, clients in both.items():
            pair.links[life].serve(pair.nodes[life], clients.hear_of)
            tasks.start_soon(Presence(life, clients, pair.links[life], pair.clock).run)
        await quiet()
        yield pair, both[1], both[2]
        tasks.cancel_scope.cancel()


async def told(pair: Pair) -> None:
    """Return once all changes were sent."""
    await quiet()
    pair.clock.advance(GATHERED_S)
    await quiet()


async def test_a_stream_on_another_node_is_somebody_who_attends() -> None:
    async with attended_pair() as (pair, one, two):
        with two.streaming(S1, BOB):
            await quiet()
            assert not one.attended(S1), "an observer answers nothing"
            with two.streaming(S1, ANN), two.streaming(S1, ANN):
                await told(pair)
                assert one.attended(S1)
            await told(pair)
            assert not one.attended(S1)


async def test_a_heartbeat_on_another_node_counts_for_a_while() -> None:
    async with attended_pair() as (pair, one, two):
        two.beat(S1, ClientId("c"))
        await quiet()
        assert one.attended(S1)
        for _ in range(8):
            pair.clock.advance(RENEWED_EVERY_S / 2)
            await quiet()
        assert not one.attended(S1)


async def test_who_stays_is_told_again_and_who_is_not_is_forgotten() -> None:
    async with attended_pair() as (pair, one, two):
        with two.streaming(S1, ANN):
            for _ in range(10):
                pair.clock.advance(RENEWED_EVERY_S)
                await quiet()
                assert one.attended(S1)
            pair.cable.is_gone = True
            pair.cable.cut()
            pair.clock.advance(PRESENT_S + 1)
            await quiet()
            assert not one.attended(S1)


async def test_a_node_that_comes_later_is_told_soon() -> None:
    async with attended_pair() as (pair, one, two):
        pair.cluster.lives[2].gone = True
        with one.streaming(S1, ANN):
            await told(pair)
            assert not two.attended(S1)
            pair.cluster.lives[2].gone = False
            pair.clock.advance(LOOKED_EVERY_S)
            await quiet()
            assert two.attended(S1)


async def test_clients_are_listed_on_every_node_and_each_counts_once() -> None:
    async with attended_pair() as (pair, one, two):
        ann = await one.attach(S1, ANN)
        eve = await two.attach(S1, EVE, connected=True)
        # Without affinity she connects to the other node as well.
        with two.streaming(S1, ANN, ann):
            pass
        for _ in range(3):
            await told(pair)
        for clients in (one, two):
            attached = (await pair.nodes[1].peek(S1)).state.clients
            assert clients.listed(S1, attached) == [ann, eve]
            assert clients.listed(S1, [ClientId("never")]) == []
        pair.clock.advance(LISTED_S - 1)
        await quiet()
        with two.streaming(S1, ANN, ann):
            pass
        pair.clock.advance(RENEWED_EVERY_S)
        await told(pair)
        assert one.listed(S1, [ann, eve]) == [ann, eve], "the other node has heard of her"
        await two.detach(S1, eve)
        await told(pair)
        assert one.listed(S1, [ann, eve]) == [ann]
        pair.cable.is_gone = True
        pair.cable.cut()
        pair.clock.advance(PRESENT_S + 1)
        await quiet()
        assert one.listed(S1, [ann, eve]) == []


async def test_only_what_has_changed_is_told_between_two_renewals() -> None:
    async with attended_pair() as (pair, one, two):
        heard: list[tuple[dict[SessionId, There], bool]] = []
        pair.links[1].serve(pair.nodes[1], lambda _, sessions, whole: heard.append((sessions, whole)))
        pair.cable.cut()
        with two.streaming(S1, ANN):
            await told(pair)
            with two.streaming(S2, ANN):
                await told(pair)
            await told(pair)
        assert heard == [({S1: There(1)}, True), ({S2: There(1)}, False), ({S2: There()}, False)]
        assert not one.attended(S1)
