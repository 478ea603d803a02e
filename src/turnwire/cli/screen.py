"""Events for people: the agent's text, and everything else in short lines next to it.

On a terminal the text is rendered as Markdown while it arrives, thoughts are dim, a tool call is one line with its
output below it, and the last line shows the current activity. Without a terminal stdout has the agent's text
unchanged, and stderr the rest. Output that belongs to no turn is set apart. `JsonLines` prints the same events for
programs. The agent's text cannot control the terminal.

A screen writes to a sink. Finished text is written once and never touched again; the tail that still grows and the
line below it are redrawn repeatedly, and leave no trace. A block of streamed Markdown is finished when another one
follows it, so a finished block never changes. The cost of parsing is a bounded multiple of the text, however small
the chunks are. A block that grows too long is cut: the rest of a code block stays code.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from enum import Enum
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

import click
import msgspec
from msgspec import UNSET, Raw, Struct
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.spinner import Spinner
from rich.text import Text

from turnwire.cli.output import print_json_text, printable
from turnwire.cli.permissions import tell_open
from turnwire.cli.tool_view import block_view, short, tool_details, tool_line
from turnwire.client.permission import asked
from turnwire.client.tool_call import ToolCall, ToolCalls
from turnwire.ids import SessionId
from turnwire.projections.envelope import to_envelope
from turnwire.projections.view.transcript import join_text
from turnwire.session import events as ev
from turnwire.session.codec import encode
from turnwire.wire.schema.update import AGENT_SPEECH, FINAL_TOOL_STATUS

if TYPE_CHECKING:
    from rich.markdown import Markdown


FRAMES_S = 12
"""Drawings of the tail per second."""
SPINNER = 3
"""Columns of the spinner next to the footer."""
ROOM = 2
"""Rows of the terminal that the tail does not use."""


# -- where a screen writes -----------------------------------------------------------------------------------


class Sink(Protocol):
    """The output of a screen."""

    draws: bool
    """True if the agent's text is rendered and has a tail; otherwise it is written unchanged."""

    def words(self, text: str) -> None:
        """Write agent text as it arrives, if it is not rendered."""
        ...

    def end_line(self) -> None:
        """End the line of unrendered text, if one has begun."""
        ...

    def print(self, block: RenderableType) -> None:
        """Print finished agent text, if it is rendered."""
        ...

    def note(self, block: RenderableType) -> None:
        """Print a finished block that is not agent text."""
        ...

    def tail(self, block: Callable[[int], RenderableType] | None) -> None:
        """Show growing text in at most that many rows, requested for every drawing; `None` hides it."""
        ...

    def footer(self, words: str | None) -> None:
        """Show the current activity; `None` hides it."""
        ...

    def pause(self) -> None:
        """Stop drawing, because another writer uses the terminal now: erase everything that is redrawn."""
        ...


