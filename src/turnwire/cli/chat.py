"""`turnwire chat`: a conversation with an agent at a terminal.

The chat follows one session at a time. The screen of the other commands prints it above the input line, through the
line editor. Prompts are highlighted as landmarks of the conversation; a turn that ended normally is not reported.
Input is a prompt or a command of the chat (`chat_input` decides). Ctrl-C clears the line, then cancels the turn,
then exits. An exit is no cancel: the session continues at its daemon, and the last line shows how to come back.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Container, Coroutine, Mapping, Sequence
from contextlib import suppress
from io import StringIO
from pathlib import Path
from typing import Any, NoReturn

import anyio
import click
import msgspec
from anyio.abc import TaskGroup
from msgspec import Raw
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from rich.console import Console, RenderableType
from rich.text import Text

from turnwire.cli.chat_commands import (
    CHAT_COMMANDS,
    ChatCompleter,
    Typed,
    agent_commands,
    choose_session,
    embeds,
    read_command,
    settings_of,
    to_content,
)
from turnwire.cli.chat_session import ChatSession, Link, ListedAgent, Place, open_place
from turnwire.cli.commands import WithAgent, agent_of, sendable_folder
from turnwire.cli.credentials import TOKEN_NAME
from turnwire.cli.line_editor import Choice, LineEditor
from turnwire.cli.output import printable, tell, tell_next
from turnwire.cli.permissions import ask_here, subject
from turnwire.cli.reach import LAST, Reach, WantedSession, find_daemon, reach_options, session_options
from turnwire.cli.screen import TextScreen, agent_words
from turnwire.client.permission import REJECT, PermissionRequest, Reply
from turnwire.client.port import DaemonSession
from turnwire.clock import SystemClock
from turnwire.errors import TurnwireError
from turnwire.ids import PromptId
from turnwire.projections.view.transcript import join_text
from turnwire.session import events as ev

# -- what is shown above the line ----------------------------------------------------------------------------


class EditorSink:
    """A sink that writes to the editor. See `turnwire.cli.screen.Sink`."""

    draws = True

    def __init__(self, editor: LineEditor) -> None:
        self._editor = editor
        self.activity: str | None = None
        """The current activity."""

    def words(self, text: str) -> None:
        raise AssertionError("words are drawn here")

    def end_line(self) -> None:
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
    """A screen for the events of a session in a chat. See `turnwire.cli.screen.Screen`."""

    def __init__(self, sink: EditorSink, own: Container[PromptId]) -> None:
        self._sink = sink
        self._own = own
        """The prompts that were typed here."""
        self._screen = TextScreen(whole=False, sink=sink)
        self._exit: str | None = None
        """Why the last agent process ended; a turn that failed with it does not repeat that."""

    def show(self, offset: int, event: ev.AnyEvent) -> None:
        if isinstance(event, ev.PromptQueued):
            # Queued prompts have separate lines.
            return
        self._screen.show(offset, event)
        match event:
            case ev.UserMessage():
                self._prompt(event)
            case ev.TurnStarted() if event.origin is ev.Origin.AGENT:
                self.note("the agent begins a turn by itself")
            case ev.TurnCompleted() if event.stop_reason != "end_turn":
                self.note(f"the turn ended: {event.stop_reason}")
            case ev.TurnFailed() if event.message == self._exit:
                self.note(f"the turn failed ({event.code}){agent_words(event)}")
            case ev.TurnFailed():
                self.note(f"the turn failed ({event.code}): {event.message}{agent_words(event)}")
            case ev.AgentExited():
                self._exit = event.message
                self.note(f"{event.message or 'the agent is gone'} ({event.reason})")
            case _:
                pass

    def note(self, line: str) -> None:
        self._screen.note(line)

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


class EditorDialogue:
    """Questions asked through the editor. See `turnwire.cli.permissions.Dialogue`."""

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
        # No line is selected at first: an Enter that was meant for something else allows nothing.
        chosen = await self._editor.choose(printable(title), lines, is_ours=False)
        if chosen is not None:
            self._sink.note(Text(f"{printable(title)} {printable(choices[chosen])}", style="dim"))
        return chosen


# -- the chat ------------------------------------------------------------------------------------------------


EXAMPLES = """
turnwire chat                       in the newest session of this folder, or a new one
turnwire chat --new --agent codex   in a new session of that agent of the daemon
turnwire chat -c                    in the session that was used last, wherever it works
turnwire chat --resume              pick the session from a list
turnwire chat -s SESSION            in this one
turnwire chat -- my-agent --flag    without a daemon: start this agent, end it when you leave
"""
HISTORY = "chat-history"
"""The input history file in the state folder."""
ARMED_S = 5.0
"""Seconds after a Ctrl-C in which another one exits."""
SIGNALLED = 128
"""Base of the exit code of a chat that a signal ends; the signal's number is added."""


