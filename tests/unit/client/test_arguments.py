"""The accepted types of a prompt."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from turnwire.client.arguments import to_raw
from turnwire.errors import LocalProtocolError
from turnwire.wire.schema.common import ImageContent


def test_a_text_becomes_one_block_of_text() -> None:
    assert msgspec.json.decode(to_raw("hé\n")) == [{"type": "text", "text": "hé\n"}]


def test_blocks_are_passed_on_as_they_are_and_get_no_id() -> None:
    image = ImageContent(data="AAAA", mime_type="image/png")
    blocks = [{"type": "text", "text": "x", "extra": 1}, image]
    assert msgspec.json.decode(to_raw(blocks)) == [
        {"type": "text", "text": "x", "extra": 1},
        {"type": "image", "data": "AAAA", "mimeType": "image/png"},
    ]


@pytest.mark.parametrize("content", [[], ["text"], [None], [["nested"]]])
def test_what_is_no_content_is_refused(content: Any) -> None:
    with pytest.raises(LocalProtocolError):
        to_raw(content)
