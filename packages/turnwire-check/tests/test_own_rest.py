"""turnwire's daemon keeps every rule of REST: over real sockets, with an agent that is a program."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from click.testing import CliRunner
from tests.support.daemons import Running, running_daemon

from turnwire.cli.main import cli
from turnwire.errors import LinkBroken
from turnwire.limits import Limits
from turnwire_check.catalogue import REST_CASES
from turnwire_check.http_exchange import http_opener
from turnwire_check.provocation import RECIPES
from turnwire_check.rest_client import judge_rest, probe_rest
from turnwire_check.run import Bounds, Outcome, run_each

pytestmark = pytest.mark.anyio

BOUNDS = Bounds()
PROMPTS = RECIPES["turnwire-scripted-agent"]
SOON = replace(Limits(), heartbeat_s=0.2)


async def judged(running: Running) -> list[Outcome]:
    opener = http_opener(running.url)
    subject = await probe_rest(opener, running.headers, given=PROMPTS, bounds=BOUNDS)
    return await run_each(list(REST_CASES.values()), lambda case: judge_rest(case, opener, subject), jobs=16)


async def test_the_daemon_keeps_every_rule(tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "data", limits=SOON) as running:
        outcomes = await judged(running)
    assert {each.case.id: each.words for each in outcomes if each.verdict != "passed"} == {}


@pytest.mark.full("runs the suite twice")
async def test_two_runs_are_equal(tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "data", limits=SOON) as running:
        first, second = await judged(running), await judged(running)
    assert [(each.case.id, each.verdict) for each in first] == [(each.case.id, each.verdict) for each in second]


async def test_who_is_not_let_in_or_finds_nobody_is_told_so(tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "data") as running:
        with pytest.raises(LinkBroken, match="give a credential"):
            await probe_rest(http_opener(running.url), {}, bounds=BOUNDS)
    with pytest.raises(LinkBroken, match="look at the address"):
        await probe_rest(http_opener(running.url), {}, bounds=BOUNDS)


async def test_the_command_judges_a_server_and_knows_its_agent_by_name(tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "data") as running:
        told = tmp_path / "told.json"
        words = ["check", "--rest", running.url, "--header", f"Authorization: Bearer {running.token}"]
        words += ["--set", "rest/1", "--case", "rest.turn", "--case", "rest.prompt", "--json", str(told)]
        ran = await anyio.to_thread.run_sync(lambda: CliRunner().invoke(cli, words, obj={"debug": False}))
    assert ran.exit_code == 0, ran.output
    # The daemon tells how its agent calls itself, so its prompts need not be given.
    counts = {"passed": 19, "failed": 0, "unanswered": 0, "advised": 0, "notScored": 0, "judgeErrors": 0}
    assert json.loads(told.read_text())["counts"] == counts


def test_an_address_that_is_none_is_said() -> None:
    for words, told in (
        (["--rest", "ws://x"], "does not begin with http://"),
        (["--rest", "http://x", "--url", "ws://x"], "put the agent's command behind `--`"),
        (["--rest", "http://x", "--case", "v1.turn"], "'v1.turn' is not for this kind of peer"),
    ):
        ran = CliRunner().invoke(cli, ["check", *words], obj={"debug": False})
        assert ran.exit_code == 2
        assert told in " ".join(ran.output.split())
