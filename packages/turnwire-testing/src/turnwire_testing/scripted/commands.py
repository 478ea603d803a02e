"""The commands of the scripted agent: one struct per command.

This module defines the vocabulary only. `turnwire_testing.scripted.script` parses lines into commands, and
`turnwire_testing.scripted.actions` executes them. Every command that can be built can be written as a line and read
back.
"""

from __future__ import annotations

import re
import shlex
from enum import Enum
from typing import Annotated, Any, ClassVar, get_args

import msgspec
from msgspec import Struct

from turnwire.errors import ConfigError


class Kind(Enum):
    """Notation of a field on a command's line."""

    COUNT = "a number, 0 or more"
    NUMBER = "a number"
    WORD = "one word, quoted if it has spaces"
    ITEMS = "words with commas between"
    TEXT = "the remaining words"
    WORDS = "the remaining words, kept apart"
    ENTRIES = "the rest of the line, with semicolons between"
    VERBATIM = "the rest of the line as it stands"
    COMMAND = "another command"


Count = Annotated[int, Kind.COUNT]
Number = Annotated[int, Kind.NUMBER]
Word = Annotated[str, Kind.WORD]
Items = Annotated[tuple[str, ...], Kind.ITEMS]
Text = Annotated[str, Kind.TEXT]
Words = Annotated[tuple[str, ...], Kind.WORDS]
Entries = Annotated[tuple[str, ...], Kind.ENTRIES]
Verbatim = Annotated[str, Kind.VERBATIM]


def kebab(name: str) -> str:
    """`IgnoreCancel` is written `ignore-cancel`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower()


class Part(Struct, frozen=True):
    """One field of a command as written on its line."""

    name: str
    kind: Kind
    required: bool

    def __str__(self) -> str:
        shown = self.name + ("…" if self.kind in (Kind.TEXT, Kind.WORDS, Kind.ENTRIES, Kind.VERBATIM) else "")
        return f"<{shown}>" if self.required else f"[{shown}]"


class Command(Struct, frozen=True, tag=kebab, tag_field="type"):
    """One action of the agent. `str(command)` is its line."""

    does: ClassVar[str]
    profiles: ClassVar[str] = "all"

    def __post_init__(self) -> None:
        for part in parts_of(type(self)):
            problem = _problem(part.kind, getattr(self, part.name))
            if problem:
                raise ConfigError(f"{name_of(type(self))}: {part.name} {problem}", command=name_of(type(self)))

    def __str__(self) -> str:
        written = (_written(part.kind, getattr(self, part.name)) for part in parts_of(type(self)))
        return " ".join([name_of(type(self)), *(text for text in written if text)])


def name_of(command: type[Command]) -> str:
    """The word that starts the command's line."""
    return kebab(command.__name__)


def parts_of(command: type[Command]) -> tuple[Part, ...]:
    """The fields of a command in the order of its line."""
    return tuple(
        Part(field.name, _kind_of(field.type), field.required) for field in msgspec.structs.fields(command)
    )


def usage_of(command: type[Command]) -> str:
    """The line of a command with placeholders."""
    return " ".join([name_of(command), *map(str, parts_of(command))])


def _kind_of(annotation: Any) -> Kind:
    if annotation is Command:
        return Kind.COMMAND
    return next(mark for mark in get_args(annotation) if isinstance(mark, Kind))


def _problem(kind: Kind, value: Any) -> str:
    """Why a value could not be read back from a line; empty if it can."""
    if kind is Kind.COUNT and value < 0:
        return "must be 0 or more"
    if kind is Kind.ITEMS and (not value or any(not item or "," in item for item in value)):
        return "needs at least one item, none of them empty or with a comma"
    if kind is Kind.WORDS and not value:
        return "needs at least one word"
    if kind is Kind.VERBATIM and (not value.strip() or "\n" in value):
        return "must be one line that is not blank"
    if kind is Kind.ENTRIES and (not value or any(_is_no_entry(entry) for entry in value)):
        return "needs at least one entry of one line, none of them empty or with a semicolon"
    return ""


def _is_no_entry(entry: str) -> bool:
    return not entry or entry != entry.strip() or ";" in entry or "\n" in entry


def _written(kind: Kind, value: Any) -> str:
    match kind:
        case Kind.WORD | Kind.TEXT:
            return shlex.quote(value)
        case Kind.ITEMS:
            return shlex.quote(",".join(value))
        case Kind.WORDS:
            return shlex.join(value)
        case Kind.ENTRIES:
            return "; ".join(value)
        case _:
            return str(value)


class Say(Command, frozen=True):
    does = "n message chunks with this text"
    n: Count
    text: Text


class Echo(Command, frozen=True):
    does = "the text back in three chunks; what a prompt without commands gets"
    text: Text


class Think(Command, frozen=True):
    does = "one thought chunk"
    text: Text


