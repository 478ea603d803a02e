"""Permission requests of the agent to its users: all clients receive them, and the first answer resolves each once.

The winner may repeat its answer; another client's late answer is answered with the winner. A rule of the operator
may answer at once. Otherwise turnwire never decides for a user: an unanswered request stays open until its turn
ends.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Raw

from turnwire.errors import InvalidOption, LocalProtocolError, PermissionNotFound
from turnwire.ids import ChildId, ClientId, PromptId
from turnwire.session import events as ev
from turnwire.session.correlation import same_id
from turnwire.session.draft import Draft
from turnwire.session.effects import AnswerAgent
from turnwire.session.inputs import AgentAsks, AgentWithdraws, AnswerPermission, Verdict
from turnwire.session.state import PermissionRequest, Turn
from turnwire.session.turn import TurnState
from turnwire.wire.jsonrpc import INTERNAL_ERROR, ErrorObject
from turnwire.wire.methods import ELICITATION_CREATE, SESSION_REQUEST_PERMISSION

NOT_ANSWERED: dict[str, Raw] = {
    SESSION_REQUEST_PERMISSION: Raw(b'{"outcome":{"outcome":"cancelled"}}'),
    ELICITATION_CREATE: Raw(b'{"action":"cancel"}'),
}
"""The answers that the agent receives if no user answered: never an approval."""


KINDS: dict[str, str] = {SESSION_REQUEST_PERMISSION: "permission", ELICITATION_CREATE: "elicitation"}
"""The kinds of requests, as shown to observers."""

MAX_OPEN = 256
"""Limit on the open permission requests of a session: each resolution copies the others."""
TOO_MANY = ErrorObject(INTERNAL_ERROR, f"{MAX_OPEN} permission requests are open; wait until users have answered")

ACTIONS = ("accept", "decline", "cancel")
"""The answers that a user can choose for an elicitation."""


class PermissionAnswer(NamedTuple):
    """Answer to `AnswerPermission`."""

    won: bool
    """True if this answer, or an equal one of the same client, is the effective one."""
    answer: Raw
    """The effective answer."""
    client_id: ClientId | None
    """The client that sent it; `None` if the request was closed without a client."""


def ask(draft: Draft, input: AgentAsks) -> None:
    """Record a permission request. Beyond `MAX_OPEN` the agent gets an error."""
    if input.method not in NOT_ANSWERED:
        # It could not be closed without a user's answer, and neither could its turn.
        raise LocalProtocolError("users cannot be asked this; refuse the request", method=input.method)
    turn = draft.state.turn
    prompt_id = turn.prompt_id if turn is not None else None
    is_settled = input.verdict is not None or (turn is not None and turn.state is TurnState.CANCELLING)
    if not is_settled and len(draft.state.permissions) >= MAX_OPEN:
        draft.add_effect(AnswerAgent(input.agent_request_id, TOO_MANY))
        return
    asking = None if input.child is None else draft.state.children.get(input.child)
    draft.record(
        ev.PermissionRequested(
            at=input.at,
            request_id=input.request_id,
            agent_request_id=input.agent_request_id,
            method=input.method,
            params=input.params,
            options=input.options,
            prompt_id=prompt_id,
            child=None if asking is None else asking.child_id,
        )
    )
    if turn is not None and turn.state is TurnState.CANCELLING:
        resolve_all(draft, input.at, ev.PermissionEnd.CANCELLED, prompt_id=prompt_id)
    elif input.verdict is not None:
        _decide_by_rule(draft, input, input.verdict)
    elif turn is None:
        return
    elif (turn.state is TurnState.RUNNING and _blocks_by_request(draft)) or _is_unexplained(draft, turn):
        block(draft, input.at, turn)


def block(draft: Draft, at: int, turn: Turn) -> None:
    """Mark the turn as blocked on its open requests."""
    open_here = [each for each in draft.state.permissions if each.prompt_id == turn.prompt_id]
    waits_for = tuple(ev.Awaited(each.request_id, KINDS[each.method]) for each in open_here)
    draft.record(ev.TurnBlocked(at=at, prompt_id=turn.prompt_id, waits_for=waits_for or None))


def _is_unexplained(draft: Draft, turn: Turn) -> bool:
    """True if the agent reported that it is blocked before this first request, which has the reason."""
    open_here = [each for each in draft.state.permissions if each.prompt_id == turn.prompt_id]
    return turn.state is TurnState.REQUIRES_ACTION and len(open_here) == 1


def _decide_by_rule(draft: Draft, input: AgentAsks, verdict: Verdict) -> None:
    """Answer by the operator's rule; recorded like a user's answer, with the rule as its author."""
    by_rule = AnswerPermission(at=input.at, author=verdict.rule, request_id=input.request_id, answer=verdict.answer)
    answer(draft, by_rule)


def answer(draft: Draft, input: AnswerPermission) -> PermissionAnswer:
    """Answer a request for a client. Raises `PermissionNotFound`, `InvalidOption`."""
    request = next((each for each in draft.state.permissions if each.request_id == input.request_id), None)
    if request is None:
        return _late(draft, input)
    if input.option_id is not None and input.option_id not in request.options:
        raise InvalidOption(
            "the agent did not offer this option; choose one of the offered ones",
            request_id=input.request_id,
            options=", ".join(request.options),
        )
    draft.record(
        ev.PermissionResolved(
            at=input.at,
            request_id=request.request_id,
            end=ev.PermissionEnd.ANSWERED,
            answer=input.answer,
            author=input.author,
            client_id=input.client_id,
            prompt_id=request.prompt_id,
        )
    )
    draft.add_effect(AnswerAgent(request.agent_request_id, input.answer))
    _unblock(draft, input.at)
    return PermissionAnswer(True, input.answer, input.client_id)


def _late(draft: Draft, input: AnswerPermission) -> PermissionAnswer:
    known = next((each for each in draft.state.resolved if each.request_id == input.request_id), None)
    if known is None:
        raise PermissionNotFound(
            "no such permission request is open; it may have ended with its turn", request_id=input.request_id
        )
    if known.client_id == input.client_id and known.answer == input.answer:
        return PermissionAnswer(True, known.answer, known.client_id)
    draft.record(
        ev.PermissionAnsweredLate(
            at=input.at, request_id=input.request_id, author=input.author, client_id=input.client_id
        )
    )
    return PermissionAnswer(False, known.answer, known.client_id)


def withdraw(draft: Draft, input: AgentWithdraws) -> None:
    """Withdraw a request for the agent (`$/cancel_request`). It still gets an answer, as JSON-RPC requires."""
    for each in draft.state.permissions:
        if same_id(each.agent_request_id, input.agent_request_id):
            _resolve(draft, input.at, each, ev.PermissionEnd.WITHDRAWN)
    _unblock(draft, input.at)


def resolve_all(
    draft: Draft, at: int, end: ev.PermissionEnd, prompt_id: PromptId | None = None, *, of_children: bool = True
) -> None:
    """Close the open permission requests of a turn, or all of them, without a user's answer."""
    for each in draft.state.permissions:
        if (prompt_id is None or each.prompt_id == prompt_id) and (of_children or each.child is None):
            _resolve(draft, at, each, end)


