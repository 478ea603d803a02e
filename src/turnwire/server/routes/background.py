"""Background work of a session in the form clients see, and the route that stops one item of it.

The daemon asks the agent to stop the work. The agent's next update about it reports the outcome.
"""

from __future__ import annotations

from msgspec import Struct

from turnwire.errors import LinkBroken, LinkClosed, LocalProtocolError, NotFound, RemoteProtocolError
from turnwire.projections.translate.views import can_cancel
from turnwire.projections.view import View
from turnwire.server.access.tokens import Role
from turnwire.server.daemon.session_list import iso
from turnwire.server.endpoint import Call, Endpoint, Reply
from turnwire.server.routes.turns import ACTS
from turnwire.session.background import TERMINAL, TOOL_CALL, AllWork, Work
from turnwire.wire.jsonrpc import Failure, raw
from turnwire.wire.methods import TERMINAL_CANCEL, TOOL_CALL_CANCEL

_CANCELS = {TOOL_CALL: (TOOL_CALL_CANCEL, "toolCallId"), TERMINAL: (TERMINAL_CANCEL, "terminalId")}
_VERSION = 2
"""First ACP version in which an agent can be asked to stop a single item."""


class BackgroundWork(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Work that the agent continues, whether or not a turn runs."""

    kind: str
    """`tool_call`, `terminal`, `subagent`, or a kind that the agent defines."""
    id: str | None = None
    title: str | None = None
    cancellable: bool
    """True if its route can stop it. Closing the session stops all background work."""
    heard_at: str | None = None
    """Time of the agent's last update about work that the agent does not list itself."""


def shown(view: View, version: int, work: AllWork) -> list[BackgroundWork]:
    """Return background work in the form clients read."""
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
