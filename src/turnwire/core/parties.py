"""Who takes part in a session at one place of its log: the agent's version, and who prompted each open turn.

A fold over few kinds of events, small however long the log is: an ended turn is forgotten. Events do not repeat who
prompted their turn, so whoever shows them from the middle of a log begins with this.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, Self

from msgspec import Struct

from turnwire.core import events as ev
from turnwire.core.codec import STORED_UPDATE, decode, stored_prefix
from turnwire.core.state import SessionState
from turnwire.ids import ClientId, PromptId

_KINDS: Final = (ev.AgentStarted, ev.PromptAccepted, ev.TurnStarted, ev.TurnCompleted, ev.TurnFailed)
_PREFIXES: Final = tuple(stored_prefix(each).partition(b"@")[0].removesuffix(b'",') for each in _KINDS)
"""As the stored forms of these begin, in every shape that they have had."""


class Prompter(NamedTuple):
    """Who prompted a turn."""

    author: str | None = None
    client_id: ClientId | None = None


NOBODY: Final = Prompter()
"""Of a turn that the agent began."""


class Parties(Struct):
    """Who takes part."""

    agent_version: int | None = None
    """What the last agent speaks; none if that is not known here."""
    prompters: dict[PromptId, Prompter] = {}
    """By turn that has begun and not ended: with its acceptance, or by the agent."""

    @classmethod
    def of(cls, state: SessionState) -> Self:
        """As of the event that the state is folded to."""
        turns = (*state.queue, *state.joined) if state.turn is None else (state.turn, *state.queue, *state.joined)
        version = None if state.agent is None else state.agent.protocol_version
        return cls(version, {each.prompt_id: Prompter(each.author, each.client_id) for each in turns})

    def copy(self) -> Parties:
        return Parties(self.agent_version, dict(self.prompters))

    def take(self, event: ev.AnyEvent) -> None:
        """The next event of the log."""
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
        """The next stored events, of which nearly all are not looked at."""
        for body in bodies:
            if not body.startswith(STORED_UPDATE) and body.startswith(_PREFIXES):
                self.take(decode(body))
