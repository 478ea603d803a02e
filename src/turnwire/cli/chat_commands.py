"""The chat's commands, their completion, and the content of a prompt.

`:name` is the chat's command. `/name` is the agent's if it offers that, else the chat's, else an ordinary prompt.
An argument is used as it is; without one most commands show a menu. `@path` names a file of the session's folder:
it is sent after the text, as a link or with its content.
"""

from __future__ import annotations

import mimetypes
import os
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec
from msgspec import UNSET, Raw, Struct
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from turnwire.cli.chat_session import ChatSession, ChatTerminal, ListedSession, Place
from turnwire.cli.line_editor import Choice
from turnwire.cli.output import printable
from turnwire.ids import PromptId
from turnwire.projections.view import View
from turnwire.session.json_members import entries, members, text_of
from turnwire.wire.jsonrpc import UNREADABLE

LISTED = 20
"""Sessions in a menu; others are reached by id."""
WORDS = 60
"""Characters of a prompt in a menu."""

KEYS = """\
Enter          send; while a turn runs it waits behind it
Alt-Enter      a new line; what is pasted stays one prompt
Tab            complete /commands, :commands and @files
Up, Ctrl-R     what was sent before
Ctrl-C         empties the line; else cancels the turn; twice leaves
Ctrl-D         leaves; the session stays"""


class OpenChat(ChatTerminal, Protocol):
    """The interface of the chat for its commands."""

    @property
    def place(self) -> Place: ...

    @property
    def current(self) -> ChatSession: ...

    @property
    def cwd(self) -> str:
        """The folder in which the chat was started."""
        ...

    async def choose(self, title: str, choices: Sequence[Choice], at: int | None = None) -> int | None: ...

    def begin(self, agent: str | None) -> None:
        """Switch to a new session."""
        ...

    def resume(self, session_id: str) -> None:
        """Switch to another session."""
        ...

    def cancel(self) -> None: ...

    def ask_again(self) -> None: ...

    def leave(self) -> None: ...


class Row(NamedTuple):
    """A command."""

    about: str
    run: Callable[[OpenChat, str], Awaitable[None]]


class Value(NamedTuple):
    """A possible value of a setting."""

    value: str | bool
    name: str
    about: str = ""


class Setting(NamedTuple):
    """A setting of the agent."""

    what: str
    """`mode`, `model`, or the id of an option."""
    name: str
    current: str | bool | None
    values: list[Value]


# -- what the agent offers -------------------------------------------------------------------------------------


def settings_of(view: View) -> dict[str, Setting]:
    """Return all settings of the agent by kind. An option for the mode replaces the modes."""
    latest, found = view.latest, dict[str, Setting]()
    for what, listed, key, current in (
        ("mode", latest.modes, "id", latest.mode),
        ("model", latest.models, "modelId", latest.model),
    ):
        values = [] if listed is UNSET else _values(listed, key)
        if values:
            found[what] = Setting(what, what, current, values)
    options = [] if latest.config_options is UNSET else entries(latest.config_options)
    for option in (members(each) for each in options):
        config_id, category = text_of(option, "configId") or text_of(option, "id"), text_of(option, "category")
        if config_id is None:
            continue
        what = category if category in ("mode", "model") else config_id
        values = _values(option.get("options") or Raw(b"[]"), "value")
        if not values and _read(option.get("currentValue")) in (True, False):
            values = [Value(True, "on"), Value(False, "off")]
        if values:
            found[what] = Setting(
                what, text_of(option, "name") or config_id, _read(option.get("currentValue")), values
            )
    return found


def _values(listed: Raw, key: str) -> list[Value]:
    found: list[Value] = []
    for each in (members(entry) for entry in entries(listed)):
        value = text_of(each, key)
        if value is not None:
            found.append(Value(value, text_of(each, "name") or value, text_of(each, "description") or ""))
        elif "options" in each:
            # A group of values.
            found += _values(each["options"], key)
    return found


def _read(value: Raw | None) -> str | bool | None:
    try:
        return None if value is None else msgspec.json.decode(value, type=str | bool | None)  # pyright: ignore[reportReturnType]
    except UNREADABLE:
        return None


