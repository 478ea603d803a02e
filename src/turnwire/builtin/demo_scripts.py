"""What the model of a demonstration says and wishes for, one script for each.

Takes the words behind `/demo`; gives the script of a `ScriptModel`. Everything a script shows goes through the same
loop and the same tools as a real model's answer. Waiting on the clock is part of what some of them show.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable
from typing import NamedTuple

from turnwire.builtin.model import Finished, Piece, Text, Thought, Usage
from turnwire.builtin.script_model import Asked, Script, wish
from turnwire.errors import AgentFailure, ModelFailed
from turnwire.runtime.clock import Clock

POEM = "poem.txt"
NOTES = "notes.md"
FILES = {
    POEM: "The log is long,\nthe turn is short,\nand every prompt\nhas one end.\n",
    NOTES: "# Notes\n\n- a turn has exactly one end\n- a log has no gaps\n",
}
"""What stands in the folder of a demonstration before it begins."""
LONGEST_S = 3600.0
MOST_CHUNKS = 1_000_000
BEAT_S = 1.0
"""How often `/demo long` says something."""


class Scene(NamedTuple):
    """What a script is told beside the conversation."""

    folder: str
    """Where its files are, relative to the session's cwd."""
    argument: str
    """What stood behind the demonstration's name."""
    clock: Clock


def tools(scene: Scene) -> Script:
    async def script(asked: Asked) -> AsyncGenerator[Piece]:
        if asked.step == 0:
            yield Text("Three tools at once. They only look, so they run at the same time and ask nobody.")
            yield wish("list", 1, path=scene.folder)
            yield wish("read", 2, path=f"{scene.folder}/{POEM}")
            yield wish("search", 3, pattern="one end", path=scene.folder)
        else:
            worked = sum(not each.is_error for each in asked.results)
            yield Text(f"{worked} of {len(asked.results)} calls worked. The results came back in order.")

    return script


def permission(scene: Scene) -> Script:
    async def script(asked: Asked) -> AsyncGenerator[Piece]:
        if asked.step == 0:
            yield Text("I would like to run a command. In the mode `ask` that needs your permission.")
            yield wish("run", 1, command="echo permitted")
        elif any(each.is_error for each in asked.results):
            yield Text("It did not run. I was told why, and go on without it.")
        else:
            yield Text("It ran. Had you said no, I would have been told, and would have gone on without it.")

    return _needs("run", script)


def edit(scene: Scene) -> Script:
    path = f"{scene.folder}/{POEM}"

    async def script(asked: Asked) -> AsyncGenerator[Piece]:
        if asked.step == 0:
            yield Text("I change one line of a file; you see the difference before you allow it.")
            yield wish("edit", 1, path=path, old="the turn is short", new="the turn is shorter")
        elif asked.step == 1 and not any(each.is_error for each in asked.results):
            yield Text("Changed. I read it again to be sure.")
            yield wish("read", 1, path=path)
        elif asked.step == 1:
            yield Text("The file stayed as it was.")
        else:
            has_changed = any("shorter" in each.text for each in asked.results)
            yield Text("The new line is there." if has_changed else "The new line is not there.")

    return _needs("edit", script)


def plan(scene: Scene) -> Script:
    steps = ("Look at the poem", "Count its lines", "Say how many there are")

    async def script(asked: Asked) -> AsyncGenerator[Piece]:
        done = asked.step
        entries = [
            {"content": each, "status": "completed" if at < done else "in_progress" if at == done else "pending"}
            for at, each in enumerate(steps)
        ]
        if done < len(steps):
            yield Text(f"Step {done + 1} of {len(steps)}: {steps[done].lower()}.\n")
        yield wish("update_plan", 1, entries=entries) if done <= len(steps) else Text("All steps are done.")

    return script


def thinking(scene: Scene) -> Script:
    async def script(asked: Asked) -> AsyncGenerator[Piece]:
        yield Thought("The user wants to see a thought. Thoughts are told apart from the answer, ")
        yield Thought("so a client can fold them away.")
        yield Text("That was a thought; this is the answer.")

    return script


def long(scene: Scene) -> Script:
    seconds = duration(scene.argument or "10s")

    async def script(asked: Asked) -> AsyncGenerator[Piece]:
        yield Text("waiting")
        yield Text(f" for {seconds:g} seconds. Cancel me whenever you like.\n")
        begun = scene.clock.monotonic()
        while (left := begun + seconds - scene.clock.monotonic()) > 0:
            await scene.clock.sleep(min(BEAT_S, left))
            yield Text(f"{scene.clock.monotonic() - begun:.0f} s\n")
        yield Text("Done.")

    return script


def command(scene: Scene) -> Script:
    line = "for each in one two three; do echo $each; sleep 0.2; done; echo to stderr >&2; exit 3"

    async def script(asked: Asked) -> AsyncGenerator[Piece]:
        if asked.step == 0:
            yield Text("A command that takes a moment. Its output comes as it is written.")
            yield wish("run", 1, command=line)
        elif any("exit code" in each.text.lower() or "3" in each.text for each in asked.results):
            yield Text("It ended with the exit code 3, as it should, and I was told.")
        else:
            yield Text("It did not run.")

    return _needs("run", script)


def usage(scene: Scene) -> Script:
    async def script(asked: Asked) -> AsyncGenerator[Piece]:
        yield Text("This answer says that it used 1200 tokens of input, 800 of them cached, and 34 of output.")
        yield Finished("stop", Usage(1200, 34, 800, 0))

    return script


def error(scene: Scene) -> Script:
    async def script(asked: Asked) -> AsyncGenerator[Piece]:
        yield Text("In a moment my model cannot be reached, and the turn ends with an error.")
        raise ModelFailed("this is the demonstration of a model that cannot be reached", reason="unreachable")

    return script


def refusal(scene: Scene) -> Script:
    async def script(asked: Asked) -> AsyncGenerator[Piece]:
        yield Text("I would rather not.")
        yield Finished("refusal")

    return script


def max_tokens(scene: Scene) -> Script:
    async def script(asked: Asked) -> AsyncGenerator[Piece]:
        yield Text("This answer is cut in the middle of a sen")
        yield Finished("length")

    return script


def flood(scene: Scene) -> Script:
    count = amount(scene.argument or "1000")

    async def script(asked: Asked) -> AsyncGenerator[Piece]:
        for number in range(1, count + 1):
            yield Text(f"{number}\n")

    return script


def markdown(scene: Scene) -> Script:
    async def script(asked: Asked) -> AsyncGenerator[Piece]:
        yield Text(MARKDOWN)

    return script


SCRIPTS: dict[str, Callable[[Scene], Script]] = {
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
