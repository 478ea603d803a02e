"""turnwire's own data are out of an agent's reach wherever they are, and stored secrets grant no access."""

from __future__ import annotations

import re
import stat
from pathlib import Path

import pytest
from tests.cli.rig import run, served
from tests.security.intruding import attacked, bearer, log_in
from tests.server.seats import Seat
from tests.support.driving import texts
from tests.unit.hosting.services.asking import read, refused, workspace_in, write

from agent_kit.tool_kit import refused as tool_refused
from agent_kit.tool_kit import use
from turnwire.cli.credentials import TOKEN_FILE, keep_token
from turnwire.hosting.services.refusals import CLOSED
from turnwire.hosting.services.roots import MARK, close_directory
from turnwire.ids import SessionId
from turnwire_agent.system_prompt import read_notes
from turnwire_agent.tools.files import Read, Write
from turnwire_agent.tools.folders import List, Search

pytestmark = [pytest.mark.anyio, pytest.mark.guarantee("G13")]

SECRET = "works-as-an-owner"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Create a project with data in it, and paths that lead there."""
    project = tmp_path / "project"
    data = project / "state" / "data"
    close_directory(data)
    (data / "inner").mkdir()
    for folder in (data, data / "inner"):
        (folder / "token.txt").write_text(SECRET)
        (folder / "AGENTS.md").write_text(SECRET)
    (project / "plain.txt").write_text("plain")
    (project / "to-data").symlink_to(data)
    (project / "to-file").symlink_to(data / "token.txt")
    (project / "to-inner").symlink_to("state/data/inner")
    return project


WAYS = (
    "state/data/token.txt",
    "state/data/inner/token.txt",
    "state/./data//token.txt",
    "state/data/../data/token.txt",
    "state/data/inner/../token.txt",
    "to-data/token.txt",
    "to-file",
    "to-inner/token.txt",
    "to-inner/../token.txt",
)


@pytest.mark.parametrize("way", WAYS)
async def test_no_path_leads_the_file_service_into_the_data(root: Path, way: str) -> None:
    async with workspace_in(root) as workspace:
        assert await read(workspace, root / "plain.txt") == "plain"
        assert (await refused(workspace, "fs/read_text_file", path=f"{root}/{way}")).reason == CLOSED
        error = await refused(workspace, "fs/write_text_file", path=f"{root}/{way}", content="mine")
        assert error.reason == CLOSED
        assert (root / "state" / "data" / "token.txt").read_text() == SECRET


@pytest.mark.parametrize("inside", ["state/data", "state/data/inner", "to-data", "to-inner"])
async def test_a_session_inside_the_data_is_given_nothing(root: Path, inside: str) -> None:
    async with workspace_in(root / inside) as workspace:
        assert (await refused(workspace, "fs/read_text_file", path=f"{root}/{inside}/token.txt")).reason == CLOSED
        assert (await refused(workspace, "terminal/create", command="pwd")).reason == CLOSED


@pytest.mark.parametrize("cwd", ["state/data", "state/data/inner", "to-data", "to-inner"])
async def test_no_terminal_starts_inside_the_data(root: Path, cwd: str) -> None:
    async with workspace_in(root) as workspace:
        assert (await refused(workspace, "terminal/create", command="pwd", cwd=f"{root}/{cwd}")).reason == CLOSED


@pytest.mark.parametrize("name", [MARK, MARK.upper(), f"{MARK}/x", f"new/{MARK}", f"new/{MARK}/x"])
async def test_no_agent_makes_a_mark(root: Path, name: str) -> None:
    async with workspace_in(root) as workspace:
        error = await refused(workspace, "fs/write_text_file", path=f"{root}/{name}", content="")
        assert error.reason == CLOSED
        await write(workspace, root / "new" / "f", "still open")


async def test_the_environment_of_the_daemon_is_no_file_of_a_session(root: Path) -> None:
    (root / "link").symlink_to("/proc/self/environ")
    async with workspace_in(Path("/")) as workspace:
        for path in (
            "/proc/self/environ",
            "/proc/1/environ",
            str(root / "link"),
            "/usr/../proc/self/maps",
        ):
            assert (await refused(workspace, "fs/read_text_file", path=path)).reason == CLOSED


@pytest.mark.parametrize("way", WAYS[:-1])
async def test_the_built_in_tools_do_not_enter_the_data(root: Path, way: str) -> None:
    assert (await tool_refused(Read(), root, path=way)).reason == CLOSED
    assert (await tool_refused(Write(), root, path=way, content="mine")).reason == CLOSED
    assert (await tool_refused(Search(), root, pattern="works", path=way)).reason == CLOSED
    folder = way.rpartition("/")[0]
    if folder and folder != "state/.":
        assert (await tool_refused(List(), root, path=folder)).reason == CLOSED


async def test_a_list_and_a_search_from_above_leave_the_data_out(root: Path) -> None:
    found = await use(Search(), root, pattern="works-as", hidden=True)
    assert SECRET not in found
    assert "No line matches." in found
    drawn = await use(List(), root, depth=10, hidden=True)
    assert "token.txt" not in drawn
    assert "data/" in drawn
    assert read_notes(root / "state" / "data") == []


async def test_an_agent_above_the_data_gets_no_token(tmp_path: Path) -> None:
    async with attacked(tmp_path) as daemon, daemon.client() as owner:
        await keep_token(tmp_path / "data", daemon.daemon.tokens)
        token = (tmp_path / "data" / TOKEN_FILE).read_text().strip()
        assert (await owner.get("/tokens", headers=bearer(token))).status_code == 200
        (tmp_path / "work" / "link").symlink_to("../data")
        assert (await owner.post("/session", json={"cwd": str(tmp_path), "sessionId": "s1"})).status_code == 200
        seat = Seat(daemon, owner, SessionId("s1"))
        for path in (f"{tmp_path}/data", f"{tmp_path}/work/link", f"{tmp_path}/work/../data"):
            for name in (TOKEN_FILE, "tokens.json"):
                await seat.run(f"read {path}/{name}")
        said = "".join(texts(await seat.events()))
        assert "turnwire's own data" in said
        assert token not in said
        assert "digest" not in said
        assert token not in (await owner.get("/session/s1/export")).text


async def test_the_daemon_opens_no_session_in_its_data(tmp_path: Path) -> None:
    async with attacked(tmp_path) as daemon, daemon.client() as owner:
        (tmp_path / "work" / "link").symlink_to("../data")
        for cwd in (tmp_path / "data", tmp_path / "work" / "link"):
            assert (await owner.post("/session", json={"cwd": str(cwd)})).status_code == 403
        assert (await owner.post("/session", json={"cwd": str(tmp_path)})).status_code == 200


def test_a_newcomer_whose_folder_has_the_data_in_it_is_served_and_its_data_are_closed(tmp_path: Path) -> None:
    with served(tmp_path, builtin=True) as daemon:
        assert tmp_path in daemon.data.parents, "the data are below where it was started"
        path = daemon.data / TOKEN_FILE
        told = daemon.run("prompt", f"read {path}", "--cwd", str(tmp_path))
        assert told.code == 0, told.err
        assert "turnwire's own data" in told.out
        assert path.read_text().strip() not in told.out
        found = daemon.run("prompt", f"search tw_ in {daemon.data.parent}", "--cwd", str(tmp_path))
        assert path.read_text().strip() not in found.out


@pytest.mark.parametrize("inside", [".", "deeper"])
def test_a_daemon_does_not_start_where_its_sessions_would_be_inside_its_data(tmp_path: Path, inside: str) -> None:
    (tmp_path / "data" / "deeper").mkdir(parents=True)
    flags = ("--data", str(tmp_path / "data"), "--cwd", str(tmp_path / "data" / inside))
    ran = run("serve", "--port", "0", *flags, home=tmp_path)
    assert ran.code == 78
    assert "--data" in ran.err


# -- at rest -------------------------------------------------------------------------------------------------


async def test_nothing_that_works_rests_in_the_data_but_the_token_of_the_command_line(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with attacked(tmp_path, token=None) as daemon:
        first = daemon.daemon.first_token
        assert first is not None
        async with daemon.client(headers=bearer(first)) as owner, daemon.stranger() as browser:
            made = await owner.post("/tokens", json={"name": "ci", "role": "controller"})
            cookie = (await log_in(browser, first)).headers["set-cookie"].split(";")[0].split("=")[1]
            link = (await owner.post("/login-link")).json()["url"].partition("#")[2]
            body = {"cwd": str(tmp_path / "work"), "sessionId": "s1"}
            assert (await owner.post("/session", json=body)).status_code == 200
        await keep_token(data, daemon.daemon.tokens)
        # Only the id before it may be stored. A secret may contain underscores.
        given = (first, made.json()["token"], cookie, link)
        secrets = [re.sub("^tw_[0-9a-f]{12}_", "", each).encode() for each in given]
        for path in sorted(each for each in data.rglob("*") if each.is_file() and each.name != TOKEN_FILE):
            content = path.read_bytes()
            assert [secret for secret in secrets if secret in content] == [], path
        kept = data / TOKEN_FILE
        assert stat.S_IMODE(kept.stat().st_mode) == 0o600
        assert stat.S_IMODE(data.stat().st_mode) == 0o700
