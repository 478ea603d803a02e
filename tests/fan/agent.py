"""The scripted agent as a program that records every frame, and alters its own where a prompt requests it.

It accepts `--record FILE` and all arguments of `turnwire_testing.agent`; it writes a line of JSON to that file for
each frame, in the order in which it came or went. It offers everything but sound. A line `# bend NAME` in a prompt
applies to that prompt:

    old-words    the end has `stop_reason` where the schema has `stopReason`
    usage        the end has the usage of the turn
    marker-last  `turn_complete` comes after the answer, with a chunk between the two
"""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import anyio

from turnwire.hosting.stdio import StdioLink
from turnwire_testing.agent import LIMITS, read_arguments
from turnwire_testing.scripted.agent import ScriptedAgent
from turnwire_testing.scripted.host import ProcessHost
from turnwire_testing.scripted.options import AgentOptions, Profile

Json: TypeAlias = dict[str, Any]
USAGE = {"inputTokens": 3, "outputTokens": 4, "totalTokens": 7}
BETWEEN = "between"
_BENDS = re.compile(rb"# bend ([a-z-]+)")


class BentLink:
    """A recorded link. Implements `turnwire.hosting.base.FrameLink`."""

    def __init__(self, link: StdioLink, record: Path) -> None:
        self._link = link
        # Each line is in the file before anybody can see an effect of its frame.
        self._record = record.open("ab", buffering=0)
        self._bends: set[bytes] = set()
        self._held: Json | None = None

    async def receive(self) -> list[bytes]:
        lines = await self._link.receive()
        for line in lines:
            if b'"session/prompt"' in line:
                self._bends = set(_BENDS.findall(line))
            self._write(b"client", line)
        return lines

    async def send(self, frame: bytes) -> None:
        for each in self._bent(frame):
            self._write(b"agent", each)
            await self._link.send(each)

    def send_nowait(self, frame: bytes) -> None:
        self._write(b"agent", frame)
        self._link.send_nowait(frame)

    async def aclose(self) -> None:
        self._record.close()
        await self._link.aclose()

    def _write(self, sender: bytes, frame: bytes) -> None:
        self._record.write(b'{"from":"%b","frame":%b}\n' % (sender, frame))

    def _bent(self, frame: bytes) -> list[bytes]:
        if b'"protocolVersion"' not in frame and not (self._bends and b'"stopReason"' in frame):
            return [frame]
        message: Json = json.loads(frame)
        _be_deaf(message)
        end = _end_of(message)
        if end is not None and b"old-words" in self._bends:
            end["stop_reason"] = end.pop("stopReason")
        if end is not None and b"usage" in self._bends:
            end["usage"] = USAGE
        return [_encoded(each) for each in self._in_order(message)]

    def _in_order(self, message: Json) -> list[Json]:
        if b"marker-last" not in self._bends:
            return [message]
        if "method" in message:
            self._held = message
            return []
        held, self._held = self._held, None
        assert held is not None, "only an agent with the marker is asked to send it late"
        chunk = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": BETWEEN}}
        said = {**held, "params": {**held["params"], "update": chunk}}
        return [message, said, held]


def _be_deaf(message: Json) -> None:
    """Reject audio, as an agent without that capability."""
    result: Json = message.get("result", {})
    result.get("agentCapabilities", {}).get("promptCapabilities", {}).pop("audio", None)
    result.get("capabilities", {}).get("session", {}).get("prompt", {}).pop("audio", None)


def _end_of(message: Json) -> Json | None:
    """Return the member that ends a turn: a result, a state or a marker."""
    places: tuple[Json, Json] = (message.get("result", {}), message.get("params", {}).get("update", {}))
    return next((each for each in places if "stopReason" in each), None)


def _encoded(message: Json) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode()


async def _run(record: Path, profile: Profile, options: AgentOptions) -> None:
    link = StdioLink(limits=LIMITS)
    bent = BentLink(link, record)
    try:
        await ScriptedAgent(bent, profile, options, ProcessHost(link)).run()
    finally:
        await bent.aclose()


if __name__ == "__main__":
    assert sys.argv[1] == "--record"
    chosen, given = read_arguments(sys.argv[3:])
    # A restarted agent does not reuse an id of its predecessor.
    anyio.run(_run, Path(sys.argv[2]), chosen, replace(given, session_prefix=f"session-{os.getpid()}"))