class TerminalSink:
    """Stdout and stderr of this process. Notes are on stderr, unless both are the same terminal."""

    def __init__(self) -> None:
        is_out, is_err = sys.stdout.isatty(), sys.stderr.isatty()
        out, err = _console(stderr=False, is_terminal=is_out), _console(stderr=True, is_terminal=is_err)
        self.draws = is_out and not out.is_dumb_terminal
        self._is_terminal = is_out
        self._out = out
        self._err = out if is_out and is_err else err
        self._drawing = self._out if self.draws else self._err if is_err and not err.is_dumb_terminal else None
        """Draws the tail and the footer."""
        self._live: Live | None = None
        self._tail: Callable[[int], RenderableType] | None = None
        self._footer: Spinner | None = None
        self._at_start = True
        """True if the last line of unrendered text is finished."""

    def words(self, text: str) -> None:
        self._stop()
        sys.stdout.write(printable(text) if self._is_terminal else text)
        sys.stdout.flush()
        self._at_start = text.endswith("\n")

    def end_line(self) -> None:
        if not self._at_start:
            self.words("\n")

    def print(self, block: RenderableType) -> None:
        self._write(self._out, block)

    def note(self, block: RenderableType) -> None:
        self._write(self._err, block)

    def tail(self, block: Callable[[int], RenderableType] | None) -> None:
        self._tail = block
        self._draw()

    def footer(self, words: str | None) -> None:
        said = Text(printable(words or ""), style="dim")
        if self._drawing is not None:
            # One line, because redrawn text must not wrap.
            said.truncate(max(1, self._drawing.width - SPINNER), overflow="ellipsis")
        if words is None:
            self._footer = None
        elif self._footer is None:
            self._footer = Spinner("dots", said)
        else:
            self._footer.update(text=said)
        self._draw()

    def pause(self) -> None:
        self._tail = self._footer = None
        self._stop()
        self.end_line()

    def _write(self, console: Console, block: RenderableType) -> None:
        if console is not self._drawing:
            self._stop()
        elif self._live is not None:
            # Text must be gone from the tail before it is printed as finished, or it is there twice for a moment.
            self._live.refresh()
        self.end_line()
        # Without a terminal nothing is wrapped.
        console.print(block, soft_wrap=not console.is_terminal)

    def _draw(self) -> None:
        if self._drawing is None or not self._at_start:
            return
        if self._tail is None and self._footer is None:
            self._stop()
        elif self._live is None:
            self._live = Live(
                console=self._drawing,
                transient=True,
                get_renderable=self._frame,
                refresh_per_second=FRAMES_S,
                redirect_stdout=False,
                redirect_stderr=False,
                vertical_overflow="crop",
            )
            self._live.start()

    def _frame(self) -> RenderableType:
        """Return the current frame. Called by the drawing thread; its data is replaced, never changed."""
        console, tail, footer = self._drawing, self._tail, self._footer
        rows = max(1, (24 if console is None else console.height) - ROOM)
        return Group(*([] if tail is None else [tail(rows)]), *([] if footer is None else [footer]))

    def _stop(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


def _console(*, stderr: bool, is_terminal: bool) -> Console:
    return Console(stderr=stderr, force_terminal=is_terminal, highlight=False, markup=False, emoji=False)


# -- what it shows -------------------------------------------------------------------------------------------


class Screen(Protocol):
    """A display of events."""

    def show(self, offset: int, event: ev.AnyEvent) -> None: ...

    def note(self, line: str) -> None:
        """Show a line that is no event."""
        ...

    def pause(self) -> None:
        """Stop drawing, because another writer uses the terminal now."""
        ...


class JsonLines:
    """Prints each event as its envelope, one per line."""

    def __init__(self, session_id: SessionId) -> None:
        self._session_id = session_id

    def show(self, offset: int, event: ev.AnyEvent) -> None:
        print_json_text(to_envelope(self._session_id, offset, encode(event)))
        sys.stdout.flush()

    def note(self, line: str) -> None:
        click.echo(printable(line), err=True)

    def pause(self) -> None:
        """Do nothing: lines are always complete."""


class _Chunk(Struct, rename="camel"):
    content: dict[str, Any]
    message_id: str | None = None


class _Message(Struct, rename="camel"):
    message_id: str
    content: list[dict[str, Any]]


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


class Speech(Enum):
    """The speaker of the newest text."""

    NONE = "none"
    WORDS = "words"
    THOUGHT = "thought"


class Place(Enum):
    """The context of displayed text."""

    TURN = ""
    BACKGROUND = "in the background:"
    LATE = "after the end of the turn:"


class TextScreen:
    """The display for people. `whole` also shows prompts of other clients, and how each turn ended.

    Permission requests are printed if `session_id` names their session; without it the caller asks them.
    """

    def __init__(self, *, whole: bool, session_id: SessionId | None = None, sink: Sink | None = None) -> None:
        self._whole = whole
        self._session_id = session_id
        self._sink = TerminalSink() if sink is None else sink
        self._calls = ToolCalls()
        self._running: dict[str, str] = {}
        """Titles of the unfinished tool calls."""
        self._plan = ""
        self._message_id: str | None = None
        """The message of the last displayed chunk."""
        self._speech = Speech.NONE
        self._place = Place.TURN
        self._markdown = MarkdownStream()
        self._thought = ""
        """The unfinished line of a thought."""
        self._exit: str | None = None
        """Why the last agent process ended; a turn that failed with it does not repeat that."""
        self._is_spaced = False
        """True if the next block of text needs a blank line before it."""
        self._children: dict[str, str] = {}
        """Titles of child sessions by the agent's ids."""
        self._kinds: Mapping[str, Callable[[Raw], None]] = {
            "agent_message_chunk": self._chunk,
            "agent_message": self._message,
            "agent_thought_chunk": self._thought_chunk,
            "agent_thought": self._whole_thought,
            "plan": self._plan_of,
            "plan_update": self._plan_in,
            "subagent_update": self._child,
        }
        """Handlers by kind, of both versions of ACP. Tool calls are combined by `ToolCalls`."""

    def show(self, offset: int, event: ev.AnyEvent) -> None:
        call = self._calls.take(event)
        if call is not None:
            self._tool(call)
            return
        match event:
            case ev.SessionUpdated():
                self._update(event)
            case ev.UserMessage() if self._whole:
                author = f"{event.author}> " if event.author else "> "
                self.note(author + _words(event.content))
            case ev.PromptQueued():
                self._working(f"queued at place {event.position + 1}")
            case ev.TurnStarted():
                self._start(event)
            case ev.PermissionRequested() | ev.PermissionResolved() if self._session_id is not None:
                self._permission(event, self._session_id)
            case ev.AgentExited() if self._whole:
                self._exit = event.message
                self.note(f"{event.message or 'the agent is gone'} ({event.reason})")
            case ev.CancelEscalated():
                self.note(f"the agent does not stop; next rung: {event.rung}")
            case ev.TurnCompleted() | ev.TurnFailed():
                self._end(event)
            case _:
                pass

    def note(self, line: str) -> None:
        self._finish()
        self._sink.note(Text(printable(line), style="dim"))

    def pause(self) -> None:
        self._finish()
        self._sink.pause()

    # -- updates -------------------------------------------------------------------------------------------

    def _update(self, event: ev.SessionUpdated) -> None:
        show = self._kinds.get(event.kind)
        if show is None or event.echo or event.child is not None:
            # Output of a child session is not the answer; it is in the log.
            return
        if event.kind in AGENT_SPEECH:
            self._move(event)
        try:
            show(event.update)
        except msgspec.DecodeError:
            # An update without the members that its kind needs is in the log.
            return

    def _move(self, event: ev.SessionUpdated) -> None:
        """Separate output that belongs to no turn from turns."""
        place = Place.TURN
        if event.prompt_id is None:
            place = Place.BACKGROUND if event.after is None else Place.LATE
        if place is not self._place:
            self._finish()
            self._message_id = None
            self._place = place
            if place is not Place.TURN:
                self._sink.note(Text(place.value, style="dim"))

    def _chunk(self, update: Raw) -> None:
        chunk = msgspec.json.decode(update, type=_Chunk)
        if chunk.message_id is not None and chunk.message_id != self._message_id:
            self._break()
        self._message_id = chunk.message_id
        self._block(chunk.content)

    def _message(self, update: Raw) -> None:
        message = msgspec.json.decode(update, type=_Message)
        if message.message_id != self._message_id:
            self._break()
            self._message_id = message.message_id
            for each in message.content:
                self._block(each)

    def _block(self, block: dict[str, Any]) -> None:
        text: object = block.get("text")
        if block.get("type") in ("text", None) and isinstance(text, str):
            self._say(text)
        elif "type" in block:
            self._finish()
            self._sink.note(block_view(block))

    # -- words and thoughts ----------------------------------------------------------------------------------

    def _say(self, text: str) -> None:
        if not text:
            return
        self._speak(Speech.WORDS)
        if not self._sink.draws:
            self._sink.words(text)
            return
        for block in self._markdown.feed(printable(text)):
            self._print_block(block)
        self._sink.tail(self._growing)

    def _growing(self, rows: int) -> RenderableType:
        if self._speech is Speech.THOUGHT:
            return Lines(_thought(self._thought), rows)
        block = drawn(self._markdown.growing, rows - 1)
        return Group(Text(), block) if self._is_spaced else block

    def _print_block(self, source: str) -> None:
        if source.strip():
            self._sink.print(Group(Text(), drawn(source)) if self._is_spaced else drawn(source))
            self._is_spaced = True

    def _think(self, text: str) -> None:
        if not text:
            return
        self._speak(Speech.THOUGHT)
        *lines, self._thought = (self._thought + printable(text)).split("\n")
        for each in lines:
            self._sink.note(_thought(each))
        self._sink.tail(self._growing if self._thought else None)
        self._working("thinking")

    def _thought_chunk(self, update: Raw) -> None:
        chunk = msgspec.json.decode(update, type=_Chunk)
        self._message_id = chunk.message_id
        self._think(str(chunk.content.get("text") or ""))

    def _whole_thought(self, update: Raw) -> None:
        message = msgspec.json.decode(update, type=_Message)
        if message.message_id != self._message_id:
            self._message_id = message.message_id
            self._think("".join(str(each.get("text") or "") for each in message.content))

    def _speak(self, speech: Speech) -> None:
        if speech is not self._speech:
            self._finish()
            self._speech = speech

    def _break(self) -> None:
        """Begin another message: in a new block on a terminal, on a new line elsewhere."""
        if self._speech is not Speech.WORDS:
            return
        if self._sink.draws:
            self._print_block(self._markdown.close())
        else:
            self._sink.end_line()

    def _finish(self) -> None:
        """Finish the newest text: nothing is added to it any more."""
        self._sink.tail(None)
        if self._speech is Speech.WORDS and self._sink.draws:
            self._print_block(self._markdown.close())
        elif self._speech is Speech.THOUGHT and self._thought:
            self._sink.note(_thought(self._thought))
        self._thought, self._speech, self._is_spaced = "", Speech.NONE, False

    # -- tools and plans -------------------------------------------------------------------------------------

    def _tool(self, call: ToolCall) -> None:
        self._running[call.tool_call_id] = call.title or call.tool_call_id
        if call.status in FINAL_TOOL_STATUS:
            del self._running[call.tool_call_id]
            self.note(tool_line(call))
            details = tool_details(call)
            if details is not None:
                self._sink.note(details)
            for each in call.blocks:
                if each.get("type") != "text":
                    self._sink.note(block_view(each))
            self._calls.forget(call.tool_call_id)
        self._working(", ".join(short(each) for each in self._running.values()) or "working")

    def _plan_of(self, update: Raw) -> None:
        self._show_plan(msgspec.json.decode(update, type=_Plan))

    def _plan_in(self, update: Raw) -> None:
        self._show_plan(msgspec.json.decode(update, type=_PlanUpdate).plan)

    def _child(self, update: Raw) -> None:
        child = msgspec.json.decode(update, type=_Child)
        title = child.title or self._children.get(child.session_id) or child.session_id
        if child.session_id not in self._children:
            self.note(f"subagent: {short(title)}")
        self._children[child.session_id] = title

    def _show_plan(self, plan: _Plan) -> None:
        done = sum(each.status == "completed" for each in plan.entries)
        current = next((each.content for each in plan.entries if each.status != "completed"), "done")
        line = f"plan {done}/{len(plan.entries)}: {short(current)}"
        if line != self._plan:
            self._plan = line
            self.note(line)

    # -- lines that are not the agent's words --------------------------------------------------------------

    def _start(self, event: ev.TurnStarted) -> None:
        if self._whole and event.origin is ev.Origin.AGENT:
            self.note("the agent begins a turn by itself")
        self._working("working")

    def _end(self, event: ev.TurnCompleted | ev.TurnFailed) -> None:
        self._running.clear()
        self.pause()
        if self._whole and isinstance(event, ev.TurnFailed):
            why = "" if event.message == self._exit else f": {event.message}"
            self.note(f"turn failed ({event.code}){why}{agent_words(event)}")
        elif self._whole and isinstance(event, ev.TurnCompleted):
            self.note(f"turn ended: {event.stop_reason}")

    def _permission(self, event: ev.PermissionRequested | ev.PermissionResolved, session_id: SessionId) -> None:
        if isinstance(event, ev.PermissionRequested):
            self.pause()
            tell_open(asked(event, session_id, self._calls))
        else:
            self.note(f"permission request {event.request_id}: {_outcome(event)}")

    def _working(self, words: str) -> None:
        self._sink.footer(words)


class _Error(Struct):
    message: str = ""


def agent_words(event: ev.TurnFailed) -> str:
    """Return a line with the agent's own error message; empty without one."""
    if event.agent_error is UNSET:
        return ""
    try:
        return f"\n  it said: {msgspec.json.decode(event.agent_error, type=_Error).message}"
    except msgspec.DecodeError:
        return "\n  its error cannot be read"


def _thought(line: str) -> Text:
    return Text(f"│ {line}", style="dim italic")


def _outcome(event: ev.PermissionResolved) -> str:
    """Return the outcome of a permission request, and the client that decided it."""
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


# -- Markdown that arrives in pieces -------------------------------------------------------------------------


OFTEN = 2048
"""Up to this many characters an unfinished block is parsed with every line, then after growing by an eighth."""
LONGEST = 65536
"""Maximum number of characters of a block."""
DRAWN = 8192
"""Characters at the end of an unfinished block that are drawn while it grows."""


class MarkdownStream:
    """Growing Markdown text, split into blocks."""

    def __init__(self) -> None:
        self.rest = ""
        """The unfinished block."""
        self._next_look = 0

    def feed(self, text: str) -> list[str]:
        """Add text; return the blocks that it finishes."""
        self.rest += text
        if "\n" not in text or len(self.rest) < self._next_look:
            return []
        whole = self.rest[: self.rest.rindex("\n") + 1]
        tokens = [each for each in _markdown(whole).parsed if each.level == 0 and each.map]
        starts = sorted({each.map[0] for each in tokens if each.map and each.nesting >= 0})
        lines = whole.split("\n")
        blocks = ["\n".join(lines[start:end]) for start, end in pairwise(starts)]
        if blocks:
            self.rest = "\n".join(lines[starts[-1] :]) + self.rest[len(whole) :]
        elif len(whole) > LONGEST:
            blocks = [whole]
            again = f"{lines[0]}\n" if tokens and tokens[-1].type == "fence" else ""
            self.rest = again + self.rest[len(whole) :]
        self._next_look = 0 if len(self.rest) < OFTEN else len(self.rest) * 9 // 8
        return blocks

    def close(self) -> str:
        """Return the remaining text as a block."""
        rest, self.rest, self._next_look = self.rest, "", 0
        return rest if rest.strip() else ""

    @property
    def growing(self) -> str:
        """Return the visible part of the unfinished block: all of it, or the end of a long one."""
        rest = self.rest
        if len(rest) <= DRAWN:
            return rest
        opening, end = rest.split("\n", 1)[0], rest[-DRAWN:]
        is_code = opening.lstrip().startswith(("```", "~~~"))
        return f"{opening}\n{end.split(chr(10), 1)[-1]}" if is_code else end


def drawn(source: str, rows: int | None = None) -> RenderableType:
    """Render a block of Markdown, or its last rows. A link shows its address instead of hiding it."""
    return Lines(_markdown(source), rows)


class Lines:
    """A renderable of its natural height, or its last rows; no blanks fill it up."""

    def __init__(self, block: RenderableType, rows: int | None = None) -> None:
        self._block = block
        self._rows = rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(self._block, options.update(height=None), pad=False)
        kept = [_trimmed(line) for line in lines]
        while kept and not kept[0]:
            del kept[0]
        while kept and not kept[-1]:
            del kept[-1]
        for line in kept if self._rows is None else kept[-self._rows :]:
            yield from line
            yield Segment.line()


def _trimmed(line: list[Segment]) -> list[Segment]:
    kept = list(line)
    while kept and not kept[-1].text.strip(" ") and not (kept[-1].style and kept[-1].style.bgcolor):
        kept.pop()
    if kept and not (kept[-1].style and kept[-1].style.bgcolor):
        kept[-1] = Segment(kept[-1].text.rstrip(" "), kept[-1].style)
    return kept


def _markdown(source: str) -> Markdown:
    # Imported here: its parser is large, and only text on a terminal needs it.
    from rich.markdown import Markdown

    return Markdown(source, code_theme="ansi_dark", hyperlinks=False)
