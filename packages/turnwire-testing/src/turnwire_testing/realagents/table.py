"""The results table of real agents in `docs/interop.md`: one row per agent, retained until the agent is run
again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from turnwire.cli.known_agents import KNOWN_AGENTS, KnownAgent
from turnwire_testing.realagents.tour import STEPS

PAGE = Path("docs/interop.md")
"""Relative to the root of the repository, where `make agents` runs."""
BEGIN = "<!-- written by make agents -->"
END = "<!-- end of what make agents wrote -->"
HEAD = ("name", "package", "version", "speaks", "date", *STEPS)
NEVER = "not run"


def package(agent: KnownAgent) -> str:
    """Return a description of the agent's package."""
    if agent.npm is not None:
        return f"`{agent.npm}` (npm)"
    return f"`{agent.pypi}` (PyPI)" if agent.pypi is not None else f"`{agent.program}`, its own program"


def row(agent: KnownAgent, protocol: str, date: str, results: Mapping[str, str]) -> list[str]:
    """Return the row of one agent; a step without a result was not run."""
    told = [results.get(step, NEVER) for step in STEPS]
    return [f"`{agent.name}`", package(agent), agent.version, protocol, date, *told]


def write(rows: Sequence[Sequence[str]], page: Path = PAGE) -> None:
    """Write these rows into the page. Agents without a new row retain theirs; rows of unknown agents are
    removed.
    """
    text = page.read_text()
    before, _, rest = text.partition(BEGIN)
    old, _, after = rest.partition(END)
    cells = [[cell.strip() for cell in line.strip("| \n").split(" | ")] for line in old.splitlines() if "|" in line]
    found = {line[0]: line for line in cells[2:]} | {line[0]: [_cell(each) for each in line] for line in rows}
    lines = [
        HEAD,
        ["---"] * len(HEAD),
        *(found[name] for each in KNOWN_AGENTS if (name := f"`{each.name}`") in found),
    ]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    page.write_text(f"{before}{BEGIN}\n\n{table}\n\n{END}{after}")


def _cell(text: str) -> str:
    """Text that cannot end its cell."""
    return " ".join(text.replace("|", "/").split())
