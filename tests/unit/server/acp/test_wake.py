"""A wake-up: one set before the wait counts, two count once, and a wait can be cancelled."""

from __future__ import annotations

import anyio
import pytest

from turnwire.server.acp.subscription import Wake
from turnwire_testing.patience import WAIT_S, quiet

pytestmark = pytest.mark.anyio


async def test_what_was_set_before_ends_one_wait() -> None:
    wake, ends = Wake(), 0
    wake.set()
    wake.set()

    async def wait() -> None:
        nonlocal ends
        while True:
            await wake.wait()
            ends += 1

    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await quiet()
            assert ends == 1
            wake.set()
            wake.set()
            await quiet()
            assert ends == 2
            tasks.cancel_scope.cancel()


async def test_a_wait_that_was_given_up_takes_nothing_along() -> None:
    wake = Wake()
    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wake.wait)
            await quiet()
            # Set and cancelled in the same step: the next one must see it.
            wake.set()
            tasks.cancel_scope.cancel()
        wake.set()
        await wake.wait()
