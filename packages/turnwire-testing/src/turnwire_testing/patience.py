"""Timeouts of tests, and waits for the end of all activity.

A successful wait ends at once, so a long timeout costs nothing; a short one fails on a machine that stalls. It
never waits for processes or threads.
"""

from __future__ import annotations

from anyio import fail_after, move_on_after, wait_all_tasks_blocked

WAIT_S = 60.0
"""Timeout that is longer than any step needs on a busy machine and shorter than a test's own limit."""
_FIRST_LOOK_S = 0.001
_LOOK_S = 0.07
"""Longest time between two looks. anyio looks every 0.1 s, and other timers are as long: once in step they can stay
so, and each look meets a task that was just woken."""


async def quiet() -> None:
    """Return when every other task of the loop waits for something. Raises `TimeoutError`."""
    look_s = _FIRST_LOOK_S
    with fail_after(WAIT_S):
        while True:
            with move_on_after(look_s) as look:
                await wait_all_tasks_blocked()
            if not look.cancelled_caught:
                return
            look_s = min(2 * look_s, _LOOK_S)
