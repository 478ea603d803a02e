"""The command line of the scripted agent."""

from __future__ import annotations

from pathlib import Path

import pytest

from turnwire_testing.agent import AgentOptions, main, read_arguments
from turnwire_testing.scripted.commands import COMMANDS


def test_without_arguments_it_is_a_plain_v1_agent() -> None:
    assert read_arguments([]) == ("v1", AgentOptions())


def test_every_option_has_its_argument(tmp_path: Path) -> None:
    script, history = tmp_path / "a.script", tmp_path / "b.script"
    script.write_text("never\n", encoding="utf-8")
    history.write_text("say 1 x\n", encoding="utf-8")
    arguments = (
        f"--profile v2 --script {script} --history {history} --auth-required --steering --accept-v1"
        " --order running,response,user_message --repeat-idle 2 --session-prefix s"
    ).split()
    early = ["--before", "usage 1 2", "--before", "title x", "--inside", "mode code", "--after", "say 1 y"]
    assert read_arguments(arguments + early) == (
        "v2",
        AgentOptions(
            script="never\n",
            history="say 1 x\n",
            before="usage 1 2\ntitle x",
            inside="mode code",
            after="say 1 y",
            auth_required=True,
            steering=True,
            accept_v1=True,
            order=("running", "response", "user_message"),
            repeat_idle=2,
            session_prefix="s",
        ),
    )


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--script", "/nowhere/a.script"], "cannot read '/nowhere/a.script'"),
        (["--before", "nonsense"], "there is no command 'nonsense'"),
        (["--order", "running"], "give each of"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused_before_anything_starts(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 78
    shown = capsys.readouterr()
    assert reason in shown.err
    assert shown.out == ""


def test_an_argument_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--nonsense"])
    assert left.value.code == 2
    assert "--nonsense" in capsys.readouterr().err


def test_the_help_teaches_by_example_and_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--help"])
    shown = capsys.readouterr().out
    assert left.value.code == 0
    assert "examples:" in shown
    assert all(f"\n{name} " in shown for name in COMMANDS)
