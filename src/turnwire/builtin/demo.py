"""`/demo`: every feature of an agent, shown one at a time, without any model.

Those that a model does are scripts, and go through the same loop and tools as a real model's answer; those that
only the agent itself can do are played in the turn. Files live in `.turnwire-demo/` in the session's folder, and
are gone at the end, however it ends. Waiting on the clock is part of what some of them show.
"""

from __future__ import annotations

import base64
import re
import shutil
import struct
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import anyio
from anyio import to_thread

from turnwire.agent import Agent, Session, Turn
from turnwire.builtin.conversation import Conversation, says
from turnwire.builtin.loop import StopReason, run_turn
from turnwire.builtin.model import Finished, Piece, Text, Thought, Usage
from turnwire.builtin.permits import ACCEPT_EDITS, ASK, MODES
from turnwire.builtin.script_model import Asked, Script, ScriptModel, tool_use
from turnwire.builtin.work import Work
from turnwire.errors import AgentFailure, ModelFailed, NotOffered
from turnwire.runtime.clock import Clock

FOLDER = ".turnwire-demo"

POEM = "poem.txt"

NOTES = "notes.md"

FILES = {
    POEM: "The log is long,\nthe turn is short,\nand every prompt\nhas one end.\n",
    NOTES: "# Notes\n\n- a turn has exactly one end\n- a log has no gaps\n",
}
"""What stands in the folder of a demonstration before it begins."""

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


class DemoHost(NamedTuple):
    """Whose demonstration it is, and by which clock."""

    agent: Agent
    clock: Clock


async def play(host: DemoHost, work: Work, arguments: str) -> StopReason | None:
    """Play what the words behind `/demo` name. Raises `AgentFailure` for a name that is none."""
    name, _, argument = arguments.strip().partition(" ")
    if not name:
        await work.turn.say(listing())
        return None
    if name in DIRECT:
        await DIRECT[name](host, work.turn)
        return None
    if name not in SCRIPTS:
        raise AgentFailure(f"there is no demonstration {name!r}; `/demo` lists them", jsonrpc=-32602)
    async with _files(work.turn.session) as folder:
        script = SCRIPTS[name](DemoArguments(folder, argument.strip(), host.clock))
        # A conversation of its own: a model that is asked later need not hear of it.
        played = replace(work, model=ScriptModel(f"demo {name}", script), conversation=Conversation({}))
        return await run_turn(played, says(f"/demo {arguments}"))


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


# -- what only the agent itself can do ---------------------------------------------------------------------


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


async def _elicit(host: DemoHost, turn: Turn) -> None:
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


async def _show_image(host: DemoHost, turn: Turn) -> None:
    await turn.say("A picture:")
    content = base64.b64encode(gradient_png()).decode()
    await turn.say({"type": "image", "mimeType": "image/png", "data": content})


async def _background(host: DemoHost, turn: Turn) -> None:
    await turn.say("This turn ends now. In a moment I say something that belongs to no turn.")
    turn.session.background(_speak_later, host, turn.session)


async def _speak_later(host: DemoHost, session: Session) -> None:
    await host.clock.sleep(LATER_S)
    block = {"type": "text", "text": "This came after the end, from the background."}
    await session.notify({"sessionUpdate": "agent_message_chunk", "content": block}, version=2)


async def _agent_turn(host: DemoHost, turn: Turn) -> None:
    await turn.say("This turn ends now. In a moment I begin one by myself.")
    turn.session.background(_begin_later, host, turn.session)


async def _begin_later(host: DemoHost, session: Session) -> None:
    await host.clock.sleep(LATER_S)
    async with host.agent.turn(session) as turn:
        await turn.say("This is a turn that nobody asked for.")


async def _modes(host: DemoHost, turn: Turn) -> None:
    session = turn.session
    before = session.mode or ASK.id
    names = "\n".join(f"- `{each.id}`: {each.description}" for each in MODES)
    await turn.say(f"The modes of this agent:\n\n{names}\n\nNow it is `{before}`. I change it, and change it back.")
    session.mode = ACCEPT_EDITS.id
    session.mode = before
    await turn.say(" Done.")


DIRECT: dict[str, Callable[[DemoHost, Turn], Awaitable[None]]] = {
    "elicit": _elicit,
    "image": _show_image,
    "background": _background,
    "agent-turn": _agent_turn,
    "modes": _modes,
}
"""What a model cannot do."""


# -- what a model does: one script for each ----------------------------------------------------------------


