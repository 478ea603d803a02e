"""Tools of the offline agent: list, read, search, edit and run, each shown as a tool call.

Files and commands are the client's where it offers them. Paths cannot leave the session's directories. Listing and
searching skip hidden entries, links and closed folders, and stop at a fixed number of entries.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import anyio
from anyio import to_thread

from turnwire.agent import Mode, PermissionOption, Ran, ToolCall, Turn
from turnwire.errors import LinkBroken, NotOffered, ProtocolError, RequestRefused
from turnwire.hosting.services.roots import MARK, Roots

ASK = Mode("ask", "Ask", "Asks before it changes a file or runs a command.")
ACCEPT_EDITS = Mode("accept_edits", "Accept edits", "Changes files without asking; asks before it runs a command.")
PLAN = Mode("plan", "Plan", "Looks and makes a plan; changes nothing and runs nothing.")
MODES = (ASK, ACCEPT_EDITS, PLAN)
MODE_IDS = tuple(each.id for each in MODES)

MOST_ENTRIES, MOST_MATCHES, MOST_FILES = 500, 100, 5_000
LARGEST_FILE = 1024 * 1024
"""Bytes of a file that is searched; larger ones are skipped."""
LISTED_DEPTH, DEEPEST = 1, 50
"""Folder levels that a listing and a search cover."""
SHOWN_CHARACTERS = 20_000
"""Characters of a result that a tool call shows."""
ALLOWED = "allowed"
"""Key in the session's state: commands that the user allowed for the session."""
IN_PLAN_MODE = "In plan mode I change nothing and run nothing. `/mode ask` changes that."
DENIED = "you did not allow it"
ONCE = (
    PermissionOption("allow_once", "Allow once", "allow_once"),
    PermissionOption("reject_once", "Do not allow", "reject_once"),
)
ALWAYS = PermissionOption("allow_always", "Always allow exactly this command in this session", "allow_always")
TOOL_ERRORS = (RequestRefused, NotOffered, ProtocolError, LinkBroken)
"""Errors of a tool that are part of the answer; any other ends the turn."""


class ToolResult(NamedTuple):
    """Text of a tool, or why it failed."""

    text: str
    is_error: bool = False


class Look(NamedTuple):
    """A tool call that changes nothing, and its work."""

    call: ToolCall
    work: Callable[[], Awaitable[str]]


def listing(turn: Turn, path: str) -> Look:
    """List the files below a folder."""
    call = turn.tool(f"List {path}", kind="read", input={"path": path}, locations=[turn.session.cwd / path])
    return Look(call, lambda: _in_folder(turn, path, _tree))


def reading(turn: Turn, path: str) -> Look:
    """Read a text file."""
    call = turn.tool(f"Read {path}", kind="read", input={"path": path}, locations=[turn.session.cwd / path])
    return Look(call, lambda: turn.read_file(path))


def searching(turn: Turn, words: str, path: str) -> Look:
    """Search the files below a folder for words."""
    call = turn.tool(f"Search {words!r}", kind="search", input={"words": words, "path": path})
    return Look(call, lambda: _in_folder(turn, path, lambda folder: _matches(folder, words)))


async def look(each: Look) -> ToolResult:
    async with each.call as call:
        call.start()
        try:
            text = await each.work()
        except TOOL_ERRORS as error:
            call.fail(str(error))
            return ToolResult(str(error), is_error=True)
        await call.say(text[:SHOWN_CHARACTERS] or "(nothing)")
        return ToolResult(text)


async def look_at_all(looks: Sequence[Look]) -> list[ToolResult]:
    """Announce all calls, then run them at the same time; results are in the order of the calls."""
    results: dict[int, ToolResult] = {}
    for each in looks:
        each.call.announce()

    async def run(number: int, each: Look) -> None:
        results[number] = await look(each)

    async with anyio.create_task_group() as tasks:
        for number, each in enumerate(looks):
            tasks.start_soon(run, number, each)
    return [results[number] for number in range(len(looks))]


