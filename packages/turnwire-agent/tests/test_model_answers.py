"""Answers of a model through the real library, from servers that speak the real APIs."""

from __future__ import annotations

import msgspec
import pytest

from agent_kit.model_kit import ANTHROPIC, FAKES, HELLO, LIMIT_S, OPENAI, READ, Fake, answer, asked_at
from turnwire_agent.model import (
    AssistantMessage,
    ImagePart,
    Message,
    ResourcePart,
    Text,
    TextPart,
    Thought,
    ToolResult,
    ToolUse,
    ToolUseStarted,
    Usage,
    UserMessage,
)
from turnwire_testing.models import (
    CallTool,
    FakeAnthropic,
    FakeOpenAI,
    Say,
    Spend,
    Stop,
    Think,
)

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(2 * LIMIT_S)]

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


@pytest.mark.parametrize(("fake", "name"), FAKES)
async def test_text_comes_piece_by_piece(fake: Fake, name: str) -> None:
    async with fake([[Say("Hello there", pieces=3)]]) as server, asked_at(server.url, name) as model:
        got = await answer(model, max_tokens=77)
    assert [piece for piece in got.pieces if isinstance(piece, Text)] == [Text("Hell"), Text("o th"), Text("ere")]
    assert got.finished.reason == "stop"
    assert model.name == name
    assert "Be brief." in str(server.requests[0])
    assert 77 in server.requests[0].values()


@pytest.mark.parametrize(("fake", "name"), [*FAKES, (FakeOpenAI, "ollama:a-model")])
async def test_thoughts_are_no_text(fake: Fake, name: str) -> None:
    script = [[Think("Let me see.", pieces=2), Say("Yes")]]
    async with fake(script) as server, asked_at(server.url, name) as model:
        got = await answer(model)
    assert got.thought == "Let me see."
    assert len([piece for piece in got.pieces if isinstance(piece, Thought)]) == 2
    assert got.text == "Yes"


@pytest.mark.parametrize(("fake", "name"), FAKES)
async def test_parallel_tool_calls_are_tool_uses_and_their_results_go_back(fake: Fake, name: str) -> None:
    first = [
        Say("I look."),
        CallTool("read", {"path": "a"}, id="one", pieces=4),
        CallTool("read", {"path": "b"}, id="two", pieces=1),
    ]
    async with fake([first, [Say("Done")]]) as server, asked_at(server.url, name) as model:
        got = await answer(model)
        results = [ToolResult("one", "read", "text of a"), ToolResult("two", "read", "no such file", is_error=True)]
        last = await answer(model, [HELLO, got.message, *results])
    assert [piece for piece in got.pieces if isinstance(piece, ToolUseStarted)] == [
        ToolUseStarted("one", "read"),
        ToolUseStarted("two", "read"),
    ]
    assert got.tool_uses == (
        ToolUse("one", "read", {"path": "a"}, '{"path": "a"}'),
        ToolUse("two", "read", {"path": "b"}, '{"path": "b"}'),
    )
    assert got.finished.reason == "tools"
    assert last.text == "Done"
    assert [exchange.refused for exchange in server.exchanges] == [None, None]
    sent = str(server.requests[1]["messages"])
    assert "text of a" in sent
    assert "no such file" in sent
    assert "I look." in sent


async def test_a_failed_tool_is_told_as_failed() -> None:
    script = [[CallTool("read", {"path": "a"})], [Say("Oh")]]
    async with FakeAnthropic(script) as server, asked_at(server.url, ANTHROPIC) as model:
        got = await answer(model)
        [use] = got.tool_uses
        await answer(model, [HELLO, got.message, ToolResult(use.id, "read", "broken", is_error=True)])
    assert server.requests[1]["messages"][-1]["content"][0]["is_error"] is True


