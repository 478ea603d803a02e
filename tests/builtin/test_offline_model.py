"""The model of an agent without one: what it understands, and what it says when it does not."""

from __future__ import annotations

import pytest

from turnwire.builtin.conversation import says
from turnwire.builtin.model import (
    AssistantMessage,
    Finished,
    ImagePart,
    Message,
    Piece,
    Text,
    TextPart,
    Thought,
    ToolResult,
    ToolSpec,
    ToolUse,
    UserMessage,
)
from turnwire.builtin.offline_model import offline_model
from turnwire.builtin.script_model import DELTA_CHARACTERS

pytestmark = pytest.mark.anyio

TOOLS = [ToolSpec(name, "", {}) for name in ("read", "list", "search", "run")]


async def answer(*messages: Message, tools: list[ToolSpec] = TOOLS, max_tokens: int | None = None) -> list[Piece]:
    async with offline_model().stream("system", messages, tools, max_tokens=max_tokens) as pieces:
        return [each async for each in pieces]


def text_of(pieces: list[Piece]) -> str:
    return "".join(each.text for each in pieces if isinstance(each, Text))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("hello", "built into turnwire"),
        ("Who are you?", "Agent Client Protocol"),
        ("what is this project?", "durable"),
        ("help", "`read FILE`"),
        ("how do I configure a model?", "TURNWIRE_AGENT_MODEL"),
        ("explain quantum physics", "No language model is configured"),
        ("", "No language model is configured"),
    ],
)
async def test_what_it_says(words: str, said: str) -> None:
    pieces = await answer(says(words))
    assert said in text_of(pieces)
    last = pieces[-1]
    assert isinstance(last, Finished)
    assert last.reason == "stop"
    assert last.usage.output_tokens > 0


@pytest.mark.parametrize(
    ("words", "name", "arguments"),
    [
        ("list files", "list", {"path": "."}),
        ("ls", "list", {"path": "."}),
        ("List the files in src.", "list", {"path": "src"}),
        ("read README.md", "read", {"path": "README.md"}),
        ("please show the file `a b.txt`", "", {}),
        ("read 'a b.txt'", "read", {"path": "a b.txt"}),
        ("search one.end", "search", {"pattern": r"one\.end", "path": "."}),
        ("find two words in docs", "search", {"pattern": r"two\ words", "path": "docs"}),
        ("run ls -la .", "run", {"command": "ls -la ."}),
    ],
)
async def test_what_it_does(words: str, name: str, arguments: dict[str, str]) -> None:
    pieces = await answer(says(words))
    tool_uses = [each for each in pieces if isinstance(each, ToolUse)]
    assert [(each.name, each.arguments) for each in tool_uses] == ([(name, arguments)] if name else [])
    last = pieces[-1]
    assert isinstance(last, Finished)
    assert last.reason == ("tools" if name else "stop")


async def test_it_shows_what_a_tool_gave_and_never_breaks_out_of_its_fence() -> None:
    use = ToolUse("1", "read", {"path": "a"}, "{}")
    gave = "\n".join(["```", *(f"line {number}" for number in range(100))])
    pieces = await answer(says("read a"), AssistantMessage("", "", (use,)), ToolResult("1", "read", gave))
    text = text_of(pieces)
    assert "line 58" in text
    assert "line 60" not in text
    assert "41 more lines" in text
    assert text.count("````\n") == 2


async def test_it_tells_what_did_not_work() -> None:
    use = ToolUse("1", "read", {"path": "a"}, "{}")
    failed = ToolResult("1", "read", "there is no such file", is_error=True)
    assert "did not work: there is no such file" in text_of(
        await answer(says("read a"), AssistantMessage("", "", (use,)), failed)
    )


async def test_a_picture_is_seen_to_have_come() -> None:
    pieces = await answer(UserMessage((TextPart("what is it"), ImagePart("image/png", "AAAA"))))
    assert "a picture (image/png)" in text_of(pieces)
    assert any(isinstance(each, Thought) for each in pieces)


async def test_in_plan_mode_it_runs_nothing() -> None:
    pieces = await answer(says("run ls"), tools=TOOLS[:3])
    assert "plan mode" in text_of(pieces)


async def test_it_streams_small_pieces_of_the_same_text_every_time() -> None:
    once, again = await answer(says("help")), await answer(says("help"))
    assert once == again
    words = [each.text for each in once if isinstance(each, Text)]
    assert len(words) > 10
    assert max(map(len, words)) <= DELTA_CHARACTERS + 80


async def test_an_answer_that_is_too_long_is_cut() -> None:
    pieces = await answer(says("help"), max_tokens=20)
    last = pieces[-1]
    assert isinstance(last, Finished)
    assert last.reason == "length"
    assert len(text_of(pieces)) <= 80
