"""Test doubles and tools for tests of agents and clients of ACP.

A scripted agent, a manual clock, faults, contract kits, fake model servers, record and replay, and a pytest plugin.
"""

from turnwire_testing.clock import ManualClock
from turnwire_testing.scripted.agent import ScriptedAgent, scripted_agent
from turnwire_testing.scripted.client import BareClient
from turnwire_testing.scripted.host import Gates
from turnwire_testing.scripted.options import AgentOptions, Profile

__all__ = ["AgentOptions", "BareClient", "Gates", "ManualClock", "Profile", "ScriptedAgent", "scripted_agent"]
