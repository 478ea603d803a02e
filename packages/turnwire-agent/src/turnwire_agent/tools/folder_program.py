"""Search through a folder: a separate program, so that its parent can end it at any moment.

Run as `python -I -S folder_program.py REQUEST` by `turnwire_agent.tools.folders`. A regular expression can run
without end, and so can a disk access; neither can be stopped in a thread. REQUEST is JSON (see `main`); the answer
is lines of JSON:

    list     {"folder": "src", "entries": [["a.py", "file"], ["lib", "folder"], ["old", "link"]]}
    search   {"file": "src/a.py", "lines": [[7, true, "the match"], [8, false, "a line of context"]]}
    both     {"wrong": "…"}                                  the pattern is invalid
             {"done": true, "more": false, "skipped": 0}     the last line; `more` means that a bound was reached

Links are never followed, and nothing is opened by a whole path: each folder is entered name by name from the open
root, so swapping a folder for a link cannot lead outside. Rules above the root are not read. Standard library only,
nothing of turnwire: it starts in some 20 ms.
"""

from __future__ import annotations

import json
import os
import re
import resource
import stat
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import suppress

MEMORY_BYTES = 2**30
"""Memory limit: a pattern can consume as much memory as time."""

RULE_BYTES, PROBE_BYTES, FILE_BYTES = 256 * 1024, 8192, 8 * 1024 * 1024
"""Maximum size of a file of rules; bytes checked for a zero byte, which no text has; maximum size of a searched
file.
"""

DEEPEST, LINE_LENGTH, BEFORE_MATCH = 64, 400, 100

OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK

Names = tuple[str, ...]


def as_regex(glob: str, *, braces: bool = False) -> str:
    """Convert a glob as git reads it: `*` stays within a name, `**` crosses folders. With `braces` also `{a,b}`."""
    out, at, depth = "", 0, 0
    while at < len(glob):
        rest = glob[at:]
        if rest.startswith("**/") and (at == 0 or glob[at - 1] == "/"):
            out, at = out + "(?:.*/)?", at + 3
        elif rest == "**" and glob[at - 1 : at] == "/":
            out, at = out + ".+", at + 2
        elif rest[0] == "[" and (found := re.match(r"\[([!^]?)(\]?[^\]]*)\]", rest)):
            kept = found[2].replace("\\", "\\\\").replace("[", "\\[").replace("]", "\\]")
            out, at = f"{out}[{'^/' if found[1] else ''}{kept}]", at + len(found[0])
        elif rest[0] == "\\" and len(rest) > 1:
            out, at = out + re.escape(rest[1]), at + 2
        elif braces and (rest[0] == "{" or (depth and rest[0] in ",}")):
            depth += {"{": 1, "}": -1, ",": 0}[rest[0]]
            out, at = out + {"{": "(?:", "}": ")", ",": "|"}[rest[0]], at + 1
        else:
            out, at = out + {"*": "[^/]*", "?": "[^/]"}.get(rest[0], re.escape(rest[0])), at + 1
    return out + ")" * depth


def matcher(glob: str, *, braces: bool = False) -> re.Pattern[str]:
    """Anchored where the glob has a slash before its end; without one it means a name in any folder."""
    anywhere = "" if "/" in glob else "(?:.*/)?"
    return re.compile(f"{anywhere}{as_regex(glob.lstrip('/'), braces=braces)}", re.DOTALL)


class IgnoreRule:
    """One line of a `.gitignore`, of the folder that is `depth` names below the root."""

    def __init__(self, line: str, depth: int) -> None:
        self.depth = depth
        self.keeps = line.startswith("!")
        line = line.removeprefix("!")
        self.folders_only = line.endswith("/")
        self._regex = matcher(line.rstrip("/"))

    def speaks_of(self, path: Names, *, is_folder: bool) -> bool:
        return (is_folder or not self.folders_only) and bool(self._regex.fullmatch("/".join(path[self.depth :])))


def rules(text: str, depth: int) -> Iterator[IgnoreRule]:
    for line in text.splitlines():
        line = line if line.endswith("\\ ") else line.rstrip()
        if line.strip("/!") and not line.startswith("#"):
            try:
                yield IgnoreRule(line, depth)
            except re.error:
                continue


