"""How long our own tests wait, beside what `turnwire.testing.patience` says for everybody's."""

from __future__ import annotations

LONG_S = 300.0
"""For a test that moves hundreds of thousands of events, or starts a hundred programs."""
SOON_S = 8.0
"""For what is promised within a second, on a machine that may stall for some.

Shorter than everything that would end such a wait by accident: heartbeats, polls, grace times and deadlines.
"""
