"""How long tests wait for what should come, and how they wait until nothing more will.

A wait that ends well ends at once, so a long one costs nothing; a short one fails on a machine that stalls. Never
waits for processes or threads.
"""

from __future__ import annotations

from anyio import fail_after, move_on_after, wait_all_tasks_blocked

WAIT_S = 60.0
"""Longer than anything takes on a busy machine, and shorter than a test may take."""
_LOOK_S = 0.07
"""Between two looks. anyio looks every 0.1 s, and uvicorn wakes up as often: once in step they can stay so, and
each look meets a task that was just woken."""


async def quiet() -> None:
    """Return when every other task of the loop waits for something. Raises `TimeoutError`."""
    with fail_after(WAIT_S):
        while True:
            with move_on_after(_LOOK_S) as look:
                await wait_all_tasks_blocked()
            if not look.cancelled_caught:
                return
