"""The fake servers of language models, for tests: `turnwire.fakes` has them."""

from turnwire.fakes.anthropic import FakeAnthropic
from turnwire.fakes.gemini import FakeGemini
from turnwire.fakes.openai import FakeOpenAI
from turnwire.fakes.responses import FakeResponses
from turnwire.fakes.server import (
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
