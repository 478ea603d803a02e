"""The lines at the bottom of a terminal that a person types into while others write above.

What is finished is printed above and belongs to the terminal from then on: it scrolls, and can be copied. Below it
stand, as far as there is something: what still grows, what waits, one menu, the input and a line about the state.

A menu takes its keys only while nothing is typed, so that it never swallows a word; and a key that begins a word
closes nothing. Never decides what a text means: whoever made it does.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple, Protocol, cast

import anyio
from prompt_toolkit.application import Application
from prompt_toolkit.application.current import set_app
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import Completer
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition, FilterOrBool
from prompt_toolkit.formatted_text import ANSI, AnyFormattedText, StyleAndTextTuples
from prompt_toolkit.history import History
from prompt_toolkit.input.typeahead import store_typeahead
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.key_binding.key_processor import KeyPress
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout import ConditionalContainer, HSplit, Layout, Window
from prompt_toolkit.layout.controls import BufferControl, FormattedTextControl
from prompt_toolkit.layout.dimension import Dimension
from prompt_toolkit.layout.menus import CompletionsMenu
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.styles import Style
from prompt_toolkit.widgets import SearchToolbar

MARK = "> "
"""Stands before what is typed."""
COMPLETIONS = 8
"""Rows of completions that are shown at once."""
OWN_ROWS = 6
"""Rows that what grows always leaves to the input and what is below it."""
REDRAW_S = 0.03
"""The least time between two drawings."""
IN_MENU = "a number, or arrows and Enter; Esc leaves it"
BESIDE_MENU = "send or empty the line to choose"

STYLE = Style.from_dict(
    {
        "mark": "bold",
        "dim": "ansibrightblack",
        "chosen": "bold",
        "footer": "ansibrightblack",
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
    """Who is told what the person does."""

    def take(self, text: str) -> None:
        """A text was sent off."""
        ...

    def interrupt(self) -> None:
        """Ctrl-C with nothing typed."""
        ...

    def end(self) -> None:
        """Ctrl-D with nothing typed."""
        ...

    def typed(self) -> None:
        """What is typed has changed."""
        ...

    def waiting(self) -> Sequence[str]:
        """Lines to show above the input."""
        ...

    def state(self) -> str:
        """The line below it."""
        ...


class _Menu:
    def __init__(self, title: str, choices: Sequence[Choice], at: int | None, is_ours: bool) -> None:
        self.title = title
        self.choices = choices
        self.is_ours = is_ours
        self.at = at
        """The line that Enter takes; none until one is looked at."""
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
        """What was typed before, to be given back."""
        self.text: str | None = None
        self.is_over = anyio.Event()

    def end(self, text: str | None) -> None:
        self.text = text
        self.is_over.set()


class _Output(Vt100_Output):
    """The terminal, which can be made to wait for all of a change."""

    _is_held = False

    @contextmanager
    def held(self) -> Generator[None]:
        """What is written meanwhile is written at the end."""
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False
            self.flush()

    def flush(self) -> None:
        if not self._is_held:
            super().flush()


class LineEditor:
    """The bottom of the terminal. `run` it; everything else may be called meanwhile."""

    def __init__(self, owner: EditorOwner, completer: Completer, history: History) -> None:
        self._owner = owner
        self._tail: Callable[[int], str] | None = None
        self._drawn_tail: tuple[int, int, str] | None = None
        """The tail as it was drawn last, with the rows and columns that it was drawn for."""
        self._pending: list[str] = []
        self._menu: _Menu | None = None
        self._field: _Field | None = None
        self._asking = anyio.Lock()
        """One menu or field at a time."""
        self._input = Buffer(
            completer=completer,
            history=history,
            multiline=True,
            complete_while_typing=Condition(lambda: self._field is None),
        )
        self._input.on_text_changed += self._changed
        self._output = cast("_Output", _Output.from_pty(sys.stdout))
        # Without it nothing is asked of the terminal that it, or a pipe to it, may not answer.
        self._output.enable_cpr = False
        search = SearchToolbar()
        self._app: Application[None] = Application(
            layout=Layout(self._rows(search)),
            key_bindings=_keys(self),
            style=STYLE,
            output=self._output,
            erase_when_done=True,
            # However fast an agent speaks, somebody types.
            min_redraw_interval=REDRAW_S,
            enable_page_navigation_bindings=False,
        )
        self._app.ttimeoutlen = 0.05

    def _rows(self, search: SearchToolbar) -> HSplit:
        def text(show: Callable[[], AnyFormattedText], when: Callable[[], bool]) -> ConditionalContainer:
            window = Window(FormattedTextControl(show), wrap_lines=True, dont_extend_height=True)
            return ConditionalContainer(window, Condition(when))

        written = Window(
            BufferControl(self._input, search_buffer_control=search.control, preview_search=True),
            wrap_lines=True,
            dont_extend_height=True,
            height=lambda: Dimension(min=1, max=max(1, self._size[0] // 2)),
            get_line_prefix=self._prefix,
        )
        return HSplit(
            [
                text(lambda: ANSI(self._tail_text()), lambda: bool(self._tail_text())),
                text(self._waiting_rows, lambda: bool(self._owner.waiting())),
                text(self._menu_rows, lambda: self._menu is not None),
                # What is typed stands apart from what was said.
                ConditionalContainer(Window(height=1), Condition(lambda: self._menu is None)),
                written,
                CompletionsMenu(max_height=COMPLETIONS),
                search,
                Window(FormattedTextControl(self._footer), height=1, dont_extend_height=True),
            ]
        )

    # -- what it shows -----------------------------------------------------------------------------------------

    @property
    def _size(self) -> tuple[int, int]:
        size = self._output.get_size()
        return size.rows, size.columns

    @property
    def columns(self) -> int:
        """How wide the terminal is."""
        return self._size[1]

    def print(self, text: str) -> None:
        """Lines above everything else, for good. The caller says which escapes are in it."""
        if not text:
            return
        self._pending.append(text if text.endswith("\n") else f"{text}\n")
        # All that is printed until the loop comes round is one change of the screen.
        if len(self._pending) == 1 and self._app.loop is not None:
            self._app.loop.call_soon(self._flush)

    def _flush(self) -> None:
        text, self._pending = "".join(self._pending), []
        if not text:
            return
        app = self._app
        is_drawn = app.renderer.last_rendered_screen is not None
        # In one piece: a moment without the line that is typed would be seen.
        with self._output.held():
            app.renderer.erase()
            self._output.write_raw(text)
            if is_drawn:
                with set_app(app):
                    app.renderer.render(app, app.layout)

    def grow(self, tail: Callable[[int], str] | None) -> None:
        """What stands above the input until it is replaced, for at most so many rows; none takes it away."""
        if tail is not None or self._tail is not None:
            self._tail, self._drawn_tail = tail, None
            self.refresh()

    def refresh(self) -> None:
        """Something that the owner shows is new."""
        self._app.invalidate()

    def _tail_text(self) -> str:
        if self._tail is None:
            return ""
        rows, columns = self._size
        rows = max(1, rows - OWN_ROWS - len(self._owner.waiting()))
        drawn = self._drawn_tail
        if drawn is None or drawn[:2] != (rows, columns):
            drawn = self._drawn_tail = (rows, columns, self._tail(rows).rstrip("\n"))
        return drawn[2]

    def _waiting_rows(self) -> StyleAndTextTuples:
        room = self.columns
        lines = [each if len(each) < room else f"{each[: room - 2]}…" for each in self._owner.waiting()]
        return [("class:dim", "\n".join(lines))]

    def _menu_rows(self) -> StyleAndTextTuples:
        menu = self._menu
        assert menu is not None, "it is shown only while there is one"
        rows: StyleAndTextTuples = [("bold", menu.title)]
        for number, choice in enumerate(menu.choices):
            is_at = number == menu.at
            # A menu that is too high is moved until the line with the cursor can be seen.
            rows += [("", "\n"), *([("[SetCursorPosition]", "")] if is_at else [])]
            rows.append(("class:chosen" if is_at else "", f"{'>' if is_at else ' '} {number + 1}. {choice.label}"))
            if choice.about:
                rows.append(("class:dim", f"  {choice.about}"))
        return rows

    def _prefix(self, line: int, wraps: int) -> StyleAndTextTuples:
        label = MARK if self._field is None else f"{self._field.label}: "
        return [("class:mark", label if line == wraps == 0 else "  ")]

    def _footer(self) -> StyleAndTextTuples:
        words, room = self._owner.state(), self.columns
        if self._field is not None:
            words = "Enter gives it; Esc leaves it"
        elif self._menu is not None:
            words = IN_MENU if self.menu_listens else BESIDE_MENU
        return [("class:footer", words if len(words) < room else f"{words[: room - 2]}…")]

    # -- what it asks ------------------------------------------------------------------------------------------

    @property
    def menu_listens(self) -> bool:
        """The menu takes keys."""
        return self._menu is not None and not self._input.text

    async def choose(
        self, title: str, choices: Sequence[Choice], at: int | None = None, *, is_ours: bool = True
    ) -> int | None:
        """Let one of some be picked; none if that is declined. Cancel it to take the menu away.

        Ctrl-C in a menu that is not ours means what goes on, not the menu.
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
        """Let a line be written; none if that is declined. What was typed comes back afterwards."""
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
        """Look again what completes what is typed: there is more of it now."""
        shown = self._input.complete_state
        if self._input.text and (shown is None or shown.complete_index is None):
            self._input.complete_state = None
            self._input.start_completion(select_first=False)

    def restore(self, text: str) -> None:
        """Give a text back that could not be sent, if nothing else is typed."""
        if not self._input.text:
            self._input.reset(Document(text))
            self.refresh()

    def _changed(self, buffer: Buffer) -> None:
        self._owner.typed()

    # -- keys --------------------------------------------------------------------------------------------------

    def enter(self) -> None:
        """Enter: the menu's line, the field's text, or a text of its own."""
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
        """A menu's line by its number."""
        if self._menu is not None and number < len(self._menu.choices):
            self._menu.end(number)

    def look(self, by: int) -> None:
        """Another line of the menu."""
        if self._menu is not None:
            self._menu.move(by)

    def decline(self) -> None:
        """Esc in a menu or a field."""
        asked = self._field or self._menu
        if asked is not None:
            asked.end(None)

    def interrupt(self) -> None:
        """Ctrl-C: a field, what is typed, a menu of ours, and only then what goes on."""
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
        """Ctrl-D with nothing typed."""
        if self._field is not None:
            self._field.end(None)
        else:
            self._owner.end()

    def suspend(self) -> None:
        """Ctrl-Z."""
        self._app.suspend_to_background()

    def write(self, text: str) -> None:
        """Into the input, where the cursor is."""
        self._input.insert_text(text)

    @property
    def is_empty(self) -> bool:
        """Nothing is typed."""
        return not self._input.text

    @property
    def is_asking_for_text(self) -> bool:
        """A field is being written."""
        return self._field is not None

    # -- life --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until `close`. Afterwards the terminal is as it was, with what was printed."""
        store_typeahead(self._app.input, _typed_early())
        try:
            await self._app.run_async(pre_run=self._flush, set_exception_handler=False)
        finally:
            self._output.write_raw("".join(self._pending))
            self._output.flush()

    def close(self) -> None:
        """End it."""
        if self._app.is_running and not self._app.is_done:
            self._app.exit()


