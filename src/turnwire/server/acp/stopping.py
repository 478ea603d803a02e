"""Stopping one tool call or one terminal: `tool_call/cancel` and `terminal/cancel` of v2.

Takes the request of a client; hands it to the agent if that offers it for this very item now. What became of the
item is told by the agent's next update of it. Never touches the turn.
"""

from __future__ import annotations

from msgspec import UNSET, Raw, Struct, UnsetType

from turnwire.core.translate.members import as_object, is_offered
from turnwire.core.view import View
from turnwire.core.view.transcript import ToolCall
from turnwire.ids import SessionId
from turnwire.server.acp.failures import invalid, read_params
from turnwire.server.acp.front import Front
from turnwire.wire.jsonrpc import Failure, Request, encode, raw

STOP_TOOL = "tool_call/cancel"


class _Stopping(Struct, rename="camel"):
    session_id: SessionId
    tool_call_id: str | None = None
    terminal_id: str | None = None


async def stop(front: Front, request: Request) -> Raw | None:
    """`tool_call/cancel` and `terminal/cancel`."""
    wanted = read_params(request.params, _Stopping)
    seat = front.attached(wanted.session_id)
    is_tool = request.method == STOP_TOOL
    named = wanted.tool_call_id if is_tool else wanted.terminal_id
    node = front.daemon.node
    agent = (await node.session(wanted.session_id)).state.agent
    is_v2 = agent is not None and agent.protocol_version == 2
    if named is None or not is_v2 or not _can_stop(await node.view(wanted.session_id), named, is_tool=is_tool):
        raise invalid("the agent does not offer to cancel this now; `session/cancel` ends the whole turn")
    params = {("toolCallId" if is_tool else "terminalId"): raw(named)}
    answer = await node.agents.call(wanted.session_id, request.method, params)
    if isinstance(answer, Failure):
        front.put(encode(Failure(request.id, answer.error)), seat)
        return None
    return answer.result


def _can_stop(view: View, named: str, *, is_tool: bool) -> bool:
    """Whether the agent says of the item that has this id that it can be cancelled."""
    offered: Raw | UnsetType = UNSET
    if is_tool:
        calls = (each for each in reversed(view.items) if isinstance(each, ToolCall))
        offered = next((each.capabilities for each in calls if each.tool_call_id == named), UNSET)
    elif named in view.terminals:
        offered = view.terminals[named].capabilities
    return offered is not UNSET and is_offered(as_object(offered), "cancel")
