"""Fake servers of language models: they speak the real APIs over real sockets and answer by a script.

Replies are made of typed steps. The servers send the streams, status codes and errors of OpenAI's, Anthropic's and
Gemini's APIs, and record the requests. `recipes` points known agents at one. They listen on loopback only.
"""

from turnwire_testing.models.anthropic import FakeAnthropic
from turnwire_testing.models.gemini import FakeGemini
from turnwire_testing.models.openai import FakeOpenAI
from turnwire_testing.models.responses import FakeResponses
from turnwire_testing.models.server import (
    CallTool,
    Cut,
    Exchange,
    Fail,
    FakeServer,
    Hang,
    Reply,
    Say,
    Script,
    Spend,
    Step,
    Stop,
    Think,
)

__all__ = [
    "CallTool",
    "Cut",
    "Exchange",
    "Fail",
    "FakeAnthropic",
    "FakeGemini",
    "FakeOpenAI",
    "FakeResponses",
    "FakeServer",
    "Hang",
    "Reply",
    "Say",
    "Script",
    "Spend",
    "Step",
    "Stop",
    "Think",
]
