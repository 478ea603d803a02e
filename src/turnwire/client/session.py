"""A session for client programs: prompt, subscribe, answer, read.

All data comes from the session's log. No turn ends with this object: a turn continues without its client, and only
a cancel stops it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, TypeAlias, TypeVar

from turnwire.client.arguments import Content, to_key, to_raw, to_request_id, to_when_busy
from turnwire.client.attachment import Attachment, completed
from turnwire.client.permission import Answer, Option, PermissionRequest
from turnwire.client.port import NewPrompt
from turnwire.client.progress import TurnResult, Wakeup
from turnwire.client.turn import Turn
from turnwire.client.update import Update
from turnwire.ids import RequestId, SessionId
from turnwire.projections.view import View

Busy: TypeAlias = Literal["queue", "reject", "interrupt", "steer", "agent"]

_Any = TypeVar("_Any")
_Answer = TypeVar("_Answer", bound=Answer | Awaitable[Answer])


class Session:
    """One session. Get one from a `Client`."""

    def __init__(self, attachment: Attachment, wakeup: Wakeup) -> None:
        self._attachment = attachment
        self._wakeup = wakeup
        self.handler_errors = attachment.dispatch.errors
        """Number of handler calls of this session that raised, by the name of the exception."""

    @property
    def session_id(self) -> SessionId:
        return self._attachment.port.session_id

    def prompt(
        self,
        content: Content,
        *,
        when_busy: Busy | None = None,
        key: str | None = None,
        request_id: RequestId | None = None,
    ) -> Turn:
        """Submit a prompt and return its turn at once. A rejection is raised when the turn is awaited or iterated.

        Prompts are submitted in the order of these calls. While another turn runs they wait, unless `when_busy` or
        the daemon's operator chooses otherwise. `key` makes a repeated prompt the same prompt; `request_id` is an
        id of your choice, for `completed`. Raises `LocalProtocolError` for invalid content, and for a key or an id
        of a wrong type.
        """
        named = None if request_id is None else to_request_id(request_id)
        new_prompt = NewPrompt(to_raw(content), to_when_busy(when_busy), to_key(key), named)
        return Turn(self._attachment, self._attachment.submit(new_prompt))

    async def cancel(self) -> None:
        """Request the cancellation of the running turn. Prompts in the queue stay there."""
        await self._attachment.port.cancel(None)

    async def completed(self, request_id: RequestId) -> TurnResult:
        """Return the end of the newest turn prompted with this request id, waiting for it if necessary.

        The id is the one passed to `prompt`, with its type: `5` is not `"5"`. A prompt of this program comes first,
        even while it is still being submitted; another client's counts only if there is none. Turns that ended
        before this client attached do not count. Raises the errors of `await turn`, and `SessionClosed` if the
        session ends without such a turn.
        """
        attachment, wanted = self._attachment, to_request_id(request_id)
        attachment.dispatch.start()
        return await completed(wanted, lambda: [attachment], lambda: attachment.over, self._wakeup)

    def on_update(self, function: Callable[[Update], _Any]) -> Callable[[Update], _Any]:
        """Call `function(update)` for every update of the session, in order. Usable as a decorator."""
        self._attachment.listeners.add_update(function)
        self._attachment.dispatch.start()
        return function

    def on_permission(
        self, function: Callable[[PermissionRequest], _Answer]
    ) -> Callable[[PermissionRequest], _Answer]:
        """Call `function(request)` for each permission request; it returns an option or its id, "reject" or `None`.

        With `None` the next function is called, and after the last one the permission request stays open for
        `answer`.
        """
        self._attachment.listeners.add_permission(function)
        self._attachment.dispatch.start()
        return function

    async def answer(self, question: PermissionRequest, answer: str | Option | Mapping[str, Any]) -> bool:
        """Answer an open permission request. Returns False if it was answered before.

        Raises `InvalidOption` for an option that was not offered, `LocalProtocolError` for an invalid answer.
        """
        reply = question.reply(answer)
        return await self._attachment.port.answer(question.request_id, reply.answer, reply.option_id)

    async def view(self) -> View:
        """Return the session's current transcript, latest values, turns and open permission requests."""
        return await self._attachment.port.view()

    async def close(self) -> None:
        """Close the session: running and queued prompts are cancelled, and no prompt is accepted any more."""
        await self._attachment.port.close()

    def __repr__(self) -> str:
        return f"<Session {self.session_id}>"
