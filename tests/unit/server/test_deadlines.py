"""One timer for many: no callback runs early, every one runs, and removed ones run no more."""

from __future__ import annotations

import asyncio

import anyio
import pytest

from turnwire.server.daemon import deadlines
from turnwire.server.daemon.deadlines import Deadlines
from turnwire_testing.patience import WAIT_S

pytestmark = pytest.mark.anyio


class Asked:
    """Requests a number of further calls."""

    def __init__(self, times: int, after_s: float, done: anyio.Event) -> None:
        self.due = asyncio.get_running_loop().time() + after_s
        self.early = 0.0
        self._times, self._after_s, self._done = times, after_s, done

    def tick(self, now: float) -> float | None:
        self.early = max(self.early, self.due - now)
        self._times -= 1
        if not self._times:
            self._done.set()
            return None
        self.due = now + self._after_s
        return self.due


async def test_everybody_is_asked_as_often_as_it_wants_and_never_early() -> None:
    there, done = Deadlines(0.05), list[anyio.Event]()
    asked = list[Asked]()
    for number in range(50):
        done.append(anyio.Event())
        asked.append(Asked(1 + number % 3, 0.05 + 0.001 * number, done[-1]))
        there.add(asked[-1], asked[-1].due)
    with anyio.fail_after(WAIT_S):
        for each in done:
            await each.wait()
    assert max(each.early for each in asked) <= 0


async def test_many_who_are_due_at_once_do_not_hold_the_loop() -> None:
    there, done = Deadlines(0.05), anyio.Event()
    rounds = list[int]()
    loop = asyncio.get_running_loop()

    class Counted:
        def tick(self, now: float) -> None:
            rounds[-1] += 1

    def count() -> None:
        rounds.append(0)
        if sum(rounds) < 350:
            loop.call_soon(count)
        else:
            done.set()

    moment = loop.time() + 0.05
    for _ in range(350):
        there.add(Counted(), moment)
    count()
    with anyio.fail_after(WAIT_S):
        await done.wait()
    assert 0 < max(rounds) <= deadlines.AT_ONCE


async def test_one_that_fails_keeps_nobody_from_being_asked() -> None:
    there, done = Deadlines(0.05), anyio.Event()
    failures = list[object]()
    loop = asyncio.get_running_loop()

    class Fails:
        def tick(self, now: float) -> None:
            raise ValueError

    before = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, context: failures.append(context["exception"]))
    try:
        there.add(Fails(), loop.time())
        there.add(Asked(1, 0.1, done), loop.time() + 0.1)
        with anyio.fail_after(WAIT_S):
            await done.wait()
    finally:
        loop.set_exception_handler(before)
    assert len(failures) == 1
