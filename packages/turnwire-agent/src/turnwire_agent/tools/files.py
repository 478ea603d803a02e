"""Reading and changing single files: `read`, `write` and `edit`.

The path is inside the session's directories; the result is numbered lines, or a description of the change. An edit
preserves the file's line ends and, as the workplace writes it, its mode. The diff of a change is shown before it is
made. Files that are not text are never changed.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

from msgspec import Meta

from turnwire.errors import RequestRefused
from turnwire_agent.tools.tool import Arguments, checked, file_path, is_there, shown_path, told, tool_spec, wrong
from turnwire_agent.tools.workplace import ShownCall, Workplace

READ_LINES, READ_CHARACTERS, LINE_CHARACTERS = 2000, 100_000, 2000
"""Maximum lines and characters of one answer, and characters of one line: a model that wants more continues
reading.
"""

BOM = "\ufeff"

_PATH = "The file, relative to the working directory."


class ReadArguments(Arguments):
    path: Annotated[str, Meta(description=_PATH)]
    offset: Annotated[int, Meta(description="The first line to read; lines are counted from 1.", ge=1)] = 1
    limit: Annotated[int, Meta(description="How many lines to read.", ge=1, le=20_000)] = READ_LINES


class Read:
    """The tool that returns a text file with its line numbers."""

    spec = tool_spec(
        "read",
        "Read a text file. Each line is given with its number and a tab before it, which are not part of the file. "
        "Long files are cut; read on with `offset`.",
        ReadArguments,
    )
    kind = "read"
    asks = False
    edits = False

    def title(self, arguments: dict[str, Any]) -> str:
        return f"Read {told(arguments, 'path')}"

    async def prepare(self, workplace: Workplace, arguments: dict[str, Any], call: ShownCall) -> None:
        asked = checked(arguments, ReadArguments, self.spec.name)
        call.locate(await file_path(workplace, asked.path), asked.offset)

    async def run(self, workplace: Workplace, arguments: dict[str, Any], call: ShownCall) -> str:
        asked = checked(arguments, ReadArguments, self.spec.name)
        text = await workplace.read_text(await file_path(workplace, asked.path))
        lines = text.removeprefix(BOM).split("\n")
        if lines[-1] == "":
            lines.pop()
        if not lines:
            return "(The file is empty.)\n"
        if asked.offset > len(lines):
            raise wrong(f"the file has {len(lines)} lines; give a smaller `offset`")
        return _numbered(lines, asked.offset, asked.limit)


def _numbered(lines: list[str], offset: int, limit: int) -> str:
    shown: list[str] = []
    room = READ_CHARACTERS
    for number, line in enumerate(lines[offset - 1 : offset - 1 + limit], offset):
        line = line.removesuffix("\r")
        if len(line) > LINE_CHARACTERS:
            line = f"{line[:LINE_CHARACTERS]}… ({len(line) - LINE_CHARACTERS} more characters)"
        room -= len(line)
        if room < 0 and shown:
            break
        shown.append(f"{number:>6}\t{line}\n")
    last = offset + len(shown) - 1
    if last < len(lines):
        shown.append(f"(Lines {offset} to {last} of {len(lines)}. Read on with offset {last + 1}.)\n")
    return "".join(shown)


class Change(NamedTuple):
    """The current and the new content of a file. `old` is `None` if the file does not exist yet."""

    path: str
    old: str | None
    new: str
    line: int
    """The first line that changes."""
    remark: str


class WriteArguments(Arguments):
    path: Annotated[str, Meta(description=_PATH)]
    content: Annotated[str, Meta(description="The whole new text of the file.")]


class Write:
    """The tool that creates or replaces a whole file."""

    spec = tool_spec(
        "write",
        "Write a whole text file, with the folders above it. What was in the file is gone. To change a part of a "
        "file, use `edit`.",
        WriteArguments,
    )
    kind = "edit"
    asks = True
    edits = True

    def title(self, arguments: dict[str, Any]) -> str:
        return f"Write {told(arguments, 'path')}"

    async def prepare(self, workplace: Workplace, arguments: dict[str, Any], call: ShownCall) -> None:
        _show(await self._change(workplace, arguments), call)

    async def run(self, workplace: Workplace, arguments: dict[str, Any], call: ShownCall) -> str:
        return await _make(workplace, await self._change(workplace, arguments))

    async def _change(self, workplace: Workplace, arguments: dict[str, Any]) -> Change:
        asked = checked(arguments, WriteArguments, self.spec.name)
        path = await file_path(workplace, asked.path)
        try:
            old = await workplace.read_text(path)
        except RequestRefused as error:
            # Clients have different errors for a missing file, so the disk is checked.
            if error.reason != "not_found" and await is_there(workplace, path):
                raise
            old = None
        lines = len(asked.content.splitlines())
        remark = f"Made the file with {lines} lines" if old is None else f"Replaced the file with {lines} lines"
        return Change(path, old, asked.content, 1, remark)


class EditArguments(Arguments):
    path: Annotated[str, Meta(description=_PATH)]
    old: Annotated[
        str,
        Meta(description="The text to replace, exactly as it is in the file, without line numbers.", min_length=1),
    ]
    new: Annotated[str, Meta(description="What to put in its place.")]
    all: Annotated[bool, Meta(description="Replace every occurrence. Otherwise there must be just one.")] = False


class Edit:
    """The tool that replaces a part of a file."""

    spec = tool_spec(
        "edit",
        "Replace a piece of text in a file by another. `old` must be in the file exactly once, so give enough of "
        "the lines around it; or set `all` to replace every occurrence.",
        EditArguments,
    )
    kind = "edit"
    asks = True
    edits = True

    def title(self, arguments: dict[str, Any]) -> str:
        return f"Edit {told(arguments, 'path')}"

    async def prepare(self, workplace: Workplace, arguments: dict[str, Any], call: ShownCall) -> None:
        _show(await self._change(workplace, arguments), call)

    async def run(self, workplace: Workplace, arguments: dict[str, Any], call: ShownCall) -> str:
        return await _make(workplace, await self._change(workplace, arguments))

    async def _change(self, workplace: Workplace, arguments: dict[str, Any]) -> Change:
        asked = checked(arguments, EditArguments, self.spec.name)
        if asked.old == asked.new:
            raise wrong("`old` and `new` are the same; there is nothing to change")
        path = await file_path(workplace, asked.path)
        text = await workplace.read_text(path)
        old, new = _in_the_files_lines(text, asked.old, asked.new)
        count = text.count(old)
        if count == 0:
            raise wrong(_not_found(shown_path(workplace, path), text, old))
        if count > 1 and not asked.all:
            raise wrong(f"`old` is in the file {count} times; give more of the lines around it, or set `all`")
        line = text.count("\n", 0, text.index(old)) + 1
        remark = f"Replaced 1 occurrence, at line {line}" if count == 1 else f"Replaced {count} occurrences"
        return Change(path, text, text.replace(old, new), line, remark)


def _in_the_files_lines(text: str, old: str, new: str) -> tuple[str, str]:
    """Return a model's text with the line ends of the file: the model sees lines, and never their ends."""
    has_only_crlf = "\n" in text and text.count("\r\n") == text.count("\n")
    old_crlf, new_crlf = (each.replace("\r\n", "\n").replace("\n", "\r\n") for each in (old, new))
    if has_only_crlf or (old not in text and old_crlf in text):
        return old_crlf, new_crlf
    return old, new


def _not_found(path: str, text: str, old: str) -> str:
    if " ".join(old.split()) in " ".join(text.split()):
        return f"`old` is in {path} with other white space only; read the file again and copy the text exactly"
    return f"`old` is not in {path}; read the file again and copy the text exactly, without line numbers"


def _show(change: Change, call: ShownCall) -> None:
    call.locate(change.path, change.line)
    call.diff(change.path, change.old, change.new)


async def _make(workplace: Workplace, change: Change) -> str:
    if change.old == change.new:
        return "The file has this text already.\n"
    await workplace.write_text(change.path, change.new)
    return f"{change.remark}: {shown_path(workplace, change.path)}\n"