# -- the commands ----------------------------------------------------------------------------------------------


async def _help(chat: OpenChat, argument: str) -> None:
    width = max(map(len, CHAT_COMMANDS))
    own = "\n".join(f":{name:<{width}}  {row.about}" for name, row in CHAT_COMMANDS.items())
    offered = agent_commands(chat.current.view)
    listed = f"\n\nThe agent's own: {', '.join(f'/{each}' for each in offered)}" if offered else ""
    chat.note(f"{KEYS}\n\n{own}\n\n/name is the agent's command, or one of these if it has none.{listed}")


async def _set(chat: OpenChat, setting: Setting | None, what: str, argument: str) -> None:
    if setting is None:
        chat.note(f"the agent offers no {what} to choose")
        return
    value = next((each.value for each in setting.values if argument and argument in (each.value, each.name)), None)
    if value is None and argument:
        names = ", ".join(str(each.value) for each in setting.values)
        chat.note(f"there is no {what} {argument!r}; there are: {names}")
        return
    if value is None:
        at = next((at for at, each in enumerate(setting.values) if each.value == setting.current), None)
        choices = [Choice(printable(each.name), _line(each.about)) for each in setting.values]
        chosen = await chat.choose(f"{setting.name}: which one?", choices, at)
        if chosen is None:
            return
        value = setting.values[chosen].value
    await chat.place.set(chat.current.session.session_id, setting.what, value)
    chat.note(f"{setting.name} is {value if isinstance(value, str) else 'on' if value else 'off'} now")


async def _mode(chat: OpenChat, argument: str) -> None:
    await _set(chat, settings_of(chat.current.view).get("mode"), "mode", argument)


async def _model(chat: OpenChat, argument: str) -> None:
    await _set(chat, settings_of(chat.current.view).get("model"), "model", argument)


async def _config(chat: OpenChat, argument: str) -> None:
    name, _, value = argument.partition(" ")
    settings = settings_of(chat.current.view)
    if not settings or name:
        await _set(chat, settings.get(name), "option" if not name else f"option {name!r}", value.strip())
        return
    found = list(settings.values())
    choices = [Choice(printable(each.name), printable(str(each.current))) for each in found]
    chosen = await chat.choose("Which option?", choices, 0)
    if chosen is not None:
        await _set(chat, found[chosen], "option", "")


async def _new(chat: OpenChat, argument: str) -> None:
    chat.begin(argument or chat.current.view.session.agent_name)


async def _agent(chat: OpenChat, argument: str) -> None:
    if argument:
        chat.begin(argument)
        return
    agents = await chat.place.agents()
    if not agents:
        chat.note("there is one agent here, the one that was started")
        return
    choices = [Choice(printable(each.label or each.name), _line(each.why or "")) for each in agents]
    chosen = await chat.choose("A new session with which agent?", choices, 0)
    if chosen is not None:
        chat.begin(agents[chosen].name)


async def _sessions(chat: OpenChat, argument: str) -> None:
    if argument:
        chat.resume(argument)
        return
    chosen = await choose_session(chat, chat.current.session.session_id)
    if chosen is not None:
        chat.resume(chosen)


async def choose_session(chat: OpenChat, current: str | None) -> str | None:
    """Return the session that the user picked, or `None`."""
    found = list(await chat.place.sessions())[:LISTED]
    if not found:
        chat.note("there is no session yet")
        return None
    at = next((at for at, each in enumerate(found) if each.session_id == current), 0)
    chosen = await chat.choose("Which session?", [_session_line(each, current, chat.cwd) for each in found], at)
    return None if chosen is None else found[chosen].session_id


def _session_line(session: ListedSession, current: str | None, cwd: str) -> Choice:
    here = "this one" if session.session_id == current else session.updated_at[:16].replace("T", " ")
    elsewhere = "" if session.cwd == cwd else session.cwd
    about = " · ".join(each for each in (here, session.state, session.agent, elsewhere) if each)
    return Choice(_line(session.title or session.session_id), printable(about))


