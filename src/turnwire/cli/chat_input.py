"""What is typed in a chat: which commands and files complete it, and what the agent gets of it.

`:name` is always the chat's own command. `/name` is the agent's if it offers that, else the chat's if it has one of
the name, else a prompt like any other. `@path` names a file of the session's folder: the words stay as they were
typed, and the file comes behind them, as a link or with what is in it.
"""

from __future__ import annotations

import mimetypes
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, Raw, Struct
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from turnwire.cli.output import printable
from turnwire.core.json_members import entries, members, text_of
from turnwire.core.view import View
from turnwire.wire.jsonrpc import UNREADABLE

EMBEDDED_BYTES = 64 * 1024
"""A larger file is linked: the agent reads of it what it needs."""
MOST_FILES = 200
"""Completions of a path that are worth showing."""

_MENTION = re.compile(r'(?:^|(?<=\s))@(?:"([^"\n]+)"|(\S+))')
_UNFINISHED = re.compile(r'(?:^|(?<=\s))@(?:"([^"\n]*)|([^\s"]*))$')
_COMMAND = re.compile(r"([:/])([\w-]+)(?:\s+(.*))?", re.DOTALL)
_AFTER_A_PATH = ".,;:!?)]}'"
"""What ends a sentence, not a file name."""


class Typed(NamedTuple):
    """A command of the chat."""

    name: str
    argument: str


def read_command(text: str, own: Iterable[str], offered: Iterable[str]) -> Typed | None:
    """The chat's command that a text is; none if it is a prompt. A `:name` is one, known or not."""
    match = _COMMAND.fullmatch(text.strip())
    if match is None:
        return None
    sign, name, argument = match.groups()
    if sign == "/" and (name in offered or name not in own):
        return None
    return Typed(name, (argument or "").strip())


def agent_commands(view: View) -> dict[str, str]:
    """The commands that the agent offers now, with what each does."""
    listed = [] if view.latest.commands is UNSET else [members(each) for each in entries(view.latest.commands)]
    return {name: text_of(each, "description") or "" for each in listed if (name := text_of(each, "name"))}


# -- completion ------------------------------------------------------------------------------------------------


class ChatCompleter(Completer):
    """Completes commands at the start of a text, and files behind an `@`."""

    def __init__(
        self, own: Mapping[str, str], offered: Callable[[], Mapping[str, str]], folder: Callable[[], Path | None]
    ) -> None:
        self._own = own
        self._offered = offered
        self._folder = folder

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        before = document.text_before_cursor
        unfinished = _UNFINISHED.search(before)
        if unfinished is not None:
            yield from self._files(unfinished)
        elif re.fullmatch(r"[:/][\w-]*", before):
            yield from self._commands(before)

    def _commands(self, before: str) -> Iterator[Completion]:
        offered = self._offered()
        if before.startswith(":"):
            found = {f":{name}": about for name, about in self._own.items()}
        else:
            found = {f"/{name}": about for name, about in offered.items()}
            found |= {f"/{name}": about for name, about in self._own.items() if name not in offered}
        for name, about in found.items():
            if name.startswith(before):
                meta = " ".join(printable(about).split())
                yield Completion(name, -len(before), display=printable(name), display_meta=meta)

    def _files(self, unfinished: re.Match[str]) -> Iterator[Completion]:
        folder = self._folder()
        if folder is None:
            return
        typed = unfinished[1] if unfinished[1] is not None else unfinished[2]
        parent, _, start = typed.rpartition("/")
        above = f"{parent}/" if "/" in typed else ""
        for name, is_folder in _listed(folder / os.path.expanduser(above), start):
            path = f"{above}{name}{'/' if is_folder else ''}"
            quoted = f'"{path}' + ("" if is_folder else '"') if " " in path else path
            yield Completion(f"@{quoted}", -len(unfinished[0]), display=f"{name}{'/' if is_folder else ''}")


def _listed(folder: Path, start: str) -> list[tuple[str, bool]]:
    """What is in a folder and begins so; hidden files only for who asks."""
    try:
        with os.scandir(folder) as entries_:
            found = [(each.name, each.is_dir()) for each in entries_ if each.name.startswith(start)]
    except OSError:
        return []
    shown = [each for each in found if each[0].isprintable() and (start.startswith(".") or each[0][0] != ".")]
    return sorted(shown, key=lambda each: (not each[1], each[0]))[:MOST_FILES]


# -- content ---------------------------------------------------------------------------------------------------


class _Blocks(Struct, frozen=True, rename="camel"):
    embedded_context: Any = None


class _Session(Struct, frozen=True):
    prompt: _Blocks = _Blocks()


class _Agent(Struct, rename="camel"):
    """What is read of an agent's capabilities: v1 says it with `true`, v2 in the session's with an object."""

    prompt_capabilities: _Blocks = _Blocks()
    session: _Session = _Session()


def embeds(capabilities: Raw) -> bool:
    """Whether the agent takes the content of files in a prompt."""
    try:
        agent = msgspec.json.decode(capabilities, type=_Agent)
    except UNREADABLE:
        return False
    said = (agent.prompt_capabilities.embedded_context, agent.session.prompt.embedded_context)
    return any(each not in (None, False) for each in said)


def to_content(text: str, folder: Path | None, *, embedded: bool) -> list[dict[str, Any]]:
    """The blocks of a prompt: the words, then each file that they name."""
    found: dict[Path, str] = {}
    if folder is not None:
        for match in _MENTION.finditer(text):
            for path in _candidates(match):
                file = Path(os.path.abspath(folder / os.path.expanduser(path)))
                if file.exists():
                    found.setdefault(file, path)
                    break
    return [{"type": "text", "text": text}, *(_block(file, name, embedded) for file, name in found.items())]


def _candidates(match: re.Match[str]) -> tuple[str, ...]:
    if match[1] is not None:
        return (match[1],)
    return match[2], match[2].rstrip(_AFTER_A_PATH) or match[2]


def _block(file: Path, name: str, embedded: bool) -> dict[str, Any]:
    mime, _ = mimetypes.guess_type(file.name)
    kind = {} if mime is None else {"mimeType": mime}
    text = _text_of(file) if embedded else None
    if text is not None:
        return {"type": "resource", "resource": {"uri": file.as_uri(), "text": text, **kind}}
    return {"type": "resource_link", "uri": file.as_uri(), "name": name, **kind}


def _text_of(file: Path) -> str | None:
    """What is in a small file of text."""
    try:
        if not file.is_file() or file.stat().st_size > EMBEDDED_BYTES:
            return None
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
