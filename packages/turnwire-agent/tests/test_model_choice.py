"""From `provider:name` and the environment to a model, without the library until it is asked."""

from __future__ import annotations

import subprocess
import sys

import pytest
from starlette.types import Receive, Scope, Send
from tests.support.played import serving

from agent_kit.model_kit import HELLO, KEYS, LIMIT_S, READ, answer, asked_at
from turnwire.cli.agent_source import PROVIDERS
from turnwire.errors import ConfigError
from turnwire.server.settings.sources import BUILT_IN
from turnwire_agent.library_model import choose_model
from turnwire_agent.model import OLLAMA_URL, THINKING, VARIABLES, Text, ToolResult, ToolUse, Usage, read_choice

pytestmark = pytest.mark.timeout(2 * LIMIT_S)


@pytest.mark.parametrize(
    ("text", "environment", "key", "url"),
    [
        ("openai:a", {"OPENAI_API_KEY": "k"}, "k", None),
        ("openai:a", {"OPENAI_BASE_URL": "http://host/v1"}, None, "http://host/v1"),
        ("openai:vendor/a:free", {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": ""}, "k", None),
        ("ollama:a:8b", {}, None, OLLAMA_URL),
        ("ollama:a", {"OLLAMA_BASE_URL": "http://far:1/v1"}, None, "http://far:1/v1"),
        ("anthropic:a", {"ANTHROPIC_API_KEY": "k"}, "k", None),
        ("google:a", {"GOOGLE_API_KEY": "k", "GEMINI_API_KEY": "other"}, "k", None),
        ("google:a", {"GEMINI_API_KEY": "k"}, "k", None),
    ],
)
def test_keys_and_addresses_come_from_the_environment(
    text: str, environment: dict[str, str], key: str | None, url: str | None
) -> None:
    choice = read_choice(text, environment={**environment, "PATH": "/bin"})
    assert (choice.name, choice.key, choice.url) == (text, key, url)
    assert set(environment) <= set(VARIABLES)


def test_the_daemon_lets_every_variable_of_a_model_through_to_its_own_agent() -> None:
    assert set(VARIABLES) == {*PROVIDERS, THINKING}
    assert THINKING in BUILT_IN


def test_an_address_that_is_given_is_stronger_than_that_of_the_environment() -> None:
    choice = read_choice("openai:a", url="http://here/v1", environment={"OPENAI_BASE_URL": "http://there/v1"})
    assert choice.url == "http://here/v1"


def test_a_choice_never_shows_its_key() -> None:
    choice = read_choice("openai:a", environment={"OPENAI_API_KEY": "hidden"})
    assert "hidden" not in f"{choice} {choice!r} {[choice]}"


@pytest.mark.parametrize(
    ("text", "environment", "words"),
    [
        ("openai:a", {"PATH": "x"}, "set OPENAI_API_KEY"),
        ("openai:a", {"OPENAI_API_KEY": ""}, "set OPENAI_API_KEY"),
        ("anthropic:a", {"PATH": "x"}, "set ANTHROPIC_API_KEY"),
        ("google:a", {"PATH": "x"}, "set GOOGLE_API_KEY or GEMINI_API_KEY"),
        ("a", KEYS, "write one of openai:NAME, ollama:NAME, anthropic:NAME, google:NAME"),
        ("openai:", KEYS, "names no model"),
        ("other:a", KEYS, "names no model"),
        ("", KEYS, "names no model"),
        ("openai:a", {**KEYS, "OPENAI_BASE_URL": "host/v1"}, "http://HOST:PORT/v1"),
        ("openai:a", {**KEYS, "OPENAI_BASE_URL": "http://host:x/v1"}, "http://HOST:PORT/v1"),
        ("openai:a", {**KEYS, "TURNWIRE_AGENT_THINKING": "much"}, "one of off, on, minimal, low, medium, high"),
    ],
)
def test_what_cannot_work_is_refused_with_what_to_do(text: str, environment: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        choose_model(text, environment=environment)
    assert words in str(refused.value)


def run(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.stderr == ""
    return done.stdout.strip()


def test_choosing_a_model_imports_no_library() -> None:
    program = """
import sys
from turnwire_agent.library_model import choose_model
model = choose_model("anthropic:a", environment={"ANTHROPIC_API_KEY": "k"})
print(model.name, model.takes_images, model.context_size)
print([name for name in ("pydantic_ai", "pydantic", "openai", "anthropic", "google.genai") if name in sys.modules])
"""
    assert run(program).splitlines() == ["anthropic:a True None", "[]"]


# -- Google, whose API has no fake of its own ------------------------------------------------------------------

CALL = b"""data: {"candidates": [{"content": {"role": "model", "parts": [{"text": "I look."}, {"functionCall":
 {"name": "read", "args": {"path": "a"}}, "thoughtSignature": "c2VhbA=="}]}, "index": 0}]}

data: {"candidates": [{"content": {"role": "model", "parts": [{"text": ""}]}, "finishReason": "STOP", "index": 0}],
 "usageMetadata": {"promptTokenCount": 100, "candidatesTokenCount": 13, "thoughtsTokenCount": 7,
 "cachedContentTokenCount": 30, "totalTokenCount": 120}}

""".replace(b"\n ", b" ")
TEXT = b"""data: {"candidates": [{"content": {"role": "model", "parts": [{"text": "Done"}]},
 "finishReason": "STOP"}]}

""".replace(b"\n ", b" ")


@pytest.mark.anyio
async def test_google_is_asked_with_tools_and_gets_its_signatures_back() -> None:
    bodies: list[bytes] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        message = await receive()
        body = message["body"]
        while message.get("more_body"):
            message = await receive()
            body += message["body"]
        bodies.append(body)
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": CALL if len(bodies) == 1 else TEXT})

    async with serving(app) as url, asked_at(url, "google:a-model") as model:
        got = await answer(model, tools=[READ])
        [use] = got.tool_uses
        last = await answer(model, [HELLO, got.message, ToolResult(use.id, "read", "text of a")])
    assert got.pieces[0] == Text("I look.")
    assert use == ToolUse(use.id, "read", {"path": "a"}, '{"path":"a"}')
    assert got.finished.reason == "tools"
    assert got.finished.usage == Usage(100, 20, 30, 7)
    assert last.text == "Done"
    assert b"c2VhbA==" in bodies[1]
    assert b"text of a" in bodies[1]
