"""The phases of the measurement: each runs a target and returns rows for the table.

A row that ends with `/s` is better when it is more, any other when it is less. Sizes are in the names of rows, so
that growth is seen by reading down. Long sessions are written by the measured daemon itself.
"""

from __future__ import annotations

import asyncio
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, NamedTuple

import msgspec
import uvloop

from bench.client import (
    ROOT,
    SSE_OPEN,
    TURN_END,
    UPGRADE,
    WAIT_S,
    Chunks,
    Connection,
    Wanted,
    pause,
    request,
    subscribers,
    text_frame,
)
from bench.targets import AGENT, QWEN_SERVE, Running, Target, empty_folder, running

Found = Mapping[str, float | str]
"""Rows by name; a text gives the reason for a missing number."""
TURNS = STAMPS = 400
WARM_UP = 50
BURSTS = [(chunks, readers) for readers in (1, 10, 64, 1000) for chunks in (2000, 20_000)]
LONG_TURN = 20_000
EVENTS = (1_000, 100_000, 1_000_000)
READERS = (1_000, 10_000)
WEBSOCKETS = 400
OPEN_TURNS = (1_000, 3_000)
SETTLE_S = 1.0
"""Pause before memory is read, so that memory needed only for opening is freed."""


def spread(row: str, seconds: list[float]) -> dict[str, float]:
    """Return the median and the 99th percentile."""
    ordered = sorted(seconds)
    last = len(ordered) - 1
    return {f"{row}, p50 ms": ordered[last // 2] * 1e3, f"{row}, p99 ms": ordered[round(last * 0.99)] * 1e3}


async def create(connection: Connection, daemon: Running) -> str:
    """Create a session and return its id."""
    reply = await connection.ask(daemon.create())
    assert reply.status == 200, f"no session: {reply.status} {reply.body!r}"
    return msgspec.json.decode(reply.body)["sessionId"]


async def prompt(connection: Connection, asked: bytes) -> float:
    """Send a prompt and return the seconds until it was accepted."""
    begun = time.perf_counter()
    reply = await connection.ask(asked)
    assert reply.status == 202, f"not accepted: {reply.status} {reply.body!r}"
    return reply.at - begun


async def settled_kb(daemon: Running) -> int:
    await pause(SETTLE_S)
    return daemon.rss_kb()


async def start(daemon: Running) -> Found:
    """From the start of the daemon to its first answer and to its first session, with the start of the agent."""
    begun = time.perf_counter()
    await create(await Connection.open(daemon.port), daemon)
    first_s = time.perf_counter() - begun
    return {
        "start → health 200, ms": daemon.healthy_s * 1e3,
        "start → first session, ms": (daemon.healthy_s + first_s) * 1e3,
    }


async def turns(daemon: Running) -> Found:
    """One-chunk turns, each after the end of the one before, with one subscriber."""
    connection = await Connection.open(daemon.port)
    session_id = await create(connection, daemon)
    stream = await Connection.open(daemon.port, daemon.events(session_id), SSE_OPEN)
    asked, used_s = daemon.prompt(session_id, "one"), 0.0
    accepted: list[float] = []
    done: list[float] = []
    for number in range(WARM_UP + TURNS):
        if number == WARM_UP:
            used_s = daemon.cpu_s()
        stream.on_data = chunks = Chunks(TURN_END)
        begun = time.perf_counter()
        accepted.append(await prompt(connection, asked))
        await stream.until(lambda chunks=chunks: chunks.ended_at > 0)
        done.append(chunks.ended_at - begun)
    return {
        **spread("prompt → 202", accepted[WARM_UP:]),
        **spread("prompt → turn_complete", done[WARM_UP:]),
        "CPU of the daemon for such a turn, ms": (daemon.cpu_s() - used_s) / TURNS * 1e3,
    }


async def delay(daemon: Running) -> Found:
    """From the agent's write to the subscriber's read, by one clock."""
    connection = await Connection.open(daemon.port)
    session_id = await create(connection, daemon)
    stream = await Connection.open(daemon.port, daemon.events(session_id), SSE_OPEN)
    delays: list[float] = []

    def on_data(data: bytes, at: float) -> None:
        now = time.monotonic_ns()
        delays.extend((now - int(stamp)) / 1e9 for stamp in re.findall(rb"@(\d+)@", data))

    stream.on_data = on_data
    await prompt(connection, daemon.prompt(session_id, f"stamp {STAMPS}"))
    await stream.until(lambda: len(delays) >= STAMPS)
    return spread("agent writes → subscriber has it", delays[WARM_UP:])


async def bursts(daemon: Running) -> Found:
    """Events delivered per second to all subscribers, from the prompt to the end at the last of them."""
    found: dict[str, float | str] = {}
    for chunks, readers in BURSTS:
        row = f"{chunks:,} chunks to {readers:,}, events/s"
        if readers > daemon.target.most_subscribers:
            found[row] = f"{daemon.target.most_subscribers} at most"
        else:
            found[row] = await _deliver(daemon, readers, chunks)
    return found


async def _deliver(daemon: Running, readers: int, chunks: int) -> float | str:
    # A turn that delivers many events is long enough to be measured once.
    repeats = 1 if chunks * readers > 500_000 else 2
    session_id = await create(await Connection.open(daemon.port), daemon)
    best = 0.0
    wanted = Wanted(daemon.port, daemon.events(session_id).decode(), readers, repeats)
    async with subscribers(wanted) as next_turn:
        for _ in range(repeats):
            # Servers close a connection that was quiet for some seconds.
            connection = await Connection.open(daemon.port)
            begun = time.perf_counter()
            await prompt(connection, daemon.prompt(session_id, f"burst {chunks}"))
            turn = await next_turn()
            if turn.cut:
                return f"cut off {turn.cut} of {readers}"
            assert turn.events > chunks, f"{turn.events} of more than {chunks} events arrived"
            best = max(best, turn.events * readers / (turn.at - begun))
    return best


class Neighbour:
    """A client that requests `/health` continuously; its waits show how long the daemon stalls."""

    def __init__(self, daemon: Running) -> None:
        self._daemon = daemon
        self.waits: list[float] = []

    async def __aenter__(self) -> Neighbour:
        self._connection = await Connection.open(self._daemon.port)
        self._task = asyncio.ensure_future(self._ask())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        self._connection.close()

    async def _ask(self) -> None:
        asked = request("GET", "/health", {"Host": self._daemon.headers["Host"]})
        while True:
            begun = time.perf_counter()
            reply = await self._connection.ask(asked)
            self.waits.append(reply.at - begun)
            await pause(0.001)


async def stalls(daemon: Running) -> Found:
    """Measure the waits of other clients while one turn streams as fast as its agent writes."""
    connection = await Connection.open(daemon.port)
    session_id = await create(connection, daemon)
    stream = await Connection.open(daemon.port, daemon.events(session_id), SSE_OPEN)
    stream.on_data = chunks = Chunks(TURN_END)
    async with Neighbour(daemon) as neighbour:
        used_s = daemon.cpu_s()
        await prompt(connection, daemon.prompt(session_id, f"burst {LONG_TURN}"))
        await stream.until(lambda: chunks.count >= LONG_TURN)
        used_s = daemon.cpu_s() - used_s
    return {
        "CPU of the daemon for an event of a burst, µs": used_s / LONG_TURN * 1e6,
        **spread("others wait during a burst", neighbour.waits),
    }


def readers(target: Target) -> Found:
    """Idle readers of one session, then one turn to all of them; and idle clients on WebSockets."""
    files = READERS[-1] + 2_000
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit < files:
        return {"readers": f"needs {files} files"}
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    found: dict[str, float | str] = {}
    for size in READERS:
        with running(target) as daemon:
            found |= uvloop.run(_readers(daemon, size))
    with running(target) as daemon:
        found |= uvloop.run(_websockets(daemon))
    return found


async def _readers(daemon: Running, size: int) -> Found:
    connection = await Connection.open(daemon.port)
    session_id = await create(connection, daemon)
    await _whole_turn(daemon, connection, session_id, "one")
    before_kb = await settled_kb(daemon)
    async with subscribers(Wanted(daemon.port, daemon.events(session_id).decode(), size, 1)) as next_turn:
        after_kb = await settled_kb(daemon)
        used_s, begun = daemon.cpu_s(), time.perf_counter()
        async with Neighbour(daemon) as neighbour:
            await prompt(await Connection.open(daemon.port), daemon.prompt(session_id, "one"))
            turn = await next_turn()
        used_s = daemon.cpu_s() - used_s
    assert not turn.cut, f"{turn.cut} readers were cut off"
    return {
        f"{size:,} readers: memory of one, KB": (after_kb - before_kb) / size,
        f"{size:,} readers: one turn to all, ms": (turn.at - begun) * 1e3,
        f"{size:,} readers: CPU of it for one, µs": used_s / size * 1e6,
        f"{size:,} readers: others wait meanwhile, ms": max(neighbour.waits, default=0.0) * 1e3,
    }


async def _whole_turn(daemon: Running, connection: Connection, session_id: str, text: str) -> None:
    stream = await Connection.open(daemon.port, daemon.events(session_id), SSE_OPEN)
    stream.on_data = chunks = Chunks(TURN_END)
    await prompt(connection, daemon.prompt(session_id, text))
    await stream.until(lambda: chunks.ended_at > 0)
    stream.close()


async def _websockets(daemon: Running) -> Found:
    session_id = await create(await Connection.open(daemon.port), daemon)
    before_kb = await settled_kb(daemon)
    load = _message(2, "session/load", {"sessionId": session_id, "cwd": daemon.cwd, "mcpServers": []})
    sockets: list[Connection] = []
    for _ in range(WEBSOCKETS):
        socket = await Connection.open(daemon.port, request("GET", "/acp", daemon.headers | UPGRADE))
        socket.write(text_frame(INITIALIZE))
        await socket.until(lambda socket=socket: b'"protocolVersion"' in socket.received)
        socket.write(text_frame(load))
        await socket.until(lambda socket=socket: b'"id":2' in socket.received)
        sockets.append(socket)
    used_kb = await settled_kb(daemon) - before_kb
    return {f"{len(sockets):,} WebSocket clients: memory of one, KB": used_kb / WEBSOCKETS}


VIEWS = ("", "/turns", "/prompt-status", "/transcript?limit=50")


def long_session(target: Target) -> Found:
    """Measure a growing session: prompts, and each view after a crash, cold and warm, with the waits of others."""
    found: dict[str, float | str] = {}
    with empty_folder() as folder:
        session_id, written = "", 0
        for size in EVENTS:
            with running(target, folder) as daemon:
                session_id, accepted = uvloop.run(_lengthen(daemon, session_id, (size - written) // 1000))
                os.kill(daemon.pid, signal.SIGKILL)
            written, row = size, f"{size:,} events: prompt → 202"
            found[f"{row}, p50 ms"] = spread(row, accepted)[f"{row}, p50 ms"]
            for path in VIEWS:
                name = path.strip("/").partition("?")[0] or "session"
                # A copy for each view: a daemon caches its data about a session for the next one.
                with empty_folder() as copy:
                    shutil.copytree(folder, copy, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.sock"))
                    with running(target, copy) as daemon:
                        cold, warm, waited = uvloop.run(_view(daemon, f"/session/{session_id}{path}"))
                found[f"{size:,} events: {name}, cold ms"] = cold * 1e3
                found[f"{size:,} events: {name}, warm ms"] = warm * 1e3
                found[f"{size:,} events: others wait for {name}, ms"] = waited * 1e3
    return found


async def _lengthen(daemon: Running, session_id: str, turns: int) -> tuple[str, list[float]]:
    connection = await Connection.open(daemon.port)
    session_id = session_id or await create(connection, daemon)
    for _ in range(turns):
        await _whole_turn(daemon, connection, session_id, "burst 1000")
    asked = daemon.prompt(session_id, "one")
    return session_id, [await prompt(connection, asked) for _ in range(TURNS // 4)]


async def _view(daemon: Running, path: str) -> tuple[float, float, float]:
    connection = await Connection.open(daemon.port)
    # The cost of a first request is not a matter of the session.
    await connection.ask(daemon.get("/capabilities"))
    times: list[float] = []
    async with Neighbour(daemon) as neighbour:
        for _ in range(2):
            begun = time.perf_counter()
            reply = await connection.ask(daemon.get(path))
            assert reply.status == 200, f"{path}: {reply.status} {reply.body[:300]!r}"
            times.append(reply.at - begun)
    return times[0], times[1], max(neighbour.waits, default=0.0)


def recovery(target: Target) -> Found:
    """The daemon is killed while turns are open: the time of its next start, until all turns have ended."""
    found: dict[str, float | str] = {}
    for size in OPEN_TURNS:
        with empty_folder() as folder:
            with running(target, folder) as daemon:
                uvloop.run(_open_turns(daemon, size))
                os.kill(daemon.pid, signal.SIGKILL)
            begun = time.perf_counter()
            with running(target, folder) as daemon:
                found[f"{size:,} turns open at a crash: → health, ms"] = daemon.healthy_s * 1e3
                uvloop.run(_until_recovered(daemon))
                found[f"{size:,} turns open at a crash: → all ended, ms"] = (time.perf_counter() - begun) * 1e3
    return found


async def _open_turns(daemon: Running, size: int) -> None:
    connection = await Connection.open(daemon.port)
    for _ in range(size):
        await prompt(connection, daemon.prompt(await create(connection, daemon), "wait"))


async def _until_recovered(daemon: Running) -> None:
    connection = await Connection.open(daemon.port)
    while msgspec.json.decode((await connection.ask(daemon.get("/health"))).body).get("recovering"):
        await pause(0.02)


def _message(number: int, method: str, params: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


INITIALIZE = _message(1, "initialize", {"protocolVersion": 1, "clientCapabilities": {}})


async def _session_on(stream: Connection) -> str:
    """Return the id in the answer to `session/new`, the first message that has one."""
    await stream.until(lambda: stream.received.partition(b'"sessionId"')[2].count(b'"') > 1)
    return stream.received.partition(b'"sessionId"')[2].split(b'"')[1].decode()


async def _over_http(server: Running) -> float:
    headers = server.headers | {"Accept": "application/json, text/event-stream"}

    async def post(body: dict[str, Any]) -> Connection:
        return await Connection.open(server.port, request("POST", "/acp", headers | {"Connection": "close"}, body))

    answer = (await post(INITIALIZE)).received
    found = re.search(rb"\r\nacp-connection-id: *(\S+)", answer, re.IGNORECASE)
    assert found is not None, "the answer to `initialize` names no connection"
    headers["Acp-Connection-Id"] = found[1].decode()
    common = await Connection.open(server.port, request("GET", "/acp", headers))
    await post(_message(2, "session/new", {"cwd": server.cwd, "mcpServers": []}))
    headers["Acp-Session-Id"] = session_id = await _session_on(common)
    stream = await Connection.open(server.port, request("GET", "/acp", headers))
    return await _acp_turns(stream, session_id, post)


async def _over_websocket(server: Running) -> float:
    stream = await Connection.open(server.port, request("GET", "/acp", server.headers | UPGRADE))

    async def send(body: dict[str, Any]) -> None:
        stream.write(text_frame(body))

    await send(INITIALIZE)
    await stream.until(lambda: b'"protocolVersion"' in stream.received)
    await send(_message(2, "session/new", {"cwd": server.cwd, "mcpServers": []}))
    return await _acp_turns(stream, await _session_on(stream), send)


async def _acp_turns(
    stream: Connection, session_id: str, send: Callable[[dict[str, Any]], Coroutine[Any, Any, object]]
) -> float:
    """Run a short turn to warm up, then a long one; return the seconds of the second."""
    seconds = 0.0
    for number, count in ((3, 10), (4, LONG_TURN)):
        stream.on_data = chunks = Chunks()
        begun = time.perf_counter()
        text = {"type": "text", "text": f"burst {count}"}
        await send(_message(number, "session/prompt", {"sessionId": session_id, "prompt": [text]}))
        await stream.until(lambda chunks=chunks: chunks.ended_at > 0)
        assert chunks.count == count, f"{chunks.count} of {count} chunks arrived"
        seconds = chunks.ended_at - begun
    return seconds


def acp(target: Target) -> Found:
    """Measure one long turn over each transport of `/acp`."""
    found: dict[str, float] = {}
    for transport, measure in {"Streamable HTTP": _over_http, "WebSocket": _over_websocket}.items():
        with running(target) as server:
            used_s = server.cpu_s()
            seconds = uvloop.run(measure(server))
            used_s = server.cpu_s() - used_s
        found[f"/acp, {transport}, messages/s"] = LONG_TURN / seconds
        found[f"/acp, {transport}: CPU of a message, µs"] = used_s / LONG_TURN * 1e6
    return found


def stdio(target: Target) -> Found:
    """Measure one long turn from an agent process to a program with the client SDK, which reports its own
    numbers.
    """
    client = [sys.executable, "-m", "bench.peers.sdk_client", str(LONG_TURN)]
    environment = {**os.environ, "PYTHONPATH": f"{target.source}{os.pathsep}{ROOT}"}
    done = subprocess.run(
        [*client, sys.executable, str(AGENT)],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        timeout=WAIT_S,
        check=True,
    )
    numbers = msgspec.json.decode(done.stdout)
    assert numbers["heard"] == LONG_TURN, f"{target.name} received {numbers['heard']} of {LONG_TURN}"
    return {
        "SDK over stdio, messages/s": LONG_TURN / numbers["seconds"],
        "SDK over stdio: CPU of a message, µs": numbers["cpu"] / LONG_TURN * 1e6,
    }


class Phase(NamedTuple):
    name: str
    measure: Callable[[Target], Found]
    rounds: int = 1
    """Number of repetitions by `make bench`; the best counts."""
    peers: tuple[Target, ...] = ()
    is_long: bool = False
    """True if it needs minutes, so `make bench-compare` runs it only by name."""

    def run(self, target: Target) -> Found:
        print(f"… {self.name}: {target.name}", file=sys.stderr, flush=True)
        return self.measure(target)


def _in_one(measure: Callable[[Running], Coroutine[Any, Any, Found]]) -> Callable[[Target], Found]:
    """Return a measurement that starts a daemon for itself."""

    def run(target: Target) -> Found:
        with running(target) as daemon:
            return uvloop.run(measure(daemon))

    return run


PHASES = (
    Phase("start", _in_one(start), 3, (QWEN_SERVE,)),
    Phase("turns", _in_one(turns), 2, (QWEN_SERVE,)),
    Phase("delay", _in_one(delay), 2, (QWEN_SERVE,)),
    Phase("bursts", _in_one(bursts), 1, (QWEN_SERVE,)),
    Phase("stalls", _in_one(stalls), 1, (QWEN_SERVE,)),
    Phase("acp", acp, 3),
    Phase("stdio", stdio, 3),
    Phase("readers", readers, is_long=True),
    Phase("long_session", long_session, is_long=True),
    Phase("recovery", recovery, is_long=True),
)


def chosen(wanted: list[str]) -> list[Phase]:
    """Return the phases of these names. Ends the program at an unknown name."""
    if unknown := sorted(set(wanted) - {each.name for each in PHASES}):
        sys.exit(f"Unknown phase {', '.join(unknown)}. Phases: {', '.join(each.name for each in PHASES)}")
    return [each for each in PHASES if each.name in wanted]
