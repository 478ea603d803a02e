"""Why a turn has not ended: what is known of it, laid out for a person to decide.

Silence is one piece of evidence and only that: `suspected_complete` is a suspicion to look at, and never ends a
turn. What ends it is the agent, a cancel, or a person who settles it.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from turnwire.core.background import AllWork, Work
from turnwire.core.events import TurnEnd
from turnwire.core.state import Agent, SessionState, Turn
from turnwire.core.turn import TurnState
from turnwire.ids import PermissionId, PromptId
from turnwire.runtime.agent_connection import AgentConnection
from turnwire.runtime.agent_exit import one_line
from turnwire.runtime.last_frames import LastFrames
from turnwire.wire.schema.update import FINAL_TOOL_STATUS


class AgentEvidence(Struct, frozen=True, rename="camel", omit_defaults=True):
    """The agent's side of it."""

    connected: bool
    opened: str | None = None
    """How it opened the session: `new`, `load`, `resume`, `fork`, or `lost` if its memory is gone."""
    refused: list[str] = []
    """The ways to bring the session back that it offers and did not go, each with its words for why."""
    pid: int | None = None
    open_requests: int = 0
    """Requests of ours that it has not answered."""
    breaches: dict[str, int] = {}
    """Lines that were no frames, and answers to nothing, by reason."""
    strays: dict[str, int] = {}
    """Frames that belong to no session, by method."""
    last_received: list[str] = []
    """The beginnings of the newest frames about this session; what is secret in them is hidden."""
    last_sent: list[str] = []
    broken_lines: list[str] = []
    """The beginnings of lines that were no frames. For owners only, if the agent serves others too."""
    stderr_tail: str | None = None
    """The last words of the agent before this one. For owners only, if it served others too."""


class Explanation(Struct, frozen=True, rename="camel", omit_defaults=True):
    """Where a session stands."""

    state: str
    suspected_complete: bool = False
    reasons: list[str] = []
    """What speaks for the suspicion, or what the turn waits for; in words."""
    prompt_id: PromptId | None = None
    quiet_s: float | None = None
    """How long nothing has happened in the session."""
    waiting_for: list[PermissionId] = []
    tools_in_flight: list[str] = []
    queued: list[PromptId] = []
    queue_held: str | None = None
    """Why nothing starts from the queue."""
    background: list[Work] = []
    """What the agent goes on with, whether a turn runs or not."""
    agent: AgentEvidence = AgentEvidence(connected=False)


class Seen(Struct, frozen=True):
    """What the runtime saw of the running turn that is not in the log."""

    response_seen: bool = False
    """The agent answered `session/prompt`, but its end is another signal."""
    requests: list[str] = []
    """Files and terminals that the agent asked for and waits for, by method."""
    frames: LastFrames = LastFrames()
    last_words: str | None = None
    """What the agent before this one printed last, if whoever asks may read it."""
    background: AllWork = ()
    """What the agent does in the background and counts as running."""
    waits_for: str | None = None
    """What an agent that was started is waited for, if it takes long."""
    reads_lines: bool = False
    """Whether whoever asks may read what the agent prints that is about no session."""


def explain(
    state: SessionState,
    connection: AgentConnection | None,
    seen: Seen,
    quiet_s: float,
    suspect_after_s: float,
) -> Explanation:
    """Lay out what is known."""
    turn = state.turn
    around = Explanation(
        "idle",
        queued=[each.prompt_id for each in state.queue],
        queue_held=state.held,
        background=list(seen.background),
        agent=_agent(state.agent, connection, seen),
    )
    if turn is None:
        return around
    waiting = [each.request_id for each in state.permissions if each.prompt_id == turn.prompt_id]
    tools = [each for each, status in turn.tools.items() if status not in FINAL_TOOL_STATUS]
    against = _what_it_waits_for(turn, waiting, tools, seen, around.agent)
    reasons = against or _what_speaks_for_it(state, seen, quiet_s, suspect_after_s)
    return replace(
        around,
        state=turn.state.value,
        suspected_complete=bool(reasons) and not against,
        reasons=reasons,
        prompt_id=turn.prompt_id,
        quiet_s=round(quiet_s, 3),
        waiting_for=waiting,
        tools_in_flight=tools,
    )


def _agent(agent: Agent | None, connection: AgentConnection | None, seen: Seen) -> AgentEvidence:
    if connection is None:
        return AgentEvidence(connected=False, stderr_tail=seen.last_words)
    peer = connection.peer
    return AgentEvidence(
        connected=connection.is_alive,
        opened=None if agent is None else agent.how,
        refused=[] if agent is None else [one_line(each) for each in agent.refused],
        pid=connection.agent.pid or None,
        open_requests=peer.open_requests,
        breaches=dict(peer.breaches),
        strays=dict(connection.strays),
        last_received=seen.frames.received,
        last_sent=seen.frames.sent,
        broken_lines=[each.head.decode(errors="replace") for each in peer.last_breaches]
        if seen.reads_lines
        else [],
        stderr_tail=seen.last_words,
    )


def _what_it_waits_for(
    turn: Turn, waiting: list[PermissionId], tools: list[str], seen: Seen, agent: AgentEvidence
) -> list[str]:
    found: list[str] = []
    if waiting:
        found.append("a permission request waits for an answer")
    if tools:
        found.append("a tool call is not finished")
    found += [f"the agent waits for {each}" for each in seen.requests]
    if turn.state is TurnState.CANCELLING:
        found.append("a cancel was asked for and is not confirmed")
    if not agent.connected:
        found.append(seen.waits_for or "the agent is being started")
    return found


def _what_speaks_for_it(state: SessionState, seen: Seen, quiet_s: float, suspect_after_s: float) -> list[str]:
    found: list[str] = []
    if seen.response_seen and state.agent is not None and state.agent.turn_end is TurnEnd.MARKER:
        found.append("the agent answered the prompt and did not send the turn_complete that it offers")
    if quiet_s >= suspect_after_s:
        # Before that an idle agent has only not begun yet.
        if state.agent is not None and state.agent.turn_end is TurnEnd.IDLE and not state.agent.busy:
            found.append("the agent reports that it is idle")
        found.append(f"nothing has happened for {quiet_s:.0f} s, and no tool call or permission request is open")
    return found
