"""The reasons why a turn has not ended, collected for a person to decide.

Silence is only one piece of evidence: `suspected_complete` is a suspicion and never ends a turn. A turn is ended by
the agent, by a cancel, or by a person who settles it.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from turnwire.hosting.agent_connection import AgentConnection
from turnwire.hosting.agent_exit import one_line
from turnwire.hosting.last_frames import LastFrames
from turnwire.ids import PermissionId, PromptId
from turnwire.session.background import AllWork, Work
from turnwire.session.events import TurnEnd
from turnwire.session.state import Agent, SessionState, Turn
from turnwire.session.turn import TurnState
from turnwire.wire.schema.update import FINAL_TOOL_STATUS


class AgentEvidence(Struct, frozen=True, rename="camel", omit_defaults=True):
    """Evidence about the agent."""

    connected: bool
    opened: str | None = None
    """The way the agent opened the session: `new`, `load`, `resume`, `fork`, or `lost` if its memory is gone."""
    refused: list[str] = []
    """The methods of restoring the session that the agent offers but that failed, each with the reason."""
    pid: int | None = None
    open_requests: int = 0
    """Requests to the agent that it has not answered."""
    breaches: dict[str, int] = {}
    """Number of lines that were no frames, and of answers without a request, by reason."""
    strays: dict[str, int] = {}
    """Number of frames that belong to no session, by method."""
    last_received: list[str] = []
    """The beginnings of the newest frames about this session, with secrets redacted."""
    last_sent: list[str] = []
    broken_lines: list[str] = []
    """The beginnings of lines that were no frames. For owners only, if the agent serves others as well."""
    stderr_tail: str | None = None
    """The last stderr output of the previous agent. For owners only, if it served others as well."""


class Explanation(Struct, frozen=True, rename="camel", omit_defaults=True):
    """The state of a session and the evidence for it."""

    state: str
    suspected_complete: bool = False
    reasons: list[str] = []
    """Reasons for the suspicion, or the things the turn waits for, as text."""
    prompt_id: PromptId | None = None
    quiet_s: float | None = None
    """Seconds since the last event in the session."""
    waiting_for: list[PermissionId] = []
    tools_in_flight: list[str] = []
    queued: list[PromptId] = []
    queue_held: str | None = None
    """The reason why no prompt starts from the queue."""
    background: list[Work] = []
    """The agent's background work, with or without a running turn."""
    agent: AgentEvidence = AgentEvidence(connected=False)


class Seen(Struct, frozen=True):
    """Observations about the running turn that are not in the log."""

    response_seen: bool = False
    """True if the agent answered `session/prompt`, although another signal ends its turns."""
    requests: list[str] = []
    """Methods of the agent's unanswered requests for files and terminals."""
    frames: LastFrames = LastFrames()
    last_words: str | None = None
    """The last output of the previous agent, if the caller may read it."""
    background: AllWork = ()
    """The agent's background work that counts as running."""
    waits_for: str | None = None
    """The thing a started agent is waiting for, if it takes long."""
    reads_lines: bool = False
    """True if the caller may read agent output that belongs to no session."""


def explain(
    state: SessionState,
    connection: AgentConnection | None,
    seen: Seen,
    quiet_s: float,
    suspect_after_s: float,
) -> Explanation:
    """Return the explanation of the session's state."""
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
        # Before that time, an idle agent may simply not have begun yet.
        if state.agent is not None and state.agent.turn_end is TurnEnd.IDLE and not state.agent.busy:
            found.append("the agent reports that it is idle")
        found.append(f"nothing has happened for {quiet_s:.0f} s, and no tool call or permission request is open")
    return found
