"""The input line of a chat, with menus above it, while the conversation is printed above both.

Finished text belongs to the terminal: it scrolls, and can be copied. Below it are, if present: text that still
grows, queued prompts, one menu, a state line and the input. A menu accepts keys only while the input is empty, so
it never swallows a word. The owner decides the meaning of a text.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import NamedTuple, Protocol

import anyio
from prompt_toolkit import PromptSession
from prompt_toolkit.application import in_terminal, set_app
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import Completer
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition, FilterOrBool
from prompt_toolkit.formatted_text import ANSI, StyleAndTextTuples, to_formatted_text
from prompt_toolkit.history import History
from prompt_toolkit.input import Input
from prompt_toolkit.input.vt100 import Vt100Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.output import Output, create_output
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.styles import Style

MARK = "> "
"""The mark before the input."""
OWN_ROWS = 6
"""Rows below the growing text: the input, completions and the state line."""
REDRAW_S = 0.03
"""Minimum seconds between two redraws."""
IN_MENU = "a number, or arrows and Enter; Esc leaves it"
BESIDE_MENU = "send or empty the line to choose"

STYLE = Style.from_dict(
    {
        "mark": "bold",
        "dim": "ansibrightblack",
        "chosen": "bold",
        "completion-menu": "bg:default default",
        "completion-menu.completion": "bg:default default",
        "completion-menu.completion.current": "bg:default default bold underline",
        "completion-menu.meta.completion": "bg:default ansibrightblack",
        "completion-menu.meta.completion.current": "bg:default ansibrightblack underline",
        "scrollbar.background": "bg:default",
        "scrollbar.button": "bg:ansibrightblack",
    }
)


class Choice(NamedTuple):
    """A line of a menu."""

    label: str
    about: str = ""


class EditorOwner(Protocol):
    """Callbacks for the user's input."""

    def take(self, text: str) -> None:
        """Accept a submitted text."""
        ...

    def interrupt(self) -> None:
        """Handle Ctrl-C on an empty input."""
        ...

    def end(self) -> None:
        """Handle Ctrl-D on an empty input."""
        ...

    def typed(self) -> None:
        """Handle a change of the input."""
        ...

    def waiting(self) -> Sequence[str]:
        """Return the lines to show above the input."""
        ...

    def state(self) -> str:
        """Return the state line."""
        ...


class _Menu:
    def __init__(self, title: str, choices: Sequence[Choice], at: int | None, is_ours: bool) -> None:
        self.title = title
        self.choices = choices
        self.is_ours = is_ours
        self.at = at
        """The line that Enter selects; `None` until the user moves to one."""
        self.taken: int | None = None
        self.is_over = anyio.Event()

    def move(self, by: int) -> None:
        start = -1 if self.at is None and by > 0 else self.at or 0
        self.at = (start + by) % len(self.choices)

    def end(self, taken: int | None) -> None:
        self.taken = taken
        self.is_over.set()


class _Field:
    def __init__(self, label: str, draft: Document) -> None:
        self.label = label
        self.draft = draft
        """The earlier input, to be restored."""
        self.text: str | None = None
        self.is_over = anyio.Event()

    def end(self, text: str | None) -> None:
        self.text = text
        self.is_over.set()


class _RawInput(Vt100Input):
    """The terminal, which stays in raw mode while lines are printed.

    In cooked mode the terminal itself consumes Ctrl-D and Alt-Enter, so a key pressed during a print would be lost.
    """

    is_printing = False

    def cooked_mode(self) -> AbstractContextManager[None]:
        return nullcontext() if self.is_printing else super().cooked_mode()


