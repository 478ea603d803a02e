"""`/demo NAME`: the features of an agent, shown one at a time, without a model.

Files of a demonstration are in `.turnwire-demo/` below the session's folder and are deleted when it ends, also when
it is cancelled.
"""

from __future__ import annotations

import base64
import re
import shutil
import struct
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

import anyio
from anyio import to_thread

from turnwire.agent import Agent, Entry, Session, Turn
from turnwire.clock import Clock
from turnwire.demo.speech import stream
from turnwire.demo.tools import (
    ACCEPT_EDITS,
    ASK,
    IN_PLAN_MODE,
    MODES,
    PLAN,
    edit,
    listing,
    look_at_all,
    reading,
    run,
    searching,
)
from turnwire.errors import AgentFailure, NotOffered

StopReason: TypeAlias = Literal["refusal", "max_tokens"]

FOLDER = ".turnwire-demo"
POEM = "poem.txt"
FILES = {
    POEM: "The log is long,\nthe turn is short,\nand every prompt\nhas one end.\n",
    "notes.md": "# Notes\n\n- a turn has exactly one end\n- a log has no gaps\n",
}
"""Files of a demonstration."""
CONTEXT_SIZE = 128_000
LATER_S = 1.0
"""Delay after the end of a turn before the agent speaks again."""
LONGEST_S = 3600.0
MOST_CHUNKS = 1_000_000
BEAT_S = 1.0
"""Interval of the output of `/demo long`."""

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

FORM = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "title": "Your name"},
        "colour": {"type": "string", "title": "A colour", "enum": ["red", "green", "blue"]},
    },
    "required": ["name"],
}

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


class Demo(NamedTuple):
    """One demonstration as it is played."""

    agent: Agent
    clock: Clock
    turn: Turn
    argument: str
    """Text after the name of the demonstration."""


async def play(agent: Agent, clock: Clock, turn: Turn, arguments: str) -> StopReason | None:
    """Play the demonstration that the arguments of `/demo` name. Raises `AgentFailure` for an unknown name."""
    name, _, argument = arguments.strip().partition(" ")
    if not name:
        lines = [f"- `/demo {each}`: {about}" for each, about in ABOUT.items()]
        await turn.say("Each of these shows one thing that an agent can do:\n\n" + "\n".join(lines))
        return None
    if name not in DEMONSTRATIONS:
        raise AgentFailure(f"there is no demonstration {name!r}; `/demo` lists them", jsonrpc=-32602)
    return await DEMONSTRATIONS[name](Demo(agent, clock, turn, argument.strip()))


@asynccontextmanager
async def _files(session: Session) -> AsyncGenerator[str]:
    """Create the files of one demonstration; yields their folder, relative to the session's."""
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
    # Another session may be playing a demonstration, too.
    with suppress(OSError):
        folder.parent.rmdir()


# -- demonstrations ----------------------------------------------------------------------------------------


async def _tools(demo: Demo) -> None:
    turn = demo.turn
    async with _files(turn.session) as folder:
        await stream(turn, "Three tools at once. They only look, so they run at the same time and ask nobody.")
        looks = [
            listing(turn, folder),
            reading(turn, f"{folder}/{POEM}"),
            searching(turn, "one end", folder),
        ]
        results = await look_at_all(looks)
        worked = sum(not each.is_error for each in results)
        await stream(turn, f"{worked} of {len(results)} calls worked. The results came back in order.")


async def _permission(demo: Demo) -> None:
    if await _is_planning(demo.turn):
        return
    await stream(demo.turn, "I would like to run a command. In the mode `ask` that needs your permission.\n\n")
    ran = await run(demo.turn, "echo permitted")
    if ran.is_error:
        await stream(demo.turn, "It did not run. I was told why, and go on without it.")
    else:
        words = "It ran. Had you said no, I would have been told, and would have gone on without it."
        await stream(demo.turn, words)


async def _edit(demo: Demo) -> None:
    turn = demo.turn
    if await _is_planning(turn):
        return
    async with _files(turn.session) as folder:
        await stream(turn, "I change one line of a file; you see the difference before you allow it.")
        changed = await edit(turn, f"{folder}/{POEM}", "the turn is short", "the turn is shorter")
        if changed.is_error:
            await stream(turn, "The file stayed as it was.")
            return
        await stream(turn, "Changed. I read it again to be sure.")
        [poem] = await look_at_all([reading(turn, f"{folder}/{POEM}")])
        await stream(turn, "The new line is there." if "shorter" in poem.text else "The new line is not there.")


async def _plan(demo: Demo) -> None:
    steps = ("Look at the poem", "Count its lines", "Say how many there are")
    for done in range(len(steps) + 1):
        states = ["completed" if at < done else "in_progress" if at == done else "pending" for at in range(3)]
        await demo.turn.plan([Entry(*each) for each in zip(steps, states, strict=True)])
        if done < len(steps):
            await demo.turn.say(f"Step {done + 1} of {len(steps)}: {steps[done].lower()}.\n")
    await demo.turn.say("All steps are done.")


async def _thinking(demo: Demo) -> None:
    await demo.turn.think("The user wants to see a thought. Thoughts are told apart from the answer, ")
    await demo.turn.think("so a client can fold them away.")
    await demo.turn.say("That was a thought; this is the answer.")


async def _long(demo: Demo) -> None:
    seconds, clock = duration(demo.argument or "10s"), demo.clock
    await demo.turn.say("waiting")
    await demo.turn.say(f" for {seconds:g} seconds. Cancel me whenever you like.\n")
    begun = clock.monotonic()
    while (remaining := begun + seconds - clock.monotonic()) > 0:
        await clock.sleep(min(BEAT_S, remaining))
        await demo.turn.say(f"{clock.monotonic() - begun:.0f} s\n")
    await demo.turn.say("Done.")


