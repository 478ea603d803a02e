"""An agent's requests to its client, and its other messages, reach the client after all earlier updates."""

from __future__ import annotations

import sys
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from tests.cli.editor import INFO, editor
from tests.cli.rig import served
from tests.patience import SOON_S
from tests.server.acp.http_client import Heard, connect, load, notification
from tests.server.acp.socket_client import started
from tests.support.daemons import Running, running_daemon

from turnwire.ids import SessionId
from turnwire.limits import Limits
from turnwire.server.access.tokens import Role

pytestmark = [pytest.mark.anyio]

AGENT = (sys.executable, str(Path(__file__).with_name("telling_agent.py")))
CAPABLE: dict[str, Any] = {"fs": {"readTextFile": True, "writeTextFile": True}, "terminal": True}
PIECES = 1_000
SAID = [str(number) for number in range(PIECES)]
COMPLETE = "elicitation/complete"
METHODS = (
    "fs/read_text_file",
    "fs/write_text_file",
    "terminal/create",
    "terminal/output",
    "terminal/wait_for_exit",
    "terminal/kill",
    "terminal/release",
    "_note/of_a_session",
    "_ask/somebody",
)
BURST = f"burst {PIECES} {' '.join(METHODS)}"


def in_short(message: dict[str, Any]) -> str:
    """Return the text of a chunk, or the method of any other message."""
    heard = Heard(None, message)
    return heard.text or heard.method or "answer"


def pieces_and_methods(messages: list[dict[str, Any]]) -> list[str]:
    """Return everything from the first chunk of a batch to its last, in the received order."""
    told = [in_short(each) for each in messages]
    return told[told.index("0") : told.index("last") + 1]


def asks(message: dict[str, Any]) -> bool:
    return "method" in message and "id" in message


IN_ORDER = [*SAID, *METHODS, "last"]


# -- each transport ------------------------------------------------------------------------------------------


async def test_requests_keep_their_place_on_a_web_socket(tmp_path: Path) -> None:
    async with (
        running_daemon(tmp_path / "data", agent=AGENT) as running,
        started(running, **CAPABLE) as socket,
    ):
        request_id = await socket.prompt(await socket.new(), BURST)
        messages: list[dict[str, Any]] = []
        while not messages or messages[-1].get("id") != request_id or "method" in messages[-1]:
            messages.append((await socket.next()).message)
            if asks(messages[-1]):
                await socket.send({"jsonrpc": "2.0", "id": messages[-1]["id"], "result": {"n": 1}})
        assert pieces_and_methods(messages) == IN_ORDER
        assert messages[-1]["result"]["stopReason"] == "end_turn"


async def test_requests_keep_their_place_on_the_stream_of_a_session(tmp_path: Path) -> None:
    async with (
        running_daemon(tmp_path / "data", agent=AGENT) as running,
        running.client() as http,
    ):
        client = await connect(running, http, **CAPABLE)
        async with client.stream() as connection:
            session_id = await client.new(connection)
            async with client.stream(session_id) as session:
                request_id = await client.prompt(session_id, BURST)
                messages: list[dict[str, Any]] = []
                while not messages or messages[-1].get("id") != request_id or "method" in messages[-1]:
                    messages.append((await session.next()).message)
                    if asks(messages[-1]):
                        answer = {"jsonrpc": "2.0", "id": messages[-1]["id"], "result": {"n": 1}}
                        await client.post(answer, session_id)
                assert pieces_and_methods(messages) == IN_ORDER


@pytest.mark.parametrize("way", ["stdio", "daemon"])
def test_requests_keep_their_place_on_pipes(tmp_path: Path, way: str) -> None:
    hello = {"protocolVersion": 1, "clientCapabilities": CAPABLE, "clientInfo": INFO}
    with ExitStack() as stack:
        words, env = ("--", *AGENT), dict[str, str]()
        if way == "daemon":
            daemon = stack.enter_context(served(tmp_path, "--", *AGENT))
            words, env = ("--daemon", daemon.url), daemon.env
        with editor(tmp_path, *words, env=env) as opened:
            session = opened.open(tmp_path, hello)
            request_id = opened.prompt(session, BURST)
            while "method" in (message := opened.next()) or message["id"] != request_id:
                if asks(message):
                    opened.send(id=message["id"], result={"n": 1})
            assert pieces_and_methods(opened.heard) == IN_ORDER


