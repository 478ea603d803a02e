"""A session as a client holds it: prompt, listen, answer, look.

Everything it tells comes from the session's log. No turn ends with it: a turn goes on without its client, and
only a cancel stops it.
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
from turnwire.core.view import View
from turnwire.ids import RequestId, SessionId

Busy: TypeAlias = Literal["queue", "reject", "interrupt", "steer", "agent"]

_Any = TypeVar("_Any")
_Answer = TypeVar("_Answer", bound=Answer | Awaitable[Answer])


class Session:
    """One session. Get one from a `Client`."""

    def __init__(self, attachment: Attachment, wakeup: Wakeup) -> None:
        self._attachment = attachment
        self._wakeup = wakeup
        self.handler_errors = attachment.dispatch.errors
        """How many handler calls of this session have raised, by the name of the exception."""

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
        """A turn, at once. What refuses the prompt is raised by whoever awaits the turn or loops over it.

        Prompts are submitted in the order of these calls. While another turn runs they wait, unless `when_busy` or
        the daemon's operator says otherwise. `key` makes a repeated prompt the same prompt;
        `request_id` is a name of your own, for `completed`. Raises `LocalProtocolError` for content that is none,
        and for a key or an id of another type.
        """
        named = None if request_id is None else to_request_id(request_id)
        new_prompt = NewPrompt(to_raw(content), to_when_busy(when_busy), to_key(key), named)
        return Turn(self._attachment, self._attachment.submit(new_prompt))

    async def cancel(self) -> None:
        """Ask for whichever turn runs to be stopped. Prompts in the queue stay there."""
        await self._attachment.port.cancel(None)

    async def completed(self, request_id: RequestId) -> TurnResult:
        """The end of the turn with this request id, as `await turn` gives it; waits for one that is yet to come.

        The id is the one given to `prompt`, here or by another client of the session; if both gave the same, the
        one given here. What was in the log before this client came to the session does not count. Raises
        `SessionClosed` if the session ends without it.
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
        """Call `function(request)` for each permission request: it gives an option or its id, "reject" or `None`.

        With `None` the next function is asked, and after the last the permission request stays open for `answer`.
        """
        self._attachment.listeners.add_permission(function)
        self._attachment.dispatch.start()
        return function

    async def answer(self, question: PermissionRequest, answer: str | Option | Mapping[str, Any]) -> bool:
        """Answer a permission request that was left open. False if it had been answered before.

        Raises `InvalidOption` for an option that was not offered, `LocalProtocolError` for what is no answer.
        """
        reply = question.reply(answer)
        return await self._attachment.port.answer(question.request_id, reply.answer, reply.option_id)

    async def view(self) -> View:
        """The session's transcript, latest values, turns and open permission requests, as they are now."""
        return await self._attachment.port.view()

    async def close(self) -> None:
        """End the session: what runs or waits is cancelled, and nothing can be prompted any more."""
        await self._attachment.port.close()

    def __repr__(self) -> str:
        return f"<Session {self.session_id}>"
