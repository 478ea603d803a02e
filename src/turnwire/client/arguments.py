"""Validation of the arguments that a program passes to the SDK, before they are used.

Python does not check types at run time, so values of any type may arrive. They are converted, without a change of
meaning, to the types that the log and JSON hold. A value that cannot be stored raises `LocalProtocolError`, which
names what to pass. No message id is created here: the store of the messages assigns them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias, cast

from msgspec import Raw, Struct

from turnwire.errors import LocalProtocolError
from turnwire.ids import RequestId
from turnwire.session.inputs import WhenBusy
from turnwire.wire.jsonrpc import raw

Block: TypeAlias = Mapping[str, Any] | Struct

Content: TypeAlias = str | Sequence[Block]


def to_raw(content: Content) -> Raw:
    """Return a prompt's blocks. Raises `LocalProtocolError` if there is none, or one is no dict or struct."""
    if isinstance(content, str):
        return to_json([{"type": "text", "text": to_text(content, "a prompt")}], "a prompt")
    blocks = to_list(content, "a prompt is a text or a list of content blocks")
    if not blocks:
        raise LocalProtocolError("a prompt needs at least one content block")
    for block in blocks:
        if not isinstance(block, Mapping | Struct):
            raise LocalProtocolError(
                "a content block is a dict or a struct of turnwire.wire.schema", given=type(block).__name__
            )
    return to_json(blocks, "a prompt")


def to_text(value: object, what: str) -> str:
    """Return a text. `what` is its name in errors. Raises `LocalProtocolError`."""
    if not isinstance(value, str):
        raise LocalProtocolError(f"{what} is a text; give a str", given=type(value).__name__)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise LocalProtocolError(
            f"{what} has half a character (a surrogate); give text that UTF-8 can hold"
        ) from None
    # JSON encodes plain strings only, not instances of subclasses.
    return str.__str__(value)


def to_key(value: object) -> str | None:
    """Return an idempotency key or `None`. Raises `LocalProtocolError`."""
    return None if value is None else to_text(value, "`key`")


def to_request_id(value: object) -> RequestId:
    """Return a JSON-RPC id. Raises `LocalProtocolError`."""
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    if isinstance(value, str):
        return to_text(value, "`request_id`")
    raise LocalProtocolError("`request_id` is a text or a whole number; give one", given=type(value).__name__)


def to_place(value: object) -> int:
    """Return a position in the queue. Raises `LocalProtocolError`."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise LocalProtocolError(
            "`place` is a whole number; give 0 for the front of the queue", given=type(value).__name__
        )
    return int(value)


def to_when_busy(value: object) -> WhenBusy | None:
    """Return the policy while another turn runs; `None` means the daemon's default. Raises `LocalProtocolError`."""
    if value is None:
        return None
    try:
        return WhenBusy(value)  # pyright: ignore[reportArgumentType] whatever it is, the enum looks it up
    except ValueError:
        words = ", ".join(f"`{each.value}`" for each in WhenBusy)
        raise LocalProtocolError(f"`when_busy` is one of {words}; give one of them") from None


def to_list(value: object, rule: str) -> list[object]:
    """Return a list of dicts or structs. `rule` describes the accepted values in errors. Raises
    `LocalProtocolError`.
    """
    if not isinstance(value, Iterable) or isinstance(value, str | bytes | Mapping):
        raise LocalProtocolError(f"{rule}; give such a list", given=type(value).__name__)  # pyright: ignore[reportUnknownArgumentType] of any type
    found = cast("Iterable[object]", value)
    return [dict(cast("Mapping[str, Any]", each)) if isinstance(each, Mapping) else each for each in found]


def to_json(value: object, what: str) -> Raw:
    """Return any value as JSON. `what` is its name in errors. Raises `LocalProtocolError`."""
    try:
        return raw(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        raise LocalProtocolError(
            f"{what} holds something that JSON cannot; give plain values, and text that UTF-8 can hold"
        ) from None
