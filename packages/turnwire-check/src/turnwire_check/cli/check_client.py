"""`turnwire check --client`: turnwire is the agent, and judges the client that started it, or that it starts.

Without a command it speaks ACP on its own pipes, so that any client can have it as its agent. With one it starts
that client once for each case, to start its agent or to connect to it, and reports as for agents.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import click

from turnwire.cli.output import printable
from turnwire_check.cli.progress import counting

if TYPE_CHECKING:
    from turnwire_check.case import Case
    from turnwire_check.client_verdict import ClientVerdict
    from turnwire_check.report import Tally


async def judge_clients(
    cases: Sequence[Case], words: Sequence[str], folder: str, flags: Mapping[str, Any]
) -> Tally:
    """Start this client once for each case."""
    from turnwire_check.client_run import ClientCommand, run_client
    from turnwire_check.run import Bounds

    bounds = Bounds(flags["patience"], flags["silence"], has_drafts=flags["drafts"])
    command = ClientCommand(words, Path(folder), bounds)
    with counting("starting the client", len(cases)) as done:
        verdicts = await run_client(cases, command, jobs=flags["jobs"], told=lambda each: done(each.case.id))
    return _tally(verdicts, flags)


def _tally(verdicts: Sequence[ClientVerdict], flags: Mapping[str, Any]) -> Tally:
    from turnwire_check.report import Tally

    name = next((each.client for each in verdicts if each.client), "")
    return Tally([each.outcome for each in verdicts], name, tuple(flags["sets"]), flags["strict"], flags["known"])


async def be_the_agent(cases: Sequence[Case], flags: Mapping[str, Any], write: Callable[[Tally], None]) -> bool:
    """Be the agent of one connection, for the first case that the report does not have; whether it failed."""
    from turnwire_check.catalogue import CLIENT_CASES
    from turnwire_check.client_run import play
    from turnwire_check.client_verdict import keep_verdict, read_verdicts
    from turnwire_check.run import Bounds
    from turnwire_check.transport import OwnStdio

    report: Path | None = flags["report"]
    known = {} if report is None else read_verdicts(report, CLIENT_CASES)
    case = next((each for each in cases if each.id not in known), cases[0])
    failed = False

    def told(verdict: ClientVerdict) -> None:
        nonlocal failed
        known[case.id] = verdict
        failed = _tally([verdict], flags).counts(verdict.outcome)
        for line in _lines(verdict):
            click.echo(printable(line), err=True)
        if report is not None:
            keep_verdict(report, verdict)
        write(_tally([known[each] for each in CLIENT_CASES if each in known], flags))

    transport = OwnStdio(*_taken_pipes())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(transport.read_lines)
        await play(case, transport, Bounds(flags["patience"], flags["silence"], has_drafts=flags["drafts"]), told)
        tasks.cancel_scope.cancel()
    return failed


def _lines(verdict: ClientVerdict) -> list[str]:
    from turnwire_check.report import failure_lines

    outcome = verdict.outcome
    if outcome.verdict == "failed":
        return list(failure_lines(outcome))
    reason = f" ({outcome.words})" if outcome.words else ""
    return [f"{outcome.case.id}: {outcome.verdict.replace('_', ' ')}{reason}"]


def _taken_pipes() -> tuple[int, int]:
    """Reserve the pipes to the client. From here on all other output goes to stderr."""
    source, target = os.dup(0), os.dup(1)
    os.dup2(2, 1)
    return source, target
