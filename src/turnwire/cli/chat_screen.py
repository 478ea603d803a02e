"""interim"""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.text import Text

from turnwire.cli.line_editor import Choice, LineEditor
from turnwire.cli.output import printable
from turnwire.core import events as ev
from turnwire.core.view.transcript import join_text


class ChatScreen:
    def __init__(self, editor: LineEditor) -> None:
        self._editor = editor
        self.activity = ""
        self._tail = ""
        self.dialogue = ChatDialogue(editor)

    def note(self, words: str) -> None:
        self._editor.print(click.style(printable(words), dim=True))

    def show(self, offset: int, event: ev.AnyEvent) -> None:
        match event:
            case ev.UserMessage():
                text = join_text(msgspec.json.decode(event.content, type=list[msgspec.Raw]))
                self._editor.print(f"\n> {printable(text)}")
            case ev.SessionUpdated() if event.kind == "agent_message_chunk":
                update: Any = msgspec.json.decode(event.update)
                self._tail += update["content"].get("text", "")
                self._editor.grow(self._tail)
            case ev.TurnCompleted() | ev.TurnFailed():
                self._editor.print(self._tail)
                self._tail = ""
                self._editor.grow("")
                if isinstance(event, ev.TurnFailed) or event.stop_reason != "end_turn":
                    self.note(f"turn ended: {getattr(event, 'stop_reason', 'failed')}")
            case _:
                pass


class ChatDialogue:
    """The editor, asked by others. See `turnwire.cli.asking.Dialogue`."""

    def __init__(self, editor: LineEditor) -> None:
        self._editor = editor

    def show(self, block: Text) -> None:
        console = Console(
            file=StringIO(),
            force_terminal=True,
            width=self._editor.columns,
            highlight=False,
            soft_wrap=True,
        )
        with console.capture() as captured:
            console.print(block)
        self._editor.print(captured.get())

    async def line(self, prompt: str) -> str | None:
        return await self._editor.ask(prompt.strip().removesuffix(":"))

    async def choose(self, choices: Sequence[str], title: str = "Your answer?") -> int | None:
        lines = [Choice(printable(each)) for each in choices]
        # No line is looked at in the beginning: an Enter that was meant for something else allows nothing.
        return await self._editor.choose(printable(title), lines, is_ours=False)
