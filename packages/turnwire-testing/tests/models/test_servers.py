"""The fake model servers: what they send, what they record, and what they refuse as the real ones do."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from turnwire_testing.models import (
    CallTool,
    Cut,
    Fail,
    FakeAnthropic,
    FakeOpenAI,
    Hang,
    Say,
    Script,
    Spend,
    Step,
    Stop,
    Think,
)
from turnwire_testing.patience import WAIT_S

pytestmark = pytest.mark.anyio

USER: dict[str, Any] = {"role": "user", "content": "Hello"}
OPENAI: dict[str, Any] = {"model": "a", "stream": True, "messages": [USER]}
ANTHROPIC: dict[str, Any] = {"model": "a", "stream": True, "max_tokens": 9, "messages": [USER]}


class Caller:
    """A client that knows HTTP only."""

    def __init__(self, server: FakeOpenAI | FakeAnthropic, http: httpx.AsyncClient) -> None:
        self.server = server
        self.http = http
        self.is_openai = isinstance(server, FakeOpenAI)
        self.url = server.url + ("/chat/completions" if self.is_openai else "/v1/messages")
        self.headers = (
            {"authorization": "Bearer key"} if self.is_openai else {"x-api-key": "key", "anthropic-version": "1"}
        )

    async def post(self, **changes: Any) -> httpx.Response:
        body = {**(OPENAI if self.is_openai else ANTHROPIC), **changes}
        return await self.http.post(self.url, json=body, headers=self.headers)

    async def refusal(self, **changes: Any) -> str:
        """The words with which a malformed request is refused."""
        reply = await self.post(**changes)
        assert reply.status_code == 400
        assert self.server.exchanges[-1].refused is not None
        return reply.json()["error"]["message"]


@asynccontextmanager
async def openai(script: Script = (), key: str | None = None) -> AsyncGenerator[Caller]:
    with anyio.fail_after(WAIT_S):
        async with FakeOpenAI(script, key=key) as server, httpx.AsyncClient(timeout=10) as http:
            yield Caller(server, http)


@asynccontextmanager
async def anthropic(script: Script = (), key: str | None = None) -> AsyncGenerator[Caller]:
    with anyio.fail_after(WAIT_S):
        async with FakeAnthropic(script, key=key) as server, httpx.AsyncClient(timeout=10) as http:
            yield Caller(server, http)


def events(reply: httpx.Response) -> list[dict[str, Any]]:
    """The JSON of each event of a stream."""
    assert reply.status_code == 200
    assert reply.headers["content-type"].startswith("text/event-stream")
    lines = [line.removeprefix("data: ") for line in reply.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


# -- what they send -------------------------------------------------------------------------------------------


async def test_openai_streams_text_tool_calls_in_pieces_a_reason_and_the_usage() -> None:
    steps = [
        Think("Hm"),
        Say("Hello", pieces=2),
        CallTool("read", {"a": 1}, id="one"),
        CallTool("list", id="two", pieces=1),
        Spend(3, 4, 1, 2),
    ]
    async with openai([steps]) as caller:
        reply = await caller.post(stream_options={"include_usage": True})
    assert reply.text.endswith("data: [DONE]\n\n")
    *chunks, usage = events(reply)
    assert {(chunk["object"], chunk["id"], chunk["model"]) for chunk in chunks} == {
        ("chat.completion.chunk", "chatcmpl-1", "a")
    }
    assert all(chunk["usage"] is None for chunk in chunks)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas == [
        {"role": "assistant", "content": "", "refusal": None},
        {"reasoning_content": "Hm"},
        {"content": "Hel"},
        {"content": "lo"},
        {
            "tool_calls": [
                {"index": 0, "id": "one", "type": "function", "function": {"name": "read", "arguments": ""}}
            ]
        },
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"a"'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": ": 1}"}}]},
        {
            "tool_calls": [
                {"index": 1, "id": "two", "type": "function", "function": {"name": "list", "arguments": ""}}
            ]
        },
        {"tool_calls": [{"index": 1, "function": {"arguments": "{}"}}]},
        {},
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[-2:]] == [None, "tool_calls"]
    assert usage["choices"] == []
    assert usage["usage"]["prompt_tokens_details"]["cached_tokens"] == 1
    assert usage["usage"]["total_tokens"] == 7


async def test_openai_tells_no_usage_that_nobody_asked_for() -> None:
    async with openai([[Say("Hi")]]) as caller:
        assert all("usage" not in chunk for chunk in events(await caller.post()))


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (Say("x"), "stop"),
        (Stop("length"), "length"),
        (Stop("refusal"), "content_filter"),
        (Stop("refusal", "No"), "stop"),
    ],
)
async def test_openai_ends_with_the_reason_of_the_script(step: Step, reason: str) -> None:
    async with openai([[step]]) as caller:
        chunks = events(await caller.post())
    assert chunks[-1]["choices"][0]["finish_reason"] == reason


async def test_anthropic_streams_blocks_between_a_start_and_a_stop() -> None:
    steps = [
        Think("Hm", signature="seal"),
        Say("Hello", pieces=2),
        CallTool("read", {"a": 1}, id="one"),
        Spend(9, 4, 2),
    ]
    async with anthropic([steps]) as caller:
        reply = await caller.post()
    told = events(reply)
    assert [line for line in reply.text.splitlines() if line.startswith("event: ")] == [
        f"event: {event['type']}" for event in told
    ]
    assert [event["type"] for event in told[:2]] == ["message_start", "ping"]
    assert told[0]["message"]["usage"]["input_tokens"] == 7
    assert told[0]["message"]["usage"]["cache_read_input_tokens"] == 2
    starts = [event["content_block"] for event in told if event["type"] == "content_block_start"]
    assert starts == [
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "text", "text": ""},
        {"type": "tool_use", "id": "one", "name": "read", "input": {}},
    ]
    deltas = [(event["index"], event["delta"]) for event in told if event["type"] == "content_block_delta"]
    assert deltas == [
        (0, {"type": "thinking_delta", "thinking": "Hm"}),
        (0, {"type": "signature_delta", "signature": "seal"}),
        (1, {"type": "text_delta", "text": "Hel"}),
        (1, {"type": "text_delta", "text": "lo"}),
        (2, {"type": "input_json_delta", "partial_json": ""}),
        (2, {"type": "input_json_delta", "partial_json": '{"a"'}),
        (2, {"type": "input_json_delta", "partial_json": ": 1}"}),
    ]
    assert [event["type"] for event in told[-3:]] == ["content_block_stop", "message_delta", "message_stop"]
    assert told[-2]["delta"]["stop_reason"] == "tool_use"
    assert told[-2]["usage"] == {"output_tokens": 4}


@pytest.mark.parametrize(
    ("step", "reason"), [(Say("x"), "end_turn"), (Stop("length"), "max_tokens"), (Stop("refusal", "No"), "refusal")]
)
async def test_anthropic_ends_with_the_reason_of_the_script(step: Step, reason: str) -> None:
    async with anthropic([[step]]) as caller:
        assert events(await caller.post())[-2]["delta"]["stop_reason"] == reason


# -- failures -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fake", [openai, anthropic])
async def test_a_failure_has_its_status_and_its_wait(fake: Any) -> None:
    async with fake([[Fail(429, retry_after=3)], [Fail(429, retry_after=0.5)], [Fail(529)]]) as caller:
        first, second, third = await caller.post(), await caller.post(), await caller.post()
    assert (first.status_code, first.headers["retry-after"]) == (429, "3")
    assert (second.status_code, second.headers["retry-after-ms"]) == (429, "500")
    assert third.status_code == 529


async def test_an_error_inside_the_stream_has_the_shape_of_its_api() -> None:
    async with openai([[Say("x"), Fail(500)]]) as caller:
        assert events(await caller.post())[-1]["error"]["type"] == "server_error"
    async with anthropic([[Say("x"), Fail(529)]]) as caller:
        last = events(await caller.post())[-1]
    assert (last["type"], last["error"]["type"]) == ("error", "overloaded_error")


@pytest.mark.parametrize("fake", [openai, anthropic])
async def test_a_cut_breaks_the_connection_after_what_was_sent(fake: Any) -> None:
    async with fake([[Cut()], [Say("one"), Say("two"), Cut(), Say("three")]]) as caller:
        with pytest.raises(httpx.RemoteProtocolError):
            await caller.post()
        got: list[bytes] = []

        async def read() -> None:
            body = OPENAI | ANTHROPIC
            async with caller.http.stream("POST", caller.url, json=body, headers=caller.headers) as reply:
                raw = reply.aiter_raw()
                while True:
                    got.append(await anext(raw))

        with pytest.raises(httpx.RemoteProtocolError):
            await read()
    assert b"two" in b"".join(got)
    assert b"three" not in b"".join(got)


@pytest.mark.parametrize("fake", [openai, anthropic])
async def test_a_reply_hangs_until_it_is_released(fake: Any) -> None:
    hang = Hang()
    async with fake([[Say("one"), hang, Say("two")]]) as caller, anyio.create_task_group() as tasks:

        async def post() -> None:
            assert "two" in (await caller.post()).text

        tasks.start_soon(post)
        exchange = await caller.server.arrival(1)
        assert not exchange.done.is_set()
        hang.released.set()
        await exchange.done.wait()
        assert not exchange.gone.is_set()


async def test_a_server_that_hangs_can_be_stopped() -> None:
    async with (
        httpx.AsyncClient(timeout=10) as http,
        anyio.create_task_group() as tasks,
        FakeOpenAI([[Say("one"), Hang()]]) as server,
    ):

        async def post() -> None:
            with pytest.raises(httpx.RemoteProtocolError):
                await Caller(server, http).post()

        tasks.start_soon(post)
        with anyio.fail_after(WAIT_S):
            await server.arrival(1)


async def test_a_server_can_be_left_by_a_cancel_and_another_one_started() -> None:
    with anyio.CancelScope() as scope:
        async with FakeOpenAI([[Say("one")]]):
            scope.cancel()
            await anyio.sleep_forever()
    async with anthropic([[Say("two")]]) as caller:
        assert (await caller.post()).status_code == 200


async def test_a_client_that_leaves_is_noticed() -> None:
    async with openai([[Say("one"), Hang()]]) as caller:
        async with caller.http.stream("POST", caller.url, json=OPENAI, headers=caller.headers) as reply:
            await anext(reply.aiter_raw())
        await caller.server.exchanges[0].gone.wait()


async def test_a_script_can_be_a_function_of_the_request() -> None:
    async with openai(lambda body: [Say(body["model"].upper())]) as caller:
        assert "GPT" in (await caller.post(model="gpt")).text
        assert caller.server.requests == [{**OPENAI, "model": "gpt"}]


async def test_a_request_beyond_the_script_is_refused_and_says_so() -> None:
    async with openai([[Say("one")]]) as caller:
        await caller.post()
        assert await caller.refusal() == "the script has no reply for request 2"


@pytest.mark.parametrize("fake", [openai, anthropic])
async def test_only_the_right_key_is_taken(fake: Any) -> None:
    async with fake([[Say("Hi")]], key="other") as caller:
        assert (await caller.post()).status_code == 401
        caller.headers = {"anthropic-version": "1"}
        assert (await caller.post()).status_code == 401
        caller.headers = {"authorization": "Bearer other", "anthropic-version": "1"}
        assert (await caller.post()).status_code == 200


async def test_another_path_is_not_found() -> None:
    async with openai() as caller:
        assert (await caller.http.get(caller.server.url + "/models")).status_code == 404


ANSWER: dict[str, Any] = {"role": "assistant", "content": "Hi"}


@pytest.mark.parametrize("fake", [openai, anthropic])
async def test_a_request_that_is_refused_uses_up_no_reply(fake: Any) -> None:
    async with fake([[Say("Hi")]]) as caller:
        assert "robot" in await caller.refusal(messages=[USER, ANSWER, {**USER, "role": "robot"}])
        assert (await caller.post(messages=[USER, ANSWER, USER])).status_code == 200


async def test_anthropic_remembers_what_it_has_signed() -> None:
    async with anthropic([[Think("Hm", signature="seal")], [Say("Hi")]]) as caller:
        await caller.post()
        for signature, status in (("seal", 200), ("forged", 400)):
            thought = {"type": "thinking", "thinking": "Hm", "signature": signature}
            reply = await caller.post(messages=[USER, {"role": "assistant", "content": [thought]}, USER])
            assert reply.status_code == status


async def test_a_body_that_is_no_json_is_refused() -> None:
    async with openai() as caller:
        for body in (b"{", b"[]", b""):
            assert (await caller.http.post(caller.url, content=body, headers=caller.headers)).status_code == 400


def test_the_program_of_the_page_runs(tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parents[4] / "docs" / "fake-models.md").read_text()
    [program] = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "program.py").write_text(program)
    subprocess.run([sys.executable, "-W", "error", tmp_path / "program.py"], cwd=tmp_path, timeout=60, check=True)
