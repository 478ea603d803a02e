"""What a chat shows above the line that is typed: the screen of the other commands, through the line editor.

Prompts stand out, because the conversation is read by them; a turn that ended as it should is not told of.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from io import StringIO

import msgspec
from msgspec import Raw
from rich.console import Console, RenderableType
from rich.text import Text

from turnwire.cli.line_editor import Choice, LineEditor
from turnwire.cli.local_token import TOKEN_NAME
from turnwire.cli.output import printable
from turnwire.cli.screen import TextScreen
from turnwire.core import events as ev
from turnwire.core.view.transcript import join_text
from turnwire.ids import PromptId


class EditorSink:
    """The editor, written to by a screen. See `turnwire.cli.sink.Sink`."""

    draws = True

    def __init__(self, editor: LineEditor) -> None:
        self._editor = editor
        self.activity: str | None = None
        """What is going on."""

    def words(self, text: str) -> None:
        raise AssertionError("words are drawn here")

    def print(self, block: RenderableType) -> None:
        self._editor.print(self._rendered(block))

    def note(self, block: RenderableType) -> None:
        self._editor.print(self._rendered(block))

    def tail(self, block: Callable[[int], RenderableType] | None) -> None:
        self._editor.grow(None if block is None else lambda rows: self._rendered(block(rows)))

    def footer(self, words: str | None) -> None:
        self.activity = words
        self._editor.refresh()

    def pause(self) -> None:
        self.tail(None)
        self.footer(None)

    def _rendered(self, block: RenderableType) -> str:
        to = StringIO()
        width = self._editor.columns
        console = Console(file=to, force_terminal=True, width=width, highlight=False, markup=False, emoji=False)
        console.print(block)
        return to.getvalue()


class ChatScreen:
    """Events of a session in a chat. See `turnwire.cli.screen.Screen`."""

    def __init__(self, sink: EditorSink, own: Container[PromptId]) -> None:
        self._sink = sink
        self._own = own
        """The prompts that were typed here."""
        self._screen = TextScreen(whole=False, sink=sink)

    def show(self, offset: int, event: ev.AnyEvent) -> None:
        if isinstance(event, ev.PromptQueued):
            # What waits has lines of its own.
            return
        self._screen.show(offset, event)
        match event:
            case ev.UserMessage():
                self._prompt(event)
            case ev.TurnStarted() if event.origin is ev.Origin.AGENT:
                self._line("the agent begins a turn by itself")
            case ev.TurnCompleted() if event.stop_reason != "end_turn":
                self._line(f"the turn ended: {event.stop_reason}")
            case ev.TurnFailed():
                self._line(f"the turn failed ({event.code}): {event.message}")
            case ev.AgentExited():
                self._line(f"{event.message or 'the agent is gone'} ({event.reason})")
            case _:
                pass

    def pause(self) -> None:
        self._screen.pause()

    def _prompt(self, event: ev.UserMessage) -> None:
        try:
            words = join_text(msgspec.json.decode(event.content, type=list[Raw]))
        except msgspec.DecodeError:
            words = ""
        is_ours = event.prompt_id in self._own or event.author in (None, TOKEN_NAME)
        self.pause()
        self._sink.note(Text(printable(f"\n{'' if is_ours else event.author}> {words}"), style="bold"))

    def _line(self, words: str) -> None:
        self.pause()
        self._sink.note(Text(printable(words), style="dim"))


class EditorDialogue:
    """The editor, asked by others. See `turnwire.cli.asking.Dialogue`."""

    def __init__(self, editor: LineEditor, sink: EditorSink) -> None:
        self._editor = editor
        self._sink = sink

    def show(self, block: Text) -> None:
        self._sink.note(block)

    async def line(self, prompt: str) -> str | None:
        label = prompt.strip().removesuffix(":")
        given = await self._editor.ask(label)
        if given is not None:
            self._sink.note(Text(printable(f"{label}: {given}"), style="dim"))
        return given

    async def choose(self, choices: Sequence[str], title: str = "Your answer?") -> int | None:
        lines = [Choice(printable(each)) for each in choices]
        # No line is looked at in the beginning: an Enter that was meant for something else allows nothing.
        chosen = await self._editor.choose(printable(title), lines, is_ours=False)
        if chosen is not None:
            self._sink.note(Text(f"{printable(title)} {printable(choices[chosen])}", style="dim"))
        return chosen
