"""A workspace serves the methods of ACP, and rejects everything else with a code and its own message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec import Raw
from tests.unit.hosting.services.asking import ask, create, read, refused, workspace_in, write

from turnwire.errors import RequestRefused, SessionError
from turnwire.hosting.services import Workspace
from turnwire.wire.jsonrpc import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    NOTHING,
    REQUEST_CANCELLED,
    RESOURCE_NOT_FOUND,
)
from turnwire.wire.methods import METHODS, Side

pytestmark = pytest.mark.anyio

TERMINAL = ["terminal/output", "terminal/wait_for_exit", "terminal/kill", "terminal/release"]


async def test_it_serves_every_method_of_acp_about_files_and_terminals(tmp_path: Path) -> None:
    wanted = {
        each.name
        for each in METHODS.values()
        if each.side is Side.CLIENT and each.name.startswith(("fs/", "terminal/"))
    }
    async with workspace_in(tmp_path) as workspace:
        assert workspace.methods == wanted


async def test_another_method_is_not_served(tmp_path: Path) -> None:
    async with workspace_in(tmp_path) as workspace:
        assert (await refused(workspace, "fs/delete")).jsonrpc == METHOD_NOT_FOUND


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("fs/read_text_file", {}),
        ("fs/read_text_file", {"path": 1}),
        ("fs/write_text_file", {"path": "/f"}),
        ("fs/write_text_file", {"path": "/f", "content": None}),
        ("terminal/create", {}),
        ("terminal/create", {"command": "true", "args": ["a", 1]}),
        ("terminal/create", {"command": "true", "args": "a"}),
        ("terminal/create", {"command": "true", "env": [{"name": "A"}]}),
        ("terminal/create", {"command": "true", "cwd": 1}),
        ("terminal/create", {"command": "true", "outputByteLimit": "9"}),
        *((method, {}) for method in TERMINAL),
    ],
)
async def test_malformed_params_are_refused(tmp_path: Path, method: str, params: dict[str, Any]) -> None:
    async with workspace_in(tmp_path) as workspace:
        error = await refused(workspace, method, **params)
        assert (error.jsonrpc, error.reason) == (INVALID_PARAMS, "malformed")


@pytest.mark.parametrize("params", [NOTHING, Raw(b"null"), Raw(b"[]"), Raw(b'"x"')])
async def test_params_that_are_no_object_are_refused(tmp_path: Path, params: Raw) -> None:
    async with workspace_in(tmp_path) as workspace:
        for method in workspace.methods:
            with pytest.raises(RequestRefused) as refusal:
                await workspace.serve(method, params)
            assert refusal.value.jsonrpc == INVALID_PARAMS


@pytest.mark.parametrize("method", TERMINAL)
async def test_an_unknown_terminal_is_not_found(tmp_path: Path, method: str) -> None:
    async with workspace_in(tmp_path) as workspace:
        error = await refused(workspace, method, terminalId="t_0")
        assert (error.jsonrpc, error.reason) == (RESOURCE_NOT_FOUND, "unknown_terminal")


async def test_a_refusal_is_an_error_of_the_session(tmp_path: Path) -> None:
    async with workspace_in(tmp_path) as workspace:
        error = await refused(workspace, "fs/read_text_file", path="relative")
        assert isinstance(error, SessionError)
        assert error.code == "request_refused"


@pytest.mark.parametrize("cwd", ["", "relative", "."])
def test_a_working_directory_that_is_not_absolute_is_refused_at_once(cwd: str) -> None:
    with pytest.raises(RequestRefused):
        Workspace(cwd)


async def test_opening_tells_early_that_a_directory_is_missing(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    async with workspace_in(tmp_path, tmp_path / "there") as workspace:
        await workspace.open()
    async with workspace_in(tmp_path, tmp_path / "gone") as workspace:
        with pytest.raises(RequestRefused) as refusal:
            await workspace.open()
        assert refusal.value.reason == "root_missing"
        # A workspace never serves with fewer roots than were granted.
        assert (await refused(workspace, "fs/read_text_file", path=str(tmp_path / "f"))).reason == "root_missing"


async def test_additional_directories_are_served_too(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    async with workspace_in(tmp_path / "one", tmp_path / "two") as workspace:
        await write(workspace, tmp_path / "two" / "f", "x")
        assert await read(workspace, tmp_path / "two" / "f") == "x"
        error = await refused(workspace, "fs/read_text_file", path=str(tmp_path / "f"))
        assert error.reason == "outside_roots"


async def test_nothing_is_served_after_closing_and_closing_twice_is_fine(tmp_path: Path) -> None:
    async with workspace_in(tmp_path) as workspace:
        terminal_id = await create(workspace, "true")
        await workspace.aclose()
        await workspace.aclose()
        for method, params in [
            ("fs/read_text_file", {"path": str(tmp_path / "f")}),
            ("terminal/create", {"command": "true"}),
            ("terminal/output", {"terminalId": terminal_id}),
        ]:
            error = await refused(workspace, method, **params)
            assert (error.jsonrpc, error.reason) == (REQUEST_CANCELLED, "closed")


async def test_many_requests_at_a_time_are_all_served(tmp_path: Path) -> None:
    found: list[str] = []

    async def one(number: int) -> None:
        await write(workspace, tmp_path / str(number), str(number))
        found.append((await ask(workspace, "fs/read_text_file", path=str(tmp_path / str(number))))["content"])

    async with workspace_in(tmp_path) as workspace, anyio.create_task_group() as tasks:
        for number in range(50):
            tasks.start_soon(one, number)
    assert sorted(found, key=int) == [str(number) for number in range(50)]