def is_ignored(known: list[IgnoreRule], path: Names, *, is_folder: bool) -> bool:
    """The last rule that speaks of it decides."""
    return next((not each.keeps for each in reversed(known) if each.speaks_of(path, is_folder=is_folder)), False)


class Folder:
    """The open root, and the filter for its visible entries."""

    def __init__(self, root: str, *, closed: str, hidden: bool, ignored: bool) -> None:
        self._closed = closed
        self._hidden = hidden
        self._ignored = ignored
        self._root = os.open("/", OPEN | os.O_DIRECTORY)
        self._root = self._enter(tuple(name for name in root.split("/") if name))
        self.unreadable = 0

    def _enter(self, path: Names) -> int:
        """Open a folder, name by name."""
        folder = os.dup(self._root)
        for name in path:
            outer = folder
            try:
                folder = os.open(name, OPEN | os.O_DIRECTORY, dir_fd=outer)
            finally:
                os.close(outer)
        return folder

    def read(self, path: Names, most: int) -> bytes | None:
        """Read a regular text file that is not larger than `most`."""
        folder = self._enter(path[:-1])
        try:
            fd = os.open(path[-1], OPEN, dir_fd=folder)
        finally:
            os.close(folder)
        with os.fdopen(fd, "rb") as file:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode) or found.st_size > most:
                return None
            # Most binary files are large: checking the beginning is enough.
            start = file.read(PROBE_BYTES)
            return None if b"\0" in start else start + file.read(max(0, found.st_size - len(start)))

    def rules_of(self, path: Names) -> list[IgnoreRule]:
        """Return the folder's rules for everything below it."""
        found: list[IgnoreRule] = []
        for file in [(*path, ".gitignore")] + ([(".git", "info", "exclude")] if not path else []):
            try:
                text = self.read(file, RULE_BYTES) or b""
            except OSError:
                continue
            found += rules(text.decode(errors="replace"), len(path))
        return found

    def entries(self, path: Names, known: list[IgnoreRule]) -> list[tuple[str, str]]:
        """Return the visible names in a folder and their types, in order."""
        folder = self._enter(path)
        try:
            with os.scandir(folder) as found:
                seen = [(each.name, kind_of(each)) for each in found]
        finally:
            os.close(folder)
        if any(name == self._closed for name, _ in seen):
            raise PermissionError
        return sorted(
            (name, kind)
            for name, kind in seen
            if (self._hidden or not name.startswith("."))
            and (self._ignored or not is_ignored(known, (*path, name), is_folder=kind == "folder"))
        )

    def walk(self, start: Names, *, depth: int, deep_first: bool) -> Iterator[tuple[Names, list[tuple[str, str]]]]:
        """Yield every folder from `start` on with its entries, down to `depth` levels."""
        known = [rule for at in range(len(start)) for rule in self.rules_of(start[:at])]
        waiting = deque([(start, known)])
        while waiting:
            path, above = waiting.popleft()
            try:
                inside = above + self.rules_of(path)
                entries = self.entries(path, inside)
            except OSError:
                if path == start:
                    raise
                self.unreadable += 1
                continue
            yield path, entries
            if len(path) - len(start) + 1 < depth:
                below = [((*path, name), inside) for name, kind in entries if kind == "folder"]
                if deep_first:
                    waiting.extendleft(reversed(below))
                else:
                    waiting.extend(below)


def kind_of(entry: os.DirEntry[str]) -> str:
    if entry.is_symlink():
        return "link"
    return "folder" if entry.is_dir(follow_symlinks=False) else "file"


def tell(**line: object) -> int:
    """Write one line of the answer; return its size."""
    text = json.dumps(line)
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
    return len(text)


def shown(names: Names) -> str:
    """Return a path as text, whatever bytes its names are."""
    return os.fsencode("/".join(names)).decode(errors="replace")


def list_folders(folder: Folder, start: Names, *, depth: int, most: int) -> bool:
    """Write folder by folder, the upper ones first; return True if there was more."""
    left = most
    for path, entries in folder.walk(start, depth=depth, deep_first=False):
        told = entries[:left]
        tell(folder=shown(path[len(start) :]), entries=[[shown((name,)), kind] for name, kind in told])
        left -= len(told)
        if len(told) < len(entries):
            return True
    return False


