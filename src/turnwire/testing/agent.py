"""A scripted agent: speaks ACP v1 or v2, and does what the text of a prompt tells it.

In a test: `async with scripted_agent("v1") as link`. As a program: `python -m turnwire.testing.agent --help`.
The commands are in `turnwire.testing.script`; the parts are in `turnwire.testing.scripted`.
"""

from __future__ import annotations

import sys

from turnwire.testing.scripted.agent import ScriptedAgent, scripted_agent
from turnwire.testing.scripted.host import Gates
from turnwire.testing.scripted.options import PROFILES, AgentOptions, Profile
from turnwire.testing.scripted.program import main

__all__ = ["PROFILES", "AgentOptions", "Gates", "Profile", "ScriptedAgent", "main", "scripted_agent"]

if __name__ == "__main__":
    sys.exit(main())
