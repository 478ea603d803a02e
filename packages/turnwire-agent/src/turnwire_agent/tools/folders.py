"""Looking through the session's folders: `list` and `search`.

A path and a pattern become text for the model. A separate program (`turnwire_agent.tools.folder_program`) does the
work under a guard, so a slow disk or a pattern that never ends is cut off after a while, and the results until then
are returned. Hidden entries and those named by a `.gitignore` inside the session's directories are excluded, unless
requested. Links are never followed, and nothing is changed.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import anyio
from anyio import to_thread
from msgspec import Meta

from turnwire.errors import RequestRefused
from turnwire.hosting.services.roots import MARK
from turnwire.hosting.services.terminals import start_terminal
from turnwire.limits import Limits
from turnwire_agent.tools.tool import (
    Arguments,
    absolute_path,
    checked,
    failed,
    shown,
    shown_path,
    told,
    tool_spec,
    wrong,
)
from turnwire_agent.tools.workplace import ShownCall, Workplace

PROGRAM = Path(__file__).with_name("folder_program.py")

LOOK_S = 20.0
"""Time limit, far above the need of a large project; a model that waits longer should search for something else."""

ENTRIES, FOUND_BYTES, ANSWER_BYTES = 500, 64 * 1024, 4 * 2**20
"""Maximum entries of a list; approximate maximum bytes of a search's answer; maximum bytes read of it."""

Found = dict[str, Any]


class Place:
    """Start of a search: the root to open, the names down from it, and the single file if the path is one."""

    def __init__(self, workplace: Workplace, path: str) -> None:
        """Looks at the disk: call it in a worker thread. Raises `RequestRefused`."""
        self.absolute = absolute_path(workplace, path)
        self.only: str | None = None
        try:
            true = workplace.roots.directory(self.absolute)
        except RequestRefused as error:
            if error.reason != "not_a_directory":
                raise
            true = workplace.roots.directory(os.path.dirname(self.absolute))
            self.only = os.path.basename(self.absolute)
        cwd = workplace.roots.directory()
        is_below_cwd = os.path.commonpath([cwd, true]) == cwd
        self.root = cwd if is_below_cwd else true
        self.below = os.path.relpath(true, cwd) if is_below_cwd and true != cwd else ""

    @property
    def folder(self) -> str:
        return os.path.dirname(self.absolute) if self.only else self.absolute


async def look(place: Place, request: Found, within_s: float) -> tuple[list[Found], bool]:
    """Run the program; return its lines and True if it finished in time.

    Raises:
        RequestRefused: It cannot be started, or failed.
    """
    limits = Limits()
    request = {"root": place.root, "below": place.below, "only": place.only, "closed": MARK, **request}
    command = [sys.executable, "-I", "-S", str(PROGRAM), json.dumps(request)]
    terminal = start_terminal(command, "/", {"PYTHONIOENCODING": "utf-8"}, ANSWER_BYTES)
    try:
        with anyio.move_on_after(within_s) as waiting:
            await terminal.launched(limits.launch_s)
            await terminal.exited()
    finally:
        await terminal.stop(limits.stop_kill_s)
    lines = list(_lines(terminal.output.text()))
    if not waiting.cancelled_caught and not any("done" in line or "wrong" in line for line in lines):
        raise failed("the folder cannot be looked through; check that it can be read, or use a simpler pattern")
    return lines, not waiting.cancelled_caught


def _lines(text: str) -> Iterator[Found]:
    """Decode the lines. Invalid JSON is a line that was cut off, or the last output of a program that failed."""
    for line in text.splitlines():
        with suppress(json.JSONDecodeError):
            yield json.loads(line)


class ListArguments(Arguments):
    path: Annotated[str, Meta(description="The folder, relative to the working directory.")] = "."
    depth: Annotated[int, Meta(description="How many levels to show.", ge=1, le=20)] = 2
    hidden: Annotated[bool, Meta(description="Also what begins with a dot, and what .gitignore names.")] = False


class List:
    """The tree of a folder."""

    spec = tool_spec(
        "list",
        "Show the files and folders below a folder as a tree. Folders end in `/`, links in `@`. Hidden entries and "
        f"those named by .gitignore are left out unless `hidden` is true. At most {ENTRIES} entries.",
        ListArguments,
    )
    kind = "read"
    asks = False
    edits = False

    def title(self, arguments: dict[str, Any]) -> str:
        return f"List {told(arguments, 'path', '.')}"

    async def prepare(self, workplace: Workplace, arguments: dict[str, Any], call: ShownCall) -> None:
        asked = checked(arguments, ListArguments, self.spec.name)
        call.locate(absolute_path(workplace, asked.path))

    async def run(self, workplace: Workplace, arguments: dict[str, Any], call: ShownCall) -> str:
        asked = checked(arguments, ListArguments, self.spec.name)
        place = await to_thread.run_sync(Place, workplace, asked.path)
        if place.only:
            raise wrong("the path names a file; use `read` for it, or name a folder")
        request = {"hidden": asked.hidden, "ignored": asked.hidden, "most": ENTRIES, "depth": asked.depth}
        lines, has_ended = await look(place, request, LOOK_S)
        tree = {line["folder"]: line["entries"] for line in lines if "folder" in line}
        text = f"{shown_path(workplace, place.absolute)}/\n" + "".join(_drawn(tree, "", "  "))
        if not any(tree.values()):
            text += "  (nothing to show)\n"
        if not has_ended or any(line.get("more") for line in lines):
            text += "(There is more. List a folder further down, or with a smaller depth.)\n"
        return await shown(call, text)


