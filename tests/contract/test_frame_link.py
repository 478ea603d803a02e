"""Every link fulfils the contract of `FrameLink`: in memory, wrapped without faults, and over real pipes."""

from __future__ import annotations

import pytest

from turnwire.hosting.base import FrameLink
from turnwire.hosting.memory import memory_pair
from turnwire_testing.contracts.frame_link import CHECKS, Check, OpenPair, Pair
from turnwire_testing.faults import FaultyLink

pytestmark = pytest.mark.anyio


async def in_memory() -> Pair:
    return memory_pair()


async def wrapped_without_faults() -> Pair:
    near, far = memory_pair()
    return FaultyLink(near, []), FaultyLink(far, [])


@pytest.mark.parametrize("open_pair", [in_memory, wrapped_without_faults])
@pytest.mark.parametrize("check", CHECKS, ids=str)
async def test_the_link_keeps_the_contract(check: Check, open_pair: OpenPair) -> None:
    await check(open_pair)


def test_every_obligation_has_a_check() -> None:
    assert {check.obligation for check in CHECKS} == {f"K{number}" for number in range(1, 8)}


class ForgetsOrder:
    """A link with one fault: the newest frame is delivered first."""

    def __init__(self, link: FrameLink) -> None:
        self._link = link

    async def receive(self) -> list[bytes]:
        return (await self._link.receive())[::-1]

    async def send(self, frame: bytes) -> None:
        await self._link.send(frame)

    def send_nowait(self, frame: bytes) -> None:
        self._link.send_nowait(frame)

    async def aclose(self) -> None:
        await self._link.aclose()


async def test_the_kit_catches_a_link_that_forgets_order() -> None:
    async def broken() -> Pair:
        near, far = memory_pair()
        return near, ForgetsOrder(far)

    check = next(each for each in CHECKS if each.obligation == "K1")
    with pytest.raises(BaseExceptionGroup) as caught:
        await check(broken)
    assert caught.group_contains(AssertionError)
