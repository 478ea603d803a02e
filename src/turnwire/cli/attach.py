"""`turnwire attach` and `turnwire tail`: a session for a person, and its raw events for a program.

Both print from the place that was asked for, over as many connections as it takes, until the session is closed or
Ctrl-C. They only read, but for the prompt that `attach --prompt` sends.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any

import anyio
import click
import msgspec
from msgspec import Raw, Struct

from turnwire.cli.commands import Command
from turnwire.cli.completion import session_ids
from turnwire.cli.output import print_json_text, printable
from turnwire.cli.reach import Reach, open_http, with_reach
from turnwire.cli.screen import TextScreen
from turnwire.client.arguments import to_raw
from turnwire.client.port import NewPrompt
from turnwire.client.remote import RemoteDaemon
from turnwire.client.stream import EventStream, Frame
from turnwire.ids import SessionId

ATTACH_EXAMPLES = """
turnwire attach SESSION                      all of it, then live; Ctrl-C leaves
turnwire attach SESSION --live               only what happens from now on
turnwire attach SESSION --prompt "go on"     send this, and stay
"""
TAIL_EXAMPLES = """
turnwire tail SESSION                        every event, then live; Ctrl-C ends
turnwire tail SESSION --after 120            what comes after event 120
turnwire tail SESSION --until-now | wc -l    what is there, and no more
turnwire tail SESSION --json | jq 'select(.type == "turn_complete")'
"""


@click.command(cls=Command, examples=ATTACH_EXAMPLES)
@click.argument("session", shell_complete=session_ids)
@click.option("--live", is_flag=True, help="Leave out what happened before.")
@click.option("--prompt", "text", metavar="TEXT", help="Send this prompt, then stay.")
@with_reach
def attach(reach: Reach, session: str, live: bool, text: str | None) -> None:
    """Show a session: what happened, then what happens."""
    if text is not None and not text.strip():
        raise click.UsageError("there is no prompt; give --prompt some words, or leave it out")
    anyio.run(until_ctrl_c, _attach, reach, SessionId(session), live, text)


async def _attach(reach: Reach, session_id: SessionId, live: bool, text: str | None) -> None:
    screen = TextScreen(whole=True, session_id=session_id)
    async with open_http(reach) as http:
        await http.capabilities(patient=False)
        session = await RemoteDaemon(http).find(session_id)
        if text is not None:
            await session.prompt(NewPrompt(to_raw(text)))
        try:
            async with aclosing(session.follow(session.start if live else 0)) as pages:
                async for page in pages:
                    for offset, event in enumerate(page.events, page.offset - len(page.events) + 1):
                        screen.show(offset, event)
        finally:
            # Whoever comes next finds the terminal as it was.
            screen.pause()


@click.command(cls=Command, examples=TAIL_EXAMPLES)
@click.argument("session", shell_complete=session_ids)
@click.option("--after", type=click.IntRange(min=0), default=0, help="The event to begin after.  [default: 0]")
@click.option("--until-now", is_flag=True, help="End at the event that is the newest now.")
@click.option("--json", "as_json", is_flag=True, help="Print whole envelopes, a JSON line each.")
@with_reach
def tail(reach: Reach, session: str, after: int, until_now: bool, as_json: bool) -> None:
    """Print the raw events of a session: number, type and content, a line each."""
    anyio.run(until_ctrl_c, _tail, reach, SessionId(session), after, until_now, as_json)


async def _tail(reach: Reach, session_id: SessionId, after: int, until_now: bool, as_json: bool) -> None:
    async with open_http(reach) as http:
        await http.capabilities(patient=False)
        found = await RemoteDaemon(http).find(session_id)
        if until_now and after >= found.start:
            return
        stream = EventStream(http, session_id, found.epoch, after)
        await _print_frames(stream, found.start if until_now else None, as_json)


async def _print_frames(stream: EventStream, last: int | None, as_json: bool) -> None:
    async with aclosing(stream.frames()) as batches:
        async for batch in batches:
            for frame in batch:
                if frame.id is not None:
                    if as_json:
                        print_json_text(frame.envelope)
                    else:
                        click.echo(_line(frame))
                    if frame.id == last:
                        return
            sys.stdout.flush()


class _Content(Struct):
    data: Raw


def _line(frame: Frame) -> str:
    content = msgspec.json.decode(frame.envelope, type=_Content).data
    return printable(f"{frame.id}\t{frame.type}\t{bytes(content).decode()}")


async def until_ctrl_c(function: Callable[..., Awaitable[None]], *args: Any) -> None:
    """Call it, and end it at Ctrl-C. Raises `KeyboardInterrupt` then.

    The interpreter's own way cancels once, and whatever waits at that instant may take it for its own time limit.
    """
    interrupted = False

    async def hear(scope: anyio.CancelScope) -> None:
        nonlocal interrupted
        with anyio.open_signal_receiver(signal.SIGINT) as signals:
            async for _ in signals:
                interrupted = True
                scope.cancel()
                return

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(hear, tasks.cancel_scope)
        await function(*args)
        tasks.cancel_scope.cancel()
    if interrupted:
        raise KeyboardInterrupt
