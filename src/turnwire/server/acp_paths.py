"""Addresses of the ACP endpoints."""

from __future__ import annotations

from typing import Final

PATH: Final = "/acp"
AGENT: Final = "agent"
AGENT_PATH: Final = PATH + "/{agent}"
"""The endpoint of one agent, for clients that can be configured with an address only."""
