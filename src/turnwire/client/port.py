"""The port between the SDK and the place where its sessions live.

The runtime in this process is one implementation (`client.embedded`); a daemon reached over HTTP is another.
Nothing above knows which.

Obligations of an implementation:

P1  `follow` gives every event after its position, once each, in order, for as long as it is read. Any number of
    followers may read at once, each at its own pace.
P2  `prompt` returns once the prompt is recorded. Its events come after `after_offset`.
P3  A call that is refused raises a `TurnwireError` and has changed nothing.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import NamedTuple, Protocol

from msgspec import Raw

from turnwire.core.events import AnyEvent
from turnwire.core.inputs import WhenBusy
from turnwire.core.view import View
from turnwire.ids import Epoch, PermissionId, PromptId, RequestId, SessionId


class NewPrompt(NamedTuple):
    """A prompt before it is accepted."""

    content: Raw
    when_busy: WhenBusy | None = None
    """None: as the daemon does it with prompts that do not say."""
    key: str | None = None
    """Idempotency key: the same key with the same content is one prompt."""
    request_id: RequestId | None = None
    """The caller's own name for it, kept with its JSON type."""


class Accepted(NamedTuple):
    """A prompt that is recorded."""

    prompt_id: PromptId
    after_offset: int
    """A reader that starts after this offset sees all of the turn."""
    repeated: bool = False
    """The same key was accepted before; this is that prompt."""


class EventPage(NamedTuple):
    """Some events, and the offset of the last one."""

    offset: int
    events: list[AnyEvent]


class DaemonSession(Protocol):
    """One session as its daemon offers it."""

    session_id: SessionId
    epoch: Epoch
    start: int
    """The offset after which this client begins: 0 in a session it created, the head of one it found."""
    has_other_clients: bool
    """Whether somebody else may answer for this client."""

    async def prompt(self, new_prompt: NewPrompt) -> Accepted: ...

    async def cancel(self, prompt_id: PromptId | None) -> None: ...

    async def edit(self, prompt_id: PromptId, content: Raw | None, place: int | None) -> None: ...

    async def remove(self, prompt_id: PromptId) -> None: ...

    async def settle(self, prompt_id: PromptId) -> None: ...

    async def answer(self, request_id: PermissionId, answer: Raw, option_id: str | None) -> bool:
        """Answer a permission request of the agent. False if somebody else had answered before."""
        ...

    async def close(self) -> None: ...

    async def view(self) -> View: ...

    def follow(self, after: int) -> AsyncGenerator[EventPage]: ...

    async def forget(self, upto: int) -> None:
        """This client needs no event up to this offset any more."""
        ...


class Daemon(Protocol):
    """Where sessions live."""

    async def create(self, cwd: str, mcp_servers: Raw, agent: str | None = None) -> DaemonSession:
        """A session that the agent of that name has opened. Raises `AgentError` if none can be had."""
        ...

    async def authenticate(self, method_id: str) -> None:
        """Log in at the agent. Raises `RemoteProtocolError` if it refuses."""
        ...

    async def find(self, session_id: SessionId) -> DaemonSession: ...

    async def sessions(self) -> list[SessionId]: ...