async def test_signed_thinking_goes_back_whole_also_after_the_conversation_was_stored() -> None:
    script = [[Think("Hm.", signature="seal"), CallTool("read", {"path": "a"})], [Say("Done")]]
    async with FakeAnthropic(script) as server, asked_at(server.url, ANTHROPIC, thinking="on") as model:
        got = await answer(model)
        talk: list[Message] = [HELLO, got.message, ToolResult(got.tool_uses[0].id, "read", "text")]
        stored = msgspec.json.decode(msgspec.json.encode(talk), type=list[Message])
        last = await answer(model, stored)
    assert stored == talk
    assert last.text == "Done"
    assert server.requests[1]["messages"][1]["content"][0] == {
        "type": "thinking",
        "thinking": "Hm.",
        "signature": "seal",
    }


async def test_a_conversation_can_go_on_at_another_provider() -> None:
    script = [[Think("Hm.", signature="seal"), CallTool("read", {"path": "a"}, id="one")]]
    async with FakeAnthropic(script) as server, asked_at(server.url, ANTHROPIC) as model:
        got = await answer(model)
    talk = [HELLO, got.message, ToolResult("one", "read", "text")]
    async with FakeOpenAI([[Say("Done")]]) as server, asked_at(server.url, OPENAI) as model:
        assert (await answer(model, talk)).text == "Done"
    assert "seal" not in str(server.requests)
    assert "Hm." not in str(server.requests)


@pytest.mark.parametrize("opaque", [b"garbage", b"[]", b'[{"parts": [], "kind": "request"}]'])
async def test_an_answer_kept_by_another_version_is_sent_as_its_text(opaque: bytes) -> None:
    async with FakeAnthropic([[Say("Done")]]) as server, asked_at(server.url, ANTHROPIC) as model:
        await answer(model, [HELLO, AssistantMessage("My words", opaque=opaque), HELLO])
    assert "My words" in str(server.requests[0]["messages"][1])


async def test_an_answer_whose_tool_uses_were_changed_is_not_sent_in_its_old_form() -> None:
    script = [[Think("Hm.", signature="seal"), Say("Well"), CallTool("read", {"path": "a"})], [Say("Done")]]
    async with FakeAnthropic(script) as server, asked_at(server.url, ANTHROPIC) as model:
        got = await answer(model)
        without = AssistantMessage(got.text, got.thought, (), got.finished.opaque)
        await answer(model, [HELLO, without, HELLO])
    assert server.exchanges[1].refused is None
    assert "tool_use" not in str(server.requests[1]["messages"])


@pytest.mark.parametrize(("fake", "name"), FAKES)
async def test_arguments_that_are_no_json_are_told_as_they_came(fake: Fake, name: str) -> None:
    script = [[CallTool("read", '{"path": ', id="one")], [Say("Sorry")]]
    async with fake(script) as server, asked_at(server.url, name) as model:
        got = await answer(model)
        last = await answer(model, [HELLO, got.message, ToolResult("one", "read", "bad arguments", is_error=True)])
    assert got.tool_uses == (ToolUse("one", "read", None, '{"path": '),)
    assert last.text == "Sorry"


@pytest.mark.parametrize(("fake", "name"), FAKES)
async def test_a_call_without_arguments_has_none(fake: Fake, name: str) -> None:
    async with fake([[CallTool("read", "", id="one")]]) as server, asked_at(server.url, name) as model:
        got = await answer(model)
    assert got.tool_uses == (ToolUse("one", "read", {}, "{}"),)


@pytest.mark.parametrize(("fake", "name"), FAKES)
async def test_pictures_and_resources_of_a_user_reach_the_model(fake: Fake, name: str) -> None:
    parts = (
        TextPart("What is this?"),
        ImagePart("image/png", PIXEL),
        ResourcePart("file:///notes.txt", "my notes"),
        ResourcePart("file:///link.txt"),
    )
    async with fake([[Say("A pixel")]]) as server, asked_at(server.url, name) as model:
        got = await answer(model, [UserMessage(parts)])
        assert model.takes_images
    assert got.text == "A pixel"
    sent = str(server.requests[0]["messages"])
    for each in ("What is this?", PIXEL, "image/png", "my notes", "file:///notes.txt", "file:///link.txt"):
        assert each in sent


