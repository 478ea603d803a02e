"""What a tool is to the loop, and what tools share: their arguments, paths as a model writes them, their results.

The loop uses a tool in this order: it announces the call with `kind` and `title`, awaits `prepare`, asks the user
if the mode wants that, and awaits `run`. `prepare` refuses bad arguments before anybody is asked, and shows what is
going to happen: the files it is about, and the diff of an edit. It changes nothing. `run` does it, and looks again:
time has passed since. A tool never asks for permission: the loop does.
"""

from __future__ import annotations

import os
from typing import Any, Protocol, TypeVar, cast

import msgspec
from anyio import to_thread
from msgspec import Struct

from turnwire.builtin.model import ToolSpec
from turnwire.builtin.tools.workplace import ShownCall, Workplace, show
from turnwire.errors import RequestRefused
from turnwire.wire.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS

T = TypeVar("T", bound=Struct)


class Tool(Protocol):
    """Something that a model can have done."""

    @property
    def spec(self) -> ToolSpec: ...

    @property
    def kind(self) -> str:
        """In ACP's words: read, edit, search, execute, fetch, think, other."""
        ...

    @property
    def asks(self) -> bool:
        """Whether it needs permission in mode `ask`."""
        ...

    @property
    def edits(self) -> bool:
        """Whether it only edits files, which mode `accept_edits` allows without asking."""
        ...

    def title(self, arguments: dict[str, Any]) -> str:
        """The call in a few words, also for arguments that are wrong."""
        ...

    async def prepare(self, workplace: Workplace, arguments: dict[str, Any], call: ShownCall) -> None:
        """Check the arguments and show what is going to happen. Raises `RequestRefused`."""
        ...

    async def run(self, workplace: Workplace, arguments: dict[str, Any], call: ShownCall) -> str:
        """Do it; gives the text for the model. Raises `RequestRefused`, whose text is for the model too."""
        ...


# -- arguments: one struct says what a tool takes, what its schema is and what is wrong with a call --------


TITLE_LENGTH = 80
"""What fits on a line of a client."""


class Arguments(Struct, forbid_unknown_fields=True, kw_only=True):
    """What every tool's arguments have in common: a name that nobody knows is a mistake, and is told."""


def tool_spec(name: str, description: str, kind: type[Struct]) -> ToolSpec:
    """A tool as a model sees it, with the schema of its arguments in one piece: not every provider takes `$ref`."""
    [top], parts = msgspec.json.schema_components([kind])
    schema = cast("dict[str, Any]", _without_refs(top, parts))
    return ToolSpec(name, description, schema)


def _without_refs(node: object, parts: dict[str, Any]) -> object:
    if isinstance(node, list):
        return [_without_refs(each, parts) for each in cast("list[object]", node)]
    if not isinstance(node, dict):
        return node
    members = cast("dict[str, Any]", node)
    if "$ref" in members:
        return _without_refs(parts[str(members["$ref"]).rpartition("/")[2]], parts)
    return {name: _without_refs(each, parts) for name, each in members.items() if name != "title"}


def checked(arguments: dict[str, Any], kind: type[T], tool: str) -> T:
    """The arguments, or what is wrong with them. Models send numbers as text at times; so be it."""
    try:
        msgspec.json.encode(arguments)
        return msgspec.convert(arguments, kind, strict=False)
    except UnicodeEncodeError:
        raise wrong(f"the arguments of `{tool}` hold half a character; write them as UTF-8 text") from None
    except msgspec.ValidationError as error:
        # It speaks of our own schema and of what the model sent, and nothing else.
        raise wrong(f"the arguments of `{tool}` are wrong: {error}; mend them and call it again") from None


def wrong(message: str, reason: str = "bad_arguments") -> RequestRefused:
    """The call cannot be done as it is; the same call fails again."""
    return RequestRefused(message, jsonrpc=INVALID_PARAMS, reason=reason)


def failed(message: str, reason: str = "tool_failed") -> RequestRefused:
    """The call was in order, and did not succeed."""
    return RequestRefused(message, jsonrpc=INTERNAL_ERROR, reason=reason)


def told(arguments: dict[str, Any], name: str, otherwise: str = "…") -> str:
    """One argument for a title: its text on one short line, whatever the model sent."""
    value = arguments.get(name)
    if not isinstance(value, str) or not value.strip():
        return otherwise
    line = " ".join(value.split())
    return line if len(line) <= TITLE_LENGTH else line[: TITLE_LENGTH - 1] + "…"


# -- paths, relative to the session's cwd or absolute ------------------------------------------------------


def absolute_path(workplace: Workplace, path: str) -> str:
    """By its text alone: `..` is taken away before any link is looked at, and is gone for whoever uses the path."""
    if not path.strip() or "\0" in path:
        raise wrong("the path is empty or holds a zero byte; give one relative to the working directory")
    return os.path.normpath(os.path.join(workplace.cwd, path))


async def file_path(workplace: Workplace, path: str) -> str:
    """The absolute path of a file that may or may not be there. Raises `RequestRefused` if it leads outside.

    What is checked here is what is used later; that nobody swaps a link in between is held where the file is
    opened, see `turnwire.runtime.services.roots`.
    """
    absolute = absolute_path(workplace, path)
    await to_thread.run_sync(_check_file, workplace, absolute)
    return absolute


def _check_file(workplace: Workplace, absolute: str) -> None:
    try:
        with workplace.roots.locate(absolute):
            pass
    except RequestRefused as error:
        # What is missing inside may be made. There is no `..` any more by which it could lead outside.
        if error.reason != "not_found":
            raise


async def is_there(workplace: Workplace, absolute: str) -> bool:
    """Whether this machine has something at the path."""
    return await to_thread.run_sync(_is_there, workplace, absolute)


def _is_there(workplace: Workplace, absolute: str) -> bool:
    try:
        with workplace.roots.locate(absolute) as place:
            os.stat(place.name, dir_fd=place.directory, follow_symlinks=False)
    except RequestRefused as error:
        return error.reason != "not_found"
    return True


def shown_path(workplace: Workplace, absolute: str) -> str:
    """As the model should name it: relative to the cwd if it is below that."""
    cwd = os.fspath(workplace.cwd)
    return os.path.relpath(absolute, cwd) if os.path.commonpath([cwd, absolute]) == cwd else absolute


# -- results -----------------------------------------------------------------------------------------------


SHOWN_CHARACTERS = 8000
"""What a person looks at of a result that is there as a whole."""


async def shown(call: ShownCall, text: str) -> str:
    """A result for the model, shown to the user too: a long one with its two ends."""
    await show(call, shortened(text, SHOWN_CHARACTERS))
    return text


def shortened(text: str, most: int, what: str = "characters") -> str:
    """The beginning and the end of a text that is too long for a model, with a line between that says so."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} {what} are left out here …]\n{text[-half:]}"