class User(Command, frozen=True):
    does = "a user message, as if another client had spoken; for histories"
    text: Text


class Plan(Command, frozen=True):
    does = "a plan with these entries, the first one in progress"
    entries: Entries


class Tool(Command, frozen=True):
    does = "a tool call: pending, in progress, completed with content"
    id: Word
    kind: Word = "other"
    title: Text = ""


class ToolOpen(Command, frozen=True):
    does = "a tool call that stays pending"
    id: Word


class Ask(Command, frozen=True):
    does = "ask permission for a tool call; runs it if allowed, then says `selected <option>` or `cancelled`"
    id: Word
    options: Items


class Read(Command, frozen=True):
    does = "read a file through the client and say what is in it"
    profiles = "v1 v1plus"
    path: Word


class Write(Command, frozen=True):
    does = "write a file through the client"
    profiles = "v1 v1plus"
    path: Word
    text: Text


class Terminal(Command, frozen=True):
    does = "v1: create, wait, output, release through the client; v2: updates of a terminal of the agent's own"
    words: Words


class Elicit(Command, frozen=True):
    does = "ask the user for one text by a form and say what came back"
    message: Text


class Usage(Command, frozen=True):
    does = "a usage update"
    used: Count
    size: Count


class Mode(Command, frozen=True):
    does = "change the mode by the agent's own decision"
    id: Word


class Title(Command, frozen=True):
    does = "change the session's title"
    text: Text


class Commands(Command, frozen=True):
    does = "a list of available slash commands"
    names: Items


class Update(Command, frozen=True):
    does = "any session update, the JSON kept byte for byte"
    json: Verbatim


class Notify(Command, frozen=True):
    does = "any notification, for example an extension's, with JSON params"
    method: Word
    json: Verbatim


class Raw(Command, frozen=True):
    does = "this line on the wire, whatever it is"
    line: Verbatim


class Child(Command, frozen=True):
    does = "do this in the child session of that name, which is announced and running before"
    profiles = "v2"
    name: Word
    command: Command


class ChildRests(Command, frozen=True):
    does = "the child session of that name is idle"
    profiles = "v2"
    name: Word


class Gate(Command, frozen=True):
    does = "wait until the gate is open: in process by its name, as a program when a file of that path exists"
    name: Word


class Never(Command, frozen=True):
    does = "wait for ever; only a cancel ends the turn"


class IgnoreCancel(Command, frozen=True):
    does = "from here on this turn does not hear a cancel"


class OnCancel(Command, frozen=True):
    does = "if the turn is cancelled, do this before it ends"
    command: Command


class Stop(Command, frozen=True):
    does = "the turn will end with this stop reason instead of `end_turn`"
    reason: Word


class Error(Command, frozen=True):
    does = "the turn will end with this error; the commands after it are still done"
    code: Number
    message: Text


class Reject(Command, frozen=True):
    does = "as the first command: refuse the prompt before it becomes a turn"
    code: Number
    message: Text


class After(Command, frozen=True):
    does = "do this after the end of the turn, in the same burst"
    command: Command


class IdleSpeak(Command, frozen=True):
    does = "do this while the session is idle, after the turn; several are done in order"
    command: Command


class AgentTurn(Command, frozen=True):
    does = "a turn nobody asked for, after this one: v2 running, n chunks, idle; v1 n chunks"
    n: Count


class DuplicateAnswer(Command, frozen=True):
    does = "answer the prompt twice"


class AnswerUnknownId(Command, frozen=True):
    does = "answer a request that nobody sent"


class Garbage(Command, frozen=True):
    does = "n lines that are no frames: text, scalars, invalid UTF-8, wrong ids; without n one of each"
    n: Count = 0


class Bigline(Command, frozen=True):
    does = "one message chunk whose frame has exactly this many bytes"
    size: Count


class Flood(Command, frozen=True):
    does = "n numbered message chunks as fast as the link takes them, each with this many bytes of text more"
    n: Count
    size: Count = 0


class Repeat(Command, frozen=True):
    does = "do a command n times"
    n: Count
    command: Command


class Exit(Command, frozen=True):
    does = "end the agent with this exit code; in process: close the link"
    code: Count


class Signal(Command, frozen=True):
    does = "die by this signal, for example SIGKILL; in process: close the link"
    name: Word


class IgnoreSignal(Command, frozen=True):
    does = "from here on the agent does not hear this signal, for example SIGTERM"
    name: Word


class Stderr(Command, frozen=True):
    does = "a line on standard error"
    text: Text


class Fork(Command, frozen=True):
    does = "start a grandchild in a session of its own, say its pid; the agent's pipes stay `held` or `closed`"
    pipes: Word = "held"


COMMANDS: dict[str, type[Command]] = {name_of(each): each for each in Command.__subclasses__()}
"""Every command by the word that starts its line."""
