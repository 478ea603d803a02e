"""Agents that outlive this process: the daemon's side of the holder (`turnwire.hosting.holder`).

A `HeldProcess` is an `AgentProcess` whose pipes belong to a holder. `Holders` starts them, and finds the ones that
an earlier daemon of the same folder has left.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets as randomness
import signal
import socket
import subprocess
import sys
from collections import Counter, deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType

import anyio
import msgspec

from turnwire.errors import AgentLaunchFailed, LinkBroken
from turnwire.hosting.backoff import Sleep
from turnwire.hosting.environment import secrets
from turnwire.hosting.guard import control_group, kill_control_group, remove_control_group
from turnwire.hosting.holder import HEADER, NOTE, REMOVED, ROUND, SPOOL_BYTES, U32, U64, VERSION, message
from turnwire.hosting.peer import KEPT_BREACHES, Breach
from turnwire.hosting.process import (
    GUARD,
    KILL,
    NO_END,
    STDERR_TAIL_BYTES,
    AgentProcess,
    Report,
    StderrTail,
    check_command,
    kill_orphans,
    launch,
    not_started,
    spare_guard,
)
from turnwire.hosting.queues import Inbound, Outbound
from turnwire.hosting.stdio import OVERSIZED
from turnwire.limits import Limits, MiB
from turnwire.wire.ndjson import LineReader, Oversized

log = logging.getLogger("turnwire.agent")

HOLDER = Path(__file__).with_name("holder.py")
SUFFIX = ".sock"
BOOT = """import sys
for name, path in zip(("turnwire.hosting.guard", "__main__"), sys.argv[1:3]):
    module = sys.modules[name] = type(sys)(name)
    with open(path) as file:
        code = compile(file.read(), path, "exec")
    if name == "__main__":
        del sys.argv[1:3]
    exec(code, module.__dict__)
"""
"""Runs the holder with its only import of ours, without the package around it: that costs more than both."""

READ_BYTES = 256 * 1024
ACKNOWLEDGED_BYTES = 1 * MiB
"""Output after which an acknowledgement is sent although there is nothing else to send."""
HELLO_S = 5.0
"""Time for a holder to answer. One that takes longer was stopped, and is killed."""
STORED_S = 5.0
"""Time for a holder to accept what is written to it. One that takes longer was stopped."""
LEFT_S = 1.0
"""Time to write what is left to a holder when this process leaves it."""
LONGEST_PATH = 100
"""Bytes of a socket's path that every system accepts."""

_COUNT = "frames"
"""The note with the number of the newest acknowledged frame."""
_COUNT_INSIDE = "frames_inside"
"""The same if the acknowledged output ends inside a line that is too long."""


class _Hello(msgspec.Struct):
    version: int
    holder: int
    first: int


_hello = msgspec.json.Decoder(_Hello)
_report = msgspec.json.Decoder(Report)


class _Frames(Inbound):
    """Frames of stdout, with the positions up to which they can be acknowledged."""

    def __init__(self, limits: Limits, on_room: Callable[[], None]) -> None:
        super().__init__(
            limits.link_buffer_bytes, "the peer closed its output and everything it sent has been read"
        )
        self._on_room = on_room
        self._limits = limits
        self._lines = LineReader(limits.frame_bytes)
        self.count = 0
        """Number of the newest frame that has arrived."""
        self.ends: deque[tuple[int, int, bool]] = deque()
        """Per chunk: the newest frame, the position after its line, and whether that is inside a dropped line."""
        self.breaches: Counter[str] = Counter()
        self.last_breaches: deque[Breach] = deque(maxlen=KEPT_BREACHES)

    def begin(self, count: int, *, is_inside_dropped: bool) -> None:
        self.count = count
        self._lines = LineReader(self._limits.frame_bytes, is_inside_dropped=is_inside_dropped)

    def feed(self, position: int, chunk: bytes) -> None:
        lines = self._lines.feed(chunk)
        self._take_in(lines, len(chunk))
        is_inside = self._lines.is_dropping
        end = position + len(chunk) - (0 if is_inside else self._lines.unfinished_bytes)
        self.ends.append((self.count, end, is_inside))

    def finish(self) -> None:
        self._take_in(self._lines.end(), 0)
        self.end()

    def _take_in(self, lines: list[bytes | Oversized], size: int) -> None:
        frames = [line for line in lines if isinstance(line, bytes)]
        if len(frames) < len(lines):
            dropped = [line for line in lines if isinstance(line, Oversized)]
            self.breaches[OVERSIZED] += len(dropped)
            self.last_breaches.extend(Breach(OVERSIZED, each.head) for each in dropped)
        self.count += len(frames)
        self.add(frames, size)

    def on_taken(self) -> None:
        self._on_room()


