"""Timeouts of our own tests, in addition to those of `turnwire_testing.patience`."""

from __future__ import annotations

LONG_S = 300.0
"""For a test that moves hundreds of thousands of events, or starts a hundred programs."""
SOON_S = 8.0
"""Timeout for events that are promised within a second, on a machine that may stall for some.

Shorter than everything that would end such a wait by accident: heartbeats, polls, grace times and deadlines.
"""
