"""Background work of a session as clients see it, and the route that stops one piece of it.

What is stopped is asked for at the agent; what became of it is told by the agent's next word about it.
"""

from __future__ import annotations

from msgspec import Struct

from turnwire.core.background import TERMINAL, TOOL_CALL, AllWork, Work
from turnwire.core.translate.views import can_cancel
from turnwire.core.view import View
from turnwire.errors import LinkBroken, LinkClosed, LocalProtocolError, NotFound, RemoteProtocolError
from turnwire.server.access.identity import Role
from turnwire.server.daemon.session_list import iso
from turnwire.server.endpoint import Call, Endpoint, Reply
from turnwire.server.routes.turns import ACTS
from turnwire.wire.jsonrpc import Failure, raw
from turnwire.wire.methods import TERMINAL_CANCEL, TOOL_CALL_CANCEL

_CANCELS = {TOOL_CALL: (TOOL_CALL_CANCEL, "toolCallId"), TERMINAL: (TERMINAL_CANCEL, "terminalId")}
_VERSION = 2
"""Of ACP, since which an agent can be asked to stop one thing."""


class BackgroundWork(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Something that the agent goes on with, whether a turn runs or not."""

    kind: str
    """`tool_call`, `terminal`, `subagent`, or the agent's own word."""
    id: str | None = None
    title: str | None = None
    cancellable: bool
    """It can be stopped by its own route. Closing the session stops all."""
    heard_at: str | None = None
    """Of work that the agent does not list itself: when it last said something about it."""


def shown(view: View, version: int, work: AllWork) -> list[BackgroundWork]:
    """Background work as a client reads it."""
    return [
        BackgroundWork(
            kind=each.kind,
            id=each.id,
            title=_title(view, each),
            cancellable=_is_cancellable(view, version, each),
            heard_at=None if each.heard_at is None else iso(each.heard_at),
        )
        for each in work
    ]


def _title(view: View, work: Work) -> str | None:
    if work.kind == TERMINAL:
        terminal = view.terminals.get(work.id or "")
        return None if terminal is None else terminal.command
    call = view.transcript.tool(work.id or "")
    return None if call is None else call.title


def _is_cancellable(view: View, version: int, work: Work) -> bool:
    if work.id is None or version != _VERSION or work.kind not in _CANCELS:
        return False
    return can_cancel(view, work.id, is_tool=work.kind == TOOL_CALL)


async def cancel(call: Call) -> Reply:
    daemon, session_id = call.daemon, call.session_id
    daemon.check_open()
    await daemon.clients.known(session_id, call.client_id, call.who)
    state = (await daemon.node.peek(session_id)).state
    named: str = call.request.path_params["work_id"]
    work = next((each for each in daemon.node.still_running(state) if each.id == named), None)
    if work is None:
        raise NotFound("nothing with this id runs in the background of this session; GET …/status lists what does")
    if not await daemon.node.look(session_id, lambda view: _is_cancellable(view, state.agent_version, work)):
        raise LocalProtocolError("the agent does not offer to stop this by itself; close the session to stop all")
    method, member = _CANCELS[work.kind]
    answer = await daemon.node.agents.call(session_id, method, {member: raw(named)})
    if isinstance(answer, Failure):
        raise RemoteProtocolError("the agent refused to stop it", jsonrpc=answer.error.code)
    return Reply()


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        method="POST",
        path="/session/{session_id}/background/{work_id}/cancel",
        act=cancel,
        summary="Stop one thing that the agent does in the background, if the agent offers that",
        role=Role.CONTROLLER,
        status=204,
        refuses=(*ACTS, LinkBroken, LinkClosed, LocalProtocolError, NotFound, RemoteProtocolError),
        tag="turns",
    ),
)
"""The route of background work."""
