"""The paths an agent may use: those that lead into the directories of its session.

The input is the session's `cwd` and further directories. The result is an open directory and a name in it, or the
true path of a directory, or a rejection. Links are never followed by the system, files are never opened by a
complete path, and the existence of files outside is never revealed. The functions block: call them in a worker
thread.

The difficulty is that a path can change its meaning right after it was checked. The solution is to walk it
ourselves, name by name, from one open directory to the next, and to open nothing that is a link. A link is read as
text and its text is walked by the same rules. So concurrent replacement of a component by a link is harmless:

W1  Every directory on the way was opened without following a link, so the names walked are its true path.
W2  Nothing is inspected that is neither inside a root nor on the way down to one.
W3  The result lies inside a root by W1. The caller opens the name in the open directory, again without
    following a link.
W4  The roots themselves are pinned to their true paths once. A root that is replaced by a link is rejected.
W5  Closed directories, those that contain a mark, are never entered; turnwire's own data have one. So their
    location does not matter, nor the name or mount by which they are reached. A mark itself is not accessible.

Hard links and mounts are not detected: a user who can create those in a root can reach their targets anyway.
"""

from __future__ import annotations

import os
import stat
import sys
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeAlias

from turnwire.hosting.services import refusals

Names: TypeAlias = tuple[str, ...]
"""A path from `/`, as names."""

LINKS = 40
"""Maximum number of links in one path, as on Linux; more indicate a cycle."""

STEPS = 1024
"""Maximum number of names in one path including those of its links. Far above any project's depth; bounds
the work.
"""

MARK = ".turnwire-data"
"""The file that closes its directory and everything below."""
_MARK_TEXT = "These are turnwire's own data. While this file is here, no agent is given anything of this folder.\n"
_OWN_DIRECTORY_MODE = 0o700
_PROCESSES: Names = ("proc",)
"""The directory of processes on Linux: our environment and memory are not files of a session."""

NEW_DIRECTORY_MODE = 0o777
"""Mode of a new directory before the umask is applied, as in `mkdir`."""

_DIRECTORY = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_PATH if sys.platform == "linux" else os.O_RDONLY)


def close_directory(path: Path) -> None:
    """Close a directory for every agent's file services and tools, here and in other processes.

    It is created for its owner alone if it does not exist. Raises `OSError`.
    """
    path.mkdir(parents=True, exist_ok=True, mode=_OWN_DIRECTORY_MODE)
    mark = path / MARK
    if not mark.exists():
        mark.write_text(_MARK_TEXT, encoding="utf-8")


def is_in_closed(path: Path) -> bool:
    """Return true if a directory, or one above it, is closed."""
    true = Path(os.path.realpath(path))
    return any(os.path.lexists(each / MARK) for each in (true, *true.parents))


class Place(NamedTuple):
    """A name in an open directory inside a root. Open it without following links."""

    directory: int
    name: str


class _Root(NamedTuple):
    given: Names
    true: Names


class Roots:
    """The directories of one session."""

    def __init__(self, cwd: str, additional: Sequence[str] = ()) -> None:
        """Check the shape only. Raises `RequestRefused` for a path that is empty or not absolute."""
        self._given = (cwd, *additional)
        for path in self._given:
            check_path(path)
        self._lock = threading.Lock()
        self._pinned: tuple[_Root, ...] = ()

    def pin(self) -> None:
        """Resolve the roots to their true paths, once. Raises `RequestRefused` if one is not a directory."""
        with self._lock:
            if not self._pinned:
                self._pinned = tuple(_pin(path) for path in self._given)

    @contextmanager
    def locate(self, path: str, *, make_parents: bool = False) -> Generator[Place]:
        """Return the place of a file that may or may not exist; it was not a link when inspected.

        Raises:
            RequestRefused: The path leads outside, a directory on the way is missing, or it ends at a root.
        """
        with self._walk(path) as walk:
            yield walk.to_name(make_parents=make_parents)

    def directory(self, path: str | None = None) -> str:
        """Return the true path of a directory inside the roots; by default of the session's `cwd`."""
        if path is None:
            self.pin()
            return "/" + "/".join(self._pinned[0].true)
        with self._walk(path) as walk:
            return walk.to_directory()

    @contextmanager
    def _walk(self, path: str) -> Generator[_Walk]:
        """Convert all system errors on the way to our messages."""
        check_path(path)
        self.pin()
        try:
            with _Walk(self._pinned, path) as walk:
                yield walk
        except OSError as error:
            raise refusals.from_os(error, path) from None