class TextSearch:
    """A search for one pattern through the files."""

    def __init__(self, regex: re.Pattern[str], context: int, most: int, most_bytes: int) -> None:
        self._regex = regex
        # Searching the whole text first is many times faster. A match in a line also matches there, unless the
        # pattern excludes following text, or consumes text beyond the line without backtracking.
        is_plain = not re.search(r"\(\?<?!|\(\?>|\\[AZ]|[*+?}]\+", regex.pattern)
        self._anywhere = re.compile(regex.pattern, regex.flags | re.MULTILINE) if is_plain else None
        self._context = context
        self._left = most
        self._bytes_left = most_bytes
        self.skipped = 0

    def look(self, folder: Folder, path: Names, name: str) -> bool:
        """Search one file and write the matches; return True if there is room for more."""
        try:
            content = folder.read(path, FILE_BYTES)
        except OSError:
            content = None
        if content is None:
            self.skipped += 1
            return True
        text = content.decode(errors="replace")
        if self._anywhere and not self._anywhere.search(text):
            return True
        lines = text.split("\n")
        found = [(at, match.start()) for at, line in enumerate(lines) if (match := self._regex.search(line))]
        kept, self._left = found[: self._left], self._left - len(found)
        if kept:
            self._bytes_left -= tell(file=name, lines=self._with_context(lines, dict(kept)))
        return self._left >= 0 and self._bytes_left > 0

    def _with_context(self, lines: list[str], found: dict[int, int]) -> list[tuple[int, bool, str]]:
        near = {
            at
            for each in found
            for at in range(max(0, each - self._context), min(len(lines), each + self._context + 1))
        }
        return [(at + 1, at in found, around(lines[at].rstrip("\r"), found.get(at, 0))) for at in sorted(near)]


def around(line: str, at: int) -> str:
    """Return a line, or the text near the match in a line that is too long to show."""
    if len(line) <= LINE_LENGTH:
        return line
    start = max(0, at - BEFORE_MATCH)
    end = start + LINE_LENGTH
    return ("…" if start else "") + line[start:end] + ("…" if end < len(line) else "")


def search_files(folder: Folder, start: Names, search: TextSearch, only: str | None, glob: str | None) -> bool:
    """Search the files; return True if there were more matches than the bound allows."""
    if only is not None:
        return not search.look(folder, (*start, only), shown((only,)))
    wanted = matcher(glob, braces=True) if glob else None
    for path, entries in folder.walk(start, depth=DEEPEST, deep_first=True):
        for name, kind in entries:
            below = (*path[len(start) :], name)
            if kind != "file" or (wanted and not wanted.fullmatch("/".join(below))):
                continue
            if not search.look(folder, (*path, name), shown(below)):
                return True
    return False


def main(request: dict[str, object]) -> None:
    """`root`, `below` (names down to where it starts), `closed` (a name that closes the folder it is in), `hidden`,
    `ignored`, `most`; then `depth` for a list, or `pattern`, `ignore_case`, `context`, `only` (one file), `glob`
    and `most_bytes` for a search."""
    with suppress(ValueError, OSError):
        # Not every system knows this bound; the bound on time holds everywhere.
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    shows = {name: bool(request[name]) for name in ("hidden", "ignored")}
    folder = Folder(str(request["root"]), closed=str(request["closed"]), **shows)
    start = tuple(str(request["below"]).split("/")) if request["below"] else ()
    most, skipped = int(str(request["most"])), 0
    if "pattern" in request:
        try:
            regex = re.compile(str(request["pattern"]), re.IGNORECASE if request["ignore_case"] else 0)
            glob = str(request["glob"]) if request["glob"] else None
            matcher(glob or "*", braces=True)
        except (re.error, OverflowError, RecursionError, MemoryError) as error:
            tell(wrong=str(error) if isinstance(error, re.error) else "it is too large")
            return
        search = TextSearch(regex, int(str(request["context"])), most, int(str(request["most_bytes"])))
        more = search_files(folder, start, search, str(request["only"]) if request["only"] else None, glob)
        skipped = search.skipped
    else:
        more = list_folders(folder, start, depth=int(str(request["depth"])), most=most)
    tell(done=True, more=more, skipped=skipped + folder.unreadable)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
