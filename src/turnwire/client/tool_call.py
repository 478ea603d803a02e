"""A tool call of the agent for programs and people, independent of the ACP version.

It contains the command that the tool runs, the changed files as a unified diff, and the visible text. Data that an
agent omits is empty here; agent-specific data is in `raw_input`, `raw_output` and `content`. `ToolCalls` combines
the updates of an agent's calls.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any, cast

import msgspec
from msgspec import UNSET, Raw, Struct

from turnwire.projections.translate.diffs import git_patch
from turnwire.projections.translate.tools import sanitized
from turnwire.projections.view import Terminal, tools
from turnwire.projections.view import ToolCall as FoldedCall
from turnwire.projections.view.transcript import Transcript
from turnwire.session import events as ev
from turnwire.session.json_members import entries, members, raw, text_of, without_nulls
from turnwire.wire.jsonrpc import UNREADABLE

RUNS = frozenset({"execute", "other"})
"""Kinds of calls whose input may be a command. Some editing tools also call a file operation a command."""
SHELL_WORDS = 3
"""Shells. Of `bash -lc LINE` a person wants to read the line."""


class Location(Struct, frozen=True):
    """A location that a tool call works at."""

    path: str
    line: int | None = None

    def __str__(self) -> str:
        return self.path if self.line is None else f"{self.path}:{self.line}"


class FileDiff(Struct, frozen=True):
    """Changes of one or several files by one tool call."""

    path: str
    """The file; the first one of several."""
    text: str
    """A unified diff, or a description of the change if the agent sent none."""


class CommandTerminal(Struct, frozen=True, kw_only=True):
    """A terminal of the agent that a tool call shows."""

    terminal_id: str
    command: str | None = None
    cwd: str | None = None
    output: str = ""
    """The output without terminal control sequences."""
    exit_code: int | None = None
    signal: str | None = None


class ToolCall(Struct, frozen=True, kw_only=True):
    """The request to a tool, and its result as far as it is known."""

    tool_call_id: str
    title: str = ""
    name: str | None = None
    kind: str = "other"
    """`read`, `edit`, `delete`, `move`, `search`, `execute`, `think`, `fetch`, `switch_mode`, `other` …"""
    status: str = "pending"
    raw_input: Any = None
    """The tool's input as JSON."""
    raw_output: Any = None
    content: tuple[dict[str, Any], ...] = ()
    """Its content in the agent's form: items of the type `content`, `diff`, `terminal` …"""
    locations: tuple[Location, ...] = ()
    terminals: tuple[CommandTerminal, ...] = ()
    """The terminals in its content for which the agent has sent data."""
    first_input: Any = None
    """The tool's earlier input, if a permission request named a different one."""

    @property
    def command(self) -> str | None:
        """The command that it runs; `None` if that is unknown."""
        told = [each.command for each in self.terminals if each.command]
        if self.kind in RUNS:
            told = [each for each in map(_command, (self.raw_input, self.first_input)) if each] + told
        return told[0] if told else None

    @property
    def cwd(self) -> str | None:
        """Working directory of the command, if the agent reports it."""
        for given in (self.raw_input, self.first_input):
            for name in ("cwd", "workdir", "directory"):
                if isinstance(given, Mapping) and isinstance(given.get(name), str):  # pyright: ignore[reportUnknownMemberType]
                    return cast("str", given[name])
        return next((each.cwd for each in self.terminals if each.cwd), None)

    @property
    def diffs(self) -> list[FileDiff]:
        """Its changes of files."""
        found = [_diff(each) for each in self.content if each.get("type") == "diff"]
        return found or [each for each in map(_diff_in, (self.raw_input, self.first_input)) if each][:1]

    @property
    def diff(self) -> str:
        """All of `diffs` as one text; empty without known file changes."""
        return "".join(each.text if each.text.endswith("\n") else f"{each.text}\n" for each in self.diffs)

    @property
    def blocks(self) -> list[dict[str, Any]]:
        """Its content blocks: text, images, resources."""
        inner = (each.get("content") for each in self.content if each.get("type") == "content")
        return [cast("dict[str, Any]", each) for each in inner if isinstance(each, dict)]

    @property
    def text(self) -> str:
        """Its text content."""
        return "\n".join(str(each.get("text", "")) for each in self.blocks if each.get("type") == "text")

    @property
    def exit_code(self) -> int | None:
        """The exit code of its command; `None` if unknown."""
        codes = [each.exit_code for each in self.terminals if each.exit_code is not None]
        given = self.raw_output
        if not codes and isinstance(given, dict):
            named = cast("dict[str, Any]", given)
            codes = [each for each in (named.get("exitCode"), named.get("exit_code")) if type(each) is int]
        return codes[-1] if codes else None

    @property
    def signal(self) -> str | None:
        """The signal that ended its command, if any."""
        return next((each.signal for each in self.terminals if each.signal), None)


