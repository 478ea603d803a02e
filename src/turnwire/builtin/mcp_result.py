"""What an MCP tool gave, as text for a model.

Takes a result of the library; gives text. Pictures, sounds and files are named with their kind and size, not given.
Structured content is given as JSON unless the server gave text, which says the same by MCP's own rule. Bounded.
"""

from __future__ import annotations

import json

from mcp_types import (
    AudioContent,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    TextContent,
    TextResourceContents,
)

from turnwire.builtin.tools.output import shortened

RESULT_CHARACTERS = 40_000


def result_text(result: CallToolResult) -> str:
    parts = [_block_text(block) for block in result.content]
    has_text = any(isinstance(block, TextContent) for block in result.content)
    if result.structured_content is not None and not has_text:
        parts.append(json.dumps(result.structured_content, ensure_ascii=False, indent=1))
    return shortened("\n".join(parts), RESULT_CHARACTERS) or "(The tool gave nothing back.)"


def _block_text(block: ContentBlock) -> str:
    if isinstance(block, TextContent):
        return block.text
    if isinstance(block, ImageContent | AudioContent):
        # Three bytes are four letters of base64.
        return f"[{block.type} {block.mime_type}, {len(block.data) * 3 // 4} bytes, not shown]"
    if isinstance(block, EmbeddedResource):
        inner = block.resource
        if isinstance(inner, TextResourceContents):
            return f"[{inner.uri}]\n{inner.text}"
        return f"[{inner.uri} {inner.mime_type or 'binary'}, {len(inner.blob) * 3 // 4} bytes, not shown]"
    return f"[{block.name}: {block.uri}]"
