"""Every case about Streamable HTTP is turned red by the server that breaks its rule, and by no other."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from click.testing import CliRunner
from tests.support.daemons import running_daemon

from check_peers.raw_http_server import MUTANTS_HTTP, RawHttpServer, server_opener
from turnwire.cli.main import cli
from turnwire_check.acp_http import AcpSubject, acp_subject, judge_http
from turnwire_check.case import Scene
from turnwire_check.catalogue import HTTP_CASES
from turnwire_check.http_exchange import Opener
from turnwire_check.provocation import RECIPES
from turnwire_check.raw_client import Subject
from turnwire_check.run import Outcome, run_each
from turnwire_testing.patience import WAIT_S

pytestmark = pytest.mark.anyio

PROMPTS: dict[Scene, str] = {"plain": "hello", "wait": "wait"}


async def judged(opener: Opener, subject: AcpSubject, jobs: int = 1) -> list[Outcome]:
    return await run_each(list(HTTP_CASES.values()), lambda case: judge_http(case, opener, subject), jobs=jobs)


async def in_memory(server: type[RawHttpServer], folder: Path) -> list[Outcome]:
    # Never waited for.
    subject = AcpSubject(patience_s=5.0, silence_s=5.0, folder=str(folder), prompts=PROMPTS)
    return await judged(server_opener(server), subject)


def unpassed(outcomes: list[Outcome]) -> dict[str, str]:
    return {each.case.id: each.words for each in outcomes if each.verdict != "passed"}


async def test_a_sound_server_passes_every_case(tmp_path: Path) -> None:
    assert unpassed(await in_memory(RawHttpServer, tmp_path)) == {}


def test_every_case_has_a_mutant_and_every_mutant_a_case() -> None:
    assert sorted(set(HTTP_CASES) ^ set(MUTANTS_HTTP)) == []


@pytest.mark.parametrize("case", MUTANTS_HTTP)
async def test_a_broken_server_is_caught_by_the_case_that_names_its_rule_and_by_no_other(
    case: str, tmp_path: Path
) -> None:
    outcomes = await in_memory(MUTANTS_HTTP[case], tmp_path)
    assert [each.case.id for each in outcomes if each.verdict == "failed"] == [case]


async def test_the_daemon_keeps_every_rule_and_the_command_judges_it(tmp_path: Path) -> None:
    prompts: dict[Scene, str] = {"plain": "hello", **RECIPES["turnwire-scripted-agent"]}
    known = Subject(prompts=prompts, folder=str(tmp_path / "work"), patience_s=WAIT_S, silence_s=0.05)
    async with running_daemon(tmp_path / "data", cwd=(Path("/"),)) as running:
        opener, subject = acp_subject(f"{running.url}/acp", running.headers, known)
        assert unpassed(await judged(opener, subject, jobs=4)) == {}
        words = ["check", "--url", f"{running.url}/acp", "--header", f"Authorization: Bearer {running.token}"]
        words += ["--case", "http.open", "--case", "v1.turn.once"]
        ran = await anyio.to_thread.run_sync(lambda: CliRunner().invoke(cli, words, obj={"debug": False}))
    assert ran.exit_code == 0, ran.output
    assert "4 passed, 0 failed, 0 not scored" in ran.output
