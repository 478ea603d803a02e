"""Fake servers of language models: they speak the real APIs over real sockets and answer by a script.

Takes replies made of typed steps; gives the streams, the status codes and the refusals of OpenAI's, Anthropic's
and Gemini's APIs, and the requests it got. Never reaches a network: they listen on the loopback address only.
"""

from turnwire.testing.models.anthropic import FakeAnthropic
from turnwire.testing.models.gemini import FakeGemini
from turnwire.testing.models.openai import FakeOpenAI
from turnwire.testing.models.responses import FakeResponses
from turnwire.testing.models.server import Exchange, FakeServer
from turnwire.testing.models.steps import CallTool, Cut, Fail, Hang, Reply, Say, Script, Spend, Step, Stop, Think

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
