"""Run the known agents through a real daemon: `python -m turnwire_testing.realagents [NAME,NAME…]`.

The argument is a list of short names; without it all agents run. The result is the table in `docs/interop.md`.
Agents run one at a time, each installed and run in a separate home with a fake model. The exit code is 1 if a step
failed.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import anyio

from turnwire.cli.known_agents import KNOWN_AGENTS, KnownAgent
from turnwire_testing.realagents.installed import NotInstalled, installed
from turnwire_testing.realagents.recipes import TOURED
from turnwire_testing.realagents.table import row, write
from turnwire_testing.realagents.tour import FAILED, tour


def run(agent: KnownAgent, date: str) -> list[str]:
    """The agent's row."""
    recipe = TOURED.get(agent.name)
    if agent.npm is None and agent.pypi is None:
        return row(agent, "", date, {"start": "not run: it is neither on npm nor on PyPI"})
    try:
        programs = installed(agent)
    except NotInstalled as error:
        return row(agent, "", date, {"start": f"not run: {error}"})
    if recipe is None:
        return row(agent, "", date, {"start": "not run: there is no recipe for its model"})
    root = Path(tempfile.mkdtemp(prefix=f"agent-{agent.name}-"))
    done = anyio.run(tour, root, [str(programs / agent.program), *agent.arguments], recipe, programs)
    if any(each.startswith(FAILED) for each in done.results.values()):
        print(f"  its frames, its daemon's log and what it asked the model are in {root}")
    else:
        shutil.rmtree(root, ignore_errors=True)
    return row(agent, done.protocol, date, done.results)


def main(names: list[str]) -> int:
    known = [each.name for each in KNOWN_AGENTS]
    if unknown := [name for name in names if name not in known]:
        sys.stderr.write(f"there is no agent {unknown[0]!r}; the agents are: {', '.join(known)}\n")
        return 64
    date = datetime.now(UTC).strftime("%Y-%m-%d")  # noqa: TID251 (a page for people has the day of the wall)
    has_failed = False
    for agent in KNOWN_AGENTS:
        if names and agent.name not in names:
            continue
        print(agent.name, flush=True)
        told = run(agent, date)
        print(f"  {' | '.join(told)}", flush=True)
        has_failed |= any(each.startswith(FAILED) for each in told)
        write([told])
    return 1 if has_failed else 0


if __name__ == "__main__":
    sys.exit(main([name for each in sys.argv[1:] for name in each.split(",") if name]))
