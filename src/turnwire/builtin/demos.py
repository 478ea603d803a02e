"""`/demo`: every feature of an agent, shown one at a time, without any model.

Takes the name of a demonstration; plays it in the turn. Those that a model does are scripts and go through the loop
and the tools (`demo_scripts`); those that only the agent itself can do are here. Files live in `.turnwire-demo/` in
the session's folder, and are gone at the end, however it ends.
"""

from __future__ import annotations

import base64
import shutil
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import anyio
from anyio import to_thread

from turnwire.agent import Agent, Session, Turn
from turnwire.builtin.conversation import Conversation, says
from turnwire.builtin.demo_scripts import FILES, SCRIPTS, Scene
from turnwire.builtin.loop import StopReason, run_turn
from turnwire.builtin.permits import ACCEPT_EDITS, ASK, MODES
from turnwire.builtin.picture import gradient_png
from turnwire.builtin.script_model import ScriptModel
from turnwire.builtin.work import Work
from turnwire.errors import AgentFailure, NotOffered
from turnwire.runtime import new_ids
from turnwire.runtime.clock import Clock

FOLDER = ".turnwire-demo"
LATER_S = 1.0
"""How long after the end of its turn an agent speaks again."""
FORM = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "title": "Your name"},
        "colour": {"type": "string", "title": "A colour", "enum": ["red", "green", "blue"]},
    },
    "required": ["name"],
}

ABOUT = {
    "tools": "three tools that only look, at the same time",
    "permission": "a command that asks first; say yes or no",
    "edit": "a change of a file, with its difference",
    "plan": "a plan whose steps get done",
    "thinking": "a thought, told apart from the answer",
    "long": "an answer that takes as long as you say: `/demo long 120s`; cancel it",
    "command": "a command whose output comes as it is written",
    "elicit": "a form to fill in",
    "usage": "tokens used, and how full the context is",
    "error": "a turn that ends with an error",
    "refusal": "a turn that ends with a refusal",
    "max-tokens": "an answer that is cut because it got too long",
    "image": "a picture in the answer",
    "background": "words after the end of the turn",
    "agent-turn": "a turn that the agent begins by itself",
    "flood": "many small pieces, as fast as you can read: `/demo flood 1000`",
    "modes": "the agent changes the mode of the session, and changes it back",
    "markdown": "headings, lists, a table, code",
}
"""Every demonstration, in the order of the list."""


class Stage(NamedTuple):
    """What a demonstration is played on."""

    agent: Agent
    clock: Clock


async def play(stage: Stage, work: Work, arguments: str) -> StopReason | None:
    """Play what the words behind `/demo` name. Raises `AgentFailure` for a name that is none."""
    name, _, argument = arguments.strip().partition(" ")
    if not name:
        await work.turn.say(listing())
        return None
    if name in DIRECT:
        await DIRECT[name](stage, work.turn)
        return None
    if name not in SCRIPTS:
        raise AgentFailure(f"there is no demonstration {name!r}; `/demo` lists them", jsonrpc=-32602)
    async with _files(work.turn.session) as folder:
        script = SCRIPTS[name](Scene(folder, argument.strip(), stage.clock))
        # A conversation of its own: a model that is asked later need not hear of it.
        scene = replace(work, model=ScriptModel(f"demo {name}", script), talk=Conversation({}))
        return await run_turn(scene, says(f"/demo {arguments}"))


def listing() -> str:
    """What there is."""
    lines = [f"- `/demo {name}`: {about}" for name, about in ABOUT.items()]
    return "Each of these shows one thing that an agent can do:\n\n" + "\n".join(lines)


@asynccontextmanager
async def _files(session: Session) -> AsyncGenerator[str]:
    """The files of one demonstration, in a folder of the session's own, given relative to its cwd."""
    folder = session.cwd / FOLDER / session.id[-12:]
    try:
        await to_thread.run_sync(_make, folder)
    except OSError:
        raise AgentFailure(
            f"{FOLDER} cannot be made in the session's folder; choose a folder to write in"
        ) from None
    try:
        yield str(folder.relative_to(session.cwd))
    finally:
        with anyio.CancelScope(shield=True):
            await to_thread.run_sync(_remove, folder)


def _make(folder: Path) -> None:
    if folder.parent.is_symlink():
        raise NotADirectoryError
    for each in (folder.parent, folder):
        each.mkdir(exist_ok=True)
    for name, text in FILES.items():
        (folder / name).write_text(text, encoding="utf-8")


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    # Another session may be at its own demonstration.
    with suppress(OSError):
        folder.parent.rmdir()


# -- what only the agent itself can do -----------------------------------------------------------------------


async def _elicit(stage: Stage, turn: Turn) -> None:
    try:
        given = await turn.elicit("A form, to show how an agent asks.", FORM)
    except NotOffered:
        await turn.say("Your client shows no forms, so there is nothing to see.")
        return
    if given is None:
        await turn.say("You did not fill it in, which is fine.")
        return
    shown = ", ".join(f"{name}: {value}" for name, value in sorted(given.items()))
    await turn.say(f"You wrote {shown or 'nothing'}.")


async def _image(stage: Stage, turn: Turn) -> None:
    await turn.say("A picture:")
    content = base64.b64encode(gradient_png()).decode()
    await turn.say({"type": "image", "mimeType": "image/png", "data": content})


async def _background(stage: Stage, turn: Turn) -> None:
    await turn.say("This turn ends now. In a moment I say something that belongs to no turn.")
    turn.session.background(_speak_later, stage, turn.session)


async def _speak_later(stage: Stage, session: Session) -> None:
    await stage.clock.sleep(LATER_S)
    block = {"type": "text", "text": "This came after the end, from the background."}
    told = {"sessionUpdate": "agent_message_chunk", "messageId": new_ids.prompt_id(), "content": block}
    await session.notify(told, version=2)


async def _agent_turn(stage: Stage, turn: Turn) -> None:
    await turn.say("This turn ends now. In a moment I begin one by myself.")
    turn.session.background(_begin_later, stage, turn.session)


async def _begin_later(stage: Stage, session: Session) -> None:
    await stage.clock.sleep(LATER_S)
    async with stage.agent.turn(session) as turn:
        await turn.say("This is a turn that nobody asked for.")


async def _modes(stage: Stage, turn: Turn) -> None:
    session = turn.session
    before = session.mode or ASK.id
    names = "\n".join(f"- `{each.id}`: {each.description}" for each in MODES)
    await turn.say(f"The modes of this agent:\n\n{names}\n\nNow it is `{before}`. I change it, and change it back.")
    session.mode = ACCEPT_EDITS.id
    session.mode = before
    await turn.say(" Done.")


DIRECT: dict[str, Callable[[Stage, Turn], Awaitable[None]]] = {
    "elicit": _elicit,
    "image": _image,
    "background": _background,
    "agent-turn": _agent_turn,
    "modes": _modes,
}
"""What a model cannot do."""
