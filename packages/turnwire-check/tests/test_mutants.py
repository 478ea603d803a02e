"""Every case is turned red by the agent that breaks its rule, and by no other; a sound agent turns none red."""

from __future__ import annotations

from pathlib import Path
from zlib import crc32

import pytest

from check_peers import mutants
from check_peers.memory import BOUNDS, PROMPTS, memory_opener
from check_peers.mutants_v2 import MUTANTS_V2
from check_peers.peers import BROKEN, SOUND
from check_peers.raw_agent import RawAgent
from check_peers.raw_agent_v2 import RawAgentV2
from turnwire_check.case import Carrier, Case, Scene
from turnwire_check.catalogue import CASES
from turnwire_check.report import Tally
from turnwire_check.run import Outcome, probe, run

pytestmark = pytest.mark.anyio
MUTANTS: dict[str, type[RawAgent]] = {**mutants.MUTANTS, **MUTANTS_V2}
JUDGED_AT_OTHERS = {"v1.auth.required": "only an agent that wants a login is judged by it"}


async def judged(
    agent: type[RawAgent],
    folder: Path,
    carrier: Carrier = "stdio",
    plain: str = PROMPTS["plain"],
    only: str | None = None,
    sample: str | None = None,
) -> list[Outcome]:
    """Run the cases: all, one, or this one with a third of the others."""
    given: dict[Scene, str] = {**PROMPTS, "plain": plain}
    subject = await probe(memory_opener(agent), str(folder), carrier=carrier, given=given, bounds=BOUNDS)
    version = 2 if issubclass(agent, RawAgentV2) else 1
    cases = [case for case in CASES.values() if case.version == version and carrier in case.carriers]
    cases = cases if only is None else [CASES[only]]
    cases = cases if sample is None else [case for case in cases if is_sampled(case, sample)]
    # Each case gets a new home. Rules about every message come last, when there are recordings.
    cases.sort(key=lambda case: case.is_watch)
    return [outcome for case in cases for outcome in await run([case], memory_opener(agent), subject)]


def is_sampled(case: Case, broken: str) -> bool:
    """Spread the cases over the broken agents: each case meets about a hundred of them."""
    return case.id == broken or case.is_watch or crc32(f"{case.id} {broken}".encode()) % 3 == 0


def failed(outcomes: list[Outcome]) -> list[str]:
    return [each.case.id for each in outcomes if each.verdict == "failed"]


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


def carrier_of(case: str) -> Carrier:
    return "stdio" if "stdio" in CASES[case].carriers else "websocket"


async def test_each_broken_agent_is_caught_by_the_case_that_names_its_rule(tmp_path: Path) -> None:
    missed = [
        case
        for case, agent in MUTANTS.items()
        if failed(await judged(agent, tmp_path, carrier_of(case), only=case)) != [case]
    ]
    assert missed == []


@pytest.mark.full("every broken agent plays a third of the cases")
@pytest.mark.parametrize("case", MUTANTS)
async def test_a_broken_agent_is_caught_by_the_case_that_names_its_rule_and_by_no_other(
    case: str, tmp_path: Path
) -> None:
    outcomes = await judged(MUTANTS[case], tmp_path, carrier_of(case), sample=case)
    assert failed(outcomes) == [case]
    [caught] = [each for each in outcomes if each.verdict == "failed"]
    assert caught.words
    assert all(0 <= each < len(caught.frames) for each in caught.proof)


@pytest.mark.parametrize("agent", SOUND)
async def test_an_unusual_but_sound_agent_breaks_no_rule(agent: type[RawAgent], tmp_path: Path) -> None:
    assert failed(await judged(agent, tmp_path)) == []


@pytest.mark.parametrize("agent", [RawAgent, RawAgentV2])
async def test_a_prompt_that_differs_each_time_is_found_in_the_history(
    agent: type[RawAgent], tmp_path: Path
) -> None:
    outcomes = await judged(agent, tmp_path, "websocket", plain="hello {n}")
    assert failed(outcomes) == []
    assert {each.case.id for each in outcomes if each.verdict != "passed"} <= set(JUDGED_AT_OTHERS)


@pytest.mark.parametrize(("agent", "cases"), BROKEN.items())
async def test_a_fault_is_caught_wherever_it_shows(agent: type[RawAgent], cases: set[str], tmp_path: Path) -> None:
    assert set(failed(await judged(agent, tmp_path))) == cases


async def test_a_request_without_an_answer_fails_and_is_told_apart_from_rules_that_do_not_apply(
    tmp_path: Path,
) -> None:
    outcomes = await judged(next(iter(BROKEN)), tmp_path)
    unanswered = {each.case.id for each in outcomes if each.verdict == "unanswered"}
    assert "v1.list.shape" in unanswered
    assert not unanswered & {each.case.id for each in outcomes if each.verdict == "not_scored"}
    tally = Tally(outcomes, "", ())
    assert {each.case.id for each in tally.failures} == unanswered | {"v1.rpc.claimed"}


async def test_two_runs_give_the_same_result(tmp_path: Path) -> None:
    first, second = await judged(MUTANTS["v1.turn.once"], tmp_path), await judged(MUTANTS["v1.turn.once"], tmp_path)
    assert [(each.case.id, each.verdict, each.words, each.proof) for each in first] == [
        (each.case.id, each.verdict, each.words, each.proof) for each in second
    ]