LONGEST_S = 3600.0

MOST_CHUNKS = 1_000_000

BEAT_S = 1.0
"""How often `/demo long` says something."""

MARKDOWN = """\
# A heading

Some *emphasis*, some **weight**, some `code`, and a [link](https://agentclientprotocol.com).

1. first
2. second
   - nested

| column | number |
| --- | ---: |
| a | 1 |
| b | 22 |

> A quotation.

```python
def end(turn):
    return "exactly one"
```
"""


class DemoArguments(NamedTuple):
    """What a script is told beside the conversation."""

    folder: str
    """Where its files are, relative to the session's cwd."""
    argument: str
    """What stood behind the demonstration's name."""
    clock: Clock


def tools(demo: DemoArguments) -> Script:
    async def script(asked: Asked) -> AsyncGenerator[Piece]:
        if asked.step == 0:
            yield Text("Three tools at once. They only look, so they run at the same time and ask nobody.")
            yield tool_use("list", 1, path=demo.folder)
            yield tool_use("read", 2, path=f"{demo.folder}/{POEM}")
            yield tool_use("search", 3, pattern="one end", path=demo.folder)
        else:
            worked = sum(not each.is_error for each in asked.results)
            yield Text(f"{worked} of {len(asked.results)} calls worked. The results came back in order.")

    return script


def permission(demo: DemoArguments) -> Script:
    async def script(asked: Asked) -> AsyncGenerator[Piece]:
        if asked.step == 0:
            yield Text("I would like to run a command. In the mode `ask` that needs your permission.")
            yield tool_use("run", 1, command="echo permitted")
        elif any(each.is_error for each in asked.results):
            yield Text("It did not run. I was told why, and go on without it.")
        else:
            yield Text("It ran. Had you said no, I would have been told, and would have gone on without it.")

    return _needs("run", script)


def edit(demo: DemoArguments) -> Script:
    path = f"{demo.folder}/{POEM}"

    async def script(asked: Asked) -> AsyncGenerator[Piece]:
        if asked.step == 0:
            yield Text("I change one line of a file; you see the difference before you allow it.")
            yield tool_use("edit", 1, path=path, old="the turn is short", new="the turn is shorter")
        elif asked.step == 1 and not any(each.is_error for each in asked.results):
            yield Text("Changed. I read it again to be sure.")
            yield tool_use("read", 1, path=path)
        elif asked.step == 1:
            yield Text("The file stayed as it was.")
        else:
            has_changed = any("shorter" in each.text for each in asked.results)
            yield Text("The new line is there." if has_changed else "The new line is not there.")

    return _needs("edit", script)


def plan(demo: DemoArguments) -> Script:
    steps = ("Look at the poem", "Count its lines", "Say how many there are")

    async def script(asked: Asked) -> AsyncGenerator[Piece]:
        done = asked.step
        entries = [
            {"content": each, "status": "completed" if at < done else "in_progress" if at == done else "pending"}
            for at, each in enumerate(steps)
        ]
        if done < len(steps):
            yield Text(f"Step {done + 1} of {len(steps)}: {steps[done].lower()}.\n")
        yield tool_use("update_plan", 1, entries=entries) if done <= len(steps) else Text("All steps are done.")

    return script


def thinking(demo: DemoArguments) -> Script:
    async def script(asked: Asked) -> AsyncGenerator[Piece]:
        yield Thought("The user wants to see a thought. Thoughts are told apart from the answer, ")
        yield Thought("so a client can fold them away.")
        yield Text("That was a thought; this is the answer.")

    return script


def long(demo: DemoArguments) -> Script:
    seconds = duration(demo.argument or "10s")

    async def script(asked: Asked) -> AsyncGenerator[Piece]:
        yield Text("waiting")
        yield Text(f" for {seconds:g} seconds. Cancel me whenever you like.\n")
        begun = demo.clock.monotonic()
        while (left := begun + seconds - demo.clock.monotonic()) > 0:
            await demo.clock.sleep(min(BEAT_S, left))
            yield Text(f"{demo.clock.monotonic() - begun:.0f} s\n")
        yield Text("Done.")

    return script


def command(demo: DemoArguments) -> Script:
    line = "for each in one two three; do echo $each; sleep 0.2; done; echo to stderr >&2; exit 3"

    async def script(asked: Asked) -> AsyncGenerator[Piece]:
        if asked.step == 0:
            yield Text("A command that takes a moment. Its output comes as it is written.")
            yield tool_use("run", 1, command=line)
        elif any("exit code" in each.text.lower() or "3" in each.text for each in asked.results):
            yield Text("It ended with the exit code 3, as it should, and I was told.")
        else:
            yield Text("It did not run.")

    return _needs("run", script)