# -- what names no session -----------------------------------------------------------------------------------


async def test_what_names_no_session_comes_behind_all_that_was_said_in_the_sessions_of_a_client(
    tmp_path: Path,
) -> None:
    async with (
        running_daemon(tmp_path / "data", agent=AGENT) as running,
        started(running, **CAPABLE) as socket,
    ):
        session_id, _ = await socket.new(), await socket.new()
        request_id = await socket.prompt(session_id, f"burst {PIECES} _note/of_none!")
        heard = [each.message for each in await socket.until(lambda each: each.message.get("id") == request_id)]
        assert pieces_and_methods(heard) == [*SAID, "_note/of_none", "last"]


async def test_the_end_of_an_elicitation_comes_behind_its_question(tmp_path: Path) -> None:
    async with (
        running_daemon(tmp_path / "data", agent=AGENT) as running,
        started(running, elicitation={"url": {}}) as socket,
    ):
        request_id = await socket.prompt(await socket.new(), f"burst {PIECES} elicitation/create {COMPLETE}!")
        heard = [each.message for each in await socket.until(lambda each: each.method == COMPLETE)]
        asked = next(each for each in heard if each.get("method") == "elicitation/create")
        await socket.send({"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "accept"}})
        heard += [each.message for each in await socket.until(lambda each: each.message.get("id") == request_id)]
        assert pieces_and_methods(heard) == [*SAID, "elicitation/create", COMPLETE, "last"]


# -- a session that is put away, and a client that leaves ----------------------------------------------------


async def test_what_a_session_that_was_put_away_is_told_keeps_its_place(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("unused")
    async with AsyncExitStack() as stack:
        limits = Limits(idle_unload_s=0.05)
        running = await stack.enter_async_context(running_daemon(tmp_path / "data", agent=AGENT, limits=limits))
        _, secret = await running.daemon.tokens.issue("eve", Role.OBSERVER)
        async with started(running) as first:
            session_id = await first.new()
            await first.answer(await first.prompt(session_id, "hello"))
        observer = await stack.enter_async_context(started(running._replace(token=secret)))
        await observer.send(load(session_id, tmp_path, "l"))
        await observer.answer("l")
        await put_away(running, session_id)
        other = await stack.enter_async_context(started(running))
        burst = {"of": "told-1", "count": PIECES, "methods": ["_note/of_a_session", "fs/read_text_file"]}
        await other.send(notification("_telling/burst", burst))
        heard = [each.message for each in await observer.until(lambda each: each.text == "last")]
        assert pieces_and_methods(heard) == [*SAID, "_note/of_a_session", "last"]
        # The daemon reads the file, and rejects paths outside of the session's directory.
        await observer.until(lambda each: each.text == "-32602")


async def put_away(running: Running, session_id: str) -> None:
    with anyio.fail_after(SOON_S):
        while SessionId(session_id) in running.daemon.node.loaded:
            await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize("next_one", ["client", "daemon"])
async def test_a_client_that_leaves_amid_a_burst_hands_its_request_on_in_its_place(
    tmp_path: Path, next_one: str
) -> None:
    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(running_daemon(tmp_path / "data", agent=AGENT))
        watcher = await stack.enter_async_context(started(running, **(CAPABLE if next_one == "client" else {})))
        first = await stack.enter_async_context(started(running, **CAPABLE))
        session_id = await first.new()
        await watcher.send(load(session_id, tmp_path, "l"))
        await watcher.answer("l")
        await first.prompt(session_id, f"burst {PIECES} fs/read_text_file")
        await first.until(lambda each: each.text == "0")
        first.cut()
        with anyio.fail_after(SOON_S):
            heard = await watcher.until(lambda each: is_handed_on(each, next_one))
        told = [in_short(each.message) for each in heard]
        assert told[told.index("0") :][:PIECES] == SAID
        if next_one == "client":
            await watcher.send({"jsonrpc": "2.0", "id": heard[-1].message["id"], "result": {"content": "mine"}})
            await watcher.until(lambda each: "mine" in each.text)


def is_handed_on(heard: Heard, next_one: str) -> bool:
    return heard.method == "fs/read_text_file" if next_one == "client" else heard.text == "-32602"
