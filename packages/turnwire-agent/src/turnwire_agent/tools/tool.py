"""The tool interface of the loop, and code that tools share: arguments, paths as a model writes them, results.

The loop uses a tool in this order: it announces the call with `kind` and `title`, awaits `prepare`, asks the user
if the mode requires that, and awaits `run`. `prepare` rejects bad arguments before the user is asked, and shows the
planned action: the files it affects, and the diff of an edit. It changes nothing. `run` executes it, and checks
again: time has passed since. A tool never asks for permission: the loop does.
"""

from __future__ import annotations

import os
from typing import Any, Protocol, TypeVar, cast

import msgspec
from anyio import to_thread
from msgspec import Struct

from turnwire.errors import RequestRefused
from turnwire.wire.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS
from turnwire_agent.model import ToolSpec
from turnwire_agent.tools.workplace import ShownCall, Workplace, show

T = TypeVar("T", bound=Struct)


class Tool(Protocol):
    """Something that a model can have done."""

    @property
    def spec(self) -> ToolSpec: ...

    @property
    def kind(self) -> str:
        """ACP's kind: read, edit, search, execute, fetch, think, other."""
        ...

    @property
    def asks(self) -> bool:
        """True if it needs permission in mode `ask`."""
        ...

    @property
    def edits(self) -> bool:
        """True if it only edits files, which mode `accept_edits` allows without asking."""
        ...

    def title(self, arguments: dict[str, Any]) -> str:
        """Return a short title of the call, even for invalid arguments."""
        ...

    async def prepare(self, workplace: Workplace, arguments: dict[str, Any], call: ShownCall) -> None:
        """Check the arguments and show the planned action. Raises `RequestRefused`."""
        ...

    async def run(self, workplace: Workplace, arguments: dict[str, Any], call: ShownCall) -> str:
        """Execute the call and return the text for the model. Raises `RequestRefused`, whose text is also for the
        model.
        """
        ...


# -- arguments: one struct defines a tool's arguments, schema and validation -------------------------------


TITLE_LENGTH = 80
"""Maximum length of a title, which fits on a line of a client."""


class Arguments(Struct, forbid_unknown_fields=True, kw_only=True):
    """Base of all tools' arguments: an unknown name is an error, and is reported."""


def tool_spec(name: str, description: str, kind: type[Struct]) -> ToolSpec:
    """Return a tool as a model sees it, with the schema of its arguments inlined: not every provider accepts
    `$ref`.
    """
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
    """Return the validated arguments, or raise with the reason. Models sometimes send numbers as text, which is
    accepted.
    """
    try:
        msgspec.json.encode(arguments)
        return msgspec.convert(arguments, kind, strict=False)
    except UnicodeEncodeError:
        raise wrong(f"the arguments of `{tool}` hold half a character; write them as UTF-8 text") from None
    except msgspec.ValidationError as error:
        # The message concerns our schema and the model's input, and nothing else.
        raise wrong(f"the arguments of `{tool}` are wrong: {error}; mend them and call it again") from None


def wrong(message: str, reason: str = "bad_arguments") -> RequestRefused:
    """The call cannot be done as it is; the same call fails again."""
    return RequestRefused(message, jsonrpc=INVALID_PARAMS, reason=reason)


def failed(message: str, reason: str = "tool_failed") -> RequestRefused:
    """The call was in order, and did not succeed."""
    return RequestRefused(message, jsonrpc=INTERNAL_ERROR, reason=reason)


def told(arguments: dict[str, Any], name: str, otherwise: str = "…") -> str:
    """Return one argument for a title: its text on one short line, whatever the model sent."""
    value = arguments.get(name)
    if not isinstance(value, str) or not value.strip():
        return otherwise
    line = " ".join(value.split())
    return line if len(line) <= TITLE_LENGTH else line[: TITLE_LENGTH - 1] + "…"


# -- paths, relative to the session's cwd or absolute ------------------------------------------------------


def absolute_path(workplace: Workplace, path: str) -> str:
    """Normalize a path as text: `..` is removed before any link is resolved, and does not exist for later users of
    the path.
    """
    if not path.strip() or "\0" in path:
        raise wrong("the path is empty or holds a zero byte; give one relative to the working directory")
    return os.path.normpath(os.path.join(workplace.cwd, path))


async def file_path(workplace: Workplace, path: str) -> str:
    """Return the absolute path of a file that may or may not exist. Raises `RequestRefused` if it leads outside.

    The checked path is the one used later; opening the file ensures that no link was swapped in between, see
    `turnwire.hosting.services.roots`.
    """
    absolute = absolute_path(workplace, path)
    await to_thread.run_sync(_check_file, workplace, absolute)
    return absolute


def _check_file(workplace: Workplace, absolute: str) -> None:
    try:
        with workplace.roots.locate(absolute):
            pass
    except RequestRefused as error:
        # A missing entry inside may be created. There is no `..` any more by which it could lead outside.
        if error.reason != "not_found":
            raise


async def is_there(workplace: Workplace, absolute: str) -> bool:
    """Return True if the path exists on this machine."""
    return await to_thread.run_sync(_is_there, workplace, absolute)


def _is_there(workplace: Workplace, absolute: str) -> bool:
    try:
        with workplace.roots.locate(absolute) as place:
            os.stat(place.name, dir_fd=place.directory, follow_symlinks=False)
    except RequestRefused as error:
        return error.reason != "not_found"
    return True


def shown_path(workplace: Workplace, absolute: str) -> str:
    """Return the path for the model: relative to the cwd if it is below that."""
    cwd = os.fspath(workplace.cwd)
    return os.path.relpath(absolute, cwd) if os.path.commonpath([cwd, absolute]) == cwd else absolute


# -- results -----------------------------------------------------------------------------------------------


SHOWN_CHARACTERS = 8000
"""Maximum characters of a complete result that a person is shown."""


async def shown(call: ShownCall, text: str) -> str:
    """Return a result for the model and show it to the user; a long one with its two ends."""
    await show(call, shortened(text, SHOWN_CHARACTERS))
    return text


def shortened(text: str, most: int, what: str = "characters") -> str:
    """Return the beginning and the end of a text that is too long for a model, with a line between that notes the
    omission.
    """
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} {what} are left out here …]\n{text[-half:]}"
