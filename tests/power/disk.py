"""A disk that loses power: the files of a traced program, as far as syncs have made them durable.

Rules of the model, as strict as POSIX lets a file system be:

- A write is durable when a sync of its file has ended that began after the write had ended. Until then each sector
  of 512 bytes may be as it was before, or as any of the writes left it. A sector itself is never torn (SQLite calls
  this "powersafe overwrite" and assumes it of every disk).
- The length of a file is durable with its writes. A part that no write reached is zeros, or anything.
- A name (a new file or folder, a rename, a removal) is durable when its folder was synced, not when the file was.
  Until then any number of the folder's changes, in their order, may be there.
- Memory that is mapped is lost. Only SQLite's `-shm` file is mapped, and it is recreated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from random import Random
from typing import NamedTuple

from tests.power.trace import Call, Moment

SECTOR = 512


@dataclass(eq=False)
class Write:
    """Bytes at a place of a file, or, without bytes, its new length."""

    offset: int
    data: bytes | None
    is_done: bool = False


@dataclass(eq=False)
class File:
    durable: bytearray = field(default_factory=bytearray)
    pending: list[Write] = field(default_factory=list[Write])
    size: int = 0
    """The size that the program sees."""


@dataclass(eq=False)
class Rename:
    """A change of a folder: a node gets a name, or loses one, or both."""

    removed: str | None
    added: str | None
    node: File | Folder
    is_done: bool = False


@dataclass(eq=False)
class Folder:
    durable: dict[str, File | Folder] = field(default_factory=dict[str, "File | Folder"])
    pending: list[Rename] = field(default_factory=list[Rename])
    current: dict[str, File | Folder] = field(default_factory=dict[str, "File | Folder"])
    """The entries that the program sees."""


@dataclass
class _Opened:
    file: File
    position: int
    is_appending: bool


class Luck(NamedTuple):
    """The part of the non-durable changes that a power cut spares."""

    name: str
    sectors: Callable[[Random, int], int]
    """Number of a sector's n pending writes that reached the disk."""
    names: Callable[[Random, int], int]
    """Number of a folder's n pending changes that reached the disk."""
    gap: Callable[[Random, int], bytes] = lambda _, length: bytes(length)
    """The content of parts that no write reached."""


def _none(_: Random, pending: int) -> int:
    return pending * 0


def _all(_: Random, pending: int) -> int:
    return pending


def _any(chance: Random, pending: int) -> int:
    return chance.randint(0, pending)


def _mostly(share: float) -> Callable[[Random, int], int]:
    return lambda chance, pending: pending if chance.random() < share else chance.randint(0, pending)


def _few(chance: Random, pending: int) -> int:
    return pending if chance.random() < 0.05 else 0


ONLY_SYNCED = Luck("only what was synced", _none, _none)
UNSYNCED = (
    Luck("everything", _all, _all),
    Luck("sectors at random", _any, _any),
    Luck("most sectors", _mostly(0.95), _all),
    Luck("few sectors", _few, _any),
    Luck("sectors at random, garbage in between", _any, _any, Random.randbytes),
    Luck("names only", _none, _all),
    Luck("content only", _all, _none),
)