async def _queue(chat: OpenChat, argument: str) -> None:
    current = chat.current
    waiting = current.waiting()
    if not waiting:
        chat.note("nothing waits")
        return
    texts = [current.view.user_text(each) or "" for each in waiting]
    chosen = await chat.choose("What waits: change which one?", [Choice(_line(each)) for each in texts], 0)
    if chosen is None:
        return
    acts = [Choice("take it back", "to change it, and send it again"), Choice("remove it"), Choice("to the front")]
    act = await chat.choose(_line(texts[chosen]), acts, 0)
    if act is not None:
        await _change_queue(chat, waiting[chosen], texts[chosen], act)


async def _change_queue(chat: OpenChat, prompt_id: PromptId, text: str, act: int) -> None:
    session = chat.current.session
    if act == len(("take it back", "remove it")):
        await session.edit(prompt_id, None, 0)
        return
    await session.remove(prompt_id)
    if act == 0:
        chat.restore(text)


async def _cancel(chat: OpenChat, argument: str) -> None:
    if chat.current.active is None:
        chat.note("no turn runs")
    else:
        chat.cancel()


async def _answer(chat: OpenChat, argument: str) -> None:
    chat.ask_again()


async def _explain(chat: OpenChat, argument: str) -> None:
    current = chat.current
    for each in await chat.place.explain(current.session.session_id, list(current.view.permissions.values())):
        chat.note(each.words + ("" if each.next is None else f"\n  next: {each.next}"))


async def _quit(chat: OpenChat, argument: str) -> None:
    chat.leave()


def _line(text: str) -> str:
    words = " ".join(printable(text).split())
    return words if len(words) <= WORDS else f"{words[: WORDS - 1]}…"


CHAT_COMMANDS: Mapping[str, Row] = {
    "help": Row("keys and commands", _help),
    "new": Row("a new session", _new),
    "sessions": Row("go to another session", _sessions),
    "resume": Row("the same", _sessions),
    "agent": Row("another agent, new session", _agent),
    "mode": Row("choose the agent's mode", _mode),
    "model": Row("choose the agent's model", _model),
    "config": Row("choose any of its options", _config),
    "queue": Row("see and change what waits", _queue),
    "cancel": Row("cancel the turn that runs", _cancel),
    "answer": Row("ask again what was asked", _answer),
    "explain": Row("why does nothing happen?", _explain),
    "quit": Row("leave; the session stays", _quit),
}
"""Commands by name, in the order of the help."""


# -- reading what is typed ----------------------------------------------------------------------------------------


EMBEDDED_BYTES = 64 * 1024
"""A larger file is linked: the agent reads the parts that it needs."""
MOST_FILES = 200
"""Maximum number of path completions."""

_MENTION = re.compile(r'(?:^|(?<=\s))@(?:"([^"\n]+)"|(\S+))')
_UNFINISHED = re.compile(r'(?:^|(?<=\s))@(?:"([^"\n]*)|([^\s"]*))$')
_COMMAND = re.compile(r"([:/])([\w-]+)(?:\s+(.*))?", re.DOTALL)
_AFTER_A_PATH = ".,;:!?)]}'"
"""Punctuation that ends a sentence, not a file name."""


class Typed(NamedTuple):
    """A typed command of the chat."""

    name: str
    argument: str


def read_command(text: str, own: Iterable[str], offered: Iterable[str]) -> Typed | None:
    """Return the chat command in a text, or `None` for a prompt. Every `:name` is a command, known or not."""
    match = _COMMAND.fullmatch(text.strip())
    if match is None:
        return None
    sign, name, argument = match.groups()
    if sign == "/" and (name in offered or name not in own):
        return None
    return Typed(name, (argument or "").strip())


def agent_commands(view: View) -> dict[str, str]:
    """Return the commands that the agent offers now, with their descriptions."""
    listed = [] if view.latest.commands is UNSET else [members(each) for each in entries(view.latest.commands)]
    return {name: text_of(each, "description") or "" for each in listed if (name := text_of(each, "name"))}


# -- completion ------------------------------------------------------------------------------------------------


