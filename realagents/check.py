"""`python -m realagents.check [--jobs N] NAME…`: hold known agents against the suite, with a fake model.

Takes short names; gives a line for each, and reports in `build/check`. It installs the agents, and is otherwise
what `turnwire check --fake-model` is. `qwen-serve` is the daemon of `qwen`, which speaks the REST contract, and is
held against the cases of REST.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import tempfile
from pathlib import Path

import anyio

from realagents.installed import NotInstalled, installed
from turnwire.cli.known_agents import KNOWN_AGENTS, KnownAgent
from turnwire.conformance.case import Scene
from turnwire.conformance.catalogue import CASES, REST_CASES
from turnwire.conformance.http_exchange import Opener, http_opener
from turnwire.conformance.provocation import read_provocation
from turnwire.conformance.report import Tally, as_html, as_json, failure_lines
from turnwire.conformance.rest_client import RestSubject, judge_rest, probe_rest
from turnwire.conformance.run import Bounds, Outcome, probe, run, run_each
from turnwire.conformance.transport import process_opener
from turnwire.errors import LinkBroken
from turnwire.fakes.home import home_of
from turnwire.fakes.recipes import RECIPES, Recipe
from turnwire.fakes.told_model import prompts

REPORTS = Path(__file__).parent.parent / "build" / "check"
BOUNDS = Bounds(patience_s=30.0, silence_s=0.5)
"""Some agents need seconds to start, and the machine may be busy."""
SERVES = "qwen-serve"
BEGINNING_S = 60.0


def scenes(recipe: Recipe) -> dict[Scene, str]:
    return dict(read_provocation(f"{scene}={text}") for scene, text in prompts(recipe).items())


def path_with(programs: Path) -> str:
    return os.pathsep.join([str(programs), os.environ["PATH"]])


async def check_daemon(agent: KnownAgent, recipe: Recipe, programs: Path, root: Path, jobs: int) -> Tally:
    """The outcomes of the cases of REST at the daemon that an agent's package has."""
    work = root / "work"
    work.mkdir(parents=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    async with home_of(recipe, root, path_with(programs)) as home:
        words = [str(programs / agent.program), "serve", "--port", str(port), "--workspace", str(work), "--no-web"]
        async with await anyio.open_process(
            words, cwd=work, env=home.environment, stdout=None, stderr=None
        ) as daemon:
            try:
                opener = http_opener(f"http://127.0.0.1:{port}")
                subject = await _begun(opener, recipe)
                outcomes = await run_each(
                    list(REST_CASES.values()), lambda case: judge_rest(case, opener, subject), jobs=jobs
                )
            finally:
                daemon.kill()
    return Tally(outcomes, f"{agent.name} serve {agent.version}", ())


async def _begun(opener: Opener, recipe: Recipe) -> RestSubject:
    """Who the daemon is, as soon as it listens."""
    with anyio.fail_after(BEGINNING_S):
        while True:
            try:
                return await probe_rest(opener, {}, given=scenes(recipe), bounds=BOUNDS)
            except LinkBroken:
                await anyio.sleep(0.5)


async def check(agent: KnownAgent, recipe: Recipe, programs: Path, root: Path, jobs: int) -> Tally:
    """The outcomes of all cases at one agent."""
    work = root / "work"
    work.mkdir(parents=True)
    async with home_of(recipe, root, path_with(programs)) as home:
        opener = process_opener([str(programs / agent.program), *agent.arguments], str(root), home.environment)
        subject = await probe(opener, str(work), given=scenes(recipe), bounds=BOUNDS)
        outcomes = await run(list(CASES.values()), opener, subject, jobs=jobs, told=_tell)
    return Tally(outcomes, subject.name or f"{agent.name} {agent.version}", ())


def _tell(outcome: Outcome) -> None:
    """Agents take minutes, so whoever waits sees how far it is."""
    sys.stderr.write(f"  {outcome.case.id}: {outcome.verdict}\n")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m realagents.check")
    parser.add_argument(
        "--jobs", type=int, default=2, help="cases side by side; more for an agent that waits a lot"
    )
    parser.add_argument("names", nargs="*", help="short names, with commas or without; none for all")
    given = parser.parse_args(arguments)
    names = [name for each in given.names for name in each.split(",") if name]
    known = {each.name: each for each in KNOWN_AGENTS if each.name in RECIPES}
    known[SERVES] = known["qwen"]
    if unknown := [name for name in names if name not in known]:
        sys.stderr.write(f"there is no recipe for {unknown[0]!r}; there are: {', '.join(known)}\n")
        return 64
    REPORTS.mkdir(parents=True, exist_ok=True)
    for name in names or list(known):
        try:
            programs = installed(known[name])
        except NotInstalled as error:
            print(f"{name}: not run: {error}", flush=True)
            continue
        with tempfile.TemporaryDirectory(prefix=f"check-{name}-", ignore_cleanup_errors=True) as folder:
            checked = check_daemon if name == SERVES else check
            recipe = RECIPES[known[name].name]
            tally = anyio.run(checked, known[name], recipe, programs, Path(os.path.realpath(folder)), given.jobs)
        (REPORTS / f"{name}.json").write_text(as_json(tally), encoding="utf-8")
        (REPORTS / f"{name}.html").write_text(as_html(tally), encoding="utf-8")
        print(f"{name}: {tally.peer}: {tally.in_words()}", flush=True)
        for each in (*tally.failed, *tally.advised):
            print("\n".join(f"  {line}" for line in failure_lines(each)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