def resolve_of_child(draft: Draft, at: int, end: ev.PermissionEnd, child_id: ChildId) -> None:
    """Close the requests of a child, without a user's answer."""
    for each in draft.state.permissions:
        if each.child == child_id:
            _resolve(draft, at, each, end)
    _unblock(draft, at)


def _resolve(draft: Draft, at: int, request: PermissionRequest, end: ev.PermissionEnd) -> None:
    no = NOT_ANSWERED[request.method]
    draft.record(
        ev.PermissionResolved(at=at, request_id=request.request_id, end=end, answer=no, prompt_id=request.prompt_id)
    )
    if draft.state.agent is not None:
        draft.add_effect(AnswerAgent(request.agent_request_id, no))


def _blocks_by_request(draft: Draft) -> bool:
    """True if requests block the turn. A v2 agent reports itself that its foreground is blocked."""
    agent = draft.state.agent
    return agent is None or agent.turn_end is not ev.TurnEnd.IDLE


def _unblock(draft: Draft, at: int) -> None:
    turn = draft.state.turn
    if turn is None or turn.state is not TurnState.REQUIRES_ACTION or not _blocks_by_request(draft):
        return
    if not any(each.prompt_id == turn.prompt_id for each in draft.state.permissions):
        draft.record(ev.TurnUnblocked(at=at, prompt_id=turn.prompt_id))