def usage(demo: DemoArguments) -> Script:
    async def script(asked: Asked) -> AsyncGenerator[Piece]:
        yield Text("This answer says that it used 1200 tokens of input, 800 of them cached, and 34 of output.")
        yield Finished("stop", Usage(1200, 34, 800, 0))

    return script


def error(demo: DemoArguments) -> Script:
    async def script(asked: Asked) -> AsyncGenerator[Piece]:
        yield Text("In a moment my model cannot be reached, and the turn ends with an error.")
        raise ModelFailed("this is the demonstration of a model that cannot be reached", reason="unreachable")

    return script


def refusal(demo: DemoArguments) -> Script:
    async def script(asked: Asked) -> AsyncGenerator[Piece]:
        yield Text("I would rather not.")
        yield Finished("refusal")

    return script


def max_tokens(demo: DemoArguments) -> Script:
    async def script(asked: Asked) -> AsyncGenerator[Piece]:
        yield Text("This answer is cut in the middle of a sen")
        yield Finished("length")

    return script


def flood(demo: DemoArguments) -> Script:
    count = amount(demo.argument or "1000")

    async def script(asked: Asked) -> AsyncGenerator[Piece]:
        for number in range(1, count + 1):
            yield Text(f"{number}\n")

    return script


def markdown(demo: DemoArguments) -> Script:
    async def script(asked: Asked) -> AsyncGenerator[Piece]:
        yield Text(MARKDOWN)

    return script


SCRIPTS: dict[str, Callable[[DemoArguments], Script]] = {
    "tools": tools,
    "permission": permission,
    "edit": edit,
    "plan": plan,
    "thinking": thinking,
    "long": long,
    "command": command,
    "usage": usage,
    "error": error,
    "refusal": refusal,
    "max-tokens": max_tokens,
    "flood": flood,
    "markdown": markdown,
}
"""What a model does."""


def _needs(tool: str, script: Script) -> Script:
    """The script, or a word about the mode in which its tool is not there."""

    async def guarded(asked: Asked) -> AsyncGenerator[Piece]:
        if tool not in asked.tools:
            yield Text("In plan mode I change nothing and run nothing. `/mode ask` changes that.")
            return
        async for piece in script(asked):
            yield piece

    return guarded


def duration(text: str) -> float:
    """Seconds of `90`, `90s`, `2m` or `500ms`. Raises `AgentFailure`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)?", text.strip())
    factor = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
    seconds = float(found[1]) * factor[found[2] or "s"] if found else -1.0
    if not 0 <= seconds <= LONGEST_S:
        raise AgentFailure("say how long as a number with a unit, at most an hour: /demo long 120s", jsonrpc=-32602)
    return seconds


def amount(text: str) -> int:
    """A number of chunks. Raises `AgentFailure`."""
    is_number = text.strip().isascii() and text.strip().isdigit() and len(text.strip()) <= len(str(MOST_CHUNKS))
    if not is_number or not 0 < int(text) <= MOST_CHUNKS:
        raise AgentFailure(f"say how many chunks, at most {MOST_CHUNKS}: /demo flood 1000", jsonrpc=-32602)
    return int(text)


# -- a picture, drawn here so that no file is needed -------------------------------------------------------


SIGNATURE = b"\x89PNG\r\n\x1a\n"

TRUECOLOUR = 2


def gradient_png(width: int = 96, height: int = 48) -> bytes:
    """A field that goes from blue to orange."""
    rows = bytearray()
    for _ in range(height):
        rows.append(0)
        for x in range(width):
            share = x / max(width - 1, 1)
            rows += bytes((round(40 + 200 * share), round(90 + 60 * share), round(220 - 180 * share)))
    header = struct.pack(">IIBBBBB", width, height, 8, TRUECOLOUR, 0, 0, 0)
    return (
        SIGNATURE
        + _png_chunk(b"IHDR", header)
        + _png_chunk(b"IDAT", zlib.compress(bytes(rows)))
        + _png_chunk(b"IEND", b"")
    )


def _png_chunk(kind: bytes, content: bytes) -> bytes:
    checked = kind + content
    return struct.pack(">I", len(content)) + checked + struct.pack(">I", zlib.crc32(checked))
