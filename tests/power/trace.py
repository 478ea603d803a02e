"""Run a program under `strace` and list its calls that change files in one folder, in the order they happened.

A call is two moments, its begin and its end, because calls of several threads overlap: a sync covers the writes
that had ended when it began, and holds from its end on.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from turnwire_testing.plugin import find_tool

CALLS = (
    "openat", "write", "pwrite64", "lseek", "ftruncate", "fsync", "fdatasync", "mkdir", "rename", "unlink",
)  # fmt: skip
"""Calls that `turnwire` and SQLite change files with, and that `Disk` knows."""

UNKNOWN = (
    "open", "creat", "openat2", "writev", "pwritev", "pwritev2", "truncate", "fallocate", "sync", "syncfs",
    "sync_file_range", "mkdirat", "renameat", "renameat2", "unlinkat", "rmdir", "link", "linkat", "symlink",
    "symlinkat", "copy_file_range", "sendfile", "splice", "msync",
)  # fmt: skip
"""Calls that could change files too. One of them in the folder means that the disk's model needs it."""

_LINE = re.compile(r"(\d+) +(?:<\.\.\. )?(\w+)(\(| resumed>)(.*)", re.DOTALL)
_RESULT = re.compile(r"\) *= (-?\d+)")
_STRING = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
_UNFINISHED = " <unfinished ...>"


@dataclass(eq=False)
class Call:
    """One system call."""

    name: str
    arguments: str
    result: int | None = None
    """Set at its end."""

    @property
    def strings(self) -> list[bytes]:
        """The arguments in quotes: paths, or data."""
        return [_decoded(each) for each in _STRING.findall(self.arguments)]

    @property
    def numbers(self) -> list[int]:
        """The arguments that are plain numbers, without the descriptor."""
        return [int(each) for each in re.findall(r", (\d+)(?=,|$|\))", self.arguments)]

    @property
    def descriptor(self) -> int:
        return int(self.arguments.partition("<")[0])


@dataclass(frozen=True)
class Moment:
    """The begin or the end of a call. A call that nothing interrupted has both in a row."""

    call: Call
    is_end: bool


def _decoded(escaped: str) -> bytes:
    return bytes.fromhex(escaped.replace("\\x", ""))


def _escaped(path: Path) -> str:
    return "".join(f"\\x{byte:02x}" for byte in bytes(path))


def run_traced(command: Sequence[str], output: Path, timeout_s: float) -> None:
    """Run `command` to its end; fails if it fails."""
    strace = [find_tool("strace"), "-f", "-y", "-xx", "-s", str(1 << 26), "--seccomp-bpf", "-e", "signal=none"]
    traced = ["-e", f"trace={','.join((*CALLS, *UNKNOWN))}", "-o", str(output), "--", *command]
    done = subprocess.run([*strace, *traced], capture_output=True, text=True, timeout=timeout_s, check=False)
    assert done.returncode == 0, done.stderr


def read_trace(output: Path, folder: Path, ledger: Path) -> Iterator[Moment | bytes]:
    """The calls that name a path in `folder` and succeeded, and each write to `ledger` as its bytes."""
    names = _escaped(folder)
    note = f"<{_escaped(ledger)}>"
    running: dict[str, Call] = {}
    with output.open() as lines:
        for line in lines:
            found = _LINE.match(line.rstrip("\n"))
            if found is None:
                continue  # The end of a thread.
            thread, name, begins, rest = found.groups()
            if begins != "(":
                if thread in running:
                    yield _ended(running.pop(thread), rest)
            elif name == "write" and note in rest:
                yield Call(name, rest).strings[0]
            elif names in rest:
                arguments = rest.removesuffix(_UNFINISHED)
                is_running = arguments != rest
                if not is_running and _result(rest) < 0:
                    continue
                assert name in CALLS, f"the disk's model does not know {name}"
                call = Call(name, arguments)
                yield Moment(call, is_end=False)
                if is_running:
                    running[thread] = call
                else:
                    yield _ended(call, rest)


def _ended(call: Call, rest: str) -> Moment:
    call.result = _result(rest)
    assert call.result >= 0, f"{call.name} failed in another thread's way: the model has begun it"
    return Moment(call, is_end=True)


def _result(rest: str) -> int:
    return int(_RESULT.findall(rest)[-1])
