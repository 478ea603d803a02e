"""An MCP server without any tools, for sessions that are opened with one: a separate program, over its pipes.

Run as a file, so it imports only the standard library. It ends with its input.
"""

from __future__ import annotations

import json
import sys
from typing import Any, cast

NAME = "turnwire-check"


def over_stdio() -> dict[str, Any]:
    """Return this server as passed to a session."""
    return {"name": NAME, "command": sys.executable, "args": ["-I", __file__], "env": list[Any]()}


def result_of(request: dict[str, Any]) -> dict[str, Any]:
    """Return the server's answer: its info, or empty results."""
    method, params = request.get("method"), request.get("params")
    if method == "initialize":
        asked = cast("dict[str, Any]", params).get("protocolVersion") if isinstance(params, dict) else None
        version = asked if isinstance(asked, str) else "2025-06-18"
        return {
            "protocolVersion": version,
            "capabilities": {"tools": {}},
            "serverInfo": {"name": NAME, "version": "1"},
        }
    return {"tools": []} if method == "tools/list" else {}


def main() -> None:
    """Answer each request until the input ends."""
    for line in sys.stdin:
        request: object = json.loads(line)
        if isinstance(request, dict) and "id" in request and "method" in request:
            asked = cast("dict[str, Any]", request)
            answer = {"jsonrpc": "2.0", "id": asked["id"], "result": result_of(asked)}
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
