"""The chat's own commands: what each does, most of them by a menu.

A name behind the command is taken as it is, so who knows it needs no menu. What the agent or the daemon refuses is
said by whoever runs the command.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec
from msgspec import UNSET, Raw

from turnwire.cli.chat_input import agent_commands
from turnwire.cli.chat_place import ListedSession, Place
from turnwire.cli.chat_session import ChatSession, ChatTerminal
from turnwire.cli.line_editor import Choice
from turnwire.cli.output import printable
from turnwire.core.json_members import entries, members, text_of
from turnwire.core.view import View
from turnwire.ids import PromptId
from turnwire.wire.jsonrpc import UNREADABLE

LISTED = 20
"""Sessions in a menu; others by their ids."""
WORDS = 60
"""Characters of a prompt in a menu."""

KEYS = """\
Enter          send; while a turn runs it waits behind it
Alt-Enter      a new line (also Ctrl-J); what is pasted stays one prompt
Tab            complete /commands, :commands and @files
Up, Ctrl-R     what was sent before
Ctrl-C         empties the line; else cancels the turn; twice leaves
Ctrl-D         leaves; the session stays"""


class OpenChat(ChatTerminal, Protocol):
    """The chat, as its commands work with it."""

    @property
    def place(self) -> Place: ...

    @property
    def current(self) -> ChatSession: ...

    @property
    def cwd(self) -> str:
        """Where the chat was begun."""
        ...

    async def choose(self, title: str, choices: Sequence[Choice], at: int | None = None) -> int | None: ...

    def begin(self, agent: str | None) -> None:
        """Go to a new session."""
        ...

    def resume(self, session_id: str) -> None:
        """Go to another session."""
        ...

    def cancel(self) -> None: ...

    def ask_again(self) -> None: ...

    def leave(self) -> None: ...


class Row(NamedTuple):
    """A command."""

    about: str
    run: Callable[[OpenChat, str], Awaitable[None]]


class Value(NamedTuple):
    """What something can be set to."""

    value: str | bool
    name: str
    about: str = ""


class Setting(NamedTuple):
    """Something that the agent can be set to."""

    what: str
    """`mode`, `model`, or the id of an option."""
    name: str
    current: str | bool | None
    values: list[Value]


# -- what the agent offers -------------------------------------------------------------------------------------


def settings_of(view: View) -> dict[str, Setting]:
    """All that can be chosen at the agent, by what it is. An option for the mode stands for the modes."""
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
    """A session that somebody picked; none if nobody did."""
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
"""By name, in the order of the help."""