class ChatCompleter(Completer):
    """Completes commands at the start of a text, and files after an `@`."""

    def __init__(
        self, own: Mapping[str, str], offered: Callable[[], Mapping[str, str]], folder: Callable[[], Path | None]
    ) -> None:
        self._own = own
        self._offered = offered
        self._folder = folder

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        before = document.text_before_cursor
        unfinished = _UNFINISHED.search(before)
        if unfinished is not None:
            yield from self._files(unfinished)
        elif re.fullmatch(r"[:/][\w-]*", before):
            yield from self._commands(before)

    def _commands(self, before: str) -> Iterator[Completion]:
        offered = self._offered()
        if before.startswith(":"):
            found = {f":{name}": about for name, about in self._own.items()}
        else:
            found = {f"/{name}": about for name, about in offered.items()}
            found |= {f"/{name}": about for name, about in self._own.items() if name not in offered}
        for name, about in found.items():
            if name.startswith(before):
                meta = " ".join(printable(about).split())
                yield Completion(name, -len(before), display=printable(name), display_meta=meta)

    def _files(self, unfinished: re.Match[str]) -> Iterator[Completion]:
        folder = self._folder()
        if folder is None:
            return
        typed = unfinished[1] if unfinished[1] is not None else unfinished[2]
        parent, _, start = typed.rpartition("/")
        above = f"{parent}/" if "/" in typed else ""
        for name, is_folder in _listed(folder / os.path.expanduser(above), start):
            path = f"{above}{name}{'/' if is_folder else ''}"
            quoted = f'"{path}' + ("" if is_folder else '"') if " " in path else path
            yield Completion(f"@{quoted}", -len(unfinished[0]), display=f"{name}{'/' if is_folder else ''}")


def _listed(folder: Path, start: str) -> list[tuple[str, bool]]:
    """Return the entries of a folder with this prefix; hidden files only if the prefix is hidden."""
    try:
        with os.scandir(folder) as entries_:
            found = [(each.name, each.is_dir()) for each in entries_ if each.name.startswith(start)]
    except OSError:
        return []
    shown = [each for each in found if each[0].isprintable() and (start.startswith(".") or each[0][0] != ".")]
    return sorted(shown, key=lambda each: (not each[1], each[0]))[:MOST_FILES]


# -- content ---------------------------------------------------------------------------------------------------


class _Blocks(Struct, frozen=True, rename="camel"):
    embedded_context: Any = None


class _Session(Struct, frozen=True):
    prompt: _Blocks = _Blocks()


class _Agent(Struct, rename="camel"):
    """The relevant agent capabilities: v1 uses `true`, v2 an object in the session's capabilities."""

    prompt_capabilities: _Blocks = _Blocks()
    session: _Session = _Session()


def embeds(capabilities: Raw) -> bool:
    """Return whether the agent accepts the content of files in a prompt."""
    try:
        agent = msgspec.json.decode(capabilities, type=_Agent)
    except UNREADABLE:
        return False
    said = (agent.prompt_capabilities.embedded_context, agent.session.prompt.embedded_context)
    return any(each not in (None, False) for each in said)


def to_content(text: str, folder: Path | None, *, embedded: bool) -> list[dict[str, Any]]:
    """Return the blocks of a prompt: the text, then each file that it names."""
    found: dict[Path, str] = {}
    if folder is not None:
        for match in _MENTION.finditer(text):
            for path in _candidates(match):
                file = Path(os.path.abspath(folder / os.path.expanduser(path)))
                if file.exists():
                    found.setdefault(file, path)
                    break
    return [{"type": "text", "text": text}, *(_block(file, name, embedded) for file, name in found.items())]


def _candidates(match: re.Match[str]) -> tuple[str, ...]:
    if match[1] is not None:
        return (match[1],)
    return match[2], match[2].rstrip(_AFTER_A_PATH) or match[2]


def _block(file: Path, name: str, embedded: bool) -> dict[str, Any]:
    mime, _ = mimetypes.guess_type(file.name)
    kind = {} if mime is None else {"mimeType": mime}
    text = _text_of(file) if embedded else None
    if text is not None:
        return {"type": "resource", "resource": {"uri": file.as_uri(), "text": text, **kind}}
    return {"type": "resource_link", "uri": file.as_uri(), "name": name, **kind}


def _text_of(file: Path) -> str | None:
    """Return the content of a small text file."""
    try:
        if not file.is_file() or file.stat().st_size > EMBEDDED_BYTES:
            return None
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