class _Exit(Struct, rename="camel"):
    exit_code: int | None = None
    signal: str | None = None


def read_tool_call(
    told: dict[str, Raw], terminals: Mapping[str, Terminal] | None = None, *, before: dict[str, Raw] | None = None
) -> ToolCall:
    """Read a tool call from JSON. Malformed members count as absent. `before` is its earlier state."""
    content = tuple(each for each in map(_object, entries(told.get("content"))) if each)
    shown = (str(each.get("terminalId")) for each in content if each.get("type") == "terminal")
    known = terminals or {}
    return ToolCall(
        tool_call_id=text_of(told, "toolCallId") or "",
        title=text_of(told, "title") or text_of(told, "name") or "",
        name=text_of(told, "name"),
        kind=text_of(told, "kind") or "other",
        status=text_of(told, "status") or "pending",
        raw_input=_any(told.get("rawInput")),
        raw_output=_any(told.get("rawOutput")),
        content=content,
        locations=tuple(_locations(told.get("locations"))),
        terminals=tuple(_terminal(known[each]) for each in shown if each in known),
        first_input=_any((before or {}).get("rawInput")),
    )


def asked_call(
    asked: dict[str, Raw], before: FoldedCall | None, terminals: Mapping[str, Terminal] | None, *, null_clears: bool
) -> ToolCall:
    """Return the tool call of a permission request: its data is an ordinary update of the earlier state."""
    known = {} if before is None else members(raw(before))
    return read_tool_call({**known, **(asked if null_clears else without_nulls(asked))}, terminals, before=known)


def _terminal(terminal: Terminal) -> CommandTerminal:
    status = _Exit()
    if terminal.exit_status is not UNSET:
        try:
            status = msgspec.json.decode(terminal.exit_status, type=_Exit)
        except UNREADABLE:
            status = _Exit()
    return CommandTerminal(
        terminal_id=terminal.terminal_id,
        command=terminal.command,
        cwd=terminal.cwd,
        output=sanitized(terminal.output.decode(errors="replace")),
        exit_code=status.exit_code,
        signal=status.signal,
    )


def _locations(told: Raw | None) -> Iterator[Location]:
    for each in entries(told):
        try:
            yield msgspec.json.decode(each, type=Location)
        except UNREADABLE:
            continue


def _any(value: Raw | None) -> Any:
    try:
        return None if value is None else msgspec.json.decode(value)
    except UNREADABLE:
        return None


def _object(value: Raw) -> dict[str, Any]:
    read = _any(value)
    return cast("dict[str, Any]", read) if isinstance(read, dict) else {}


# -- what agents put into the input of their tools ---------------------------------------------------------------


def _command(given: Any) -> str | None:
    if not isinstance(given, dict):
        return None
    named = cast("dict[str, Any]", given)
    line: object = named.get("command") or named.get("cmd")
    further: object = named.get("args")
    if isinstance(line, str):
        return shlex.join([line, *map(str, cast("list[Any]", further))]) if isinstance(further, list) else line
    if not isinstance(line, list) or not line:
        return None
    words = [str(each) for each in cast("list[Any]", line)]
    is_shell = len(words) == SHELL_WORDS and words[1].startswith("-") and words[1].endswith("c")
    return words[2] if is_shell else shlex.join(words)


