"""The suite in a user's tests: cases as tests, the fixture, and nothing at all where it is not used."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

pytest_plugins = "pytester"

HERE = Path(__file__).parent
AGENT = shlex.join([sys.executable, "-I", "-S", str(HERE / "check_peers/raw_agent.py")])
CLIENT = shlex.join([sys.executable, "-I", "-S", str(HERE / "check_peers/raw_client.py"), "{scene}", "{agent...}"])
PLUGIN = ("-p", "turnwire_check.pytest_plugin", "-p", "no:cacheprovider", "-rs")
MUTANT = f"""
import sys; sys.path.insert(0, {str(HERE)!r})
from check_peers.mutants import MUTANTS, main
main(MUTANTS["v1.turn.once"])
"""


def test_each_case_is_a_test_with_the_reason_where_it_is_not_scored(pytester: pytest.Pytester) -> None:
    mutant = pytester.makepyfile(mutant=MUTANT)
    pytester.makepyfile("def test_of_the_suite(): pass")
    command = shlex.join([sys.executable, "-I", str(mutant)])
    cases = ("v1.turn.once", "v1.turn.ends", "v1.cancel.heard")
    words = [word for case in cases for word in ("--turnwire-case", case)]
    ran = pytester.runpytest_subprocess(*PLUGIN, "--turnwire-agent", command, *words)
    ran.assert_outcomes(passed=2, failed=1, skipped=1)
    ran.stdout.fnmatch_lines(["*v1.turn.once (must): A prompt is answered once.*"])
    ran.stdout.fnmatch_lines(["*not scored: no prompt is known that makes it begin a turn*"])


@pytest.mark.full("runs pytest in a process")
def test_a_client_is_judged_and_cases_can_be_chosen_by_name(pytester: pytest.Pytester) -> None:
    ran = pytester.runpytest_subprocess(
        *PLUGIN, "--turnwire-client", CLIENT, "--turnwire-case", "client.new", "-k", "cwd or prompt-waits"
    )
    ran.assert_outcomes(passed=2, deselected=10)


@pytest.mark.full("runs pytest in a process")
def test_a_test_asks_for_a_part_of_it_by_the_fixture(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        f"""
        def test_my_agent_keeps_the_rules_of_turns(turnwire_check):
            found = turnwire_check({AGENT!r}, cases=["v1.turn.once", "v1.cancel.heard"], provoke={{"wait": "wait"}})
            assert found.failed == [] and found.unscored == []
            assert found.peer == "raw-agent 1"
        """
    )
    pytester.runpytest_subprocess(*PLUGIN).assert_outcomes(passed=1)


@pytest.mark.full("runs pytest in a process")
def test_a_suite_that_does_not_use_it_pays_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_nothing_of_turnwire_is_loaded_but_the_plugin():
            loaded = {each for each in sys.modules if each.startswith("turnwire.")}
            assert loaded <= {"turnwire.api", "turnwire_check", "turnwire_check.pytest_plugin"}
        """
    )
    pytester.runpytest_subprocess(*PLUGIN).assert_outcomes(passed=1)


@pytest.mark.full("runs pytest in a process")
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--turnwire-case", "v1.nothing"], "there is no case 'v1.nothing'"),
        (["--turnwire-provoke", "nonsense"], "is not SCENE=TEXT"),
    ],
)
def test_a_wrong_option_is_said(pytester: pytest.Pytester, words: list[str], told: str) -> None:
    ran = pytester.runpytest_subprocess(*PLUGIN, "--turnwire-agent", AGENT, *words)
    assert ran.ret == pytest.ExitCode.USAGE_ERROR
    assert told in ran.stderr.str()
    assert "INTERNALERROR" not in ran.stdout.str() + ran.stderr.str()


@pytest.mark.full("runs pytest in a process")
def test_an_agent_that_cannot_be_started_fails_each_case_without_a_traceback(pytester: pytest.Pytester) -> None:
    words = ["--turnwire-case", "v1.turn.once", "--turnwire-case", "v1.turn.ends"]
    ran = pytester.runpytest_subprocess(*PLUGIN, "--turnwire-agent", "no-such-program-anywhere", *words)
    ran.assert_outcomes(failed=2)
    assert "'no-such-program-anywhere' cannot be started" in ran.stdout.str()
    assert "Traceback" not in ran.stdout.str()
    assert "judged_command.py" not in ran.stdout.str()
