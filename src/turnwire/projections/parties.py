"""The parties of a session at one offset of its log: the agent's version, and the prompter of each open turn.

A fold over few kinds of events, small for any log: an ended turn is removed. Events do not repeat the prompter of
their turn, so a reader that begins in the middle of a log begins with these.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, Self

from msgspec import Struct

from turnwire.ids import ClientId, PromptId
from turnwire.session import events as ev
from turnwire.session.codec import STORED_UPDATE, decode, stored_prefix
from turnwire.session.state import SessionState

_KINDS: Final = (ev.AgentStarted, ev.PromptAccepted, ev.TurnStarted, ev.TurnCompleted, ev.TurnFailed)
_PREFIXES: Final = tuple(stored_prefix(each).partition(b"@")[0].removesuffix(b'",') for each in _KINDS)
"""Prefixes of the stored forms of these events, in all versions of their format."""


class Prompter(NamedTuple):
    """The author and client that prompted a turn."""

    author: str | None = None
    client_id: ClientId | None = None


NOBODY: Final = Prompter()
"""The prompter of a turn that the agent began."""


class Parties(Struct):
    """The parties at one offset."""

    agent_version: int | None = None
    """The ACP version of the last agent; `None` if unknown."""
    prompters: dict[PromptId, Prompter] = {}
    """By unended turn, from its acceptance or its start by the agent."""

    @classmethod
    def of(cls, state: SessionState) -> Self:
        """Return the parties at the event that the state is folded to."""
        turns = (*state.queue, *state.joined) if state.turn is None else (state.turn, *state.queue, *state.joined)
        version = None if state.agent is None else state.agent.protocol_version
        return cls(version, {each.prompt_id: Prompter(each.author, each.client_id) for each in turns})

    def copy(self) -> Parties:
        return Parties(self.agent_version, dict(self.prompters))

    def take(self, event: ev.AnyEvent) -> None:
        """Apply the next event of the log."""
        match event:
            case ev.PromptAccepted():
                self.prompters[event.prompt_id] = Prompter(event.author, event.client_id)
            case ev.TurnStarted(origin=ev.Origin.AGENT):
                self.prompters[event.prompt_id] = NOBODY
            case ev.TurnCompleted() | ev.TurnFailed():
                self.prompters.pop(event.prompt_id, None)
            case ev.AgentStarted():
                self.agent_version = event.protocol_version
            case _:
                pass

    def pass_over(self, bodies: Iterable[bytes]) -> None:
        """Apply the next stored events. Nearly all of them are skipped without decoding."""
        for body in bodies:
            if not body.startswith(STORED_UPDATE) and body.startswith(_PREFIXES):
                self.take(decode(body))
