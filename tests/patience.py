"""How long tests wait for what should come: the only numbers for it.

A wait that ends well ends at once, so long ones cost nothing; short ones fail on a machine that stalls.
"""

from __future__ import annotations

WAIT_S = 60.0
"""Longer than anything takes on a busy machine, and shorter than a test may take."""
LONG_S = 300.0
"""For a test that moves hundreds of thousands of events, or starts a hundred programs."""
SOON_S = 8.0
"""For what is promised within a second, on a machine that may stall for some.

Shorter than everything that would end such a wait by accident: heartbeats, polls, grace times and deadlines.
"""
