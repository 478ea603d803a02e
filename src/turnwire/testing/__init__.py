"""Test doubles that are products: a scripted agent, a manual clock, faults, contract kits, a pytest plugin.

They behave the same in every run. Nothing outside tests imports it.
"""

from turnwire.testing.clock import ManualClock
from turnwire.testing.scripted.agent import ScriptedAgent, scripted_agent
from turnwire.testing.scripted.client import BareClient
from turnwire.testing.scripted.host import Gates
from turnwire.testing.scripted.options import AgentOptions, Profile

__all__ = ["AgentOptions", "BareClient", "Gates", "ManualClock", "Profile", "ScriptedAgent", "scripted_agent"]
