"""Validation of every frame that turnwire sends against the published schema of its version.

The input is the messages of one connection in both directions, in order; the result is the schema violations of
those that came from turnwire. A definition is found by the method: of the message itself, or of the request that it
answers. Values that the schema leaves open for others (`title: other`) are rejected, so that a misspelt kind does
not pass. Drafts pass only where they are named below and on a connection that may have them, and are validated
against our own schemas of them (`docs/schema`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple, TypeAlias, cast

import jsonschema_rs
import msgspec
from tests.interop.peers import PEERS, ROOT, absent

SCHEMAS = PEERS / "node/node_modules/@agentclientprotocol/sdk/schema"
Json: TypeAlias = dict[str, Any]

DRAFTS = ROOT / "docs" / "schema"
"""Our published schemas of the drafts."""
OFFERED = {"turn_complete": ("turn-complete", "TurnCompleteUpdate")}
"""Updates of drafts that v1 clients are offered and sent, and where each is defined."""
LIFECYCLE = {"state_change": ("lifecycle", "StateChange"), "user_message": ("lifecycle", "UserMessage")}
"""Frames of the lifecycle draft, which only a client that requested them is sent."""
DRAFT_METHODS = frozenset({"session/attach", "session/detach"})
"""Requests of drafts: their results are in no schema."""


class Frame(NamedTuple):
    """A message, as one side of a connection saw it."""

    is_received: bool
    """By the client."""
    message: Json


class _Side(NamedTuple):
    """The messages that turnwire may send, by method."""

    results: dict[str, str]
    asks: dict[str, str]


def need_schemas() -> None:
    """Skip without them. To be asked before a test opens anything: a skip out of a task group loses its reason."""
    if not SCHEMAS.exists():
        absent(f"{SCHEMAS.relative_to(ROOT)} is not there; run: make peers")


@cache
def _definitions(version: int, name: str) -> Json:
    need_schemas()
    path = SCHEMAS / f"v{version}" / f"{name}.json"
    return _closed(msgspec.json.decode(path.read_bytes())["$defs"])


def _closed(schema: Any) -> Any:
    """Return the schema without the branches for undefined values."""
    if isinstance(schema, dict):
        return {name: _closed(each) for name, each in cast("Json", schema).items()}
    if isinstance(schema, list):
        return [_closed(each) for each in cast("list[Any]", schema) if not _is_open(each)]
    return schema


def _is_open(branch: Any) -> bool:
    return isinstance(branch, dict) and cast("Json", branch).get("title") == "other" and "not" in branch


@cache
def _side(version: int, name: str) -> _Side:
    results: dict[str, str] = {}
    asks: dict[str, str] = {}
    for definition, schema in _definitions(version, name).items():
        method, side = schema.get("x-method"), schema.get("x-side")
        if definition.endswith("Response") and side == "agent":
            results[method] = definition
        elif definition.endswith(("Request", "Notification")) and side in {"client", "protocol"}:
            asks[method] = definition
    return _Side(results, asks)


@cache
def _validator(version: int, name: str, definition: str) -> jsonschema_rs.Validator:
    return jsonschema_rs.validator_for({"$ref": f"#/$defs/{definition}", "$defs": _definitions(version, name)})


def against(version: int, definition: str, value: Any, name: str = "schema") -> list[str]:
    """Return the schema violations of a value."""
    errors = _validator(version, name, definition).iter_errors(value)
    return [f"{definition} {'/'.join(map(str, each.instance_path))}: {each.message}" for each in errors]


@cache
def _draft(name: str, definition: str) -> jsonschema_rs.Validator:
    schema: Json = msgspec.json.decode((DRAFTS / f"{name}.json").read_bytes())
    return jsonschema_rs.validator_for({**schema, "$ref": f"#/$defs/{definition}", "anyOf": [{}]})


def against_draft(name: str, definition: str, value: Any) -> list[str]:
    """Return the violations of our draft schema in a value."""
    errors = _draft(name, definition).iter_errors(value)
    return [f"{definition} {'/'.join(map(str, each.instance_path))}: {each.message}" for each in errors]


class SchemaCheck:
    """One connection of a client of this version. Problems are collected; `problems` is empty if all is well."""

    def __init__(self, version: int, *, lifecycle: bool = False) -> None:
        """`lifecycle`: the client asked for that draft."""
        self.version = version
        self.problems: list[str] = []
        self.seen: set[str] = set()
        """The checked methods, kinds of updates, and methods whose answers were checked."""
        self._lifecycle = lifecycle
        self._drafts = {} if version == 2 else OFFERED | LIFECYCLE if lifecycle else OFFERED
        self._asked: dict[bytes, str] = {}
        """By their ids as JSON, because 1 and "1" are two ids."""

    def sent(self, message: Json) -> None:
        """The client sent this."""
        if "method" in message and "id" in message:
            self._asked[msgspec.json.encode(message["id"])] = message["method"]

    def received(self, message: Json) -> None:
        """The client was sent this."""
        found = self._ask(message) if "method" in message else self._answer(message)
        if message.get("jsonrpc") != "2.0":
            found = [*found, "jsonrpc is not 2.0"]
        self.problems += [f"{each} in {msgspec.json.encode(message).decode()}" for each in found]

    def _ask(self, message: Json) -> list[str]:
        method: str = message["method"]
        if method.startswith("_"):
            self.seen.add("_extension")
            return []
        self.seen.add(method)
        params: Any = message.get("params")
        if method == "session/update":
            kind: str = params["update"]["sessionUpdate"]
            self.seen.add(kind)
            if kind in self._drafts:
                return against_draft(*self._drafts[kind], params["update"])
        return self._hold("asks", method, params, f"{method} is no method of v{self.version}")

    def _answer(self, message: Json) -> list[str]:
        method = self._asked.pop(msgspec.json.encode(message.get("id")), None)
        if "error" in message:
            self.seen.add("error")
            return against(self.version, "Error", message["error"])
        if method is None:
            return ["an answer to nothing that was asked, or a second one"]
        self.seen.add(f"{method} answered")
        if method.startswith("_") or method in DRAFT_METHODS:
            return []
        if method == "session/prompt" and self._lifecycle:
            return against_draft("lifecycle", "PromptResult", message["result"])
        return self._hold("results", method, message["result"], f"{method} has no answer in v{self.version}")

    def _hold(self, which: str, method: str, value: Any, otherwise: str) -> list[str]:
        """Against the stable schema, or against the other one if only that knows the method."""
        for name in ("schema", "schema.unstable"):
            definition: str | None = getattr(_side(self.version, name), which).get(method)
            if definition is not None:
                return against(self.version, definition, value, name)
        return [otherwise]


def check_frames(version: int, frames: Sequence[Frame]) -> SchemaCheck:
    """Validate a connection's frames against the schema. Fails with the first few problems.

    Sent frames count from the start: a client may record a POST once it is done, and its JSON-RPC answer before.
    """
    check = SchemaCheck(version)
    for each in frames:
        if not each.is_received:
            check.sent(each.message)
    for each in frames:
        if each.is_received:
            check.received(each.message)
    assert not check.problems, "\n".join(check.problems[:5])
    return check
