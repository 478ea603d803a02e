"""Events as a person reads them: the agent's words on stdout, everything else in short lines on stderr.

Words go out as they come; a tool call is one line when it is done, a plan one line when it changes. On a terminal
the last line tells what is going on, and leaves no trace. `JsonLines` prints the same events for programs. What
the agent says cannot steer the terminal.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Protocol

import click
import msgspec
from msgspec import Raw, Struct
from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from turnwire.cli.asking import tell_open
from turnwire.cli.output import print_json_text, printable
from turnwire.client.permission import asked
from turnwire.client.tool_call import ToolCalls
from turnwire.core import events as ev
from turnwire.core.codec import encode
from turnwire.core.envelope import to_envelope
from turnwire.core.evolve import FINAL_TOOL_STATUS
from turnwire.core.view.transcript import join_text
from turnwire.ids import SessionId

LONGEST = 100
"""Characters of a title or a plan's entry that are shown."""
MARKS = {"completed": "✓", "failed": "✗", "cancelled": "-"}


class Screen(Protocol):
    """Where events are shown."""

    def show(self, offset: int, event: ev.AnyEvent) -> None: ...

    def pause(self) -> None:
        """Somebody else writes now."""
        ...


class JsonLines:
    """Each event as its envelope, a line each."""

    def __init__(self, session_id: SessionId) -> None:
        self._session_id = session_id

    def show(self, offset: int, event: ev.AnyEvent) -> None:
        print_json_text(to_envelope(self._session_id, offset, encode(event)))
        sys.stdout.flush()

    def pause(self) -> None:
        """Lines are whole."""


class _Text(Struct):
    text: str = ""


class _Chunk(Struct, rename="camel"):
    content: _Text
    message_id: str | None = None


class _Message(Struct, rename="camel"):
    message_id: str
    content: list[Raw]


class _Tool(Struct, rename="camel"):
    tool_call_id: str
    title: str | None = None
    status: str | None = None


class _Entry(Struct):
    content: str = ""
    status: str = "pending"


class _Plan(Struct):
    entries: list[_Entry]


class _Child(Struct, rename="camel"):
    session_id: str
    title: str | None = None


class _PlanUpdate(Struct):
    plan: _Plan


class _Selected(Struct, frozen=True, rename="camel"):
    option_id: str = ""


class _Answer(Struct):
    outcome: _Selected = _Selected()