def _diff(item: dict[str, Any]) -> FileDiff:
    """Read an item of the type `diff`: texts in v1, changes and maybe a patch in v2."""
    changes: object = item.get("changes")
    if not isinstance(changes, list):
        path, old = str(item.get("path", "")), item.get("oldText")
        return FileDiff(path, git_patch(path, None if old is None else str(old), str(item.get("newText") or "")))
    listed = [cast("dict[str, Any]", each) for each in cast("list[Any]", changes) if isinstance(each, dict)]
    paths = [str(each.get("path") or each.get("oldPath") or "") for each in listed]
    patch: object = item.get("patch")
    text: object = cast("dict[str, Any]", patch).get("text") if isinstance(patch, dict) else None
    if not isinstance(text, str) or not text:
        text = "".join(f"{_in_words(each)}\n" for each in listed)
    return FileDiff(paths[0] if paths else "", text)


def _in_words(change: dict[str, Any]) -> str:
    paths = [str(each) for each in (change.get("oldPath"), change.get("path")) if each is not None]
    return " ".join([str(change.get("operation") or "change"), " to ".join(paths)])


def _diff_in(given: Any) -> FileDiff | None:
    """Return the change that a tool's input describes, for agents that send no diff."""
    if not isinstance(given, dict):
        return None
    named = cast("dict[str, Any]", given)
    path = str(named.get("file_path") or named.get("filePath") or named.get("filepath") or named.get("path") or "")
    if isinstance(named.get("diff"), str):
        return FileDiff(path, named["diff"])
    old, new = named.get("old_string", named.get("oldString")), named.get("new_string", named.get("newString"))
    if isinstance(old, str) and isinstance(new, str):
        return FileDiff(path, git_patch(path, old, new))
    return None


# -- calls that are told of piece by piece -----------------------------------------------------------------------


class ToolCalls:
    """The tool calls and terminals of a session, folded from its events.

    `forget` releases the content of a finished call; its title stays, because late updates of it may come.
    """

    def __init__(self) -> None:
        self._transcript = Transcript()
        self._terminals: dict[str, Terminal] = {}

    def take(self, event: ev.AnyEvent) -> ToolCall | None:
        """Fold an event. Returns the tool call if the event updates one."""
        if isinstance(event, ev.AgentStarted):
            self._transcript.start(event)
        elif isinstance(event, ev.PermissionRequested) and event.child is None:
            tools.apply_permission_request(self._transcript, event)
        elif isinstance(event, ev.SessionUpdated) and event.child is None:
            return self._update(event)
        return None

    def get(self, tool_call_id: str) -> ToolCall | None:
        """Return the known state of a call."""
        call = self.folded(tool_call_id)
        return None if call is None else read_tool_call(members(raw(call)), self._terminals)

    def folded(self, tool_call_id: str | None) -> FoldedCall | None:
        """Return the same in the agent's form, for a `PermissionRequest`."""
        return None if tool_call_id is None else self._transcript.tools.get(tool_call_id)

    @property
    def terminals(self) -> Mapping[str, Terminal]:
        return self._terminals

    def forget(self, tool_call_id: str) -> None:
        """Release the content of a call."""
        call = self._transcript.tools.get(tool_call_id)
        if call is not None:
            for each in call.content:
                self._terminals.pop(text_of(members(each), "terminalId") or "", None)
            call.content, call.raw_input, call.raw_output = [], UNSET, UNSET

    def _update(self, event: ev.SessionUpdated) -> ToolCall | None:
        fold = _FOLDS.get(event.kind)
        if fold is None:
            if event.kind == "terminal_update":
                tools.update_terminal(self._terminals, event, 0)
            elif event.kind == "terminal_output_chunk":
                tools.append_output(self._terminals, event, 0)
            return None
        told = fold(self._transcript, event)
        tools.update_shown(self._terminals, event, 0)
        # The order of items is not used here.
        self._transcript.stored.clear()
        tool_call_id = text_of(members(event.update), "toolCallId")
        return self.get(tool_call_id) if told and tool_call_id is not None else None


_FOLDS = {
    "tool_call": tools.announce_tool_call,
    "tool_call_update": tools.update_tool_call,
    "tool_call_content_chunk": tools.append_content,
}
