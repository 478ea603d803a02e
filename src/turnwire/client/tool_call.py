"""A tool call of the agent as a program or a person reads it, whichever version of ACP it was told in.

Taken from what the agent sent: the command it runs, the files it changes as a unified diff, the text it shows. What
an agent leaves out is empty here; what it says in words of its own is in `raw_input`, `raw_output` and `content`.
`ToolCalls` puts together what an agent tells of its calls piece by piece.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any, cast

import msgspec
from msgspec import UNSET, Raw, Struct

from turnwire.core import events as ev
from turnwire.core.json_members import entries, members, raw, text_of, without_nulls
from turnwire.core.translate.diffs import git_patch
from turnwire.core.translate.tools import sanitized
from turnwire.core.view import Terminal, tools
from turnwire.core.view import ToolCall as FoldedCall
from turnwire.core.view.transcript import Transcript
from turnwire.wire.jsonrpc import UNREADABLE

RUNS = frozenset({"execute", "other"})
"""Kinds of calls whose input may be a command. Some editing tools call what they do to a file a command, too."""
SHELL_WORDS = 3
"""`bash -lc LINE`: the line is what a person wants to read."""


class Location(Struct, frozen=True):
    """A place that a tool call works at."""

    path: str
    line: int | None = None

    def __str__(self) -> str:
        return self.path if self.line is None else f"{self.path}:{self.line}"


class FileDiff(Struct, frozen=True):
    """How one tool call changes a file, or several."""

    path: str
    """The file; of several, the first."""
    text: str
    """A unified diff. If the agent gave none, what it does to which file, in words."""


class CommandTerminal(Struct, frozen=True, kw_only=True):
    """A terminal of the agent that a tool call shows."""

    terminal_id: str
    command: str | None = None
    cwd: str | None = None
    output: str = ""
    """Without what would steer a terminal."""
    exit_code: int | None = None
    signal: str | None = None


class ToolCall(Struct, frozen=True, kw_only=True):
    """What a tool is asked to do, and what became of it as far as it is known."""

    tool_call_id: str
    title: str = ""
    name: str | None = None
    kind: str = "other"
    """`read`, `edit`, `delete`, `move`, `search`, `execute`, `think`, `fetch`, `switch_mode`, `other` …"""
    status: str = "pending"
    raw_input: Any = None
    """What the tool is given, as JSON."""
    raw_output: Any = None
    content: tuple[dict[str, Any], ...] = ()
    """What it shows, in the agent's words: items of the type `content`, `diff`, `terminal` …"""
    locations: tuple[Location, ...] = ()
    terminals: tuple[CommandTerminal, ...] = ()
    """The terminals among its content of which the agent has told something."""
    first_input: Any = None
    """What the tool was said to be given before, if the agent said something else with a permission request."""

    @property
    def command(self) -> str | None:
        """The command that it runs; none if that cannot be told."""
        told = [each.command for each in self.terminals if each.command]
        if self.kind in RUNS:
            told = [each for each in map(_command, (self.raw_input, self.first_input)) if each] + told
        return told[0] if told else None

    @property
    def cwd(self) -> str | None:
        """Where the command runs, if the agent says so."""
        for given in (self.raw_input, self.first_input):
            for name in ("cwd", "workdir", "directory"):
                if isinstance(given, Mapping) and isinstance(given.get(name), str):  # pyright: ignore[reportUnknownMemberType]
                    return cast("str", given[name])
        return next((each.cwd for each in self.terminals if each.cwd), None)

    @property
    def diffs(self) -> list[FileDiff]:
        """How it changes files."""
        found = [_diff(each) for each in self.content if each.get("type") == "diff"]
        return found or [each for each in map(_diff_in, (self.raw_input, self.first_input)) if each][:1]

    @property
    def diff(self) -> str:
        """All of `diffs` as one text; empty if it changes no file that is known."""
        return "".join(each.text if each.text.endswith("\n") else f"{each.text}\n" for each in self.diffs)

    @property
    def blocks(self) -> list[dict[str, Any]]:
        """The content blocks that it shows: text, images, resources."""
        inner = (each.get("content") for each in self.content if each.get("type") == "content")
        return [cast("dict[str, Any]", each) for each in inner if isinstance(each, dict)]

    @property
    def text(self) -> str:
        """The text that it shows."""
        return "\n".join(str(each.get("text", "")) for each in self.blocks if each.get("type") == "text")

    @property
    def exit_code(self) -> int | None:
        """With what its command ended; none if it is not known."""
        codes = [each.exit_code for each in self.terminals if each.exit_code is not None]
        given = self.raw_output
        if not codes and isinstance(given, dict):
            named = cast("dict[str, Any]", given)
            codes = [each for each in (named.get("exitCode"), named.get("exit_code")) if type(each) is int]
        return codes[-1] if codes else None

    @property
    def signal(self) -> str | None:
        """What ended its command, if a signal did."""
        return next((each.signal for each in self.terminals if each.signal), None)


class _Exit(Struct, rename="camel"):
    exit_code: int | None = None
    signal: str | None = None


def read_tool_call(
    told: dict[str, Raw], terminals: Mapping[str, Terminal] | None = None, *, before: dict[str, Raw] | None = None
) -> ToolCall:
    """A tool call as JSON. What is not as documented reads as not told. `before` is what was told of it earlier."""
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
    """The tool call of a permission request: an ordinary update of what the agent told of the call before."""
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
    """An item of the type `diff`: texts in v1, changes and maybe a patch in v2."""
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
    """The change that the input of a tool describes, from agents that show none."""
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
    """The tool calls and terminals of a session, as far as its events have told of them.

    `forget` lets go of what a finished call showed; its title stays, because late words of it may come.
    """

    def __init__(self) -> None:
        self._transcript = Transcript()
        self._terminals: dict[str, Terminal] = {}

    def take(self, event: ev.AnyEvent) -> ToolCall | None:
        """Fold an event. Gives the call if it tells something of one."""
        if isinstance(event, ev.AgentStarted):
            self._transcript.start(event)
        elif isinstance(event, ev.PermissionRequested) and event.child is None:
            tools.apply_permission_request(self._transcript, event)
        elif isinstance(event, ev.SessionUpdated) and event.child is None:
            return self._update(event)
        return None

    def get(self, tool_call_id: str) -> ToolCall | None:
        """What is known of a call."""
        call = self.folded(tool_call_id)
        return None if call is None else read_tool_call(members(raw(call)), self._terminals)

    def folded(self, tool_call_id: str | None) -> FoldedCall | None:
        """The same in the agent's words, for a `PermissionRequest`."""
        return None if tool_call_id is None else self._transcript.tools.get(tool_call_id)

    @property
    def terminals(self) -> Mapping[str, Terminal]:
        return self._terminals

    def forget(self, tool_call_id: str) -> None:
        """Let go of what a call showed."""
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
        # The order of items is of no use here.
        self._transcript.stored.clear()
        tool_call_id = text_of(members(event.update), "toolCallId")
        return self.get(tool_call_id) if told and tool_call_id is not None else None


_FOLDS = {
    "tool_call": tools.announce_tool_call,
    "tool_call_update": tools.update_tool_call,
    "tool_call_content_chunk": tools.append_content,
}
