"""The Python SDK's reader with our event streams when the network delivers one byte at a time."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest
from tests.interop.peers import PEERS, absent, scripted
from tests.server.acp.http_client import connect
from tests.support.daemons import running_daemon

from turnwire_testing.patience import WAIT_S

pytestmark = pytest.mark.anyio

WORDS = "naïve-Ж-你好-😀-“"
READER = """
import asyncio, json, sys
from acp._sse import parse_sse_stream

async def bytes_alone():
    for each in sys.stdin.buffer.read():
        yield bytes([each])

async def main():
    print(json.dumps([each async for each in parse_sse_stream(bytes_alone())]))

asyncio.run(main())
"""


async def test_the_python_sdk_reads_words_of_any_script_a_byte_at_a_time(tmp_path: Path) -> None:
    python = PEERS / "py-v1" / "bin" / "python"
    if not python.exists():
        absent(".peers/py-v1 is not there; run: make peers")
    async with running_daemon(tmp_path / "d", agent=scripted()) as running, running.client() as http:
        client = await connect(running, http)
        async with client.stream() as connection:
            session_id = await client.new(connection)
            async with client.stream(session_id) as session:
                await session.answer(await client.prompt(session_id, f"say 1 {WORDS}"))
                seen = session.bytes
    with anyio.fail_after(WAIT_S):
        read = await anyio.run_process([str(python), "-c", READER], input=seen)
    assert WORDS in [
        each["params"]["update"]["content"]["text"]
        for each in json.loads(read.stdout)
        if each.get("method") == "session/update"
        and each["params"]["update"]["sessionUpdate"] == "agent_message_chunk"
    ]
