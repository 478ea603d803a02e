"""`turnwire replay`: a recording as an agent on stdin and stdout, or as a test.

Takes a recording or an export. Nothing but ACP is ever on stdout; what it has to say goes to stderr.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click
from click.core import ParameterSource

from turnwire.cli.commands import Command
from turnwire.cli.failure import BROKE_OFF, tell
from turnwire.cli.output import STOPPED, progress

if TYPE_CHECKING:
    from turnwire.recording.format import Entry, Recording

EXAMPLES = """
turnwire replay bug.jsonl                               in an editor's settings, in place of the agent
turnwire prompt "hello" -- turnwire replay bug.jsonl    ask it once
turnwire serve -- turnwire replay session.ndjson        an export is played, too
turnwire replay bug.jsonl --timing x4                   four times as fast as it was; original is as it was
turnwire replay bug.jsonl --break-at 12                 stop before frame 12, until Enter or SIGUSR1
turnwire replay bug.jsonl --chaos late,dup --seed 7     with faults
turnwire replay bug.jsonl --as-test test_bug.py         write a test that plays it
"""
FAULTS = ("late", "dup", "stall", "die", "flood", "split")
"""As `turnwire.recording.faults` has them; that is imported when a command runs."""


class Speed(click.ParamType[float | None]):
    """`none`, `original`, or a factor: `x2` is twice as fast."""

    name = "TIMING"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float | None:
        if value in (None, "none"):
            return None
        factor = "1" if value == "original" else str(value).strip("x\N{MULTIPLICATION SIGN}")
        try:
            speed = float(factor)
        except ValueError:
            speed = 0
        if not 0 < speed < float("inf"):
            self.fail(f"{value!r} is none of: none, original, x2, x0.5", param, ctx)
        return speed


class Faults(click.ParamType[tuple[str, ...]]):
    """Names with commas between."""

    name = "FAULTS"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        names = tuple(each.strip() for each in str(value).split(","))
        for each in names:
            if each not in FAULTS:
                self.fail(f"{each!r} is none of: {', '.join(FAULTS)}", param, ctx)
        return names


@click.command(cls=Command, examples=EXAMPLES)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--timing", type=Speed(), metavar="none|original|xN", help="How fast: xN is N times as fast.  [default: none]"
)
@click.option(
    "--match",
    type=click.Choice(("strict", "loose", "order")),
    default="strict",
    show_default=True,
    help="When a prompt is the recorded one: the same text, the same words, or whatever comes next.",
)
@click.option(
    "--break-at", metavar="N|NAME", help="Stop before this frame, or the first of this method or kind of update."
)
@click.option("--chaos", type=Faults(), metavar="FAULT,…", help=f"Faults to have: {', '.join(FAULTS)}.")
@click.option("--seed", type=int, default=0, show_default=True, help="Decides where the faults are.")
@click.option("--as-test", type=click.Path(path_type=Path), metavar="FILE", help="Write a test instead.")
@click.pass_context
def replay(ctx: click.Context, file: Path, as_test: Path | None, **flags: Any) -> None:
    """Be the agent of a recording, on stdin and stdout.

    It does what the recorded agent did, in its order; at each frame of the client it waits until this client has
    sent it. Request ids, session ids and folders are the live client's. A request that is not in the recording is
    answered with an error that names the frame which is.
    """
    from turnwire.recording.exported import read_any

    recording = read_any(file)
    if as_test is not None:
        _write_test(ctx, recording, file, as_test)
        return
    import anyio

    code = anyio.run(_play, recording, flags)
    if code < 0:
        _die(-code)
    ctx.exit(code)


def _write_test(ctx: click.Context, recording: Recording, file: Path, test: Path) -> None:
    from turnwire.recording.faults import Fault, with_faults
    from turnwire.recording.written_test import write_test

    if ctx.params["break_at"] is not None:
        raise click.UsageError("--break-at waits for somebody, and a test has nobody; leave it out", ctx)
    if test.exists():
        raise click.UsageError(
            f"{test} is there already, and may have been changed since; remove it, or name another file", ctx
        )
    faults = [Fault(each) for each in ctx.params["chaos"] or ()]
    entries = with_faults(recording.entries, faults, ctx.params["seed"])
    with progress(f"playing {file}"):
        written = write_test(entries, file, test, _flags_of_test(ctx), ctx.params["timing"])
    with test.open("x", encoding="utf-8") as to:
        to.write(written.text)
    if written.left_out is not None:
        tell(written.left_out)
    tell(f"wrote {test}; run it with: pytest {test}")


def _flags_of_test(ctx: click.Context) -> list[str]:
    """How the test plays the recording: as these flags say. Its program is no editor, so less is asked of it."""
    speed, faults, seed = ctx.params["timing"], ctx.params["chaos"], ctx.params["seed"]
    is_asked = ctx.get_parameter_source("match") is not ParameterSource.DEFAULT
    flags = ["--match", ctx.params["match"] if is_asked else "loose"]
    if speed is not None:
        flags += ["--timing", f"x{speed:g}"]
    if faults:
        flags += ["--chaos", ",".join(faults), "--seed", str(seed)]
    return flags


async def _play(recording: Recording, flags: dict[str, Any]) -> int:
    from turnwire.limits import Limits
    from turnwire.link.base import FrameLink
    from turnwire.link.stdio import open_pipes
    from turnwire.recording.faults import Fault, SplitLink, with_faults
    from turnwire.recording.matching import Match
    from turnwire.recording.player import Player
    from turnwire.recording.redaction import Redactor, Rule
    from turnwire.runtime.clock import SystemClock

    faults, seed = [Fault(each) for each in flags["chaos"] or ()], flags["seed"]
    output = os.dup(1)
    link = open_pipes(Limits())
    used: FrameLink = SplitLink(link, output, seed) if Fault.SPLIT in faults else link
    rules = [Rule(each) for each in recording.header.redacted if each in set(Rule)]
    stop = _Break(flags["break_at"], recording.entries)

    async def before(entry: Entry) -> None:
        await stop.before(entry, link.flush, player.left)

    player = Player(
        used,
        with_faults(recording.entries, faults, seed),
        clock=SystemClock(),
        match=Match(flags["match"]),
        speed=flags["timing"],
        redactor=Redactor(rules, os.environ) if rules else None,
        before=None if flags["break_at"] is None else before,
        note=tell,
    )
    try:
        return await player.play()
    finally:
        stop.tell_if_missed()
        await link.aclose()
        os.close(output)


def _names(entry: Entry) -> set[str]:
    """How a frame may be called."""
    return {str(entry.number), entry.method or "", entry.update.get("sessionUpdate", "")} - {""}


class _Break:
    """Where the play stands still, once."""

    def __init__(self, wanted: str | None, entries: Sequence[Entry]) -> None:
        self._wanted = wanted
        self._is_over = wanted is None
        there = {name for each in entries for name in _names(each)}
        if wanted is not None and wanted not in there:
            names = ", ".join(sorted(each for each in there if not each.isdecimal()))
            raise click.UsageError(f"no frame is {wanted!r}; there are 1 to {len(entries)}, {names}")

    async def before(
        self, entry: Entry, flush: Callable[[], Awaitable[None]], left: Callable[[], Awaitable[None]]
    ) -> None:
        """Wait, if this is the frame. What came before it has left by then."""
        if self._is_over or self._wanted not in _names(entry):
            return
        self._is_over = True
        await flush()
        await _hold(entry, left)

    def tell_if_missed(self) -> None:
        if not self._is_over:
            tell(f"--break-at {self._wanted} was never reached: the play was over before it")


async def _hold(entry: Entry, left: Callable[[], Awaitable[None]]) -> None:
    """Stand still until somebody says that it goes on. Without a terminal it ends when the client leaves."""
    import anyio

    terminal = _own_terminal()
    ways = f"kill -USR1 {os.getpid()}"
    with anyio.open_signal_receiver(signal.SIGUSR1) as signals:
        words = f"Enter goes on, and so does: {ways}" if terminal is not None else f"to go on: {ways}"
        tell(f"{STOPPED} {entry}; {words}")
        async with anyio.create_task_group() as tasks:

            async def signalled() -> None:
                async for _ in signals:
                    tasks.cancel_scope.cancel()

            tasks.start_soon(signalled)
            if terminal is None:
                await left()
                tell(f"the client left while it was stopped before {entry}")
                os._exit(BROKE_OFF)
            await anyio.wait_readable(terminal)
            os.read(terminal, 4096)
            tasks.cancel_scope.cancel()
    if terminal is not None:
        os.close(terminal)


def _own_terminal() -> int | None:
    """The terminal, if there is one on which somebody could answer us."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY)
    except OSError:
        return None
    if os.tcgetpgrp(terminal) == os.getpgrp():
        return terminal
    os.close(terminal)
    return None


def _die(number: int) -> NoReturn:
    """End as the recorded agent did."""
    signal.signal(number, signal.SIG_DFL) if number not in (signal.SIGKILL, signal.SIGSTOP) else None
    os.kill(os.getpid(), number)
    # A signal that ends nothing.
    os._exit(128 + number)