@click.command(cls=WithAgent, examples=EXAMPLES)
@session_options
@click.option("-c", "--last", "is_last", is_flag=True, help="The session that was used last, in any folder.")
@click.option("--resume", "is_picked", is_flag=True, help="Pick the session from a list.")
@reach_options
@click.pass_context
def chat(ctx: click.Context, is_last: bool, is_picked: bool, **options: Any) -> None:
    """Talk to an agent at the terminal: prompts are typed, turns are shown as they happen.

    Type `:help` for keys and commands. Ctrl-C cancels the turn; pressed twice, it exits. The session stays either
    way.
    """
    reach = tuple(options.pop(name) for name in ("url", "token_file", "data"))
    wanted = WantedSession(**options)
    if sum((is_last, is_picked, wanted.is_new, wanted.session is not None)) > 1:
        raise click.UsageError("--session, --new, --last and --resume each name a session; give one of them")
    if is_last:
        wanted = wanted._replace(session=LAST)
    if wanted.agent and (wanted.session or is_picked):
        raise click.UsageError("a session stays with its agent; give --agent for a new one, or leave it out")
    agent = agent_of(ctx)
    if agent and (any(reach) or any((wanted.session, wanted.mode, wanted.model, wanted.agent)) or is_picked):
        raise click.UsageError(
            "an agent behind `--` is started for this one chat; it has no daemon and no sessions"
        )
    open_chat(wanted, agent or find_daemon(*reach), is_picked=is_picked)


