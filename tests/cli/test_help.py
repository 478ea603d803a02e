"""The command line's description of itself: an overview, examples, completion, versions."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from tests.cli.rig import environment, run, served

from turnwire import __version__
from turnwire.cli.commands import COMMANDS, GROUPS
from turnwire.cli.main import cli

HEAVY = ("anyio", "httpx", "msgspec", "rich", "starlette", "turnwire.server", "turnwire.session")


def all_commands(group: click.Group, ctx: click.Context, path: str) -> Iterator[tuple[str, click.Command]]:
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        assert command is not None, name
        yield f"{path} {name}", command
        if isinstance(command, click.Group):
            yield from all_commands(command, ctx, f"{path} {name}")


def named_commands() -> dict[str, click.Command]:
    return dict(all_commands(cli, click.Context(cli, info_name="turnwire"), "turnwire"))


@pytest.mark.parametrize("path", list(named_commands()))
def test_the_help_of_every_command_has_examples_of_it(path: str) -> None:
    command = named_commands()[path]
    text = command.get_help(click.Context(command, info_name=path))

    examples = text.partition("\nExamples:\n")[2]
    assert f"{path} " in f"{examples} " or f"{path}\n" in examples
    assert command.help


def test_the_overview_names_every_command_with_what_it_does(tmp_path: Path) -> None:
    shown = run("--help", home=tmp_path)

    assert shown.code == 0
    for name, row in COMMANDS.items():
        assert f"{name} " in shown.out
        assert row.about in shown.out


def test_every_line_of_the_overview_is_the_first_line_of_that_commands_help() -> None:
    for name, row in COMMANDS.items():
        said = named_commands()[f"turnwire {name}"].help or ""
        assert row.about.rstrip(".") in said.replace("\n", " "), name


def test_the_overview_loads_nothing_that_only_commands_need() -> None:
    program = (
        "import sys; from turnwire.cli.main import cli\n"
        "try: cli.main(['--help'], prog_name='turnwire', obj={})\n"
        "except SystemExit: pass\n"
        f"print('loaded', [each for each in {HEAVY!r} if each in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)

    assert done.stdout.splitlines()[-1] == "loaded []"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_its_completion_script(shell: str, tmp_path: Path) -> None:
    shown = run("completion", shell, home=tmp_path)

    assert shown.code == 0
    assert f"_TURNWIRE_COMPLETE={shell}_complete" in shown.out


def test_completion_knows_the_commands_and_their_options(tmp_path: Path) -> None:
    def completed(words: str, count: str) -> str:
        asked = {"_TURNWIRE_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": count}
        return run(home=tmp_path, **asked).out

    assert {"plain,serve", "plain,sessions", "plain,settle"} <= set(completed("turnwire se", "1").splitlines())
    assert "plain,--port" in completed("turnwire serve --po", "2").splitlines()


def test_the_version_is_told_in_words_and_as_json(tmp_path: Path) -> None:
    assert run("version", home=tmp_path).out == f"turnwire {__version__}\n"
    assert run("--version", home=tmp_path).out == f"turnwire {__version__}\n"
    assert run("version", "--json", home=tmp_path).lines[0]["turnwire"] == __version__


def test_a_command_that_is_nearly_right_is_suggested(tmp_path: Path) -> None:
    shown = run("sesions", home=tmp_path)

    assert shown.code == 2
    assert "Did you mean 'sessions'?" in shown.err


def test_the_module_is_the_same_program(tmp_path: Path) -> None:
    program = [sys.executable, "-c", "from turnwire.cli.main import main; main()", "version"]
    done = subprocess.run(
        program, env=environment(tmp_path), capture_output=True, text=True, check=True, timeout=60
    )

    assert done.stdout == f"turnwire {__version__}\n"


def test_the_name_alone_says_whether_a_daemon_runs_and_what_to_type_next(tmp_path: Path) -> None:
    alone = run(home=tmp_path)
    assert (alone.code, alone.err) == (0, "")
    assert "No daemon of yours runs." in alone.out
    assert "turnwire serve" in alone.out

    with served(tmp_path) as daemon:
        beside = run(home=tmp_path)
    assert f"A daemon of yours runs at {daemon.url}." in beside.out
    assert 'turnwire prompt "hello"' in beside.out


def test_help_of_prompt_says_which_session_it_uses(tmp_path: Path) -> None:
    shown = " ".join(run("prompt", "--help", home=tmp_path).out.split())
    assert "else to the newest open session of this folder" in shown
    assert "`last`" in shown


def test_overview_groups_have_every_command_once() -> None:
    grouped = [name for names in GROUPS.values() for name in names]
    assert sorted(grouped) == sorted(COMMANDS)
