"""Answers of the offline agent: a table of sentences, answered with real tools.

A prompt that matches no sentence gets two lines: no model is configured, and three prompts to try.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeAlias

from turnwire.agent import Turn
from turnwire.demo.speech import stream, tokens
from turnwire.demo.tools import IN_PLAN_MODE, PLAN, ToolResult, listing, look, reading, run, searching

SHOWN_LINES = 60
"""Lines of a tool's result that an answer repeats; the tool call has all of them."""

CONFIGURE = """\
To give me a model, name it and its key in the environment of the daemon:

```sh
pip install 'turnwire[agent]'
ANTHROPIC_API_KEY=... TURNWIRE_AGENT_MODEL=anthropic:NAME turnwire serve
```

`openai:NAME`, `google:NAME` and `ollama:NAME` (a server on this machine, no key) work the same way. In an editor, \
`turnwire agent --model anthropic:NAME` is the agent's command.\
"""
NO_MODEL = "No language model is configured, so I answer by a few fixed rules."
CAN = """\
Without a model I understand these, and do them with the same tools that a model would use:

- `What is in this folder?`, `list files in FOLDER`
- `read FILE`
- `What does this project do?` (I read its README.md)
- `search WORDS`, `search WORDS in FOLDER`
- `run COMMAND` (I ask you first)
- `help`, `who are you`, `what is this`, `how do I configure a model`
- `/demo` shows everything an agent can do here, one command each\
"""
TRY = """\
Try `What is in this folder?`, `read README.md` or `/demo`. `help` lists the rest, and how to configure a model.\
"""
WHAT = """\
This is turnwire: it hosts agents that speak the Agent Client Protocol and gives each session one durable, ordered \
log, in which every accepted prompt has exactly one end. You are talking to the agent that is built in. To host \
another one: `turnwire serve -- COMMAND`.\
"""

Answer: TypeAlias = Callable[[Turn, re.Match[str]], Awaitable[None]]


class Rule(NamedTuple):
    """A kind of sentence, and the answer to it."""

    sentence: re.Pattern[str]
    answer: Answer


async def answer(turn: Turn) -> None:
    """Answer a prompt."""
    text = turn.text.strip()
    turn.usage(input_tokens=tokens(text))
    for rule in RULES:
        found = rule.sentence.fullmatch(text)
        if found:
            await rule.answer(turn, found)
            return
    attached = _attachments(turn.content)
    received = (
        f"Your prompt includes {', '.join(attached)}; I received it, but cannot read it. " if attached else ""
    )
    await stream(turn, f"{received}{NO_MODEL} None fits this prompt.\n{TRY}")


def _attachments(content: list[dict[str, Any]]) -> list[str]:
    """Name what a prompt has in addition to text."""
    pictures = [f"a picture ({each.get('mimeType')})" for each in content if each.get("type") == "image"]
    resources = [each.get("resource", each).get("uri") for each in content if "resource" in str(each.get("type"))]
    return pictures + [str(each) for each in resources]


def _say(*parts: str) -> Answer:
    async def say(turn: Turn, found: re.Match[str]) -> None:
        await stream(turn, "\n\n".join(parts))

    return say


async def _list(turn: Turn, found: re.Match[str]) -> None:
    folder = _path(found["folder"]) or "."
    where = "this folder" if folder == "." else f"`{folder}`"
    await stream(turn, _shown(await look(listing(turn, folder)), f"These files are in {where}:"))


async def _project(turn: Turn, found: re.Match[str]) -> None:
    result = await look(reading(turn, "README.md"))
    if result.is_error:
        await turn.say("This folder has no README.md that I could read. Try `What is in this folder?`.")
    else:
        await stream(turn, _shown(result, "I cannot summarize without a model. This is its README.md:"))


async def _read(turn: Turn, found: re.Match[str]) -> None:
    path = _path(found["path"])
    await stream(turn, _shown(await look(reading(turn, path)), f"`{path}`:"))


