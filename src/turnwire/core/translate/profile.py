"""What a client said of itself in `initialize`, the same for both versions.

Takes nothing but values. Never changes after the handshake: one connection speaks one version.
"""

from __future__ import annotations

from msgspec import Raw, Struct


class ClientProfile(Struct, frozen=True, kw_only=True):
    """What a client can take. `version` is the one that the connection speaks from here on."""

    version: int
    turn_complete: bool = False
    """It asked for the `turn_complete` update."""
    lifecycle: bool = False
    """It asked for the draft of the prompt lifecycle on v1."""
    ready: bool = False
    """It said that it sends `session/ready`."""
    elicitation_form: bool = False
    elicitation_url: bool = False
    fs_read: bool = False
    fs_write: bool = False
    terminal: bool = False
    boolean_options: bool = True
    terminal_login: bool = False
    """It can run the agent's program for its user to log in there."""
    withheld: frozenset[str] = frozenset()
    """Kinds of update that it did not ask for and must not be sent."""
    name: str | None = None
    raw: Raw = Raw(b"{}")
    """Its capabilities, as they came."""