class _Input(Outbound):
    """Frames for stdin. They are bounded until the agent has accepted them, although the holder has them."""

    def __init__(self, limits: Limits, on_put: Callable[[bytes], None]) -> None:
        super().__init__(limits.link_buffer_bytes, "link_buffer_bytes")
        self._on_put = on_put
        self._sent = self._accepted = 0

    def has_room(self) -> bool:
        return self._sent - self._accepted < self._max_size

    def put(self, frame: bytes) -> None:
        self._sent += len(frame) + 1
        self._on_put(frame)

    def accepted(self, count: int) -> None:
        """The agent has accepted this many bytes, over all connections."""
        self._accepted = count
        self._sent = max(self._sent, count)
        self.admit()


class HolderLink:
    """The connection to a holder: the agent's frames, its notes, and orders about its process.

    Implements `FrameLink`, `Journal` and `TreeKeeper`. All that one event loop round sends is one round (H2 of the
    holder).
    """

    def __init__(
        self,
        connection: socket.socket,
        limits: Limits,
        *,
        heard: Callable[[Report], None],
        ended: Callable[[], None],
        stderr: StderrTail,
        stderr_ended: Callable[[], None],
        holder: int = 0,
    ) -> None:
        """`ended` is called once, when the tree or the holder is gone. `holder`: its process id, if known."""
        self._loop = asyncio.get_running_loop()
        self._socket = connection
        self._limits = limits
        self._heard = heard
        self._ended = ended
        self._stderr = stderr
        self._stderr_ended = stderr_ended
        self.holder = holder
        self._frames = _Frames(limits, self._watch)
        self._input = _Input(limits, self._put)
        self._received = bytearray()
        self._notes: dict[str, bytes] = {}
        self.notes: Mapping[str, bytes] = MappingProxyType(self._notes)
        self.greeted = anyio.Event()
        """Set when all notes have arrived, or none will."""
        self.acknowledged = 0
        self._ack = self._ack_sent = 0
        """The position before which stdout may be forgotten, and the one that the holder knows."""
        self._round_notes: dict[bytes, bytes | None] = {}
        self._round_input = bytearray()
        self._is_round_due = False
        self._wire = bytearray()
        """Encoded messages that the socket had no room for."""
        self._sent: asyncio.Event = asyncio.Event()
        self._is_watched = False
        self._is_writing = False
        self._is_open = True
        self._is_hurrying = False
        """True once the agent is to end: then a full queue of frames must not delay the report of that."""
        self._has_ended = False
        self.has_cleaned_up = False
        self.receive = self._frames.receive
        self.send = self._input.send
        self.send_nowait = self._input.send_nowait
        connection.setblocking(False)
        _open_links.add(self)
        if holder:
            spare_guard(holder, is_spared=True)
        self._watch()

    # -- the link --------------------------------------------------------------------------------------------

    @property
    def breaches(self) -> Counter[str]:
        """Number of dropped lines, by reason."""
        return self._frames.breaches

    @property
    def last_breaches(self) -> deque[Breach]:
        """The newest dropped lines, each with its first bytes."""
        return self._frames.last_breaches

    def end_output(self) -> None:
        """Let the agent read the end of its input after all sent frames. Receiving continues. Idempotent."""
        if not self._input.is_closed:
            self._input.close()
            self._command(b"C")

    def end_input(self) -> None:
        """Expect no more output, because the agent is gone."""
        self._read_last()
        self._frames.finish()

    async def aclose(self) -> None:
        """Dismiss the holder, whose process tree ends with it, and close. Idempotent."""
        if self._frames.is_closed:
            return
        self._frames.close()
        self.end_output()
        self._command(b"Q")
        with anyio.move_on_after(self._limits.stop_eof_s, shield=True):
            await self._sent.wait()
        self._hang_up()

    def leave(self, *, dismissed: bool = False) -> None:
        """Disconnect, and let the agent continue for the next process unless the holder is `dismissed`."""
        self._send_round()
        if dismissed:
            self._command(b"Q")
        with suppress(OSError):
            self._socket.settimeout(LEFT_S)
            self._socket.sendall(self._wire)
        self._hang_up()
        self._frames.close()

    # -- the journal -----------------------------------------------------------------------------------------

    def note(self, name: str, value: bytes | None) -> None:
        """Store a note in this round; `None` removes it."""
        self._round_notes[name.encode()] = value
        self._plan_round()

    async def stored(self) -> None:
        """Return once all notes so far are in the kernel, which delivers them whatever happens to this process.

        Raises `LinkBroken` if the holder does not read. It is killed then: what it has is out of date.
        """
        self._send_round()
        if not self._wire:
            return
        with anyio.move_on_after(STORED_S):
            await self._sent.wait()
        if self._wire:
            self.kill()
            raise LinkBroken("the agent's holder does not read any more; it was killed")

    def acknowledge(self, frame: int) -> None:
        """Let the holder forget the frames up to this number."""
        ends, inside = self._frames.ends, False
        while ends and ends[0][0] <= frame:
            self.acknowledged, self._ack, inside = ends.popleft()
            name = _COUNT_INSIDE if inside else _COUNT
            other = _COUNT if inside else _COUNT_INSIDE
            self._round_notes[name.encode()] = b"%d" % self.acknowledged
            self._round_notes[other.encode()] = None
        if self._ack - self._ack_sent >= ACKNOWLEDGED_BYTES:
            self._plan_round()

    # -- orders ----------------------------------------------------------------------------------------------

    def order(self, what: bytes) -> bool:
        """Send an order of `TreeKeeper`. Return false if the holder is gone."""
        if not self._is_open:
            return False
        if what == KILL:
            self._is_hurrying = True
            self._watch()
        self._command(what[:1])
        return True

    def kill(self) -> None:
        """Kill a holder that does not answer. The kernel then kills its agent, on Linux."""
        if self._is_open and self.holder:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(self.holder, signal.SIGKILL)

    # -- rounds ----------------------------------------------------------------------------------------------

    def _put(self, frame: bytes) -> None:
        self._round_input += frame
        self._round_input += b"\n"
        self._plan_round()

    def _plan_round(self) -> None:
        if not self._is_round_due:
            self._is_round_due = True
            self._loop.call_soon(self._send_round)

    def _send_round(self) -> None:
        self._is_round_due = False
        if not (self._round_notes or self._round_input or self._ack > self._ack_sent) or not self._is_open:
            return
        self._ack_sent = self._ack
        parts = [ROUND.pack(self._ack, len(self._round_notes))]
        for name, value in self._round_notes.items():
            parts += (NOTE.pack(len(name), REMOVED if value is None else len(value)), name, value or b"")
        parts.append(bytes(self._round_input))
        self._round_notes.clear()
        self._round_input.clear()
        self._write(message(b"R", b"".join(parts)))

    def _command(self, kind: bytes) -> None:
        self._send_round()
        self._write(message(kind))

    def _write(self, what: bytes) -> None:
        if self._is_open:
            self._sent.clear()
            self._wire += what
            if not self._is_writing:
                self._flush()
        else:
            self._sent.set()

    def _flush(self) -> None:
        try:
            while self._wire:
                sent = self._socket.send(self._wire)
                del self._wire[:sent]
        except BlockingIOError:
            if not self._is_writing:
                self._is_writing = True
                self._loop.add_writer(self._socket, self._flush)
            return
        except OSError:
            # The reader sees the end, after what the holder has sent before.
            self._wire.clear()
            self._input.break_off("the agent's holder is gone; the frame was not sent")
        self._stop_writing()
        self._sent.set()

    def _stop_writing(self) -> None:
        if self._is_writing:
            self._is_writing = False
            self._loop.remove_writer(self._socket)

    # -- messages of the holder ------------------------------------------------------------------------------

    def _watch(self) -> None:
        if not self._is_watched and self._is_open and (self._is_hurrying or not self._frames.is_full):
            self._is_watched = True
            self._loop.add_reader(self._socket, self._read)

    def _unwatch(self) -> None:
        if self._is_watched:
            self._is_watched = False
            self._loop.remove_reader(self._socket)

    def _read_last(self) -> None:
        while self._is_open and self._read():
            pass

    def _read(self) -> bool:
        """Receive once. Return true if something was received."""
        try:
            chunk = self._socket.recv(READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            chunk = b""
        if not chunk:
            self._lose()
            return False
        self._received += chunk
        start, received = 0, self._received
        while len(received) - start >= HEADER.size and self._is_open:
            kind, size = HEADER.unpack_from(received, start)
            end = start + HEADER.size + size
            if end > len(received):
                break
            self._take(kind, bytes(received[start + HEADER.size : end]))
            start = end
        del received[:start]
        if len(self._frames) and self._frames.is_full and not self._is_hurrying:
            self._unwatch()
        return True

    def _take(self, kind: bytes, payload: bytes) -> None:
        match kind:
            case b"O":
                self._frames.feed(U64.unpack_from(payload)[0], payload[U64.size :])
            case b"E":
                self._stderr.feed(payload)
            case b"W":
                self._input.accepted(U64.unpack(payload)[0])
            case b"S":
                self._status(_report.decode(payload))
            case b"o":
                self._frames.finish()
            case b"e":
                self._stderr.end()
                self._stderr_ended()
            case b"b":
                self._input.break_off("the peer no longer reads; the frame was not sent")
            case b"H":
                self._greeted(_hello.decode(payload))
            case b"N":
                size = U32.size + U32.unpack_from(payload)[0]
                self._notes[payload[U32.size : size].decode()] = payload[size:]
            case b".":
                self._begin()
            case _:
                log.warning("an agent's holder sent an unknown message", extra={"event": "holder_unreadable"})

    def _greeted(self, hello: _Hello) -> None:
        if hello.version != VERSION:
            # Only this version exists. A later one has to speak all earlier ones.
            log.error("an agent's holder speaks protocol %d, and it is killed", hello.version)
            self._command(b"Q")
            self._lose()
            return
        self.holder = hello.holder
        spare_guard(hello.holder, is_spared=True)

    def _begin(self) -> None:
        count = self._notes.pop(_COUNT, None)
        inside = self._notes.pop(_COUNT_INSIDE, None)
        self.acknowledged = int(count or inside or b"0")
        self._frames.begin(self.acknowledged, is_inside_dropped=inside is not None)
        self.greeted.set()

    def _status(self, report: Report) -> None:
        self._heard(report)
        if "gone" in report or "launch_error" in report:
            self.has_cleaned_up = report.get("left", 0) == 0
            self._end()

    # -- the end ---------------------------------------------------------------------------------------------

    def _end(self) -> None:
        if not self._has_ended:
            self._has_ended = True
            self._ended()

    def _lose(self) -> None:
        """The holder is gone, or cannot be understood."""
        is_killed = not self.has_cleaned_up
        self._hang_up()
        self._input.break_off("the agent's holder is gone; the frame was not sent")
        self._frames.finish()
        self._stderr.end()
        if is_killed:
            kill_control_group(control_group(self.holder))
            kill_orphans()
        self._end()
        self._stderr_ended()

    def _hang_up(self) -> None:
        if not self._is_open:
            return
        self._unwatch()
        self._stop_writing()
        self._is_open = False
        _open_links.discard(self)
        self._wire.clear()
        self._sent.set()
        self.greeted.set()
        self._socket.close()
        _reap(self._loop, self.holder)
        spare_guard(self.holder, is_spared=False)
        remove_control_group(control_group(self.holder))


def _reap(loop: asyncio.AbstractEventLoop, holder: int, again_s: float = 0.001) -> None:
    """Reap a holder once it has ended, if it is a child of ours: an earlier program of this process may have
    started it.
    """
    with suppress(ChildProcessError):
        if holder and not os.waitpid(holder, os.WNOHANG)[0]:
            loop.call_later(again_s, _reap, loop, holder, min(2 * again_s, 1.0))


_open_links: set[HolderLink] = set()


def end_held() -> None:
    """Kill all held agents now, without waiting: this process is about to end, and no other one follows."""
    for each in list(_open_links):
        each.order(KILL)
        each.leave(dismissed=True)


class HeldProcess(AgentProcess):
    """An agent below a holder."""

    def __init__(
        self,
        name: str,
        connection: socket.socket,
        hidden: Sequence[bytes],
        limits: Limits,
        sleep: Sleep,
        holder: int = 0,
    ) -> None:
        super().__init__(name, limits, sleep)
        self._stderr = StderrTail(NO_END, STDERR_TAIL_BYTES, hidden, self._finish_if_drained)
        self.link = self._guard = self.journal = self.held = HolderLink(
            connection,
            limits,
            heard=self._heard,
            ended=self._guard_ended,
            stderr=self._stderr,
            stderr_ended=self._finish_if_drained,
            holder=holder,
        )

    async def greet(self) -> None:
        """Wait for the notes of a holder that another process has started. One that does not answer is killed."""
        with anyio.move_on_after(HELLO_S), suppress(AgentLaunchFailed):
            await self.held.greeted.wait()
            await self.launched()
            return
        self.held.kill()


class Holders:
    """The holders of a data folder: their sockets are in it, for this user alone."""

    def __init__(self, folder: Path, hold_s: float) -> None:
        self._folder = folder
        self._hold_s = hold_s

    async def start(
        self,
        command: Sequence[str],
        *,
        cwd: str | os.PathLike[str],
        env: Mapping[str, str],
        limits: Limits,
        sleep: Sleep = anyio.sleep,
    ) -> AgentProcess:
        """Start an agent, as `process.spawn` does. Cancel-safe: a cancelled call leaves no process.

        Raises:
            AgentLaunchFailed: The program is missing or cannot be run, or the directory is missing.
        """
        check_command(command)
        try:
            connection, holder = self._start(command, cwd, env, limits)
        except (OSError, ValueError) as error:
            raise not_started(error) from error
        agent = HeldProcess(command[0], connection, secrets(env), limits, sleep, holder)
        return await launch(agent, env)

    def _start(
        self, command: Sequence[str], cwd: str | os.PathLike[str], env: Mapping[str, str], limits: Limits
    ) -> tuple[socket.socket, int]:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._folder / f"{randomness.token_hex(8)}{SUFFIX}"
        connection = socket.socket(socket.AF_UNIX)
        try:
            with socket.socket(socket.AF_UNIX) as listener, _address(path) as address:
                listener.bind(address)
                path.chmod(0o600)
                listener.listen()
                numbers = (self._hold_s, SPOOL_BYTES + limits.frame_bytes, limits.link_buffer_bytes // 4)
                holder = subprocess.Popen(
                    [
                        *(sys.executable, "-I", "-S", "-c", BOOT, str(GUARD), str(HOLDER)),
                        *(str(listener.fileno()), str(path), *map(str, numbers)),
                        *(os.path.abspath(cwd), "--"),
                        *command,
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=(listener.fileno(),),
                    env=env,
                    cwd="/",
                    start_new_session=True,
                )
                connection.connect(address)
        except BaseException:
            connection.close()
            path.unlink(missing_ok=True)
            raise
        # It outlives this object, and `_reap` asks for its end by its id.
        holder.returncode = 0
        return connection, holder.pid

    async def find(self, limits: Limits, hidden: Sequence[bytes], sleep: Sleep = anyio.sleep) -> list[HeldProcess]:
        """Connect to the holders that an earlier process has left. Call it with the lock of the folder.

        `hidden`: secrets that must not appear in the output of the agents.
        """
        found: dict[Path, HeldProcess] = {}
        for path in sorted(self._folder.glob(f"*{SUFFIX}")):
            connection = socket.socket(socket.AF_UNIX)
            try:
                with _address(path) as address:
                    connection.connect(address)
            except OSError:
                # Its holder was killed.
                connection.close()
                path.unlink(missing_ok=True)
                continue
            found[path] = HeldProcess("", connection, hidden, limits, sleep)
        async with anyio.create_task_group() as tasks:
            for each in found.values():
                tasks.start_soon(each.greet)
        for path in [path for path, each in found.items() if each.exit is not None and not each.pid]:
            # It was being killed, and still accepted the connection.
            del found[path]
            path.unlink(missing_ok=True)
        return list(found.values())


@contextmanager
def _address(path: Path) -> Generator[str]:
    """Return a name for a socket whose path may be too long for a socket's address."""
    if len(os.fsencode(path)) <= LONGEST_PATH or sys.platform != "linux":
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
