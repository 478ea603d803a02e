"""A line of shell as it is taken apart before anything runs: its commands as words, and what is not sure of them.

Takes a line as an agent shows it; gives what is written in it. A shell does more with a line than can be known from
its text (variables, names with `*`, aliases), so a reading says how far it goes, and never guesses:

    plain   one command of literal words: what is written is what is run
    known   several commands perhaps, but all of them are written out
    else    something else may be run as well

It is made for judging, so it errs on the side of finding commands: what stands behind a keyword, an assignment, a
redirection or a substitution is one. A plain line means the same to every shell of the family of `sh`.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias

Words: TypeAlias = tuple[str, ...]

LONGEST = 16 * 1024
"""Characters of a line that is read. A longer one is a program, and not known."""
DEEPEST = 3
"""Lines inside lines, as in `sh -c "sh -c '…'"`."""
MOST_ENDS = 64
"""Words of a command from which on another one may begin that are looked at."""

KEYWORDS: Final = frozenset(
    {
        *(
            "if",
            "then",
            "else",
            "elif",
            "fi",
            "do",
            "done",
            "while",
            "until",
            "for",
            "select",
            "case",
            "esac",
            "in",
        ),
        *("function", "time", "coproc", "{", "}", "!", "[[", "]]"),
    }
)
STARTERS: Final = frozenset(
    {
        *("ash", "bash", "busybox", "builtin", "chroot", "command", "dash", "doas", "env", "eval", "exec", "find"),
        *("fish", "flock", "ionice", "ksh", "nice", "nohup", "nsenter", "parallel", "runuser", "script", "setsid"),
        *("sh", "ssh", "stdbuf", "strace", "su", "sudo", "time", "timeout", "trap", "unshare", "watch", "xargs"),
        "zsh",
    }
)
"""Programs that run what their arguments say."""

_BLANKS, _ENDS, _EXPANDS = " \t", "\n;&|()`", "$`*?[~"
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\[[^\]]*\])?\+?=")
_REDIRECTION = re.compile(r"&?(<<<|<<-?|<>|[<>]&-?|>>|>\||[<>])")
_LINE_IN_WORD = re.compile(r"[\s;&|`()]")


class Reading(NamedTuple):
    """What is written in a line."""

    commands: tuple[Words, ...]
    """Each with its words, quotes taken away, without redirections."""
    inner: tuple[str, ...]
    """Lines that the shell runs while it reads this one, inside of double quotes."""
    is_plain: bool
    is_known: bool


class Candidate(NamedTuple):
    """A command that the line may run."""

    text: str
    is_sure: bool
    """Whether the line says so; else it is only a way to read it."""


def read_line(line: str) -> Reading:
    """Take a line apart."""
    if len(line) > LONGEST:
        return Reading((), (), is_plain=False, is_known=False)
    return _Reader(line.strip(" \t\n")).read()


def text_of(words: Words) -> str:
    """A command with one blank between its words; words that hold blanks themselves are quoted."""
    return " ".join(each if each and not re.search(r"\s", each) else shlex.quote(each) for each in words)


def candidates(reading: Reading, depth: int = 0) -> Iterator[Candidate]:
    """Every command that a line may run, those that it certainly names and those that it may be hiding."""
    for words in reading.commands:
        yield from _of_command(words, depth)
    if depth < DEEPEST:
        for line in reading.inner:
            yield from candidates(read_line(line), depth + 1)


def _of_command(words: Words, depth: int) -> Iterator[Candidate]:
    starts_others = False
    is_first = True
    for at in range(min(len(words), MOST_ENDS)):
        program = posixpath.basename(words[at])
        for each in {text_of(words[at:]), " ".join(words[at:]), text_of((program, *words[at + 1 :]))}:
            yield Candidate(each, is_first or starts_others)
        # What stands behind a keyword or an assignment is a command like the first.
        is_first = is_first and (words[at] in KEYWORDS or _ASSIGNMENT.match(words[at]) is not None)
        starts_others = starts_others or program in STARTERS
    if depth < DEEPEST:
        for word in words:
            if _LINE_IN_WORD.search(word):
                for each in candidates(read_line(word), depth + 1):
                    yield Candidate(each.text, each.is_sure and starts_others)


class _Reader:
    """One line on its way."""

    def __init__(self, line: str) -> None:
        self._line = line
        self._at = 0
        self._word: list[str] | None = None
        """None between words: a word may be empty, if it is quoted."""
        self._is_quoted = self._has_brace = False
        self._words: list[str] = []
        self._drops_next = False
        """The next word is where something is redirected to."""
        self._commands: list[Words] = []
        self._inner: list[str] = []
        self._is_single = True
        self._is_literal = True

    def read(self) -> Reading:
        while self._at < len(self._line):
            self._step(self._line[self._at])
        self._end_command()
        is_single = self._is_single and len(self._commands) == 1 and not _begins_oddly(self._commands[0])
        return Reading(
            tuple(self._commands), tuple(self._inner), is_single and self._is_literal, is_known=self._is_literal
        )

    def _step(self, sign: str) -> None:
        if sign in "'\"\\":
            {"'": self._single, '"': self._double, "\\": self._escape}[sign]()
        elif sign in _BLANKS:
            self._end_word()
            self._at += 1
        elif found := _REDIRECTION.match(self._line, self._at):
            self._redirect(found)
        elif sign in _ENDS:
            self._is_single = False
            self._is_literal = self._is_literal and sign != "`"
            self._end_command()
            self._at += 1
        elif sign == "#" and self._word is None:
            self._is_single = False
            self._at = _find(self._line, "\n", self._at)
        else:
            self._add(sign)

    def _add(self, sign: str) -> None:
        starts = self._word is None
        if sign in _EXPANDS or (starts and sign == "=") or not sign.isprintable():
            self._is_literal = False
        if sign.isspace():
            # Some shells split here, others do not.
            self._end_word()
        else:
            if self._word is None:
                self._word = []
            self._word.append(sign)
            self._has_brace = self._has_brace or sign in "{}"
        self._at += 1

    def _quote(self) -> list[str]:
        self._is_quoted = True
        if self._word is None:
            self._word = []
        return self._word

    def _single(self) -> None:
        end = _find(self._line, "'", self._at + 1)
        self._is_literal = self._is_literal and end < len(self._line)
        self._quote().append(self._line[self._at + 1 : end])
        self._at = end + 1

    def _double(self) -> None:
        word, start = self._quote(), self._at + 1
        self._at = start
        while self._at < len(self._line) and self._line[self._at] != '"':
            sign = self._line[self._at]
            follows = self._line[self._at + 1 : self._at + 2]
            if sign == "\\" and follows and follows in '$`"\\\n':
                word.append("" if follows == "\n" else follows)
                self._at += 2
                continue
            if sign in "$`":
                self._is_literal = False
            word.append(sign)
            self._at += 1
        text = self._line[start : self._at]
        if "$" in text or "`" in text:
            self._inner.append(text)
        self._is_literal = self._is_literal and self._at < len(self._line)
        self._at += 1

    def _escape(self) -> None:
        follows = self._line[self._at + 1 : self._at + 2]
        if follows != "\n":
            # A backslash at the very end waits for more.
            self._is_literal = self._is_literal and bool(follows)
            self._quote().append(follows)
        self._at += 2

    def _redirect(self, found: re.Match[str]) -> None:
        if self._word is not None and "".join(self._word).isdigit() and not self._is_quoted:
            self._word = None
        self._end_word()
        self._is_single = False
        # `a &> b c` is one command to one shell and two to another; the lines of a here-document are no commands.
        self._is_literal = self._is_literal and not found[0].startswith(("&", "<<"))
        self._drops_next = not found[0].endswith("-") or found[0] == "<<-"
        self._at = found.end()

    def _end_word(self) -> None:
        if self._word is not None:
            word = "".join(self._word)
            # Alone they are keywords, in a word they may make several of it.
            self._is_literal = self._is_literal and (not self._has_brace or word in ("{", "}"))
            # One shell takes a lone `}` among the arguments for a word, another for the end of a block.
            self._is_single = self._is_single and not self._has_brace
            if not self._drops_next:
                self._words.append(word)
            self._drops_next = False
        self._word = None
        self._is_quoted = self._has_brace = False

    def _end_command(self) -> None:
        self._end_word()
        self._drops_next = False
        if self._words:
            self._commands.append(tuple(self._words))
        self._words = []


def _begins_oddly(words: Words) -> bool:
    return words[0] in KEYWORDS or _ASSIGNMENT.match(words[0]) is not None


def _find(text: str, sign: str, start: int) -> int:
    """Where the sign is next, or the end."""
    found = text.find(sign, start)
    return len(text) if found < 0 else found
