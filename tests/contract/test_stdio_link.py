"""The link over pipes fulfils the contract of `FrameLink`, with a large and with a small buffer."""

from __future__ import annotations

import os
from functools import partial

import pytest

from turnwire.hosting.base import FrameLink
from turnwire.hosting.stdio import StdioLink
from turnwire.limits import KiB, Limits
from turnwire_testing.contracts.frame_link import CHECKS, Check, Pair

pytestmark = pytest.mark.anyio

ROOMY, TIGHT = Limits(), Limits(link_buffer_bytes=64 * KiB)


async def over_pipes(limits: Limits) -> Pair:
    (there_out, there_in), (back_out, back_in) = os.pipe(), os.pipe()
    return StdioLink(back_out, there_in, limits), StdioLink(there_out, back_in, limits)


@pytest.mark.parametrize("limits", [ROOMY, TIGHT], ids=["roomy", "tight"])
@pytest.mark.parametrize("check", CHECKS, ids=str)
async def test_the_stdio_link_keeps_the_contract(check: Check, limits: Limits) -> None:
    await check(partial(over_pipes, limits))


async def test_the_stdio_link_is_a_frame_link() -> None:
    near, far = await over_pipes(ROOMY)
    assert isinstance(near, FrameLink)
    await near.aclose()
    await far.aclose()
