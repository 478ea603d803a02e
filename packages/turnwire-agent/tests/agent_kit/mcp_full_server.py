"""An MCP server written with the official library: `python mcp_full_server.py [http|sse]`, else on stdio.

Over HTTP it takes a free port and prints its number once it listens.
"""

from __future__ import annotations

import os
import socket
import sys
from typing import Any

import anyio
import uvicorn
from mcp.server.mcpserver import Context, Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult, EmbeddedResource, ResourceLink, TextContent, TextResourceContents

server = MCPServer("full", log_level="ERROR")


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def fail() -> str:
    """Always fails."""
    raise ToolError("no luck today")


@server.tool()
def picture() -> Image:
    """A picture."""
    return Image(data=b"\x89PNG" * 30, format="png")


@server.tool()
def mixed() -> CallToolResult:
    """Several things at once."""
    resource = TextResourceContents(uri="file:///a.txt", text="of a file")
    link = ResourceLink(name="more", uri="file:///b.txt")
    return CallToolResult(content=[EmbeddedResource(resource=resource), link, TextContent(text="words")])


@server.tool()
def surroundings() -> dict[str, str]:
    """The server's working directory."""
    return {"cwd": os.getcwd(), "GIVEN": os.environ.get("GIVEN", ""), "KEY": os.environ.get("OPENAI_API_KEY", "")}


@server.tool()
async def slow(context: Context[Any, Any], witness: str) -> str:
    """Tells that it began, and leaves a file if it is cancelled."""
    await context.report_progress(1, 2, "half way")
    try:
        await anyio.sleep_forever()
    finally:
        os.close(os.open(witness, os.O_CREAT))
    return "never"


@server.tool()
async def learn(context: Context[Any, Any], name: str) -> str:
    """Learns a new tool."""
    server.add_tool(add, name=name)
    await context.notify_tools_changed()
    return f"learned {name}"


def serve_http(kind: str) -> None:
    app = server.sse_app() if kind == "sse" else server.streamable_http_app()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        sys.stdout.write(f"{listening.getsockname()[1]}\n")
        sys.stdout.flush()
        uvicorn.Server(uvicorn.Config(app, log_level="error")).run([listening])


if __name__ == "__main__":
    if sys.argv[1:]:
        serve_http(sys.argv[1])
    else:
        server.run()
