"""Every case is turned red by the agent that breaks its rule, and by no other; a sound agent turns none red."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.conformance import mutants
from tests.conformance.memory import BOUNDS, PROMPTS, memory_opener
from tests.conformance.mutants_v2 import MUTANTS_V2
from tests.conformance.raw_agent import RawAgent
from tests.conformance.raw_agent_v2 import RawAgentV2

from turnwire.conformance.case import Carrier
from turnwire.conformance.catalogue import CASES
from turnwire.conformance.run import Outcome, probe, run

pytestmark = pytest.mark.anyio
MUTANTS: dict[str, type[RawAgent]] = {**mutants.MUTANTS, **MUTANTS_V2}
JUDGED_AT_OTHERS = {"v1.auth.required": "only an agent that wants a login is judged by it"}


async def judged(agent: type[RawAgent], folder: Path, carrier: Carrier = "stdio") -> list[Outcome]:
    subject = await probe(memory_opener(agent), str(folder), carrier=carrier, given=PROMPTS, bounds=BOUNDS)
    version = 2 if issubclass(agent, RawAgentV2) else 1
    cases = [case for case in CASES.values() if case.version == version and carrier in case.carriers]
    # What an agent keeps, it keeps for one case.
    return [outcome for case in cases for outcome in await run([case], memory_opener(agent), subject)]


def failed(outcomes: list[Outcome]) -> list[str]:
    return [each.case.id for each in outcomes if each.verdict == "failed"]


@pytest.mark.requirement("R88", "R90")
@pytest.mark.parametrize("carrier", ["stdio", "websocket"])
@pytest.mark.parametrize("agent", [RawAgent, RawAgentV2])
async def test_a_sound_agent_passes_every_case(agent: type[RawAgent], carrier: Carrier, tmp_path: Path) -> None:
    outcomes = await judged(agent, tmp_path, carrier)
    assert failed(outcomes) == []
    assert {each.case.id for each in outcomes if each.verdict != "passed"} <= set(JUDGED_AT_OTHERS)


def test_every_case_has_a_mutant_and_every_mutant_a_case() -> None:
    print("cases without a mutant:", sorted(set(CASES) - set(MUTANTS)) or "none")  # noqa: T201
    assert sorted(set(CASES) - set(MUTANTS)) == []
    assert sorted(set(MUTANTS) - set(CASES)) == []


@pytest.mark.parametrize("case", MUTANTS)
async def test_a_broken_agent_is_caught_by_the_case_that_names_its_rule_and_by_no_other(
    case: str, tmp_path: Path
) -> None:
    outcomes = await judged(MUTANTS[case], tmp_path, "stdio" if "stdio" in CASES[case].carriers else "websocket")
    assert failed(outcomes) == [case]
    [caught] = [each for each in outcomes if each.verdict == "failed"]
    assert caught.words
    assert all(0 <= each < len(caught.frames) for each in caught.proof)


async def test_two_runs_give_the_same_result(tmp_path: Path) -> None:
    first, second = await judged(MUTANTS["v1.turn.once"], tmp_path), await judged(MUTANTS["v1.turn.once"], tmp_path)
    assert [(each.case.id, each.verdict, each.words, each.proof) for each in first] == [
        (each.case.id, each.verdict, each.words, each.proof) for each in second
    ]