class LineEditor:
    """A `PromptSession` that Enter does not end. All methods may be called while it runs."""

    def __init__(
        self,
        owner: EditorOwner,
        completer: Completer,
        history: History,
        terminal_input: Input | None = None,
        terminal_output: Output | None = None,
    ) -> None:
        """By default it uses the terminal of this process."""
        self._owner = owner
        self._tail: Callable[[int], str] | None = None
        self._drawn_tail: tuple[int, int, str] | None = None
        """Rows and columns of the last drawing of the tail, and its text."""
        self._pending: list[str] = []
        self._has_pending = anyio.Event()
        self._menu: _Menu | None = None
        self._field: _Field | None = None
        self._asking = anyio.Lock()
        """Allows one menu or field at a time."""
        self._terminal = _RawInput(sys.stdin) if terminal_input is None else None
        output = terminal_output or create_output()
        if isinstance(output, Vt100_Output):
            # Without it, no query is sent that the terminal, or a pipe to it, may not answer.
            output.enable_cpr = False
        self._session: PromptSession[str] = PromptSession(
            message=self._message,
            prompt_continuation="  ",
            multiline=True,
            completer=completer,
            # Rows for completions are reserved only where there may be some.
            complete_while_typing=Condition(lambda: self._field is None and _has_completions(self._input.document)),
            history=history,
            key_bindings=_keys(self),
            enable_suspend=True,
            erase_when_done=True,
            include_default_pygments_style=False,
            style=STYLE,
            input=self._terminal or terminal_input,
            output=output,
        )
        self._app = self._session.app
        self._app.min_redraw_interval = REDRAW_S
        self._app.ttimeoutlen = 0.05
        self._input = self._session.default_buffer
        self._input.on_text_changed += self._changed

    # -- what it shows -----------------------------------------------------------------------------------------

    @property
    def _size(self) -> tuple[int, int]:
        size = self._session.output.get_size()
        return size.rows, size.columns

    @property
    def columns(self) -> int:
        """Return the width of the terminal."""
        return self._size[1]

    def print(self, text: str) -> None:
        """Print lines permanently above everything else. The caller is responsible for escapes in it."""
        if text:
            self._pending.append(text if text.endswith("\n") else f"{text}\n")
            self._has_pending.set()

    async def _print_pending(self) -> None:
        while True:
            await self._has_pending.wait()
            self._keep_raw(True)
            try:
                async with in_terminal():
                    self._write_pending()
            finally:
                self._keep_raw(False)

    def _keep_raw(self, is_printing: bool) -> None:
        if self._terminal is not None:
            self._terminal.is_printing = is_printing

    def _write_pending(self) -> None:
        text, self._pending, self._has_pending = "".join(self._pending), [], anyio.Event()
        self._session.output.write_raw(text)
        self._session.output.flush()

    def grow(self, tail: Callable[[int], str] | None) -> None:
        """Show text above the input until it is replaced, in at most that many rows; `None` removes it."""
        if tail is not None or self._tail is not None:
            self._tail, self._drawn_tail = tail, None
            self.refresh()

    def refresh(self) -> None:
        """Redraw after a change of the owner's lines."""
        self._app.invalidate()

    def _message(self) -> StyleAndTextTuples:
        rows: StyleAndTextTuples = []
        if tail := self._tail_text():
            rows += [*to_formatted_text(ANSI(tail)), ("", "\n")]
        room = self.columns
        rows += [("class:dim", f"{_cut(each, room)}\n") for each in self._owner.waiting()]
        rows += [("", "\n")] if self._menu is None else self._menu_rows(self._menu)
        # Not a toolbar below the input: that needs a terminal that reports its cursor.
        state = self._state()
        rows += [("class:dim", f"{_cut(state, room)}\n")] if state else []
        return [*rows, ("class:mark", MARK if self._field is None else f"{self._field.label}: ")]

    def _tail_text(self) -> str:
        if self._tail is None:
            return ""
        rows, columns = self._size
        rows = max(1, rows - OWN_ROWS - len(self._owner.waiting()))
        drawn = self._drawn_tail
        if drawn is None or drawn[:2] != (rows, columns):
            drawn = self._drawn_tail = (rows, columns, self._tail(rows).rstrip("\n"))
        return drawn[2]

    def _menu_rows(self, menu: _Menu) -> StyleAndTextTuples:
        rows: StyleAndTextTuples = [("bold", f"{menu.title}\n")]
        # A menu that is too high shows the choices around the selected one.
        most = max(1, self._size[0] - OWN_ROWS)
        first = max(0, min((menu.at or 0) - most // 2, len(menu.choices) - most))
        for number, choice in list(enumerate(menu.choices))[first : first + most]:
            is_at = number == menu.at
            rows.append(("class:chosen" if is_at else "", f"{'>' if is_at else ' '} {number + 1}. {choice.label}"))
            rows.append(("class:dim", f"  {choice.about}\n" if choice.about else "\n"))
        return rows

    def _state(self) -> str:
        if self._field is not None:
            return "Enter gives it; Esc leaves it"
        if self._menu is not None:
            return IN_MENU if self.menu_listens else BESIDE_MENU
        return self._owner.state()

    # -- what it asks ------------------------------------------------------------------------------------------

    @property
    def menu_listens(self) -> bool:
        """Return whether the menu accepts keys."""
        return self._menu is not None and not self._input.text

    async def choose(
        self, title: str, choices: Sequence[Choice], at: int | None = None, *, is_ours: bool = True
    ) -> int | None:
        """Let the user pick a choice; returns `None` if declined. Cancel the call to remove the menu.

        In a menu that is not ours (`is_ours=False`), Ctrl-C is meant for the running activity, not for the menu.
        """
        async with self._asking:
            menu = self._menu = _Menu(title, choices, at, is_ours)
            self.refresh()
            try:
                await menu.is_over.wait()
            finally:
                self._menu = None
                self.refresh()
        return menu.taken

    async def ask(self, label: str, preset: str = "") -> str | None:
        """Let the user enter a line; returns `None` if declined. The earlier input is restored afterwards."""
        async with self._asking:
            field = self._field = _Field(label, self._input.document)
            self._input.reset(Document(preset))
            self.refresh()
            try:
                await field.is_over.wait()
            finally:
                self._field = None
                self._input.reset(field.draft)
                self.refresh()
        return field.text

    def complete(self) -> None:
        """Complete the input again, with more data."""
        shown = self._input.complete_state
        if self._input.text and (shown is None or shown.complete_index is None):
            self._input.complete_state = None
            self._input.start_completion(select_first=False)

    def restore(self, text: str) -> None:
        """Restore a text that could not be sent, if the input is empty."""
        if not self._input.text:
            self._input.reset(Document(text))
            self.refresh()

    def _changed(self, buffer: Buffer) -> None:
        self._owner.typed()

    # -- keys --------------------------------------------------------------------------------------------------

    def enter(self) -> None:
        """Handle Enter: select the menu's line, submit the field, or submit a text."""
        text = self._input.text
        if self._field is not None:
            self._field.end(text)
        elif self._menu is not None and self.menu_listens:
            if self._menu.at is not None:
                self._menu.end(self._menu.at)
        elif text.strip():
            self._input.append_to_history()
            self._input.reset()
            self._owner.take(text)

    def pick(self, number: int) -> None:
        """Select a menu's line by its number."""
        if self._menu is not None and number < len(self._menu.choices):
            self._menu.end(number)

    def look(self, by: int) -> None:
        """Move to another line of the menu."""
        if self._menu is not None:
            self._menu.move(by)

    def decline(self) -> None:
        """Handle Esc in a menu or a field."""
        asked = self._field or self._menu
        if asked is not None:
            asked.end(None)

    def interrupt(self) -> None:
        """Handle Ctrl-C: end a field, clear the input, close the chat's menu or interrupt the activity."""
        if self._field is not None:
            self._field.end(None)
        elif self._input.text:
            self._input.reset()
        elif self._menu is not None and self._menu.is_ours:
            self._menu.end(None)
        else:
            self._owner.interrupt()
        self.refresh()

    def end(self) -> None:
        """Handle Ctrl-D on an empty input."""
        if self._field is not None:
            self._field.end(None)
        else:
            self._owner.end()

    def write(self, text: str) -> None:
        """Insert text at the cursor."""
        self._input.insert_text(text)

    @property
    def is_empty(self) -> bool:
        """Return whether the input is empty."""
        return not self._input.text

    @property
    def is_asking_for_text(self) -> bool:
        """Return whether a field is open."""
        return self._field is not None

    # -- life --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run until `close`. Afterwards the terminal is restored; printed text stays."""
        with set_app(self._app):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._print_pending)
                try:
                    await self._session.prompt_async(set_exception_handler=False)
                finally:
                    self._write_pending()
                tasks.cancel_scope.cancel()

    def close(self) -> None:
        """End `run`."""
        if self._app.is_running and not self._app.is_done:
            self._app.exit(result="")


def _cut(line: str, columns: int) -> str:
    return line if len(line) < columns else f"{line[: columns - 2]}…"


def _has_completions(document: Document) -> bool:
    before = document.text_before_cursor
    return before.startswith((":", "/")) or "@" in document.current_line_before_cursor


class _Key(NamedTuple):
    names: tuple[str, ...]
    act: Callable[[], None]
    when: FilterOrBool = True
    eager: bool = False
    """True if the key does not wait for a longer sequence with the same start."""


def _keys(editor: LineEditor) -> KeyBindings:
    in_menu = Condition(lambda: editor.menu_listens)
    in_field = Condition(lambda: editor.is_asking_for_text)
    is_empty = Condition(lambda: editor.is_empty)
    table = [
        _Key(("enter",), editor.enter),
        _Key(("escape", "enter"), lambda: editor.write("\n")),
        # An Enter that is typed before the terminal is in raw mode arrives as this key.
        _Key(("c-j",), editor.enter),
        _Key(("c-c",), editor.interrupt),
        _Key((Keys.SIGINT,), editor.interrupt),
        _Key(("c-d",), editor.end, is_empty),
        _Key(("up",), lambda: editor.look(-1), in_menu),
        _Key(("down",), lambda: editor.look(1), in_menu),
        _Key(("escape",), editor.decline, in_menu | in_field, eager=True),
        *(_Key((str(number + 1),), partial(editor.pick, number), in_menu) for number in range(9)),
    ]
    keys = KeyBindings()
    for each in table:
        keys.add(*each.names, filter=each.when, eager=each.eager)(_heard(each.act))
    return keys


def _heard(act: Callable[[], None]) -> Callable[[KeyPressEvent], None]:
    return lambda event: act()