def open_chat(wanted: WantedSession, where: Reach | tuple[str, ...], *, is_picked: bool = False) -> NoReturn:
    """Chat until the user exits. Raises `UsageError` without a terminal."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or os.environ.get("TERM", "dumb") == "dumb":
        raise click.UsageError(
            "a chat needs a terminal that can move its cursor, on stdin and stdout;"
            " for one prompt use `turnwire prompt TEXT`, or `turnwire prompt -` for stdin"
        )
    wanted = wanted._replace(cwd=sendable_folder(wanted.cwd))
    sys.exit(anyio.run(Chat(wanted, where, is_picked).run))


def open_history(environ: Mapping[str, str]) -> History:
    """Open the history of earlier chats, readable by its user only; in memory if there is no file."""
    state, home = Path(environ.get("XDG_STATE_HOME", "")), environ.get("HOME")
    if not state.is_absolute() and not home:
        return InMemoryHistory()
    file = (state if state.is_absolute() else Path(home or "") / ".local/state") / "turnwire" / HISTORY
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(file, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o600))
        file.chmod(0o600)
    except OSError:
        return InMemoryHistory()
    return FileHistory(file)


def _short_path(path: str) -> str:
    home = os.path.expanduser("~")
    return f"~{path[len(home) :]}" if path == home or path.startswith(f"{home}/") else path


class Chat:
    """The user at a terminal, and the session of the conversation."""

    def __init__(self, wanted: WantedSession, where: Reach | tuple[str, ...], is_picked: bool) -> None:
        self._wanted = wanted
        self._where = where
        self._is_picked = is_picked
        """True if the first session is picked from a list."""
        self._place: Place | None = None
        self._current: ChatSession | None = None
        self._tasks: TaskGroup | None = None
        self._following: anyio.CancelScope | None = None
        """Cancelled at the end of the current session."""
        self._next: DaemonSession | None = None
        """The next session; `None` to exit."""
        self._early: list[str] = []
        """Input that was typed before a session was open."""
        self._completed = frozenset[str]()
        """The agent's commands that completion knows."""
        self._is_armed = False
        """True if the next Ctrl-C exits."""
        self._arming = 0
        self._clock = SystemClock()
        self._is_greeted = True
        """False until the first line about the current session is shown."""
        self._is_away = False
        """True while the daemon cannot be reached."""
        self._code = 0
        completer = ChatCompleter(
            {name: row.about for name, row in CHAT_COMMANDS.items()}, self._offered, self._folder
        )
        self._editor = LineEditor(self, completer, open_history(os.environ))
        self._sink = EditorSink(self._editor)
        self._dialogue = EditorDialogue(self._editor, self._sink)

    async def run(self) -> int:
        """Run until the user exits; return the exit code. Raises the error that ends the chat."""
        try:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                tasks.start_soon(self._hear_signals)
                tasks.start_soon(self._edit, tasks.cancel_scope)
                async with open_place(
                    self._where, self._wanted.cwd, Link(self._lose, self._find, self.note)
                ) as place:
                    self._place = place
                    await self._talk(place)
                self._editor.close()
                tasks.cancel_scope.cancel()
        finally:
            self._tell_way_back()
        return self._code

    async def _edit(self, scope: anyio.CancelScope) -> None:
        try:
            # A terminal that is gone looks like the end of its input.
            with suppress(EOFError):
                await self._editor.run()
        finally:
            scope.cancel()

    async def _talk(self, place: Place) -> None:
        session = await self._first(place)
        while session is not None:
            own = set[PromptId]()
            self._current = current = ChatSession(session, ChatScreen(self._sink, own), self, own)
            self._is_greeted = False
            with anyio.CancelScope() as self._following:
                await current.run()
                # The session was closed. The user reads that, then picks another session or exits.
                await anyio.sleep_forever()
            self._sink.pause()
            await current.settle_cancels()
            session, self._next = self._next, None

    async def _first(self, place: Place) -> DaemonSession | None:
        wanted = self._wanted
        if self._is_picked:
            wanted = wanted._replace(session=await choose_session(self, None))
            if wanted.session is None:
                return None
        return await place.enter(wanted)

    # -- what is typed (`EditorOwner`) -------------------------------------------------------------------------

    def take(self, text: str) -> None:
        current = self._current
        if current is None or not current.is_read.is_set():
            # The meaning of an input depends on the commands that the agent offers.
            self._early.append(text)
            return
        command = read_command(text, CHAT_COMMANDS, self._offered())
        if command is not None:
            self._start(self._obey, command)
        else:
            self._prompt(current, text)

    def _prompt(self, current: ChatSession, text: str) -> None:
        embedded = embeds(Raw(current.capabilities))
        current.prompt(text, to_content(text, self._folder(), embedded=embedded))
        self._editor.refresh()

    async def _obey(self, command: Typed) -> None:
        row = CHAT_COMMANDS.get(command.name)
        if row is None:
            self.note(f"there is no command :{command.name}; :help lists those there are")
            return
        try:
            await row.run(self, command.argument)
        except TurnwireError as error:
            self.note(str(error) or error.code)

    def interrupt(self) -> None:
        if self._is_armed or self._current is None:
            self.leave()
            return
        self._arming += 1
        self._is_armed = True
        self._start(self._disarm, self._arming)
        self.cancel()

    async def _disarm(self, arming: int) -> None:
        """Reset the exit key: a much later Ctrl-C is meant for the turn that runs then."""
        await self._clock.sleep(ARMED_S)
        if arming == self._arming:
            self._is_armed = False
            self._editor.refresh()

    def end(self) -> None:
        self.leave()

    def typed(self) -> None:
        self._is_armed = False

    def waiting(self) -> Sequence[str]:
        lines = () if self._current is None else self._current.waiting_lines()
        return [*lines, *(f"  will be sent: {' '.join(printable(each).split())}" for each in self._early)]

    def state(self) -> str:
        current = self._current
        if current is None:
            return "opening a session; Ctrl-C leaves"
        parts = [self._activity(current)]
        if self._is_armed:
            parts.append("Ctrl-C again leaves")
        elif current.active is not None:
            parts.append("Ctrl-C cancels")
        view = current.view
        chosen = [settings_of(view).get(each) for each in ("mode", "model")]
        parts += [view.session.agent_name or "", *(f"{each.what} {each.current}" for each in chosen if each)]
        return printable(" · ".join(each for each in parts if each))

    def _activity(self, current: ChatSession) -> str:
        if self._is_away:
            return "the daemon is away; waiting for it"
        if current.active is None:
            return ""
        if current.is_cancelling:
            return "cancelling"
        return "the agent asks" if current.view.permissions else self._sink.activity or "working"

    def _offered(self) -> Mapping[str, str]:
        return {} if self._current is None else agent_commands(self._current.view)

    def _folder(self) -> Path | None:
        if self._current is None or self._place is None:
            return None
        return self._place.folder(self._current.view.session.cwd)

    # -- what commands and sessions want of the terminal (`OpenChat`, `ChatTerminal`) --------------------------

    @property
    def place(self) -> Place:
        assert self._place is not None, "commands are obeyed in a session only"
        return self._place

    @property
    def current(self) -> ChatSession:
        assert self._current is not None, "commands are obeyed in a session only"
        return self._current

    @property
    def cwd(self) -> str:
        return self._wanted.cwd

    async def choose(self, title: str, choices: Sequence[Choice], at: int | None = None) -> int | None:
        return await self._editor.choose(title, choices, at)

    def note(self, words: str) -> None:
        self._sink.note(Text(printable(words), style="dim"))

    async def _greet(self, current: ChatSession) -> None:
        """Show the agent, its model and the folder of the session."""
        view = current.view
        name = view.session.agent_name
        agents: Sequence[ListedAgent] = []
        with suppress(TurnwireError):
            agents = await self.place.agents()
        label = next((each.label for each in agents if each.name == name or (name is None and each.default)), name)
        model = settings_of(view).get("model")
        parts = [label, None if model is None else f"model {model.current}", _short_path(view.session.cwd)]
        self.note(" · ".join([*(each for each in parts if each), ":help for keys and commands"]))

    def refresh(self) -> None:
        if not self._is_greeted and self._current is not None and self._current.view.session.cwd:
            self._is_greeted = True
            self._start(self._greet, self._current)
        if self._early and self._current is not None and self._current.is_read.is_set():
            early, self._early = self._early, []
            for text in early:
                self.take(text)
        offered = frozenset(self._offered())
        if offered != self._completed:
            self._completed = offered
            self._editor.complete()
        self._editor.refresh()

    def restore(self, text: str) -> None:
        self._editor.restore(text)

    async def answer(self, permission: PermissionRequest) -> Reply | None:
        dialogue = self._dialogue
        if permission.form is not None and not permission.options:
            # The current input is not meant for the form.
            chosen = await dialogue.choose(["fill in the form", "say no"], f"the agent asks: {subject(permission)}")
            if chosen != 0:
                return None if chosen is None else permission.reply(REJECT)
        return await ask_here(permission, dialogue)

    def begin(self, agent: str | None) -> None:
        self._start(self._go, WantedSession(None, True, self._wanted.cwd, None, None, agent))

    def resume(self, session_id: str) -> None:
        self._start(self._go, WantedSession(session_id, False, self._wanted.cwd, None, None))

    async def _go(self, wanted: WantedSession) -> None:
        """Open the next session before the current one is left: on failure nothing has changed."""
        try:
            self._next = await self.place.enter(wanted)
        except TurnwireError as error:
            self.note(str(error) or error.code)
            return
        self._stop_following()

    def cancel(self) -> None:
        if self._current is not None and self._tasks is not None:
            self._current.cancel(self._tasks)
        self._editor.refresh()

    def ask_again(self) -> None:
        if not self.current.ask_again():
            self.note("nothing is asked")

    def leave(self) -> None:
        self._next = None
        if self._current is None:
            self._editor.close()
        else:
            self._stop_following()

    def _stop_following(self) -> None:
        if self._following is not None:
            self._following.cancel()

    def _start(self, function: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> None:
        assert self._tasks is not None, "keys are heard only while it runs"
        self._tasks.start_soon(function, *args)

    # -- the world outside -------------------------------------------------------------------------------------

    def _lose(self) -> None:
        self._is_away = True
        self._editor.refresh()

    def _find(self) -> None:
        self._is_away = False
        self._editor.refresh()

    async def _hear_signals(self) -> None:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGHUP) as signals:
            async for number in signals:
                self._code = SIGNALLED + number
                self.leave()

    def _tell_way_back(self) -> None:
        current = self._current
        if current is None or self._place is None:
            return
        goes_on = ", and its turn goes on" if current.active is not None else ""
        if self._place.alone:
            tell("left; the agent ends with the chat")
            return
        tell(f"left; session {current.session.session_id} stays{goes_on}")
        tell_next(f"turnwire chat -s {current.session.session_id}")
