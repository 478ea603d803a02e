"""What a program gives the SDK, checked before anything is asked for it.

Nothing checks the types of a running program, so values of any type come in; they go out in the types that the
log and JSON hold, and mean what they meant. What cannot be kept there is refused with `LocalProtocolError`, which
says what to give. No message id is made: messages are named by those who keep them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias, cast

from msgspec import Raw, Struct

from turnwire.core.inputs import WhenBusy
from turnwire.errors import LocalProtocolError
from turnwire.ids import RequestId
from turnwire.wire.jsonrpc import raw

Block: TypeAlias = Mapping[str, Any] | Struct

Content: TypeAlias = str | Sequence[Block]


def to_raw(content: Content) -> Raw:
    """The blocks of a prompt. Raises `LocalProtocolError` if there is none, or one is neither dict nor struct."""
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
    """A text. `what` names it to the caller. Raises `LocalProtocolError`."""
    if not isinstance(value, str):
        raise LocalProtocolError(f"{what} is a text; give a str", given=type(value).__name__)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise LocalProtocolError(
            f"{what} has half a character (a surrogate); give text that UTF-8 can hold"
        ) from None
    # JSON is written of plain texts only, not of types that are made from them.
    return str.__str__(value)


def to_key(value: object) -> str | None:
    """An idempotency key, or none. Raises `LocalProtocolError`."""
    return None if value is None else to_text(value, "`key`")


def to_request_id(value: object) -> RequestId:
    """A JSON-RPC id. Raises `LocalProtocolError`."""
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    if isinstance(value, str):
        return to_text(value, "`request_id`")
    raise LocalProtocolError("`request_id` is a text or a whole number; give one", given=type(value).__name__)


def to_place(value: object) -> int:
    """A place in the queue. Raises `LocalProtocolError`."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise LocalProtocolError(
            "`place` is a whole number; give 0 for the front of the queue", given=type(value).__name__
        )
    return int(value)


def to_when_busy(value: object) -> WhenBusy | None:
    """What to do while another turn runs; none is for the daemon to say. Raises `LocalProtocolError`."""
    if value is None:
        return None
    try:
        return WhenBusy(value)  # pyright: ignore[reportArgumentType] whatever it is, the enum looks it up
    except ValueError:
        words = ", ".join(f"`{each.value}`" for each in WhenBusy)
        raise LocalProtocolError(f"`when_busy` is one of {words}; give one of them") from None


def to_list(value: object, rule: str) -> list[object]:
    """A list of dicts or structs. `rule` tells the caller what is taken. Raises `LocalProtocolError`."""
    if not isinstance(value, Iterable) or isinstance(value, str | bytes | Mapping):
        raise LocalProtocolError(f"{rule}; give such a list", given=type(value).__name__)  # pyright: ignore[reportUnknownArgumentType] of any type
    found = cast("Iterable[object]", value)
    return [dict(cast("Mapping[str, Any]", each)) if isinstance(each, Mapping) else each for each in found]


def to_json(value: object, what: str) -> Raw:
    """Anything as JSON. `what` names it to the caller. Raises `LocalProtocolError`."""
    try:
        return raw(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        raise LocalProtocolError(
            f"{what} holds something that JSON cannot; give plain values, and text that UTF-8 can hold"
        ) from None