@pytest.mark.parametrize(("mime", "content"), [("image/png", "not base64!"), ("image/svg+xml", PIXEL), ("", PIXEL)])
async def test_a_picture_that_no_provider_takes_becomes_a_note(mime: str, content: str) -> None:
    async with FakeOpenAI([[Say("What picture?")]]) as server, asked_at(server.url, OPENAI) as model:
        await answer(model, [UserMessage((TextPart("See:"), ImagePart(mime, content)))])
    assert server.requests[0]["messages"][-1]["content"] == "See:\n[A picture was here. It could not be read.]"


@pytest.mark.parametrize(("fake", "name"), FAKES)
async def test_the_end_by_the_token_limit_is_told(fake: Fake, name: str) -> None:
    async with fake([[Say("Once upon"), Stop("length")]]) as server, asked_at(server.url, name) as model:
        got = await answer(model)
    assert (got.text, got.finished.reason) == ("Once upon", "length")


@pytest.mark.parametrize(("fake", "name"), FAKES)
async def test_a_refusal_is_told_with_its_words(fake: Fake, name: str) -> None:
    script = [[Stop("refusal", text="I cannot help with that.")]]
    async with fake(script) as server, asked_at(server.url, name) as model:
        got = await answer(model)
    assert (got.text, got.finished.reason) == ("I cannot help with that.", "refusal")


@pytest.mark.parametrize(("fake", "name"), FAKES)
async def test_an_answer_that_was_filtered_is_a_refusal(fake: Fake, name: str) -> None:
    async with fake([[Say("Well, "), Stop("refusal")]]) as server, asked_at(server.url, name) as model:
        got = await answer(model)
    assert (got.text, got.finished.reason) == ("Well, ", "refusal")


@pytest.mark.parametrize(("fake", "name", "thoughts"), [(FakeOpenAI, OPENAI, 7), (FakeAnthropic, ANTHROPIC, 0)])
async def test_usage_counts_the_cached_tokens_as_input(fake: Fake, name: str, thoughts: int) -> None:
    script = [[Say("Hi"), Spend(input=100, output=20, cached=30, thought=7)]]
    async with fake(script) as server, asked_at(server.url, name) as model:
        got = await answer(model)
    assert got.finished.usage == Usage(100, 20, 30, thoughts)


async def test_without_tools_and_system_text_none_are_sent() -> None:
    async with FakeAnthropic([[Say("Hi")]]) as server, asked_at(server.url, ANTHROPIC) as model:
        await answer(model, tools=(), system="")
    assert "tools" not in server.requests[0]
    assert "system" not in server.requests[0]


async def test_texts_of_nothing_are_filled_where_a_provider_would_refuse_them() -> None:
    script = [[CallTool("read", {"path": "a"}, id="one")], [Say("Done")]]
    async with FakeAnthropic(script) as server, asked_at(server.url, ANTHROPIC) as model:
        got = await answer(model)
        talk = [UserMessage((TextPart(" "),)), got.message, ToolResult("one", "read", ""), UserMessage(())]
        assert (await answer(model, talk)).text == "Done"
    assert str(server.requests[1]["messages"]).count("(empty)") == 3


async def test_an_answer_of_nothing_is_left_out_of_the_conversation() -> None:
    async with FakeAnthropic([[Say("Hi")]]) as server, asked_at(server.url, ANTHROPIC) as model:
        await answer(model, [HELLO, AssistantMessage(), UserMessage((TextPart("Again"),))], [READ])
    assert [message["role"] for message in server.requests[0]["messages"]] == ["user"]
    assert "Again" in str(server.requests[0]["messages"])
