"""The arguments of tools: one struct says what a tool takes, what its schema is and what is wrong with a call.

Takes a struct whose fields are described with `Meta`, and what a model sent; gives the JSON Schema for the model,
or the struct, or a `RequestRefused` that says what to mend. Never crashes on anything that JSON can hold.
"""

from __future__ import annotations

from typing import Any, TypeVar, cast

import msgspec
from msgspec import Struct

from turnwire.builtin.model import ToolSpec
from turnwire.errors import RequestRefused
from turnwire.wire.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS

T = TypeVar("T", bound=Struct)

TITLE_LENGTH = 80
"""What fits on a line of a client."""


class Arguments(Struct, forbid_unknown_fields=True, kw_only=True):
    """What every tool's arguments have in common: a name that nobody knows is a mistake, and is told."""


def tool_spec(name: str, description: str, kind: type[Struct]) -> ToolSpec:
    """A tool as a model sees it, with the schema of its arguments in one piece: not every provider takes `$ref`."""
    [top], parts = msgspec.json.schema_components([kind])
    schema = cast("dict[str, Any]", _without_refs(top, parts))
    return ToolSpec(name, description, schema)


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


def _without_refs(node: object, parts: dict[str, Any]) -> object:
    if isinstance(node, list):
        return [_without_refs(each, parts) for each in cast("list[object]", node)]
    if not isinstance(node, dict):
        return node
    members = cast("dict[str, Any]", node)
    if "$ref" in members:
        return _without_refs(parts[str(members["$ref"]).rpartition("/")[2]], parts)
    return {name: _without_refs(each, parts) for name, each in members.items() if name != "title"}