async def edit(turn: Turn, path: str, old: str, new: str) -> ToolResult:
    """Replace a text in a file, after the user has seen the difference."""
    async with turn.tool(f"Edit {path}", kind="edit", locations=[turn.session.cwd / path]) as call:
        try:
            before = await turn.read_file(path)
            after = before.replace(old, new)
            call.diff(turn.session.cwd / path, before, after)
            if turn.session.mode != ACCEPT_EDITS.id and not await turn.ask(call, ONCE):
                return ToolResult(DENIED, is_error=True)
            call.start()
            await turn.write_file(path, after)
        except TOOL_ERRORS as error:
            call.fail(str(error))
            return ToolResult(str(error), is_error=True)
        return ToolResult(f"{path} is changed.")


async def run(turn: Turn, command: str) -> ToolResult:
    """Run a shell command in the session's folder, if the user allows it. A command that fails is no error."""
    async with turn.tool(f"Run {command}", kind="execute", input={"command": command}) as call:
        try:
            if not await _is_allowed(turn, call, command):
                return ToolResult(DENIED, is_error=True)
            call.start()
            ran = await _perform(turn, command, call)
        except TOOL_ERRORS as error:
            call.fail(str(error))
            return ToolResult(str(error), is_error=True)
        if not ran.ok:
            call.fail()
        ending = f"Ended by {ran.signal}." if ran.signal else f"Exit code {ran.exit_code}."
        return ToolResult(f"{ending}\n{ran.output or '(It printed nothing.)'}")


async def _is_allowed(turn: Turn, call: ToolCall, command: str) -> bool:
    allowed: list[str] = turn.session.state.setdefault(ALLOWED, [])
    if command in allowed:
        return True
    choice = await turn.ask(call, (ONCE[0], ALWAYS, ONCE[1]))
    if choice and choice.always:
        allowed.append(command)
    return bool(choice)


async def _perform(turn: Turn, command: str, call: ToolCall) -> Ran:
    client = turn.session.client
    if client.terminal:
        # A client may start the program that it is given without a shell.
        return await turn.run("sh", "-c", command, call=call)
    if client.version == 2:
        return await turn.run(command, call=call)
    # ACP v1 has no terminals of an agent: the output is text of the tool call.
    ran = await turn.run(command)
    await call.say(ran.output[-SHOWN_CHARACTERS:] or "(nothing)")
    return ran


async def _in_folder(turn: Turn, path: str, work: Callable[[Path], str]) -> str:
    """Look through a folder of the session in a worker thread. Raises `RequestRefused` for one outside."""
    session = turn.session
    roots = Roots(str(session.cwd), [str(each) for each in session.directories])

    def look_through() -> str:
        return work(Path(roots.directory(os.path.join(session.cwd, path))))

    return await to_thread.run_sync(look_through, abandon_on_cancel=True)


def _tree(folder: Path) -> str:
    lines: list[str] = []
    for each in _below(folder, LISTED_DEPTH):
        depth = len(each.relative_to(folder).parts)
        lines.append(f"{'  ' * (depth - 1)}{each.name}{'/' if each.is_dir() else ''}")
        if len(lines) >= MOST_ENTRIES:
            lines.append("(There is more. List a folder further down.)")
            break
    return "\n".join(lines) or "(nothing to show)"


def _matches(folder: Path, words: str) -> str:
    lines: list[str] = []
    for number, each in enumerate(_below(folder)):
        if len(lines) >= MOST_MATCHES or number >= MOST_FILES:
            lines.append("(The search stopped here. Search a folder further down.)")
            break
        lines += [f"{each.relative_to(folder)}:{line}: {text}" for line, text in _lines(each) if words in text]
    return "\n".join(lines[: MOST_MATCHES + 1]) or "(nothing)"


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines of a text file; of anything else, nothing."""
    try:
        if path.is_file() and path.stat().st_size <= LARGEST_FILE:
            yield from enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
    except (OSError, UnicodeDecodeError):
        return


def _below(folder: Path, depth: int = DEEPEST) -> Iterator[Path]:
    """Yield the entries below a folder, depth first and sorted by name. A folder that cannot be read is empty."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    if any(each.name == MARK for each in entries):
        return
    for each in entries:
        if each.name.startswith(".") or each.is_symlink():
            continue
        yield Path(each.path)
        if depth > 1 and each.is_dir(follow_symlinks=False):
            yield from _below(Path(each.path), depth - 1)
