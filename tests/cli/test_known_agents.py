"""The known agents: their start commands on this machine, the errors if one cannot start, and their docs."""

from __future__ import annotations

import re
import shutil
from functools import partial
from pathlib import Path

import pytest

from turnwire.cli.known_agents import KNOWN_AGENTS, Evidence, KnownAgent, NoStart, Start, how_to_start, known

ROOT = Path(__file__).parents[2]

AGENT = KnownAgent(
    name="one",
    label="One",
    program="one-acp",
    arguments=("--acp",),
    keys=("ONE_KEY",),
    version="1.2.3",
    date="2026-01-01",
    evidence=Evidence.TOLD,
)


def start(agent: KnownAgent, folder: Path, *programs: str) -> Start | NoStart:
    """Return the agent's start command if only these programs are installed."""
    for each in programs:
        (folder / each).write_text("")
        (folder / each).chmod(0o755)
    return how_to_start(agent, partial(shutil.which, path=str(folder)))


def test_an_agent_is_started_by_its_own_program_if_it_is_there(tmp_path: Path) -> None:
    agent = AGENT._replace(npm="@it/one", pypi="one")
    found = start(agent, tmp_path, "one-acp", "npx", "uvx")
    assert found == Start((str(tmp_path / "one-acp"), "--acp"), "its own program", is_fetched=False)


def test_without_its_program_npx_fetches_the_version_that_is_known(tmp_path: Path) -> None:
    found = start(AGENT._replace(npm="@it/one", pypi="one"), tmp_path, "npx", "uvx")
    command = (str(tmp_path / "npx"), "-y", "--package=@it/one@1.2.3", "--", "one-acp", "--acp")
    assert found == Start(command, "npx")


def test_without_npx_uvx_does_where_the_agent_is_on_pypi(tmp_path: Path) -> None:
    found = start(AGENT._replace(npm="@it/one", pypi="one"), tmp_path, "uvx")
    assert found == Start((str(tmp_path / "uvx"), "--from", "one==1.2.3", "one-acp", "--acp"), "uvx")


@pytest.mark.parametrize(
    ("npm", "pypi", "there", "why"),
    [
        (None, None, "npx", "`one-acp` is not on PATH; put `one-acp` on PATH"),
        (
            "@it/one",
            None,
            "uvx",
            "`one-acp` and npx are not on PATH; install Node, which brings npx, or put `one-acp` on PATH",
        ),
        (
            None,
            "one",
            "npx",
            "`one-acp` and uvx are not on PATH; install uv, which brings uvx, or put `one-acp` on PATH",
        ),
    ],
)
def test_an_agent_that_cannot_be_started_says_what_to_do(
    tmp_path: Path, npm: str | None, pypi: str | None, there: str, why: str
) -> None:
    assert start(AGENT._replace(npm=npm, pypi=pypi), tmp_path, there) == NoStart(why)


def test_agents_are_found_by_their_short_names_and_each_has_its_own() -> None:
    assert [known(each.name) for each in KNOWN_AGENTS] == list(KNOWN_AGENTS)
    assert known("nobody") is None


def test_an_agent_that_was_run_can_be_installed_again() -> None:
    run = [each for each in KNOWN_AGENTS if each.evidence is not Evidence.TOLD]
    assert run
    assert all(each.npm or each.pypi for each in run)


def test_a_quirk_names_a_test_that_there_is_or_a_step_of_make_agents() -> None:
    page = (ROOT / "docs" / "interop.md").read_text()
    for agent in KNOWN_AGENTS:
        for quirk in agent.quirks:
            path, _, name = quirk.test.partition("::")
            if name:
                assert f"def {name}(" in (ROOT / path).read_text(), f"{agent.name}: {quirk.test}"
            else:
                step = quirk.test.removeprefix("make agents, ")
                assert f"| {step} |" in page, f"{agent.name}: {quirk.test}"


def rows(page: str, head: str) -> list[list[str]]:
    """The cells below a table's head."""
    lines = (ROOT / "docs" / page).read_text().splitlines()
    found: list[list[str]] = []
    for line in lines[lines.index(head) + 2 :]:
        if not line.startswith("| "):
            break
        found.append([cell.strip() for cell in line.strip("| ").split(" | ")])
    return found


def test_the_page_names_every_known_agent() -> None:
    page = (ROOT / "docs" / "agents.md").read_text()
    section = page.split("## Known agents\n", 1)[1].split(". Each is started", 1)[0]
    assert re.findall(r"`([^`]+)`", section) == [each.name for each in KNOWN_AGENTS]


def test_every_known_agent_has_a_row_of_what_it_did_at_that_version() -> None:
    head = next(
        line for line in (ROOT / "docs" / "interop.md").read_text().splitlines() if "| speaks | date |" in line
    )
    assert [(row[0], row[2]) for row in rows("interop.md", head)] == [
        (f"`{each.name}`", each.version) for each in KNOWN_AGENTS
    ]
