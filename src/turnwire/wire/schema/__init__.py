"""Typed views of ACP's messages, for code that wants to read or write one. Routing needs only `wire.peek`."""

from turnwire.wire.schema.common import ContentBlock, content_block
from turnwire.wire.schema.reading import Unknown, read
from turnwire.wire.schema.update import Update, decode_update

__all__ = ["ContentBlock", "Unknown", "Update", "content_block", "decode_update", "read"]
