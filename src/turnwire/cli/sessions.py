"""`turnwire sessions`, `archive`, `attach` and `tail`: the list of sessions, and one session as text or as events.

`attach` and `tail` follow a session over as many connections as necessary, until it is closed or Ctrl-C.
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

from turnwire.cli.commands import Command, sendable_folder
from turnwire.cli.output import (
    ago,
    print_json,
    print_json_text,
    print_table,
    printable,
    tell,
)
from turnwire.cli.reach import LAST, Reach, list_sessions, open_http, run, session_ids, tell_daemon, with_reach
from turnwire.cli.screen import TextScreen
from turnwire.client.arguments import to_raw
from turnwire.client.http import segment
from turnwire.client.port import NewPrompt
from turnwire.client.remote import RemoteDaemon
from turnwire.client.stream import EventStream, Frame
from turnwire.ids import PermissionId, SessionId
from turnwire.session.events import PermissionRequested, PermissionResolved

SESSIONS_EXAMPLES = """
turnwire sessions                  every session, the newest first
turnwire sessions --open           without those that are closed
turnwire sessions --cwd ~/code/app those that work in this folder
turnwire sessions --search "parser bug"
turnwire sessions --archived       those that were archived
turnwire sessions --json | jq -r '.sessionId'
"""
ARCHIVE_EXAMPLES = """
turnwire archive SESSION           hide it from lists; a prompt brings it back
turnwire archive SESSION --undo
"""


@click.command(cls=Command, examples=SESSIONS_EXAMPLES)
@click.option("--open", "only_open", is_flag=True, help="Leave out sessions that are closed.")
@click.option("--cwd", metavar="DIR", help="Only sessions that work in this folder.")
@click.option(
    "--search", metavar="WORDS", help="Only sessions with all of these words in title, folder or a message."
)
@click.option("--archived", is_flag=True, help="List those that were archived instead.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line per session.")
@with_reach
def sessions(
    reach: Reach, only_open: bool, cwd: str | None, search: str | None, archived: bool, as_json: bool
) -> None:
    """List the sessions of the daemon, the one in which something happened most recently first."""
    wanted = {"state": "open"} if only_open else {}
    if cwd is not None:
        wanted["cwd"] = sendable_folder(cwd)
    if search is not None:
        wanted["search"] = search
    if archived:
        wanted["archived"] = "true"
    found = run(reach, lambda http: list_sessions(http, wanted))
    if as_json:
        for each in found:
            print_json(each)
        return
    names = ("session", "state", "updated", "title", "folder")
    print_table(names, [_row(each) for each in found])
    if not found and (search is not None or archived):
        tell("there are no such sessions")
    elif not found:
        tell("there are no sessions; `turnwire prompt TEXT` makes one")


def _row(entry: dict[str, Any]) -> tuple[str, ...]:
    shown = (entry.get(name) for name in ("sessionId", "state", "updatedAt", "title", "cwd"))
    cells = ["-" if each is None else str(each) for each in shown]
    if sys.stdout.isatty():
        cells[2] = ago(cells[2])
    return tuple(cells)


@click.command(cls=Command, examples=ARCHIVE_EXAMPLES)
@click.argument("session", default=LAST, shell_complete=session_ids)
@click.option("--undo", is_flag=True, help="Show it in lists again.")
@with_reach
def archive(reach: Reach, session: str, undo: bool) -> None:
    """Archive a session (hide it from lists). Its log stays, and a prompt brings it back."""
    tell_daemon(reach, "POST", f"/session/{segment(session)}/{'unarchive' if undo else 'archive'}")
    tell(f"{'unarchived' if undo else 'archived'} {session}")


# -- `turnwire attach` and `tail` ---------------------------------------------------------------------------------


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
@click.argument("session", default=LAST, shell_complete=session_ids)
@click.option("--live", is_flag=True, help="Leave out what happened before.")
@click.option("--prompt", "text", metavar="TEXT", help="Send this prompt, then stay.")
@with_reach
def attach(reach: Reach, session: str, live: bool, text: str | None) -> None:
    """Show a session, then follow it."""
    if text is not None and not text.strip():
        raise click.UsageError("there is no prompt; give --prompt some words, or leave it out")
    anyio.run(until_ctrl_c, _attach, reach, SessionId(session), live, text)


async def _attach(reach: Reach, session_id: SessionId, live: bool, text: str | None) -> None:
    screen = TextScreen(whole=True, session_id=session_id)
    unanswered: dict[PermissionId, tuple[int, PermissionRequested]] = {}
    async with open_http(reach) as http:
        await http.capabilities(patient=False)
        session = await RemoteDaemon(http).find(session_id)
        if text is not None:
            await session.prompt(NewPrompt(to_raw(text)))
        try:
            async with aclosing(session.follow(session.start if live else 0)) as pages:
                async for page in pages:
                    for offset, event in enumerate(page.events, page.offset - len(page.events) + 1):
                        if isinstance(event, PermissionRequested) and offset < session.start:
                            unanswered[event.request_id] = (offset, event)
                            continue
                        if isinstance(event, PermissionResolved):
                            unanswered.pop(event.request_id, None)
                        screen.show(offset, event)
                    if page.offset >= session.start:
                        # Of the past, only open requests still show how to answer them.
                        for offset, event in unanswered.values():
                            screen.show(offset, event)
                        unanswered.clear()
        finally:
            # The next writer finds the terminal clean.
            screen.pause()


@click.command(cls=Command, examples=TAIL_EXAMPLES)
@click.argument("session", default=LAST, shell_complete=session_ids)
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
    """Run a coroutine and cancel it at Ctrl-C. Raises `KeyboardInterrupt` then.

    The interpreter cancels once, and code that waits at that instant may mistake it for its own timeout.
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
