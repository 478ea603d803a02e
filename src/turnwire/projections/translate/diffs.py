"""Translation of diffs: a file's old and new text in v1, changes with a patch in v2.

The patch has the form of Git, with the path as the agent wrote it. A part of a file that is too large to be
compared line by line is replaced as a whole. v1 cannot express changes and patches, so its clients are shown them
as text.
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import SequenceMatcher
from itertools import takewhile
from typing import Final

from msgspec import Raw

from turnwire.session.json_members import entries, members, raw, text_of

_COMPARED: Final = 2_000
"""Maximum number of lines that are compared individually. The cost grows with their square; 2,000 need some
milliseconds.
"""
_CONTEXT: Final = 3
"""Unchanged lines around a change, as in Git."""

_Step = tuple[str, int, int, int, int]
"""An operation with old lines from, to; new lines from, to: as in `SequenceMatcher`."""


def changed_file(item: dict[str, Raw]) -> Raw:
    """Return a v1 diff in the form of v2. Without old text the file is new."""
    path, new = text_of(item, "path") or "", text_of(item, "newText") or ""
    old = text_of(item, "oldText")
    change = {"operation": "add" if old is None else "modify", "path": path}
    diff: dict[str, object] = {"type": "diff", "changes": [change]}
    if old != new:
        diff["patch"] = {"format": "git_patch", "text": git_patch(path, old, new)}
    if "_meta" in item:
        diff["_meta"] = item["_meta"]
    return raw(diff)


def git_patch(path: str, old: str | None, new: str) -> str:
    """Return the patch from `old` to `new`."""
    head = [f"diff --git {path} {path}\n"]
    if old is None:
        head.append("new file mode 100644\n")
    if new or old is not None:
        head += [f"--- {'/dev/null' if old is None else path}\n", f"+++ {path}\n"]
    before, after = _lines(old or ""), _lines(new)
    return "".join([*head, *_hunks(before, after)])


def as_text(item: dict[str, Raw]) -> str:
    """Return a v2 diff as text: its patch, else the operation and paths of each change."""
    patch = members(item.get("patch"))
    text = text_of(patch, "text")
    if text:
        return fenced(text, "diff")
    return "\n".join(_in_words(members(each)) for each in entries(item.get("changes"))) or "no changes"


def fenced(text: str, language: str = "") -> str:
    """Return text in a code fence."""
    fence = "```"
    while fence in text:
        fence += "`"
    end = "" if text.endswith("\n") else "\n"
    return f"{fence}{language}\n{text}{end}{fence}"


def _in_words(change: dict[str, Raw]) -> str:
    paths = [text_of(change, "oldPath"), text_of(change, "path")]
    return " ".join([text_of(change, "operation") or "change", *(each for each in paths if each is not None)])


def _lines(text: str) -> list[str]:
    """Split lines as Git does: only a line feed ends one."""
    lines = text.split("\n")
    last = lines.pop()
    return [f"{each}\n" for each in lines] + ([last] if last else [])


def _hunks(old: list[str], new: list[str]) -> Iterator[str]:
    for group in _grouped(_steps(old, new)):
        yield _range(group)
        for what, old_from, old_to, new_from, new_to in group:
            if what == "equal":
                yield from _marked(" ", old[old_from:old_to])
                continue
            yield from _marked("-", old[old_from:old_to])
            yield from _marked("+", new[new_from:new_to])


def _marked(mark: str, lines: list[str]) -> Iterator[str]:
    for line in lines:
        yield f"{mark}{line}" if line.endswith("\n") else f"{mark}{line}\n\\ No newline at end of file\n"


def _steps(old: list[str], new: list[str]) -> list[_Step]:
    """Return the steps from old to new. The common start and end are not compared again."""
    start = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False)))
    rest = min(len(old), len(new)) - start
    ends = zip(reversed(old), reversed(new), strict=False)
    end = min(rest, sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], ends)))
    old_end, new_end = len(old) - end, len(new) - end
    steps: list[_Step] = [("equal", 0, start, 0, start)]
    if max(old_end, new_end) - start > _COMPARED:
        steps.append(("replace", start, old_end, start, new_end))
    else:
        inner = SequenceMatcher(None, old[start:old_end], new[start:new_end]).get_opcodes()
        steps += [(what, a + start, b + start, c + start, d + start) for what, a, b, c, d in inner]
    steps.append(("equal", old_end, len(old), new_end, len(new)))
    return [step for step in steps if step[1] < step[2] or step[3] < step[4]]


def _grouped(steps: list[_Step]) -> Iterator[list[_Step]]:
    """Group nearby steps, with the unchanged lines around them."""
    group: list[_Step] = []
    for index, (what, old_from, old_to, new_from, new_to) in enumerate(steps):
        if what != "equal":
            group.append((what, old_from, old_to, new_from, new_to))
            continue
        kept = min(_CONTEXT, old_to - old_from)
        is_last, is_near = index == len(steps) - 1, old_to - old_from <= 2 * _CONTEXT
        if group and is_near and not is_last:
            group.append((what, old_from, old_to, new_from, new_to))
            continue
        if group:
            yield [*group, (what, old_from, old_from + kept, new_from, new_from + kept)]
        group = [] if is_last else [(what, old_to - kept, old_to, new_to - kept, new_to)]
    if group:
        yield group


def _range(group: list[_Step]) -> str:
    first, last = group[0], group[-1]
    return f"@@ -{_count(first[1], last[2])} +{_count(first[3], last[4])} @@\n"


def _count(start: int, end: int) -> str:
    """Return the range of one side of a hunk. An empty side refers to the line before it."""
    length = end - start
    return f"{start + 1 if length else start},{length}"
