"""`turnwire check` as a user runs it: against programs, with its reports and its exit codes."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from turnwire.cli.main import cli
from turnwire.errors import ConfigError
from turnwire_check import catalogue, report

HERE = Path(__file__).parent
SOUND = [sys.executable, "-I", "-S", str(Path(__file__).with_name("check_peers") / "raw_agent.py")]
CASES = ["--case", "v1.turn.once", "--case", "v1.turn.ends", "--case", "v1.wire"]


def check(*words: str, agent: list[str] | None = None) -> Result:
    behind = [] if agent is None else ["--", *agent]
    return CliRunner().invoke(cli, ["check", *words, *behind], obj={"debug": False})


@pytest.fixture
def mutant(tmp_path: Path) -> list[str]:
    """An agent that answers every prompt twice, as a separate program."""
    program = tmp_path / "mutant.py"
    program.write_text(
        f"import sys; sys.path.insert(0, {str(HERE)!r})\n"
        "from check_peers.mutants import MUTANTS, main\n"
        "main(MUTANTS['v1.turn.once'])\n"
    )
    return [sys.executable, "-I", str(program)]


def test_an_agent_that_keeps_the_rules_passes() -> None:
    ran = check(*CASES, agent=SOUND)
    assert ran.exit_code == 0, ran.output
    assert "raw-agent 1: 10 passed, 0 failed, 0 not scored" in ran.output


def test_an_agent_that_breaks_one_fails_with_the_frames_and_every_report(tmp_path: Path, mutant: list[str]) -> None:
    files = {each: str(tmp_path / each) for each in ("json", "junit", "html", "badge", "write-baseline")}
    ran = check(*CASES, *(word for name, file in files.items() for word in (f"--{name}", file)), agent=mutant)
    assert ran.exit_code == 1, ran.output
    assert "FAILED v1.turn.once (must): A prompt is answered once." in ran.output
    assert ran.output.count('"stopReason": "end_turn"') == 2
    assert json.loads((tmp_path / "json").read_text())["counts"]["failed"] == 1
    assert ElementTree.parse(tmp_path / "junit").getroot().get("failures") == "1"
    assert "answered 2 times" in (tmp_path / "html").read_text()
    assert "9/10" in (tmp_path / "badge").read_text()
    known = check(*CASES, "--baseline", files["write-baseline"], agent=mutant)
    assert known.exit_code == 0, known.output
    stale = check(*CASES, "--baseline", files["write-baseline"], agent=SOUND)
    assert stale.exit_code == 1
    assert "does not fail any more: v1.turn.once" in stale.output


def test_cases_are_listed_with_their_rules_and_a_dry_run_says_what_can_be_judged() -> None:
    listed = check("--list", "--set", "acp-v1/2026-11")
    assert "v1.turn.once\tmust\tA prompt is answered once." in listed.output
    dry = check("--dry-run", "--case", "v1.cancel", "--case", "v1.turn.once", agent=SOUND)
    assert dry.exit_code == 0
    assert "v1.turn.once\tcan be judged" in dry.output
    assert "v1.cancel.heard\tno prompt is known" in dry.output


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--case", "v1.nothing"], "there is no case 'v1.nothing'"),
        (["--set", "acp-v9"], "there is no set 'acp-v9'"),
        ([], "put the agent's command behind `--`"),
        (["--url", "ftp://x"], "does not begin with ws://"),
        (["--url", "ws://x", "--header", "x"], "is not NAME:VALUE"),
        (["--case", "rest.turn", "--", "cat"], "'rest.turn' is not for this kind of peer; give the address of a"),
        (
            ["--set", "rest/1", "--", "cat"],
            "rest/1 has no case for this kind of peer; give the address of a server",
        ),
        (["--set", "acp-http-draft/1", "--", "cat"], "--url http://…/acp"),
        (["--report", "x", "--", "cat"], "--report is for --client"),
        (["--registry", "x", "--", "cat"], "or give one of --url, --rest and --registry"),
        (["--dry-run", "--json", "x", "--", "cat"], "nothing is judged by --dry-run; leave --json out"),
        (["--list", "--junit", "x"], "nothing is judged by --list; leave --junit out"),
        (["--json", "/no/such/folder/x", "--", "cat"], "--json /no/such/folder/x cannot be written"),
        (["--html", "/", "--", "cat"], "--html / cannot be written"),
    ],
)
def test_what_is_not_there_is_said(words: list[str], told: str) -> None:
    ran = check(*words)
    assert ran.exit_code == 2
    assert told in " ".join(ran.output.split())


def test_an_agent_that_is_none_does_not_pass() -> None:
    none = [sys.executable, "-c", "print('hello')"]
    ran = check("--case", "v1.turn", agent=none)
    assert ran.exit_code == 1
    assert "it does not speak version 1" in ran.output
    assert "nothing could be judged" in ran.output
    ran = check("--case", "v1.init.version", agent=none)
    assert ran.exit_code == 1
    assert "FAILED v1.init.version" in ran.output


ODD_KIND = """
import sys; sys.path.insert(0, {root!r})
from check_peers.raw_agent import RawAgent, main