class TextScreen:
    """For a person. `whole` shows what others asked, too, and how each turn ended.

    Permission requests are told if `session_id` says whose they are; without it somebody else asks them.
    """

    def __init__(self, *, whole: bool, session_id: SessionId | None = None) -> None:
        self._whole = whole
        self._session_id = session_id
        self._is_terminal = sys.stdout.isatty()
        self._footer = Footer() if sys.stderr.isatty() else None
        self._calls = ToolCalls()
        self._tools: dict[str, str] = {}
        """Titles of the tool calls that are not done."""
        self._plan = ""
        self._message_id: str | None = None
        """The message whose pieces were shown last."""
        self._at_start = True
        """The last line of stdout is finished."""
        self._children: dict[str, str] = {}
        """Child sessions by the agent's ids, with their titles."""
        self._kinds: Mapping[str, Callable[[Raw], None]] = {
            "agent_message_chunk": self._chunk,
            "agent_message": self._message,
            "agent_thought_chunk": self._thought,
            "tool_call": self._tool,
            "tool_call_update": self._tool,
            "plan": self._plan_of,
            "plan_update": self._plan_in,
            "subagent_update": self._child,
        }
        """Kinds of both versions of ACP."""

    def show(self, offset: int, event: ev.AnyEvent) -> None:
        self._calls.take(event)
        match event:
            case ev.SessionUpdated():
                self._update(event)
            case ev.UserMessage() if self._whole:
                author = f"{event.author}> " if event.author else "> "
                self._line(author + _words(event.content))
            case ev.PromptQueued():
                self._working(f"queued at place {event.position + 1}")
            case ev.TurnStarted():
                self._working("working")
            case ev.PermissionRequested() | ev.PermissionResolved() if self._session_id is not None:
                self._permission(event, self._session_id)
            case ev.AgentExited() if self._whole:
                self._line(f"{event.message or 'the agent is gone'} ({event.reason})")
            case ev.CancelEscalated():
                self._line(f"the agent does not stop; next rung: {event.rung}")
            case ev.TurnCompleted() | ev.TurnFailed():
                self._end(event)
            case _:
                pass

    def pause(self) -> None:
        if self._footer is not None:
            self._footer.hide()
        if not self._at_start:
            self._say("\n")

    # -- updates -------------------------------------------------------------------------------------------

    def _update(self, event: ev.SessionUpdated) -> None:
        show = self._kinds.get(event.kind)
        if show is None or event.echo or event.child is not None:
            # What a child session says is not the answer; the log has it.
            return
        try:
            show(event.update)
        except msgspec.DecodeError:
            # An update that lacks what its kind needs is in the log for whoever wants to see it.
            return

    def _chunk(self, update: Raw) -> None:
        chunk = msgspec.json.decode(update, type=_Chunk)
        self._message_id = chunk.message_id
        self._say(chunk.content.text)

    def _message(self, update: Raw) -> None:
        message = msgspec.json.decode(update, type=_Message)
        if message.message_id != self._message_id:
            self._message_id = message.message_id
            self._say(join_text(message.content))

    def _thought(self, update: Raw) -> None:
        self._working("thinking")

    def _plan_of(self, update: Raw) -> None:
        self._show_plan(msgspec.json.decode(update, type=_Plan))

    def _plan_in(self, update: Raw) -> None:
        self._show_plan(msgspec.json.decode(update, type=_PlanUpdate).plan)

    def _say(self, text: str) -> None:
        if not text:
            return
        if self._footer is not None:
            self._footer.hide()
        sys.stdout.write(printable(text) if self._is_terminal else text)
        sys.stdout.flush()
        self._at_start = text.endswith("\n")

    def _tool(self, update: Raw) -> None:
        tool = msgspec.json.decode(update, type=_Tool)
        title = tool.title or self._tools.get(tool.tool_call_id) or tool.tool_call_id
        self._tools[tool.tool_call_id] = title
        if tool.status in FINAL_TOOL_STATUS:
            del self._tools[tool.tool_call_id]
            self._line(f"{MARKS.get(str(tool.status), '?')} {_short(title)}")
        self._working(", ".join(_short(each) for each in self._tools.values()) or "working")

    def _child(self, update: Raw) -> None:
        child = msgspec.json.decode(update, type=_Child)
        title = child.title or self._children.get(child.session_id) or child.session_id
        if child.session_id not in self._children:
            self._line(f"subagent: {_short(title)}")
        self._children[child.session_id] = title

    def _show_plan(self, plan: _Plan) -> None:
        done = sum(each.status == "completed" for each in plan.entries)
        current = next((each.content for each in plan.entries if each.status != "completed"), "done")
        line = f"plan {done}/{len(plan.entries)}: {_short(current)}"
        if line != self._plan:
            self._plan = line
            self._line(line)

    # -- lines that are not the agent's words --------------------------------------------------------------

    def _end(self, event: ev.TurnCompleted | ev.TurnFailed) -> None:
        self._tools.clear()
        self.pause()
        if self._whole and isinstance(event, ev.TurnFailed):
            self._line(f"turn failed ({event.code}): {event.message}")
        elif self._whole and isinstance(event, ev.TurnCompleted):
            self._line(f"turn ended: {event.stop_reason}")

    def _permission(self, event: ev.PermissionRequested | ev.PermissionResolved, session_id: SessionId) -> None:
        self.pause()
        if isinstance(event, ev.PermissionRequested):
            tell_open(asked(event, session_id, self._calls))
        else:
            self._line(f"question {event.request_id}: {_outcome(event)}")

    def _line(self, text: str) -> None:
        self.pause()
        click.secho(printable(text), err=True, dim=True)

    def _working(self, words: str) -> None:
        if self._footer is not None and self._at_start:
            self._footer.show(words)


def _outcome(event: ev.PermissionResolved) -> str:
    """What became of a permission request, and through whom."""
    if event.end is not ev.PermissionEnd.ANSWERED:
        return f"closed without an answer ({event.end})"
    who = event.author or event.client_id or "somebody"
    try:
        chosen = msgspec.json.decode(event.answer, type=_Answer).outcome.option_id
    except msgspec.DecodeError:
        chosen = ""
    return f"{who} answered{f' {chosen}' if chosen else ''}"


def _words(content: Raw) -> str:
    try:
        return join_text(msgspec.json.decode(content, type=list[Raw]))
    except msgspec.DecodeError:
        return ""


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else line[: LONGEST - 1] + "…"


class Footer:
    """One line that is there or not."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._live: Live | None = None

    def show(self, words: str) -> None:
        spinner = Spinner("dots", Text(printable(words), style="dim", overflow="ellipsis", no_wrap=True))
        if self._live is None:
            self._live = Live(
                spinner, console=self._console, transient=True, redirect_stdout=False, redirect_stderr=False
            )
            self._live.start()
        else:
            self._live.update(spinner)

    def hide(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
