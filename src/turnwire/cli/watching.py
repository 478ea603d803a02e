"""`turnwire attach` and `turnwire tail`: a session for a person, and its raw events for a program.

Takes a session and a place to begin; prints from there on, over as many connections as it takes, until the session
is closed or Ctrl-C. Reads only, but for the prompt that `attach --prompt` sends.
"""

from __future__ import annotations

import sys
from contextlib import aclosing

import anyio
import click
import msgspec
from msgspec import Raw, Struct

from turnwire.cli.examples import Command
from turnwire.cli.failing import printable
from turnwire.cli.reaching import Reach, open_http, reaching
from turnwire.cli.screen import TextScreen
from turnwire.cli.stopping import until_ctrl_c
from turnwire.client.content import to_raw
from turnwire.client.port import Asking
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
@click.argument("session")
@click.option("--live", is_flag=True, help="Leave out what happened before.")
@click.option("--prompt", "text", metavar="TEXT", help="Send this prompt, then stay.")
@reaching
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
            await session.prompt(Asking(to_raw(text)))
        async with aclosing(session.follow(session.start if live else 0)) as pages:
            async for page in pages:
                for offset, event in enumerate(page.events, page.offset - len(page.events) + 1):
                    screen.show(offset, event)
    screen.pause()


@click.command(cls=Command, examples=TAIL_EXAMPLES)
@click.argument("session")
@click.option("--after", type=click.IntRange(min=0), default=0, help="The event to begin after.  [default: 0]")
@click.option("--until-now", is_flag=True, help="End at the event that is the newest now.")
@click.option("--json", "as_json", is_flag=True, help="Print whole envelopes, a JSON line each.")
@reaching
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
                    click.echo(frame.envelope if as_json else _line(frame))
                    if frame.id == last:
                        return
            sys.stdout.flush()


class _Content(Struct):
    data: Raw


def _line(frame: Frame) -> str:
    content = msgspec.json.decode(frame.envelope, type=_Content).data
    return printable(f"{frame.id}\t{frame.type}\t{bytes(content).decode()}")
