"""The model of an agent that was given none: it knows a few sentences, uses the real tools, and says what it is.

Never claims to understand: what it has no rule for, it says so, and how to configure a model.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import AsyncGenerator, Callable
from typing import NamedTuple

from turnwire.builtin.model import ImagePart, Piece, ResourcePart, Text, Thought, ToolResult
from turnwire.builtin.script_model import Asked, ScriptModel, tool_use

NAME = "offline"
SHOWN_LINES = 60
"""Lines of a tool's result that are repeated in an answer; the tool call has them all."""

CONFIGURE = """\
To give me a model, name it and its key in the environment of the daemon:

```sh
pip install 'turnwire[models]'
ANTHROPIC_API_KEY=... TURNWIRE_AGENT_MODEL=anthropic:NAME turnwire serve
```

`openai:NAME`, `google:NAME` and `ollama:NAME` (a server on this machine, no key) work the same way. In an editor, \
`turnwire agent --model anthropic:NAME` is the agent's command.\
"""
NO_MODEL = "No language model is configured, so I answer by a few fixed rules."
CAN = """\
Without a model I understand these, and do them with the same tools that a model would use:

- `list files`, `list files in FOLDER`
- `read FILE`
- `search WORDS`, `search WORDS in FOLDER`
- `run COMMAND` (I ask you first)
- `help`, `who are you`, `what is this`, `how do I configure a model`
- `/demo` shows everything an agent can do here, one command each\
"""
WHAT = """\
This is turnwire: it hosts agents that speak the Agent Client Protocol and gives each session one durable, ordered \
log, in which every accepted prompt has exactly one end. You are talking to the agent that is built in. To host \
another one: `turnwire serve -- COMMAND`.\
"""


class KnownSentence(NamedTuple):
    """One kind of sentence, and what is answered to it."""

    sentence: re.Pattern[str]
    answer: Callable[[Asked, re.Match[str]], AsyncGenerator[Piece]]


def offline_model() -> ScriptModel:
    """The model."""
    return ScriptModel(NAME, _answer)


async def _answer(asked: Asked) -> AsyncGenerator[Piece]:
    text = asked.text.strip()
    for rule in RULES:
        found = rule.sentence.fullmatch(text)
        if found:
            async for piece in rule.answer(asked, found):
                yield piece
            return
    for piece in _unknown(asked):
        yield piece


def _unknown(asked: Asked) -> list[Piece]:
    seen = [f"a picture ({each.mime})" for each in asked.message.parts if isinstance(each, ImagePart)]
    seen += [each.uri for each in asked.message.parts if isinstance(each, ResourcePart)]
    got = f"Your prompt came with {', '.join(seen)}. I got it, but cannot look into it. " if seen else ""
    return [
        Thought("No rule fits this prompt."),
        Text(f"{got}{NO_MODEL} I have none for this.\n\n{CAN}\n\n{CONFIGURE}"),
    ]


def _say(*parts: str) -> Callable[[Asked, re.Match[str]], AsyncGenerator[Piece]]:
    async def answer(asked: Asked, found: re.Match[str]) -> AsyncGenerator[Piece]:
        yield Text("\n\n".join(parts))

    return answer


async def _list(asked: Asked, found: re.Match[str]) -> AsyncGenerator[Piece]:
    folder = _path(found["folder"]) or "."
    if not asked.step:
        yield tool_use("list", 1, path=folder)
    else:
        yield Text(_shown(asked.results, f"What is in `{folder}`:"))


async def _read(asked: Asked, found: re.Match[str]) -> AsyncGenerator[Piece]:
    path = _path(found["path"])
    if not asked.step:
        yield tool_use("read", 1, path=path)
    else:
        yield Text(_shown(asked.results, f"`{path}`:"))


async def _search(asked: Asked, found: re.Match[str]) -> AsyncGenerator[Piece]:
    words, folder = _path(found["words"]), _path(found["folder"]) or "."
    if not asked.step:
        yield tool_use("search", 1, pattern=re.escape(words), path=folder)
    else:
        yield Text(_shown(asked.results, f"Where `{words}` is found:"))


async def _run(asked: Asked, found: re.Match[str]) -> AsyncGenerator[Piece]:
    command = found["command"].strip().strip("`")
    if asked.step:
        yield Text(_shown(asked.results, f"`{command}`:"))
    elif "run" not in asked.tools:
        yield Text("In plan mode nothing is run. `/mode ask` changes that.")
    else:
        yield tool_use("run", 1, command=command)


def _shown(results: tuple[ToolResult, ...], heading: str) -> str:
    """A result in an answer, its first lines."""
    text = "\n".join(each.text for each in results).rstrip("\n")
    if any(each.is_error for each in results):
        return f"That did not work: {text}"
    lines = text.splitlines() or ["(nothing)"]
    left = len(lines) - SHOWN_LINES
    more = f"\n\n{left} more lines are in the tool call above." if left > 0 else ""
    body = "\n".join(lines[:SHOWN_LINES])
    fence = "`" * (max([2, *(len(each) for each in re.findall(r"`+", body))]) + 1)
    return f"{heading}\n\n{fence}\n{body}\n{fence}{more}"


def _path(given: str | None) -> str:
    """A path or some words as people write them: with quotes, backticks, or neither."""
    text = (given or "").strip().strip("`")
    try:
        words = shlex.split(text)
    except ValueError:
        return text
    return words[0] if len(words) == 1 else text


def _rule(
    sentence: str, answer: Callable[[Asked, re.Match[str]], AsyncGenerator[Piece]], end: str = r"\s*[.!?]*"
) -> KnownSentence:
    return KnownSentence(re.compile(rf"{_POLITE}(?:{sentence}){end}", re.IGNORECASE | re.DOTALL), answer)


_POLITE = r"(?:(?:hi|hello|hey)[,.!]* )?(?:(?:can|could) you )?(?:please )?"
_PLACE = r"(?: (?:in|of|at|under) (?P<folder>\S+?))?"
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
    _rule(rf"(?:ls|list|list (?:all )?(?:the )?files|what files are (?:here|there)){_PLACE}", _list),
    _rule(r"(?:read|show|cat|open)(?: the)?(?: file)? (?P<path>\S+?|'[^']+'|\"[^\"]+\")", _read),
    _rule(rf"(?:search|find|grep|look)(?: for)? (?P<words>.+?){_PLACE}", _search),
    # The last dot of a command belongs to it.
    _rule(r"(?:run|execute) (?P<command>.+)", _run, end=""),
)
