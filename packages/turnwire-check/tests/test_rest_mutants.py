"""Every case about REST is turned red by the server that breaks its rule, and by no other."""

from __future__ import annotations

import pytest

from check_peers.mutants_rest import MUTANTS_REST
from check_peers.raw_server import CREDENTIAL, PROMPTS, RawServer, server_opener
from turnwire_check.catalogue import REST_CASES
from turnwire_check.rest_client import judge_rest, probe_rest
from turnwire_check.run import Bounds, Outcome, run_each

pytestmark = pytest.mark.anyio

BOUNDS = Bounds(patience_s=5.0, silence_s=5.0)
"""Never waited for."""


async def judged(server: type[RawServer], only: str | None = None) -> list[Outcome]:
    opener = server_opener(server)
    subject = await probe_rest(opener, CREDENTIAL, given=PROMPTS, bounds=BOUNDS)
    cases = list(REST_CASES.values()) if only is None else [REST_CASES[only]]
    return await run_each(cases, lambda case: judge_rest(case, opener, subject))


def failed(outcomes: list[Outcome]) -> list[str]:
    return [each.case.id for each in outcomes if each.verdict == "failed"]


async def test_a_sound_server_passes_every_case() -> None:
    outcomes = await judged(RawServer)
    assert {each.case.id: each.words for each in outcomes if each.verdict != "passed"} == {}


def test_every_case_has_a_mutant_and_every_mutant_a_case() -> None:
    assert sorted(set(REST_CASES) ^ set(MUTANTS_REST)) == []


async def test_each_broken_server_is_caught_by_the_case_that_names_its_rule() -> None:
    missed = [case for case, server in MUTANTS_REST.items() if failed(await judged(server, case)) != [case]]
    assert missed == []


@pytest.mark.full("every broken server answers every case")
@pytest.mark.parametrize("case", MUTANTS_REST)
async def test_a_broken_server_is_caught_by_the_case_that_names_its_rule_and_by_no_other(case: str) -> None:
    outcomes = await judged(MUTANTS_REST[case])
    assert failed(outcomes) == [case]
    [caught] = [each for each in outcomes if each.verdict == "failed"]
    assert caught.words
    assert all(0 <= each < len(caught.frames) for each in caught.proof)


async def test_two_runs_give_the_same_result() -> None:
    broken = MUTANTS_REST["rest.turn.once"]
    first, second = await judged(broken), await judged(broken)
    assert [(each.case.id, each.verdict, each.words, each.proof) for each in first] == [
        (each.case.id, each.verdict, each.words, each.proof) for each in second
    ]
