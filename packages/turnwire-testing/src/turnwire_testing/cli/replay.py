"""`turnwire replay`: play a recording or an export as an agent on stdin and stdout.

Nothing but ACP is written to stdout; messages go to stderr.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from turnwire.cli.commands import Command
from turnwire.cli.output import BROKE_OFF, STOPPED, tell

if TYPE_CHECKING:
    from turnwire_testing.recording.format import Entry, Recording

EXAMPLES = """
turnwire replay bug.jsonl                               in an editor's settings, in place of the agent
turnwire prompt "hello" -- turnwire replay bug.jsonl    ask it once
turnwire serve -- turnwire replay session.ndjson        an export is played, too
turnwire replay bug.jsonl --timing x4                   four times as fast as it was; original is as it was
turnwire replay bug.jsonl --break-at 12                 stop before frame 12, until Enter or SIGUSR1
"""


class Speed(click.ParamType[float | None]):
    """Replay speed: `none`, `original`, or a factor: `x2` is twice as fast."""

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
@click.pass_context
def replay(ctx: click.Context, file: Path, **flags: Any) -> None:
    """Act as the agent of a recording on stdio.

    It repeats the actions of the recorded agent in order; at each frame of the client it waits until this client
    has sent it. Request ids, session ids and folders are the live client's. A request that is not in the recording
    is answered with an error that names the expected frame.
    """
    from turnwire_testing.recording.exported import read_any

    recording = read_any(file)
    import anyio

    code = anyio.run(_play, recording, flags)
    if code < 0:
        _die(-code)
    ctx.exit(code)


async def _play(recording: Recording, flags: dict[str, Any]) -> int:
    from turnwire.clock import SystemClock
    from turnwire.hosting.stdio import open_pipes
    from turnwire.limits import Limits
    from turnwire.server.telemetry.redaction import Redactor, Rule
    from turnwire_testing.recording.matching import Match
    from turnwire_testing.recording.player import Player

    link = open_pipes(Limits())
    rules = [Rule(each) for each in recording.header.redacted if each in set(Rule)]
    stop = _Break(flags["break_at"], recording.entries)

    async def before(entry: Entry) -> None:
        await stop.before(entry, link.flush, player.left)

    player = Player(
        link,
        recording.entries,
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


def _names(entry: Entry) -> set[str]:
    """Return the names by which a frame can be selected."""
    return {str(entry.number), entry.method or "", entry.update.get("sessionUpdate", "")} - {""}


class _Break:
    """A breakpoint at which the replay pauses once."""

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
        """Wait if this is the selected frame. All earlier frames have been sent by then."""
        if self._is_over or self._wanted not in _names(entry):
            return
        self._is_over = True
        await flush()
        await _hold(entry, left)

    def tell_if_missed(self) -> None:
        if not self._is_over:
            tell(f"--break-at {self._wanted} was never reached: the play was over before it")


async def _hold(entry: Entry, left: Callable[[], Awaitable[None]]) -> None:
    """Pause until the user resumes. Without a terminal the pause ends when the client disconnects."""
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
    """Return the controlling terminal if the user can answer on it."""
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