async def _command(demo: Demo) -> None:
    if await _is_planning(demo.turn):
        return
    await stream(demo.turn, "A command that takes a moment. Its output comes as it is written.")
    line = "for each in one two three; do echo $each; sleep 0.2; done; echo to stderr >&2; exit 3"
    ran = await run(demo.turn, line)
    has_run = not ran.is_error and ran.text.startswith("Exit code 3")
    words = "It ended with the exit code 3, as it should, and I was told." if has_run else "It did not run."
    await stream(demo.turn, words)


async def _elicit(demo: Demo) -> None:
    try:
        given = await demo.turn.elicit("A form, to show how an agent asks.", FORM)
    except NotOffered:
        await demo.turn.say("Your client shows no forms, so there is nothing to see.")
        return
    if given is None:
        await demo.turn.say("You did not fill it in, which is fine.")
        return
    shown = ", ".join(f"{name}: {value}" for name, value in sorted(given.items()))
    await demo.turn.say(f"You wrote {shown or 'nothing'}.")


async def _show_image(demo: Demo) -> None:
    await demo.turn.say("A picture:")
    content = base64.b64encode(gradient_png()).decode()
    await demo.turn.say({"type": "image", "mimeType": "image/png", "data": content})


async def _background(demo: Demo) -> None:
    await demo.turn.say("This turn ends now. In a moment I say something that belongs to no turn.")
    demo.turn.session.background(_speak_later, demo, demo.turn.session)


async def _speak_later(demo: Demo, session: Session) -> None:
    await demo.clock.sleep(LATER_S)
    block = {"type": "text", "text": "This came after the end, from the background."}
    await session.notify({"sessionUpdate": "agent_message_chunk", "content": block}, version=2)


async def _agent_turn(demo: Demo) -> None:
    await demo.turn.say("This turn ends now. In a moment I begin one by myself.")
    demo.turn.session.background(_begin_later, demo, demo.turn.session)


async def _begin_later(demo: Demo, session: Session) -> None:
    await demo.clock.sleep(LATER_S)
    async with demo.agent.turn(session) as turn:
        await turn.say("This is a turn that nobody asked for.")


async def _modes(demo: Demo) -> None:
    session = demo.turn.session
    before = session.mode or ASK.id
    names = "\n".join(f"- `{each.id}`: {each.description}" for each in MODES)
    await demo.turn.say(
        f"The modes of this agent:\n\n{names}\n\nNow it is `{before}`. I change it, and change it back."
    )
    session.mode = ACCEPT_EDITS.id
    session.mode = before
    await demo.turn.say(" Done.")


async def _usage(demo: Demo) -> None:
    await demo.turn.say("This answer used 1200 tokens of input, 800 of them cached, and 34 of output.")
    demo.turn.usage(
        input_tokens=1200, output_tokens=34, cached_tokens=800, context_used=1234, context_size=CONTEXT_SIZE
    )


async def _error(demo: Demo) -> None:
    await stream(demo.turn, "In a moment my model cannot be reached, and the turn ends with an error.")
    raise AgentFailure("this is the demonstration of a model that cannot be reached")


async def _refusal(demo: Demo) -> StopReason:
    await demo.turn.say("I would rather not.")
    return "refusal"


async def _max_tokens(demo: Demo) -> StopReason:
    await stream(demo.turn, "This answer is cut in the middle of a sen")
    return "max_tokens"


async def _flood(demo: Demo) -> None:
    for number in range(1, amount(demo.argument or "1000") + 1):
        await demo.turn.say(f"{number}\n")


async def _markdown(demo: Demo) -> None:
    await stream(demo.turn, MARKDOWN)


async def _is_planning(turn: Turn) -> bool:
    """Whether the session is in plan mode, in which the demonstration says so and does nothing."""
    if turn.session.mode == PLAN.id:
        await turn.say(IN_PLAN_MODE)
        return True
    return False


DEMONSTRATIONS: dict[str, Callable[[Demo], Awaitable[StopReason | None]]] = {
    "tools": _tools,
    "permission": _permission,
    "edit": _edit,
    "plan": _plan,
    "thinking": _thinking,
    "long": _long,
    "command": _command,
    "elicit": _elicit,
    "usage": _usage,
    "error": _error,
    "refusal": _refusal,
    "max-tokens": _max_tokens,
    "image": _show_image,
    "background": _background,
    "agent-turn": _agent_turn,
    "flood": _flood,
    "modes": _modes,
    "markdown": _markdown,
}


def duration(text: str) -> float:
    """Return the seconds of `90`, `90s`, `2m` or `500ms`. Raises `AgentFailure`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)?", text.strip())
    factor = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
    seconds = float(found[1]) * factor[found[2] or "s"] if found else -1.0
    if not 0 <= seconds <= LONGEST_S:
        raise AgentFailure("say how long as a number with a unit, at most an hour: /demo long 120s", jsonrpc=-32602)
    return seconds


def amount(text: str) -> int:
    """Return a number of chunks. Raises `AgentFailure`."""
    is_number = text.strip().isascii() and text.strip().isdigit() and len(text.strip()) <= len(str(MOST_CHUNKS))
    if not is_number or not 0 < int(text) <= MOST_CHUNKS:
        raise AgentFailure(f"say how many chunks, at most {MOST_CHUNKS}: /demo flood 1000", jsonrpc=-32602)
    return int(text)


# -- a picture, drawn here so that no file is needed -------------------------------------------------------


SIGNATURE = b"\x89PNG\r\n\x1a\n"
TRUECOLOUR = 2


def gradient_png(width: int = 96, height: int = 48) -> bytes:
    """Draw a gradient from blue to orange."""
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