class Disk:
    """The state of one folder while the calls of a program are played to it."""

    def __init__(self, root: Path, *, drops_sync: Callable[[], bool] = lambda: False) -> None:
        """Create a disk. `drops_sync` returns, for each sync, True if this disk confirms it and does nothing."""
        self.root = Folder()
        self._path = root
        self._drops_sync = drops_sync
        self._opened: dict[int, _Opened | Folder] = {}
        self._written: dict[Call, Write] = {}
        """Writes that have begun."""
        self._covered: dict[Call, set[Write | Rename]] = {}
        """Changes that a sync makes durable at its end."""
        self._begins: dict[str, Callable[[Call], None]] = {
            "write": self._begin_write,
            "pwrite64": self._begin_write,
            "fsync": self._begin_sync,
            "fdatasync": self._begin_sync,
        }
        self._ends: dict[str, Callable[[Call], None]] = {
            "openat": self._end_open,
            "mkdir": self._end_mkdir,
            "rename": self._end_rename,
            "unlink": self._end_unlink,
            "write": self._end_write,
            "pwrite64": self._end_write,
            "lseek": self._end_seek,
            "ftruncate": self._end_truncate,
            "fsync": self._end_sync,
            "fdatasync": self._end_sync,
        }

    def play(self, moment: Moment) -> None:
        """Apply a call's effect at its begin or its end."""
        act = (self._ends if moment.is_end else self._begins).get(moment.call.name)
        if act is not None:
            act(moment.call)

    # -- names -------------------------------------------------------------------------------------------------

    def _parent(self, path: bytes) -> tuple[Folder, str]:
        inside = PurePosixPath(path.decode()).relative_to(self._path)
        folder = self.root
        for part in inside.parts[:-1]:
            found = folder.current[part]
            assert isinstance(found, Folder), path
            folder = found
        return folder, inside.name

    def _change(self, folder: Folder, change: Rename) -> None:
        if change.removed is not None:
            folder.current.pop(change.removed, None)
        if change.added is not None:
            folder.current[change.added] = change.node
        change.is_done = True
        folder.pending.append(change)

    def _end_open(self, call: Call) -> None:
        path = call.strings[0]
        assert call.result is not None
        if PurePosixPath(path.decode()) == PurePosixPath(self._path):
            self._opened[call.result] = self.root
            return
        folder, name = self._parent(path)
        node = folder.current.get(name)
        if node is None:
            assert "O_CREAT" in call.arguments, call.arguments
            node = File()
            self._change(folder, Rename(None, name, node))
        if isinstance(node, Folder):
            self._opened[call.result] = node
            return
        if "O_TRUNC" in call.arguments:
            node.pending.append(Write(0, None, is_done=True))
            node.size = 0
        self._opened[call.result] = _Opened(node, 0, "O_APPEND" in call.arguments)

    def _end_mkdir(self, call: Call) -> None:
        folder, name = self._parent(call.strings[0])
        self._change(folder, Rename(None, name, Folder()))

    def _end_rename(self, call: Call) -> None:
        (folder, old), (target, new) = map(self._parent, call.strings)
        assert folder is target, "a rename into another folder"
        self._change(folder, Rename(old, new, folder.current[old]))

    def _end_unlink(self, call: Call) -> None:
        folder, name = self._parent(call.strings[0])
        self._change(folder, Rename(name, None, folder.current[name]))

    # -- content -----------------------------------------------------------------------------------------------

    def _open_file(self, call: Call) -> _Opened:
        opened = self._opened[call.descriptor]
        assert isinstance(opened, _Opened)
        return opened

    def _begin_write(self, call: Call) -> None:
        opened = self._open_file(call)
        data = call.strings[-1]
        if call.name == "pwrite64":
            offset = call.numbers[-1]
        else:
            offset = opened.file.size if opened.is_appending else opened.position
            opened.position = offset + len(data)
        write = Write(offset, data)
        opened.file.size = max(opened.file.size, offset + len(data))
        opened.file.pending.append(write)
        self._written[call] = write

    def _end_write(self, call: Call) -> None:
        write = self._written.pop(call)
        assert write.data is not None
        assert call.result == len(write.data), "a short write"
        write.is_done = True

    def _end_seek(self, call: Call) -> None:
        opened = self._opened[call.descriptor]
        assert call.result is not None
        if isinstance(opened, _Opened):
            opened.position = call.result

    def _end_truncate(self, call: Call) -> None:
        file = self._open_file(call).file
        file.size = call.numbers[-1]
        file.pending.append(Write(file.size, None, is_done=True))

    def _begin_sync(self, call: Call) -> None:
        if not self._drops_sync():
            opened = self._opened[call.descriptor]
            pending = opened.pending if isinstance(opened, Folder) else opened.file.pending
            self._covered[call] = {each for each in pending if each.is_done}

    def _end_sync(self, call: Call) -> None:
        covered = self._covered.pop(call, set[Write | Rename]())
        opened = self._opened[call.descriptor]
        if isinstance(opened, Folder):
            _rename(opened.durable, [each for each in opened.pending if each in covered])
            opened.pending = [each for each in opened.pending if each not in covered]
            return
        for each in opened.file.pending:
            if each in covered:
                _write(opened.file.durable, each)
        opened.file.pending = [each for each in opened.file.pending if each not in covered]

    # -- the cut -----------------------------------------------------------------------------------------------

    def cut(self, target: Path, luck: Luck, chance: Random) -> None:
        """Write the files that remain after a power cut now into `target`."""
        self._cut_folder(self.root, target, luck, chance)

    def _cut_folder(self, folder: Folder, target: Path, luck: Luck, chance: Random) -> None:
        target.mkdir(mode=0o700)
        names = dict(folder.durable)
        _rename(names, folder.pending[: luck.names(chance, len(folder.pending))])
        for name, node in sorted(names.items()):
            if isinstance(node, Folder):
                self._cut_folder(node, target / name, luck, chance)
            else:
                (target / name).touch(mode=0o600)
                (target / name).write_bytes(left_of(node, luck, chance))


def _rename(names: dict[str, File | Folder], changes: list[Rename]) -> None:
    for each in changes:
        if each.removed is not None:
            names.pop(each.removed, None)
        if each.added is not None:
            names[each.added] = each.node


def _write(content: bytearray, write: Write) -> None:
    if write.data is None:
        del content[write.offset :]
        content.extend(bytes(write.offset - len(content)))
        return
    content.extend(bytes(max(0, write.offset - len(content))))
    content[write.offset : write.offset + len(write.data)] = write.data


def left_of(file: File, luck: Luck, chance: Random) -> bytes:
    """The content of a file after a power cut."""
    touched: dict[int, int] = {}
    for write in file.pending:
        for sector, _ in _sectors(write):
            touched[sector] = touched.get(sector, 0) + 1
    spared = {sector: luck.sectors(chance, count) for sector, count in touched.items()}
    content = bytearray(file.durable)
    for write in file.pending:
        if write.data is None:
            # A new length is one change, like a name.
            if luck.sectors(chance, 1):
                _write(content, write)
            continue
        for sector, (begin, end) in _sectors(write):
            spared[sector] -= 1
            if spared[sector] >= 0:
                content.extend(luck.gap(chance, max(0, begin - len(content))))
                content[begin:end] = write.data[begin - write.offset : end - write.offset]
    return bytes(content)


def _sectors(write: Write) -> list[tuple[int, tuple[int, int]]]:
    """The sectors that a write touches, and the range of bytes in each."""
    if write.data is None:
        return []
    end = write.offset + len(write.data)
    return [
        (sector, (max(write.offset, sector * SECTOR), min(end, (sector + 1) * SECTOR)))
        for sector in range(write.offset // SECTOR, -(-end // SECTOR))
    ]