def _drawn(tree: dict[str, list[list[str]]], folder: str, indent: str) -> Iterator[str]:
    for name, kind in tree.get(folder, []):
        path = f"{folder}/{name}" if folder else name
        if kind == "folder":
            # A folder that was not opened has more in it than is shown.
            yield f"{indent}{name}/{'' if path in tree else '…'}\n"
            yield from _drawn(tree, path, indent + "  ")
        else:
            yield f"{indent}{name}{'@' if kind == 'link' else ''}\n"


class SearchArguments(Arguments):
    pattern: Annotated[
        str,
        Meta(
            description="A regular expression of Python, matched within single lines.",
            min_length=1,
            max_length=2000,
        ),
    ]
    path: Annotated[str, Meta(description="The folder or file to search.")] = "."
    glob: Annotated[
        str | None,
        Meta(description="Only files whose name or path matches, such as `*.py` or `src/**/*.{ts,tsx}`."),
    ] = None
    ignore_case: Annotated[bool, Meta(description="Whether upper and lower case are the same.")] = False
    context: Annotated[int, Meta(description="Lines to show before and after each match.", ge=0, le=20)] = 0
    limit: Annotated[int, Meta(description="How many matches to show at most.", ge=1, le=1000)] = 100
    hidden: Annotated[bool, Meta(description="Also what begins with a dot, and what .gitignore names.")] = False


class Search:
    """Lines that match a pattern."""

    spec = tool_spec(
        "search",
        "Search the text of files for a regular expression. Each file is followed by its lines: `12:` marks a "
        "match, `13-` a line of context. Binary and very large files are skipped; hidden files and those named by "
        ".gitignore too, unless `hidden` is true.",
        SearchArguments,
    )
    kind = "search"
    asks = False
    edits = False

    def __init__(self, within_s: float = LOOK_S) -> None:
        self._within_s = within_s

    def title(self, arguments: dict[str, Any]) -> str:
        return f"Search for {told(arguments, 'pattern')}"

    async def prepare(self, workplace: Workplace, arguments: dict[str, Any], call: ShownCall) -> None:
        asked = checked(arguments, SearchArguments, self.spec.name)
        call.locate(absolute_path(workplace, asked.path))

    async def run(self, workplace: Workplace, arguments: dict[str, Any], call: ShownCall) -> str:
        asked = checked(arguments, SearchArguments, self.spec.name)
        place = await to_thread.run_sync(Place, workplace, asked.path)
        request: Found = {
            "pattern": asked.pattern,
            "ignore_case": asked.ignore_case,
            "glob": asked.glob,
            "context": asked.context,
            "hidden": asked.hidden,
            "ignored": asked.hidden,
            "most": asked.limit,
            "most_bytes": FOUND_BYTES,
        }
        lines, has_ended = await look(place, request, self._within_s)
        for line in lines:
            if "wrong" in line:
                raise wrong(f"`pattern` or `glob` is no valid expression: {line['wrong']}; mend it")
        files = [_matches(workplace, place, line, parted=asked.context > 0) for line in lines if "file" in line]
        text = "\n".join([*files, self._remarks(lines, has_ended, bool(files))]).rstrip() + "\n"
        return await shown(call, text)

    def _remarks(self, lines: list[Found], has_ended: bool, has_found: bool) -> str:
        """Return the limitations of the result, for the model."""
        last = lines[-1] if lines else {}
        remarks: list[str] = []
        if not has_found:
            remarks.append("No line matches." if has_ended else "Nothing was found so far.")
        if not has_ended:
            remarks.append(
                f"The search was stopped after {self._within_s:g} s. Use a simpler pattern or a smaller folder."
            )
        if last.get("more"):
            remarks.append("There are more matches. Narrow the pattern, or use a glob or a smaller folder.")
        if last.get("skipped"):
            remarks.append(f"Skipped, because binary, too large or not readable: {last['skipped']}.")
        return "".join(f"({remark})\n" for remark in remarks)


def _matches(workplace: Workplace, place: Place, line: Found, *, parted: bool) -> str:
    """Return one file with its lines; with context, separate groups are `parted` by dashes."""
    text, last = f"{shown_path(workplace, os.path.join(place.folder, line['file']))}\n", 0
    for number, is_match, content in line["lines"]:
        if parted and last and number > last + 1:
            text += "--\n"
        text += f"{number}{':' if is_match else '-'}{content}\n"
        last = number
    return text
