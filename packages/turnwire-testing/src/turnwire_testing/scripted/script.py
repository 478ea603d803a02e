"""Scripts: lines of text to typed commands of the scripted agent, and back.

A prompt or a script file has one command per line. Words are quoted as in a shell; a line with an open quote
continues on the next line; empty lines and lines starting with `#` are skipped. Nothing is guessed: a line that
starts with a command and does not fit it is rejected with the command's usage.
"""

from __future__ import annotations

import io
import shlex
from pathlib import Path
from typing import Any

from turnwire.errors import ConfigError
from turnwire_testing.scripted.commands import COMMANDS, Command, Echo, Kind, Part, parts_of, usage_of

ALIASES = {"sleep-until": "gate"}
"""Synonyms of commands."""


class _OpenQuote(ValueError):
    """A quote was opened and not closed."""


def parse_prompt(text: str) -> tuple[Command, ...]:
    """The commands in a prompt, or `Echo` of it if it is ordinary text.

    A prompt is a script if its first word is a command or starts with a slash.

    Raises:
        ConfigError: it is a script, and a line of it is no command.
    """
    first = next((line for line in text.split("\n") if not _is_blank(line)), "").split(maxsplit=1)
    if first and (first[0].startswith("/") or first[0] in COMMANDS or first[0] in ALIASES):
        return parse_script(text)
    return (Echo(text),)


def parse_script(text: str) -> tuple[Command, ...]:
    """The commands of a script, one per line. Raises `ConfigError` for a line that is no command."""
    commands: list[Command] = []
    lines = iter(text.split("\n"))
    for line in lines:
        if _is_blank(line):
            continue
        while True:
            try:
                commands.append(_parse(line))
            except _OpenQuote:
                following = next(lines, None)
                if following is None:
                    raise ConfigError(f"the line {_shown(line)} opens a quote and does not close it") from None
                line = f"{line}\n{following}"
            else:
                break
    return tuple(commands)


def parse_command(line: str) -> Command:
    """Parse one command. Raises `ConfigError` if the line is not one."""
    try:
        return _parse(line)
    except _OpenQuote:
        raise ConfigError(f"the line {_shown(line)} opens a quote and does not close it") from None


def load_script(path: Path) -> tuple[Command, ...]:
    """The commands of a script file. Raises `ConfigError` if it cannot be read or a line is no command."""
    try:
        return parse_script(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the script {path.name!r}: {type(error).__name__}") from error


def command_list() -> str:
    """Return every command with its usage and description, a line each."""
    width = max(len(usage_of(each)) for each in COMMANDS.values())
    return "\n".join(f"{usage_of(each):<{width}}  {each.does}" for each in COMMANDS.values())


def _is_blank(line: str) -> bool:
    return not line.strip() or line.lstrip().startswith("#")


def _parse(line: str) -> Command:
    word, rest = _take_word(line)
    name = (word or "").removeprefix("/")
    command = COMMANDS.get(ALIASES.get(name, name))
    if command is None:
        raise ConfigError(f"there is no command {name!r}; the commands are: {', '.join(COMMANDS)}")
    values: list[Any] = []
    for part in parts_of(command):
        if not rest.strip() and not part.required:
            break
        value, rest = _take_part(command, part, rest)
        values.append(value)
    if rest.strip():
        raise ConfigError(f"{_shown(rest)} is too much; write: {usage_of(command)}")
    return command(*values)


def _take_part(command: type[Command], part: Part, rest: str) -> tuple[Any, str]:
    """Parse the value of one field; return it and the rest of the line."""
    if not rest.strip():
        raise ConfigError(f"{part.name!r} is missing; write: {usage_of(command)}")
    match part.kind:
        case Kind.VERBATIM:
            return rest, ""
        case Kind.ENTRIES:
            return tuple(entry.strip() for entry in rest.split(";") if entry.strip()), ""
        case Kind.COMMAND:
            return _parse(rest), ""
        case Kind.TEXT:
            return " ".join(_words(rest)), ""
        case Kind.WORDS:
            return tuple(_words(rest)), ""
        case Kind.WORD | Kind.ITEMS | Kind.COUNT | Kind.NUMBER:
            word, left = _take_word(rest)
            return _convert(command, part, word or ""), left


def _convert(command: type[Command], part: Part, word: str) -> Any:
    if part.kind is Kind.ITEMS:
        return tuple(item for item in word.split(",") if item)
    if part.kind is Kind.WORD:
        return word
    try:
        return int(word)
    except ValueError:
        raise ConfigError(f"{part.name!r} is {word!r}, no number; write: {usage_of(command)}") from None


def _take_word(text: str) -> tuple[str | None, str]:
    """Parse the first word as a shell does; return it and the text after the one space that ends it."""
    stream = io.StringIO(text)
    lexer = shlex.shlex(stream, posix=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        return lexer.get_token(), stream.read()
    except ValueError:
        raise _OpenQuote from None


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        raise _OpenQuote from None


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "…")