async def _search(turn: Turn, found: re.Match[str]) -> None:
    words, folder = _path(found["words"]), _path(found["folder"]) or "."
    await stream(turn, _shown(await look(searching(turn, words, folder)), f"Where `{words}` is found:"))


async def _run(turn: Turn, found: re.Match[str]) -> None:
    command = found["command"].strip().strip("`")
    if turn.session.mode == PLAN.id:
        await turn.say(IN_PLAN_MODE)
    else:
        await stream(turn, _shown(await run(turn, command), f"`{command}`:"))


def _shown(result: ToolResult, heading: str) -> str:
    """Return the first lines of a result, as part of an answer."""
    text = result.text.rstrip("\n")
    if result.is_error:
        return f"That did not work: {text}"
    lines = text.splitlines() or ["(nothing)"]
    more = len(lines) - SHOWN_LINES
    ending = f"\n\n{more} more lines are in the tool call above." if more > 0 else ""
    body = "\n".join(lines[:SHOWN_LINES])
    fence = "`" * (max([2, *(len(each) for each in re.findall(r"`+", body))]) + 1)
    return f"{heading}\n\n{fence}\n{body}\n{fence}{ending}"


def _path(given: str | None) -> str:
    """Return a path or words without the quotes or backticks around them."""
    text = (given or "").strip().strip("`")
    try:
        words = shlex.split(text)
    except ValueError:
        return text
    return words[0] if len(words) == 1 else text


def _rule(sentence: str, answer: Answer, end: str = r"\s*[.!?]*") -> Rule:
    return Rule(re.compile(rf"{_POLITE}(?:{sentence}){end}", re.IGNORECASE | re.DOTALL), answer)


_POLITE = r"(?:(?:hi|hello|hey)[,.!]* )?(?:(?:can|could) you )?(?:please )?"
_HERE = r"(?:this|the|my|your|that|current|working|same)"
_FOLDER = r"(?:folder|directory|dir|repo|repository|project|workspace)"
_PLACE = rf"(?: (?:in|of|at|under|inside)(?: (?:{_HERE} )+{_FOLDER}| here| (?P<folder>\S+?)))?"
_LIST = r"ls|dir|list|(?:list|show|show me|see|what are)(?: all)?(?: the| my)? (?:files|contents)"
_ASK = r"(?:what|which)(?: files)?(?:'s| is| are)(?: there)?"
_GREETING = f"Hello! I am the agent that is built into turnwire. {NO_MODEL} Say `help` to see them."

RULES = (
    _rule(r"hi|hello|hey|good (?:morning|day|evening)", _say(_GREETING)),
    _rule(r"help|what can you do|commands|\?", _say(NO_MODEL, CAN, CONFIGURE)),
    _rule(r"(?:who|what) are you|are you there", _say(_GREETING, WHAT)),
    _rule(r"what(?:'s| is) (?:this|turnwire)(?: project| thing)?|about", _say(WHAT, NO_MODEL, CAN)),
    _rule(
        r"(?:how (?:do|can) I )?(?:configure|set(?: up)?|use|choose|give you) a(?:nother)? model", _say(CONFIGURE)
    ),
    _rule(r"thanks?(?: you)?", _say("You are welcome.")),
    _rule(r"what(?:'s| does) this (?:project|repository|repo) (?:do|about)", _project),
    _rule(rf"(?:{_LIST}){_PLACE}", _list),
    _rule(rf"{_ASK} (?:in|inside) (?:(?:{_HERE} )+{_FOLDER}|here|(?P<folder>\S+?))", _list),
    _rule(r"(?:what|which)(?: files)? (?:is|are) (?:here|there)(?P<folder>)", _list),
    _rule(r"(?:read|show|cat|open)(?: the)?(?: file)? (?P<path>\S+?|'[^']+'|\"[^\"]+\")", _read),
    _rule(rf"(?:search|find|grep|look)(?: for)? (?P<words>.+?){_PLACE}", _search),
    # The last dot of a command belongs to the command.
    _rule(r"(?:run|execute) (?P<command>.+)", _run, end=""),
)
