"""Terminals with real processes: commands, output, exit, and limits."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.process.starting import needs_linux, watching
from tests.unit.hosting.services.asking import (
    ask,
    create,
    exit_of,
    lines_of,
    output,
    refused,
    workspace_in,
)

from turnwire.errors import RequestRefused
from turnwire.hosting.services import terminals
from turnwire.limits import KiB, Limits
from turnwire.wire.jsonrpc import INVALID_PARAMS, RESOURCE_NOT_FOUND
from turnwire_testing.patience import quiet

pytestmark = pytest.mark.anyio

PATIENT = Limits(stop_kill_s=10.0, launch_s=30.0)
"""On a machine that is busy with something else."""


def true_path(path: Path) -> str:
    return os.path.realpath(path)


# -- output and ends -------------------------------------------------------------------------------------------


async def test_a_command_runs_in_the_sessions_directory_and_ends(tmp_path: Path) -> None:
    async with workspace_in(tmp_path, limits=PATIENT) as workspace:
        terminal = await create(workspace, "pwd")
        assert await exit_of(workspace, terminal) == {"exitCode": 0}
        assert await output(workspace, terminal) == {
            "output": f"{true_path(tmp_path)}\n",
            "truncated": False,
            "exitStatus": {"exitCode": 0},
        }


async def test_creating_does_not_wait_for_the_end_and_output_tells_no_exit_before_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    async with workspace_in(tmp_path, limits=PATIENT) as workspace:
        terminal = await create(workspace, "sh", "-c", "echo begun; read x < gate; echo $x")
        await lines_of(workspace, terminal, 1)
        assert await output(workspace, terminal) == {"output": "begun\n", "truncated": False}
        await anyio.to_thread.run_sync((tmp_path / "gate").write_text, "over\n")
        assert await exit_of(workspace, terminal) == {"exitCode": 0}
        assert (await output(workspace, terminal))["output"] == "begun\nover\n"


async def test_both_streams_come_in_the_order_they_were_written(tmp_path: Path) -> None:
    script = "for i in 1 2 3 4 5; do echo out$i; echo err$i >&2; done"
    async with workspace_in(tmp_path, limits=PATIENT) as workspace:
        terminal = await create(workspace, "sh", "-c", script)
        await exit_of(workspace, terminal)
        found = (await output(workspace, terminal))["output"].split()
        assert found == [f"{stream}{number}" for number in range(1, 6) for stream in ("out", "err")]


async def test_there_is_nothing_to_read_from(tmp_path: Path) -> None:
    async with workspace_in(tmp_path, limits=PATIENT) as workspace:
        terminal = await create(workspace, "cat")
        assert await exit_of(workspace, terminal) == {"exitCode": 0}


@pytest.mark.parametrize("code", [1, 127, 255])
async def test_an_exit_code_is_told(tmp_path: Path, code: int) -> None:
    async with workspace_in(tmp_path, limits=PATIENT) as workspace:
        terminal = await create(workspace, "sh", "-c", f"exit {code}")
        assert await exit_of(workspace, terminal) == {"exitCode": code}


@pytest.mark.parametrize(("number", "name"), [(15, "SIGTERM"), (9, "SIGKILL"), (11, "SIGSEGV"), (40, "SIG40")])
async def test_a_signal_is_told_by_its_name(tmp_path: Path, number: int, name: str) -> None:
    async with workspace_in(tmp_path, limits=PATIENT) as workspace:
        terminal = await create(workspace, "sh", "-c", f"kill -{number} $$")
        assert await exit_of(workspace, terminal) == {"signal": name}


async def test_everybody_who_waits_hears_of_the_end(tmp_path: Path) -> None:
    found: list[Any] = []

    async def wait() -> None:
        found.append(await exit_of(workspace, terminal))

    async with workspace_in(tmp_path, limits=PATIENT) as workspace:
        terminal = await create(workspace, "sleep", "600")
        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(wait)
            await quiet()
            assert found == []
            await ask(workspace, "terminal/kill", terminalId=terminal)
        assert found == [{"signal": "SIGKILL"}] * 5
        assert await exit_of(workspace, terminal) == {"signal": "SIGKILL"}


async def test_a_cancelled_wait_leaves_the_command_alone(tmp_path: Path) -> None:
    async with workspace_in(tmp_path, limits=PATIENT) as workspace:
        terminal = await create(workspace, "sleep", "600")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(exit_of, workspace, terminal)
            await quiet()
            tasks.cancel_scope.cancel()
        assert "exitStatus" not in await output(workspace, terminal)


# -- what is run -----------------------------------------------------------------------------------------------


async def test_a_line_without_arguments_is_run_by_a_shell(tmp_path: Path) -> None:
    async with workspace_in(tmp_path, limits=PATIENT) as workspace:
        answer = await ask(workspace, "terminal/create", command="echo a > f && cat f | tr a b")
        await exit_of(workspace, answer["terminalId"])
        assert (await output(workspace, answer["terminalId"]))["output"] == "b\n"


async def test_arguments_are_no_shells_to_read(tmp_path: Path) -> None:
    async with workspace_in(tmp_path, limits=PATIENT) as workspace:
        terminal = await create(workspace, "printf", "%s|", "$HOME", "a b", "; ls", "")
        await exit_of(workspace, terminal)
        assert (await output(workspace, terminal))["output"] == "$HOME|a b|; ls||"


async def test_a_command_gets_what_an_agent_gets_and_what_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNWIRE_TOKEN", "secret")
    monkeypatch.setenv("MY_API_KEY", "secret")
    async with workspace_in(tmp_path, limits=PATIENT) as workspace:
        terminal = await create(
            workspace, "env", env=[{"name": "GIVEN", "value": "a=b"}, {"name": "HOME", "value": "/x"}]
        )
        await exit_of(workspace, terminal)
        found = dict(
            line.split("=", 1) for line in (await output(workspace, terminal))["output"].splitlines() if "=" in line
        )
    assert found["GIVEN"] == "a=b"
    assert found["HOME"] == "/x"
    assert found["PATH"] == os.environ["PATH"]
    assert "secret" not in found.values()


async def test_the_operator_says_what_else_a_command_gets(tmp_path: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "OPERATOR": "says"}
    async with workspace_in(tmp_path, limits=PATIENT, environment=environment) as workspace:
        terminal = await create(workspace, "sh", "-c", "echo $OPERATOR")
        await exit_of(workspace, terminal)
        assert (await output(workspace, terminal))["output"] == "says\n"


@pytest.mark.parametrize(
    "variable",
    [
        {"name": "", "value": "x"},
        {"name": "A=B", "value": "x"},
        {"name": "A B", "value": "x"},
        {"name": "A", "value": "x\0"},
        {"name": "TURNWIRE_TOKEN", "value": "x"},
    ],
)
async def test_a_variable_that_cannot_be_set_is_refused(tmp_path: Path, variable: dict[str, str]) -> None:
    async with workspace_in(tmp_path) as workspace:
        error = await refused(workspace, "terminal/create", command="true", env=[variable])
        assert (error.jsonrpc, error.reason) == (INVALID_PARAMS, "malformed")


async def test_a_command_runs_in_a_directory_inside_the_roots_only(tmp_path: Path) -> None:
    (tmp_path / "root" / "sub").mkdir(parents=True)
    (tmp_path / "root" / "out").symlink_to("..")
    async with workspace_in(tmp_path / "root", limits=PATIENT) as workspace:
        terminal = await create(workspace, "pwd", cwd=str(tmp_path / "root" / "sub"))
        await exit_of(workspace, terminal)
        assert (await output(workspace, terminal))["output"] == f"{true_path(tmp_path)}/root/sub\n"
        for cwd in ("/", str(tmp_path), str(tmp_path / "root" / "out")):
            error = await refused(workspace, "terminal/create", command="pwd", cwd=cwd)
            assert (error.jsonrpc, error.reason) == (INVALID_PARAMS, "outside_roots")
        missing = await refused(workspace, "terminal/create", command="pwd", cwd=str(tmp_path / "root" / "x"))
        assert missing.jsonrpc == RESOURCE_NOT_FOUND


async def test_a_command_that_cannot_be_started_is_refused_and_leaves_room(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("no program")
    limits = Limits(terminals=1, launch_s=30.0, stop_kill_s=10.0)
    async with workspace_in(tmp_path, limits=limits) as workspace:
        for command, reason in [
            ("no-such-command", "command_not_found"),
            ("./plain", "not_executable"),
            ("./plain/x", "command_not_found"),
            ("", "malformed"),
            ("a\0b", "malformed"),
        ]:
            error = await refused(workspace, "terminal/create", command=command)
            assert (error.jsonrpc, error.reason) == (INVALID_PARAMS, reason)
        error = await refused(workspace, "terminal/create", command="echo", args=["x" * 3_000_000])
        assert error.reason == "too_large"
        await create(workspace, "true")


# -- bounds ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("limit", "left"), [(0, ""), (1, ""), (2, ""), (3, "€"), (5, "€"), (8, "€€"), (9, "€€€")])
async def test_output_is_cut_from_the_beginning_at_a_character(tmp_path: Path, limit: int, left: str) -> None:
    async with workspace_in(tmp_path, limits=PATIENT) as workspace:
        terminal = await create(workspace, "printf", "€€€", outputByteLimit=limit)
        await exit_of(workspace, terminal)
        found = await output(workspace, terminal)
        assert (found["output"], found["truncated"]) == (left, limit < 9)


async def test_no_agent_gets_more_output_than_we_keep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminals, "TERMINAL_OUTPUT_BYTES", KiB)
    async with workspace_in(tmp_path) as workspace:
        error = await refused(workspace, "terminal/create", command="true", outputByteLimit=-1)
        assert error.jsonrpc == INVALID_PARAMS
        for asked in (None, 2**64 - 1):
            terminal = await create(workspace, "sh", "-c", "yes | head -c 5000", outputByteLimit=asked)
            await exit_of(workspace, terminal)
            found = await output(workspace, terminal)
            assert (len(found["output"]), found["truncated"]) == (KiB, True)


async def test_a_flood_is_read_to_its_end_and_only_its_end_is_kept(tmp_path: Path) -> None:
    async with workspace_in(tmp_path, limits=PATIENT) as workspace:
        script = "yes 0123456 | head -c 67108864; echo the end"
        terminal = await create(workspace, "sh", "-c", script, outputByteLimit=100)
        assert await exit_of(workspace, terminal) == {"exitCode": 0}
        found = (await output(workspace, terminal))["output"]
        assert found.endswith("0123456\nthe end\n")
        assert len(found) == 100


async def test_an_endless_flood_delays_no_one_and_can_be_killed(tmp_path: Path) -> None:
    async with workspace_in(tmp_path, limits=PATIENT) as workspace:
        flood = await create(workspace, "yes")
        await lines_of(workspace, flood, 1000)
        other = await create(workspace, "echo", "hello")
        assert await exit_of(workspace, other) == {"exitCode": 0}
        await ask(workspace, "terminal/kill", terminalId=flood)
        found = await output(workspace, flood)
        assert found["exitStatus"] == {"signal": "SIGKILL"}


async def test_a_session_has_so_many_terminals_until_it_releases_one(tmp_path: Path) -> None:
    async with workspace_in(tmp_path, limits=Limits(terminals=2, launch_s=30.0)) as workspace:
        first = await create(workspace, "true")
        await create(workspace, "true")
        await exit_of(workspace, first)
        error = await refused(workspace, "terminal/create", command="true")
        assert (error.jsonrpc, error.reason) == (INVALID_PARAMS, "too_many_terminals")
        await ask(workspace, "terminal/release", terminalId=first)
        await create(workspace, "true")


async def test_commands_that_are_being_started_count_too(tmp_path: Path) -> None:
    made: list[str] = []

    async def one() -> None:
        try:
            made.append(await create(workspace, "true"))
        except RequestRefused as error:
            made.append(error.reason)

    async with workspace_in(tmp_path, limits=Limits(terminals=3, launch_s=30.0)) as workspace:
        async with anyio.create_task_group() as tasks:
            for _ in range(6):
                tasks.start_soon(one)
        assert made.count("too_many_terminals") == 3
        assert len({each for each in made if each.startswith("t_")}) == 3


@needs_linux
async def test_fifty_terminals_at_a_time_keep_their_output_apart_and_leave_nothing(tmp_path: Path) -> None:
    pids: dict[str, int] = {}

    async def one(number: int) -> None:
        terminal = await create(workspace, "sh", "-c", f"echo {number} $$; exec sleep 600")
        [line] = await lines_of(workspace, terminal, 1)
        assert line.split()[0] == str(number)
        pids[terminal] = int(line.split()[1])

    limits = Limits(stop_kill_s=60.0, launch_s=60.0)
    before = len(os.listdir("/proc/self/fd"))
    async with workspace_in(tmp_path, limits=limits) as workspace:
        async with anyio.create_task_group() as tasks:
            for number in range(50):
                tasks.start_soon(one, number)
        assert len(set(pids.values())) == 50
        with watching(*pids.values()) as tree:
            await workspace.aclose()
            await tree.gone()
    assert len(os.listdir("/proc/self/fd")) == before
