"""The fakes of OpenAI's responses and of Gemini: read by their makers' clients, and refusing as the servers do."""

from __future__ import annotations

from typing import Any

import anyio
import httpx
import pytest

from turnwire_testing.models import CallTool, FakeGemini, FakeResponses, Reply, Say, Spend, Stop, Think
from turnwire_testing.patience import WAIT_S

pytestmark = pytest.mark.anyio

REPLY: Reply = [Think("Hm"), Say("Hello", pieces=2), CallTool("read", {"a": 1}), Spend(3, 4, 1, 2)]


async def streamed(server: FakeResponses) -> list[Any]:
    # Their imports take seconds, and each worker of pytest collects this file.
    import openai

    async with openai.AsyncOpenAI(base_url=server.url, api_key="key") as client:
        stream = await client.responses.create(model="a", input="Hello", stream=True)
        return [event async for event in stream]


async def test_responses_are_read_by_the_client_of_their_maker() -> None:
    with anyio.fail_after(WAIT_S):
        async with FakeResponses([REPLY]) as server:
            events = await streamed(server)
    assert events[0].type == "response.created"
    assert [each.delta for each in events if each.type == "response.output_text.delta"] == ["Hel", "lo"]
    whole = events[-1].response
    assert whole.status == "completed"
    assert [each.type for each in whole.output] == ["reasoning", "message", "function_call"]
    assert (whole.output_text, whole.output[2].arguments) == ("Hello", '{"a": 1}')
    assert (whole.usage.total_tokens, whole.usage.input_tokens_details.cached_tokens) == (7, 1)


async def test_a_response_that_ran_out_of_tokens_is_incomplete() -> None:
    with anyio.fail_after(WAIT_S):
        async with FakeResponses([[Say("Hel"), Stop("length")]]) as server:
            last = (await streamed(server))[-1]
    assert last.response.incomplete_details.reason == "max_output_tokens"


@pytest.mark.parametrize(
    ("items", "words"),
    [
        ([{"type": "function_call_output", "call_id": "x", "output": ""}], "No tool call found"),
        ([{"type": "function_call", "call_id": "x", "name": "read", "arguments": "{}"}], "No tool output found"),
        ([], "Missing required parameter"),
    ],
)
async def test_responses_refuse_a_call_or_a_result_without_the_other(items: list[Any], words: str) -> None:
    with anyio.fail_after(WAIT_S):
        async with FakeResponses([]) as server, httpx.AsyncClient() as http:
            body = {"model": "a", "stream": True, "input": items}
            headers = {"authorization": "Bearer key"}
            reply = await http.post(f"{server.url}/responses", json=body, headers=headers)
    assert (reply.status_code, words in reply.json()["error"]["message"]) == (400, True)


async def test_gemini_is_read_by_the_client_of_its_maker() -> None:
    from google import genai
    from google.genai import types

    with anyio.fail_after(WAIT_S):
        async with FakeGemini([REPLY]) as server:
            client: Any = genai.Client(api_key="key", http_options=types.HttpOptions(base_url=server.url)).aio
            try:
                stream = await client.models.generate_content_stream(model="any", contents="Hello")
                chunks = [chunk async for chunk in stream]
            finally:
                await client.aclose()
    parts = [part for chunk in chunks for each in chunk.candidates or () for part in each.content.parts or ()]
    assert [(part.text, bool(part.thought)) for part in parts[:3]] == [("Hm", True), ("Hel", False), ("lo", False)]
    assert parts[3].function_call.args == {"a": 1}
    assert chunks[-1].candidates[0].finish_reason == "STOP"
    assert chunks[-1].usage_metadata.total_token_count == 7


CALL: dict[str, Any] = {"role": "model", "parts": [{"functionCall": {"name": "read", "args": {}}}]}


@pytest.mark.parametrize(
    ("contents", "key", "status"),
    [
        ([], "key", 400),
        ([{"role": "robot", "parts": [{"text": "Hi"}]}], "key", 400),
        ([CALL, {"role": "user", "parts": [{"text": "Hi"}]}], "key", 400),
        ([{"role": "user", "parts": [{"text": "Hi"}]}], "", 403),
    ],
)
async def test_gemini_refuses_what_the_real_one_does(contents: list[Any], key: str, status: int) -> None:
    with anyio.fail_after(WAIT_S):
        async with FakeGemini([]) as server, httpx.AsyncClient() as http:
            path = "/v1beta/models/any:streamGenerateContent?alt=sse"
            headers = {"x-goog-api-key": key}
            reply = await http.post(server.url + path, json={"contents": contents}, headers=headers)
    assert reply.status_code == status
