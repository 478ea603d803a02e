"""Completion in real shells: the completions, their descriptions, and no output when there are none."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.cli.rig import WAIT_S, Served, environment, run

from turnwire_testing.plugin import find_tool

BIN = str(Path(sys.executable).parent)


def shell_environment(home: Path, env: Mapping[str, str]) -> dict[str, str]:
    return environment(home, **env) | {"PATH": f"{BIN}:{os.environ['PATH']}"}


def script(shell: str, home: Path) -> Path:
    printed = run("completion", shell, home=home)
    assert printed.code == 0
    file = home / f"completion.{shell}"
    file.write_text(printed.out)
    return file


def offered(shell: str, line: str, home: Path, env: Mapping[str, str]) -> list[str]:
    """Return the shell's completions at the end of a line, one a line, with descriptions where it shows them."""
    program = find_tool(shell)
    file = script(shell, home)
    if shell == "fish":
        words = [program, "--no-config", "-c", f"source {file}; complete -C {line!r}"]
    elif shell == "bash":
        words = [program, "--norc", "-c", BASH.format(file=file, line=line)]
    else:
        words = [program, "-f", "-c", ZSH.format(file=file, line=line)]
    done = subprocess.run(
        words,
        cwd=home,
        env=shell_environment(home, env),
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.stderr == ""
    return [each for each in done.stdout.replace("\r", "").splitlines() if each]


BASH = """
source {file}
read -ra COMP_WORDS <<< "{line}"
[[ "{line}" == *" " ]] && COMP_WORDS+=("")
COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
COMP_LINE="{line}"
_turnwire_completion turnwire
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
ZSH = """
compdef() {{ :; }}
source {file}
_describe() {{ local -a shown=("${{(@P)3}}"); print -l -- $shown }}
compadd() {{ local -a shown=("${{(@P)@[-1]}}"); print -l -- $shown }}
words=("${{(@s: :)${{:-{line}}}}}")
CURRENT=$#words
_turnwire_completion
"""
SHELLS = ["bash", "zsh", "fish"]


@pytest.mark.parametrize("shell", SHELLS)
def test_commands_and_options_are_offered_without_a_daemon(shell: str, tmp_path: Path) -> None:
    commands = offered(shell, "turnwire se", tmp_path, {})
    options = offered(shell, "turnwire export --o", tmp_path, {})

    assert [each.split("\t")[0].split(":")[0] for each in commands] == ["serve", "sessions", "settle"]
    assert [each.split("\t")[0].split(":")[0] for each in options] == ["--output"]


@pytest.mark.parametrize("shell", SHELLS)
def test_sessions_are_offered_with_their_folder_where_the_shell_shows_it(shell: str, daemon: Served) -> None:
    session = daemon.session()
    lines = offered(shell, f"turnwire attach {session[:4]}", daemon.home, daemon.env)

    [line] = [each for each in lines if each.startswith(session)]
    assert (str(daemon.home) in line) == (shell != "bash")
    assert "last" in [each[:4] for each in offered(shell, "turnwire prompt -s la", daemon.home, daemon.env)]


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("line", ["turnwire attach ", "turnwire answer s_1 ", "turnwire prompt hi -- "])
def test_without_a_daemon_nothing_is_offered_and_nothing_is_said(shell: str, line: str, tmp_path: Path) -> None:
    assert offered(shell, line, tmp_path, {}) == []
    assert offered(shell, line, tmp_path, {"TURNWIRE_URL": "http://127.0.0.1:9"}) == []


INTERACTIVE = {
    "bash": (("--norc", "--noprofile", "-i"), "source {file}"),
    "zsh": (("-f", "-i"), "autoload -U compinit; compinit -u -d {file}.dump; source {file}"),
}


@pytest.mark.parametrize("shell", INTERACTIVE)
def test_the_tab_key_of_a_real_terminal_completes_a_session(shell: str, daemon: Served) -> None:
    flags, setup = INTERACTIVE[shell]
    program, file = find_tool(shell), script(shell, daemon.home)
    session = daemon.session()
    near, far = pty.openpty()
    env = shell_environment(daemon.home, daemon.env) | {"PS1": "$ ", "COLUMNS": "200"}
    with subprocess.Popen(
        [program, *flags], stdin=far, stdout=far, stderr=far, cwd=daemon.home, env=env, start_new_session=True
    ) as process:
        os.close(far)
        try:
            os.write(near, f"{setup.format(file=file)}; echo re''ady\n".encode())
            _until(near, "ready\n")
            os.write(near, f"turnwire attach {session[:-2]}\t".encode())
            _until(near, session)
        finally:
            process.kill()
            os.close(near)


def _until(near: int, text: str) -> None:
    """Read until this is shown. The time limit of the test bounds it."""
    shown = ""
    while text not in shown:
        shown += os.read(near, 65536).decode(errors="replace").replace("\r", "")
