"""The public names, listed a second time so that none is added, removed or moved by accident.

An added name is a promise; a removed one is a line in CHANGELOG.md with its reason.
"""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest

PUBLIC = {
    "turnwire": "__version__ connect",
    "turnwire.agent": """
        Agent AgentFailure AgentOptions AuthMethod Choice Command Entry FolderStore Kept MemoryStore Mode NotOffered
        Option Page PermissionOption Ran Readiness RequestRefused Sent Session SessionStore ToolCall Turn Value
    """,
    "turnwire.client": """
        Accepted Client DaemonClient Envelope FileDiff Form OpenedSession Option PermissionRequest PromptResult
        Question Session SessionStatus Steered ToolCall Turn TurnCompleteUpdate TurnResult TurnStatus Update connect
    """,
    "turnwire.log": """
        Durability EventLog MemoryEventLog Position SessionHead Snapshot SqliteEventLog Stored
    """,
    "turnwire_agent": "adapt",
    "turnwire_testing": "AgentOptions BareClient Gates ManualClock Profile ScriptedAgent scripted_agent",
    "turnwire_testing.models": """
        CallTool Cut Exchange Fail FakeAnthropic FakeGemini FakeOpenAI FakeResponses FakeServer Hang Reply Say
        Script Spend Step Stop Think
    """,
}


@pytest.fixture(params=PUBLIC)
def module(request: pytest.FixtureRequest) -> ModuleType:
    return importlib.import_module(request.param)


def test_the_public_names_are_those_that_users_were_promised(module: ModuleType) -> None:
    assert sorted(module.__all__) == sorted(PUBLIC[module.__name__].split())


def test_every_public_name_is_there(module: ModuleType) -> None:
    assert [name for name in module.__all__ if not hasattr(module, name)] == []