class OddKind(RawAgent):
    def announcement(self, turn):
        return {{**super().announcement(turn), "kind": ["read"]}}

main(OddKind)
"""


def test_an_agent_with_values_of_wrong_types_fails_and_the_judge_goes_on(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(ODD_KIND.format(root=str(HERE)))
    agent = [sys.executable, "-I", str(tmp_path / "agent.py")]
    ran = check("--case", "v1.tool", "--provoke", "tool=tool", agent=agent)
    assert ran.exit_code == 1, ran.output
    assert "FAILED v1.tool.kinds (must)" in ran.output
    assert "6 passed, 1 failed, 0 not scored" in ran.output


def test_an_error_of_the_judge_fails_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    async def stumbles(client: object) -> None:
        raise KeyError

    monkeypatch.setitem(catalogue.CASES, "v1.turn.once", replace(catalogue.CASES["v1.turn.once"], judge=stumbles))
    ran = check("--case", "v1.turn.once", "--case", "v1.turn.ends", agent=SOUND)
    assert ran.exit_code == 1, ran.output
    assert "ERROR  v1.turn.once: the judge itself failed (KeyError at" in ran.output
    assert "1 passed, 0 failed, 0 not scored, 1 errors of the judge" in ran.output


def test_cases_are_listed_for_programs(tmp_path: Path) -> None:
    assert check("--list", "--set", "acp-v1/2026-11", "--json", str(tmp_path / "cases.json")).exit_code == 0
    found = {each["id"]: each for each in json.loads((tmp_path / "cases.json").read_text())["cases"]}
    assert found["v1.turn.once"]["severity"] == "must"
    assert found["v1.turn.once"]["digest"] == catalogue.CASES["v1.turn.once"].digest()


def test_a_baseline_is_read_before_anybody_is_started(tmp_path: Path) -> None:
    (tmp_path / "known.json").write_text("no json")
    ran = check("--baseline", str(tmp_path / "known.json"), agent=["touch", str(tmp_path / "started")])
    assert ran.exit_code != 0
    assert not (tmp_path / "started").exists()


def test_a_baseline_is_held_against_the_cases_that_ran_alone(tmp_path: Path, mutant: list[str]) -> None:
    known = tmp_path / "known.json"
    known.write_text('{"knownFailures": ["v1.turn.once", "v1.cancel.heard"]}')
    junit = tmp_path / "out.xml"
    ran = check(*CASES, "--baseline", str(known), "--junit", str(junit), agent=mutant)
    assert ran.exit_code == 0, ran.output
    assert "known  v1.turn.once (must)" in ran.output
    assert "FAILED" not in ran.output
    assert ElementTree.parse(junit).getroot().get("failures") == "0"


def test_one_report_that_cannot_be_written_does_not_lose_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(tally: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(report, "as_json", refuse)
    files = ["--json", str(tmp_path / "out.json"), "--junit", str(tmp_path / "out.xml")]
    ran = check("--case", "v1.init", *files, agent=SOUND)
    assert isinstance(ran.exception, ConfigError)
    assert "not written: --json" in str(ran.exception)
    assert "0 failed" in ran.output
    assert (tmp_path / "out.xml").exists()


def test_the_last_words_of_an_agent_that_dies_are_shown(tmp_path: Path) -> None:
    dies = [sys.executable, "-c", "import sys; sys.exit('no module named my_agent')"]
    out = tmp_path / "out.json"
    ran = check("--case", "v1.turn.once", "--case", "v1.init.version", "--json", str(out), agent=dies)
    assert ran.exit_code == 1
    assert ran.output.count("stderr: no module named my_agent") == 2
    assert [each["stderr"] for each in json.loads(out.read_text())["cases"]] == [["no module named my_agent"]] * 2
