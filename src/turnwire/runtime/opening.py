"""How the opening of a new session at its agent went.

Takes a session that was just created; gives nothing once its agent has it, or the reason why no agent does, as the
log tells it. Never decides how long to wait: whoever asks puts a bound around it.
"""

from __future__ import annotations

from contextlib import aclosing

from msgspec import UNSET, Raw, Struct, json

from turnwire.core.codec import decode_all
from turnwire.core.events import AgentExited, AgentStarted
from turnwire.errors import AgentError, AgentLaunchFailed, AgentUnavailable, AuthRequired
from turnwire.ids import SessionId
from turnwire.runtime.follow import start_of
from turnwire.runtime.last_words import end_in_words, one_line
from turnwire.runtime.node import Node


async def opening(node: Node, session_id: SessionId) -> AgentError | None:
    """Wait until the agent has the session, or cannot have it; then why. Raises `SessionNotFound`."""
    start = start_of((await node.head(session_id)).epoch)
    async with aclosing(node.follow(session_id, start)) as pages:
        async for page in pages:
            for event in decode_all(page.frames):
                if isinstance(event, AgentStarted):
                    return None
                if isinstance(event, AgentExited):
                    return _failure(event)
    return None


class _Offered(Struct, rename="camel"):
    auth_methods: Raw = Raw(b"[]")


class _Refusal(Struct):
    data: _Offered


class _Said(Struct):
    message: str = ""


def _failure(event: AgentExited) -> AgentError:
    message = _message(event)
    if event.reason == AuthRequired.code and event.agent_error is not UNSET:
        return AuthRequired(message, methods=bytes(json.decode(event.agent_error, type=_Refusal).data.auth_methods))
    if event.reason == AgentUnavailable.code:
        return AgentUnavailable(message, **_end(event))
    refusal = None if event.agent_error is UNSET else bytes(event.agent_error)
    return AgentLaunchFailed(message, definite=False, agent_error=refusal, reason=event.reason, **_end(event))


def _end(event: AgentExited) -> dict[str, str | int | None]:
    """What whoever waits is told beside the message: the same as the end of a turn tells."""
    return {"exit_code": event.exit_code, "signal": event.signal, "stderr_tail": event.stderr_tail}


def _message(event: AgentExited) -> str:
    if event.reason == "agent_exited":
        # It answered `initialize` and died over the session; the event only says that it is gone.
        words = end_in_words(event.exit_code, event.signal, event.stderr_tail)
    elif event.reason == AgentLaunchFailed.code and event.agent_error is not UNSET:
        words = f"{event.message}: {one_line(json.decode(event.agent_error, type=_Said).message)}"
    else:
        words = None
    return words or event.message or "no agent could be started for the session"