def _typed_early() -> list[KeyPress]:
    """What was typed while the terminal was not ours yet: it made a Ctrl-J of every Enter."""
    early, stdin = b"", sys.stdin.fileno()
    while select.select([stdin], [], [], 0)[0]:
        more = os.read(stdin, 4096)
        if not more:
            break
        early += more
    text = early.decode(errors="ignore")
    return [KeyPress(Keys.Enter if each == "\n" else each) for each in text if each == "\n" or each.isprintable()]


class _Key(NamedTuple):
    names: tuple[str, ...]
    act: Callable[[], None]
    when: FilterOrBool = True
    eager: bool = False
    """It waits for no longer sequence that begins so."""


def _keys(editor: LineEditor) -> KeyBindings:
    in_menu = Condition(lambda: editor.menu_listens)
    in_field = Condition(lambda: editor.is_asking_for_text)
    is_empty = Condition(lambda: editor.is_empty)
    table = [
        _Key(("enter",), editor.enter),
        _Key(("escape", "enter"), lambda: editor.write("\n")),
        _Key(("c-j",), lambda: editor.write("\n")),
        _Key(("c-c",), editor.interrupt),
        _Key((Keys.SIGINT,), editor.interrupt),
        _Key(("c-d",), editor.end, is_empty),
        _Key(("c-z",), editor.suspend),
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
