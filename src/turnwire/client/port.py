"""The port between the SDK and the daemon of its sessions.

The runtime in this process is one implementation (`client.embedded`); a daemon reached over HTTP is another. The
layers above cannot tell them apart.

Obligations of an implementation:

P1  `follow` yields every event after its position, once each, in order, for as long as it is read. Any number of
    followers may read at once, each at its own pace.
P2  `prompt` returns once the prompt is recorded. Its events come after `after_offset`.
P3  A call that is rejected raises a `TurnwireError` and has changed nothing.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import NamedTuple, Protocol

from msgspec import Raw

from turnwire.ids import Epoch, PermissionId, PromptId, RequestId, SessionId
from turnwire.projections.view import View
from turnwire.session.events import AnyEvent
from turnwire.session.inputs import WhenBusy
from turnwire.session.state import Setup


class NewPrompt(NamedTuple):
    """A prompt before it is accepted."""

    content: Raw
    when_busy: WhenBusy | None = None
    """`None`: the daemon's default."""
    key: str | None = None
    """Idempotency key: the same key with the same content is one prompt."""
    request_id: RequestId | None = None
    """The caller's id for it, stored with its JSON type."""


class Accepted(NamedTuple):
    """A recorded prompt."""

    prompt_id: PromptId
    after_offset: int
    """A reader that starts after this offset sees the whole turn."""
    repeated: bool = False
    """True if the same key was accepted before; this is that prompt."""


class EventPage(NamedTuple):
    """Events, and the offset of the last one."""

    offset: int
    events: list[AnyEvent]


class DaemonSession(Protocol):
    """One session as its daemon provides it."""

    session_id: SessionId
    epoch: Epoch
    start: int
    """The offset after which this client begins: 0 in a session it created, else the head at attachment."""
    has_other_clients: bool
    """True if another client may answer for this client."""

    async def prompt(self, new_prompt: NewPrompt) -> Accepted: ...

    async def cancel(self, prompt_id: PromptId | None) -> None: ...

    async def edit(self, prompt_id: PromptId, content: Raw | None, place: int | None) -> None: ...

    async def remove(self, prompt_id: PromptId) -> None: ...

    async def settle(self, prompt_id: PromptId) -> None: ...

    async def answer(self, request_id: PermissionId, answer: Raw, option_id: str | None) -> bool:
        """Answer a permission request of the agent. Returns False if another client answered before."""
        ...

    async def close(self) -> None: ...

    async def view(self) -> View: ...

    def follow(self, after: int) -> AsyncGenerator[EventPage]: ...

    async def forget(self, upto: int) -> None:
        """Release the events up to this offset: this client no longer needs them."""
        ...


class Daemon(Protocol):
    """A daemon and its sessions."""

    async def create(self, cwd: str, setup: Setup, agent: str | None = None) -> DaemonSession:
        """Create a session at the agent of that name. Raises `AgentError` if the agent is not available."""
        ...

    async def authenticate(self, method_id: str) -> None:
        """Log in to the agent. Raises `RemoteProtocolError` if the agent rejects the login."""
        ...

    async def find(self, session_id: SessionId) -> DaemonSession: ...

    async def sessions(self) -> list[SessionId]: ...
