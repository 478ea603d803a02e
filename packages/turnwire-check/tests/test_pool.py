"""Agent processes serve several cases, and no verdict but `passed` depends on what they served before."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from check_peers.memory import BOUNDS, PROMPTS, memory_opener
from check_peers.raw_agent import RawAgent, Refused
from turnwire_check.catalogue import CASES
from turnwire_check.run import Outcome, probe, run
from turnwire_check.transport import Opener, Transport

pytestmark = pytest.mark.anyio
CHOSEN = [each for each in CASES.values() if each.version == 1 and "stdio" in each.carriers]


class FourthSessionFails(RawAgent):
    def new(self, params: dict[str, Any]) -> dict[str, Any]:
        if len(self.sessions) >= 3:
            raise Refused(-32603)
        return super().new(params)


def counting_opener(opener: Opener, opened: list[Transport]) -> Opener:
    @asynccontextmanager
    async def opening() -> AsyncGenerator[Transport]:
        async with opener() as transport:
            opened.append(transport)
            yield transport

    return opening


async def judged(agent: type[RawAgent], folder: Path) -> tuple[list[Outcome], int]:
    opened: list[Transport] = []
    opener = counting_opener(memory_opener(agent), opened)
    subject = await probe(opener, str(folder), given=PROMPTS, bounds=BOUNDS)
    return await run(CHOSEN, opener, subject, jobs=4), len(opened)


async def test_a_process_serves_several_cases(tmp_path: Path) -> None:
    outcomes, processes = await judged(RawAgent, tmp_path)
    assert {each.case.id: each.words for each in outcomes if each.verdict in ("failed", "unanswered")} == {}
    assert processes < len(CHOSEN) * 0.7


async def test_a_fault_of_a_used_process_is_not_held_against_the_agent(tmp_path: Path) -> None:
    outcomes, _ = await judged(FourthSessionFails, tmp_path)
    assert {each.case.id: each.words for each in outcomes if each.verdict in ("failed", "unanswered")} == {}