class _Walk:
    """One path being walked. Holds one directory open."""

    def __init__(self, roots: tuple[_Root, ...], path: str) -> None:
        self._roots = roots
        self._path = path
        self._at: Names = ()
        self._left = list(reversed(self._expand(path)))
        self._links = 0
        self._steps = 0
        self._directory = os.open("/", _DIRECTORY)

    def __enter__(self) -> _Walk:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._directory)

    def to_name(self, *, make_parents: bool) -> Place:
        """Walk to the last name, which is not entered."""
        while self._left:
            name = self._next()
            if name == "..":
                self._go_up()
                continue
            is_last = not self._left
            if is_last and not self._is_inside((*self._at, name)):
                self._at += (name,)
                break
            found = self._find(name)
            if found and stat.S_ISLNK(found.st_mode):
                self._follow(name)
            elif is_last:
                return Place(self._directory, name)
            else:
                if not found:
                    self._make(name, make_parents)
                self._enter(name)
        raise refusals.not_a_file() if self._is_root_or_inside(self._at) else refusals.outside()

    def to_directory(self) -> str:
        """Walk into the last name as well."""
        while self._left:
            name = self._next()
            if name == "..":
                self._go_up()
                continue
            found = self._find(name)
            if not found:
                raise refusals.not_found(self._path)
            if stat.S_ISLNK(found.st_mode):
                self._follow(name)
            else:
                self._enter(name)
        if not self._is_root_or_inside(self._at):
            raise refusals.outside()
        return "/" + "/".join(self._at)

    def _next(self) -> str:
        self._steps += 1
        if self._steps > STEPS:
            raise refusals.invalid("the path is too deep; use a shorter one", "too_deep")
        return self._left.pop()

    def _find(self, name: str) -> os.stat_result | None:
        """Return the `stat` result of a name, if it exists. Rejects names that may not be inspected (W2, W5)."""
        there = (*self._at, name)
        if not self._is_root_or_inside(there) and not self._is_above(there):
            raise refusals.outside()
        if name.casefold() == MARK or there == _PROCESSES:
            raise refusals.closed_directory()
        try:
            return os.stat(name, dir_fd=self._directory, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def _enter(self, name: str) -> None:
        inner = os.open(name, _DIRECTORY, dir_fd=self._directory)
        os.close(self._directory)
        self._directory = inner
        self._at += (name,)
        if _is_closed(inner):
            raise refusals.closed_directory()

    def _make(self, name: str, make_parents: bool) -> None:
        # A directory that `..` would leave again is not created.
        if not make_parents or ".." in self._left or not self._is_inside((*self._at, name)):
            raise refusals.not_found(self._path)
        try:
            os.mkdir(name, NEW_DIRECTORY_MODE, dir_fd=self._directory)
        except FileExistsError:
            # Another write has just created it; if it is not a directory, entering it fails.
            return

    def _follow(self, name: str) -> None:
        if not self._is_inside((*self._at, name)):
            # W4: a true path has no links.
            raise refusals.outside()
        self._links += 1
        if self._links > LINKS:
            raise refusals.invalid("the path goes round in circles; mend its links", "too_many_links")
        target = os.readlink(name, dir_fd=self._directory)
        if target.startswith("/"):
            self._return_to(())
            self._left += reversed(self._expand(target))
        else:
            self._left += reversed(_names(target))

    def _go_up(self) -> None:
        self._return_to(self._at[:-1])

    def _return_to(self, at: Names) -> None:
        """Walk down again by true names. `..` of an open directory would lead to its current parent, wherever it
        was moved.
        """
        top = os.open("/", _DIRECTORY)
        os.close(self._directory)
        self._directory = top
        self._at = ()
        for name in at:
            self._enter(name)

    def _expand(self, path: str) -> Names:
        """Return the names of an absolute path, with a root's configured name replaced by its true one."""
        names = _names(path)
        matching = [root for root in self._roots if names[: len(root.given)] == root.given]
        if not matching:
            return names
        root = max(matching, key=lambda each: len(each.given))
        return root.true + names[len(root.given) :]

    def _is_inside(self, at: Names) -> bool:
        return any(len(at) > len(true) and at[: len(true)] == true for _, true in self._roots)

    def _is_root_or_inside(self, at: Names) -> bool:
        return any(at[: len(true)] == true for _, true in self._roots)

    def _is_above(self, at: Names) -> bool:
        return any(true[: len(at)] == at for _, true in self._roots)


def check_path(path: str) -> None:
    """Reject a text that cannot be a path of an agent. ACP: all paths are absolute."""
    if not path.startswith("/"):
        raise refusals.invalid("the path is not absolute; begin it with `/`", "not_absolute")
    try:
        is_possible = b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        is_possible = False
    if not is_possible:
        raise refusals.invalid("the path holds what no file name can hold; check its encoding", "malformed")


def _is_closed(directory: int) -> bool:
    try:
        os.stat(MARK, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _names(path: str) -> Names:
    return tuple(name for name in path.split("/") if name not in ("", "."))


def _pin(path: str) -> _Root:
    try:
        true = os.path.realpath(path, strict=True)
        is_directory = stat.S_ISDIR(os.stat(true).st_mode)
    except OSError:
        is_directory, true = False, ""
    if not is_directory:
        raise refusals.invalid(
            "a directory of the session is missing or cannot be entered; make it, or open the session elsewhere",
            "root_missing",
        )
    if is_in_closed(Path(true)):
        raise refusals.closed_directory()
    return _Root(_names(path), _names(true))
