"""The state of a session: small, bounded, immutable, and only a fold over the log.

`session.decide` reads it, `session.evolve` replaces it. It never holds content that has been shown already: the
transcript is `projections.view`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from msgspec import UNSET, Raw, Struct, UnsetType, field
from msgspec.structs import replace

from turnwire.ids import AgentName, AgentSessionId, ChildId, ClientId, PermissionId, PromptId, RequestId, SessionId
from turnwire.session.background import AllWork, ids
from turnwire.session.choices import NO_CHOICES, Choices
from turnwire.session.events import Origin, TurnEnd
from turnwire.session.turn import ACTIVE, TurnState

STATE_VERSION = 4
"""Version of the encoded state in snapshots. A state of another version is folded again from the log."""


class Setup(Struct, frozen=True):
    """The parameters of `session/new`, `load`, `resume` and `fork`, except the directory.

    They are stored with the session and sent to every agent that has to open it. The code that accepts them from a
    client validates them.
    """

    mcp_servers: Raw = Raw(b"[]")
    additional_directories: tuple[str, ...] = ()
    """Absolute; with `cwd`, the roots of the session."""
    meta: Raw | UnsetType = UNSET
    """For the agent, unchanged."""
    extra: Raw | UnsetType = UNSET
    """The other members of the request, such as `systemPrompt`, for the agent unchanged."""


SYSTEM_PROMPT: Final = "systemPrompt"
"""The member of `extra` that an agent must offer before it is sent."""
NO_SETUP: Final = Setup()


class Phase(StrEnum):
    NEW = "new"
    OPEN = "open"
    CLOSED = "closed"


class Agent(Struct, frozen=True, omit_defaults=True):
    """The agent that serves the session now."""

    agent_session_id: AgentSessionId
    protocol_version: int
    turn_end: TurnEnd
    steering: bool = False
    accepts: tuple[str, ...] = ()
    """The content types that the agent accepts in a prompt."""
    how: str = "new"
    """The way in which it opened the session: `new`, `load`, `resume`, `fork` or `lost`."""
    refused: tuple[str, ...] = ()
    """The offered ways to open the session that failed, each with the agent's reason."""
    prompted: bool = False
    """True if the agent has received a prompt since it started."""
    busy: bool = False
    """True if the last foreground state of a v2 agent was not idle."""
    work: AllWork = ()
    """Its background work."""
    lists_work: bool = False
    """True if the agent reports its background work itself: unlisted work does not run."""


class Turn(Struct, frozen=True, omit_defaults=True):
    """A turn that has not ended."""

    prompt_id: PromptId
    state: TurnState
    origin: Origin = Origin.CLIENT
    prompt_request_id: RequestId | None = None
    content: Raw | UnsetType = UNSET
    """The prompt's content; retained until its message is in the log."""
    sent: bool = False
    """True if the log says that the agent was sent the prompt."""
    unsent: Raw | UnsetType = UNSET
    """Its content from its message on, until it is sent: a restart may come between."""
    meta: Raw | UnsetType = UNSET
    """Its `_meta`, sent to the agent with it."""
    author: str | None = None
    client_id: ClientId | None = None
    waited: bool = False
    """True if it was shown in the queue."""
    steering: bool = False
    """True if the agent has been asked to inject it into the running turn."""
    echo_id: str | None = None
    """The agent's id for its copy of the user message; empty if the copy has no id, `None` before a copy
    was shown.
    """
    marked: str | None = None
    """The stop reason in the agent's marker until its answer arrives. Empty if the marker had no reason: the answer
    then has it.
    """
    answered: str | None = None
    """The stop reason in the answer of an agent whose turns end by another signal; empty if the answer had no
    reason.
    """
    usage: Raw | UnsetType = UNSET
    """The usage in that answer."""
    beside: Raw | UnsetType = UNSET
    """All other members of that answer, as one object."""
    cancelled_by: str | None = None
    tools: dict[str, str] = {}
    """Tool calls of the turn by id, with their last status."""
    deadline_at: int | None = None
    """The time at which the turn is cancelled unless it has ended."""

    @property
    def inserted(self) -> bool:
        """True once the agent has the message in its conversation. Turns that the agent began need no message."""
        return self.origin is Origin.AGENT or self.echo_id is not None or self.answered is not None


class Ended(Struct, frozen=True, omit_defaults=True):
    """The state retained of the last turn that ran."""

    prompt_id: PromptId
    stop_reason: str | None = None
    """`None` if it ended with an error."""
    tools: frozenset[str] = frozenset()
    settled: bool = False
    """True if a person ended it and no prompt was sent since: the agent's output still belongs to it."""


class ChildState(StrEnum):
    """The state of a child session as reported by the agent."""

    RUNNING = "running"
    REQUIRES_ACTION = "requires_action"
    IDLE = "idle"
    UNKNOWN = "unknown"
    """The agent has not reported a state, has withdrawn it, or is gone."""


AT_WORK: Final = frozenset({ChildState.RUNNING, ChildState.REQUIRES_ACTION})


class Child(Struct, frozen=True, omit_defaults=True):
    """A child session that the agent has announced. Its presentation is in the view."""

    child_id: ChildId
    state: ChildState = ChildState.UNKNOWN
    can_cancel: bool = False
    """True if the agent lets clients cancel the child's work."""
    tools: tuple[str, ...] = ()
    """Its unfinished tool calls; the newest are retained."""

    @property
    def is_busy(self) -> bool:
        return self.state in AT_WORK


class PermissionRequest(Struct, frozen=True, omit_defaults=True):
    """An open request of the agent to its users: a permission or an elicitation."""

    request_id: PermissionId
    agent_request_id: RequestId
    method: str
    options: tuple[str, ...] = ()
    prompt_id: PromptId | None = None
    child: ChildId | None = None
    """The child session that asks."""


class Resolved(Struct, frozen=True, omit_defaults=True):
    """An answered permission request, retained for answers that arrive late."""

    request_id: PermissionId
    answer: Raw
    client_id: ClientId | None = None
    agent_request_id: RequestId = 0


class Key(Struct, frozen=True):
    """An idempotency key and its prompt."""

    prompt_id: PromptId
    digest: str | None
    after_offset: int
    """The log's head just before the prompt was accepted."""


class SessionState(Struct, frozen=True, omit_defaults=True):
    """The complete state that decisions depend on."""

    phase: Phase = Phase.NEW
    session_id: SessionId = SessionId("")
    cwd: str = ""
    setup: Setup = NO_SETUP
    """The parameters with which an agent opens the session."""
    agent_name: AgentName | None = None
    """The agent that serves the session, fixed for the session's lifetime; `None` for the node's default one."""
    context: str | None = None
    """The earlier conversation with another agent. Sent with the first prompt to each agent that opens the session
    as a new one.
    """
    choices: Choices = NO_CHOICES
    """Users' choices at the agent; applied to every agent that opens the session again."""
    lost: tuple[str, ...] = ()
    """The names of choices that the agent rejected."""
    agent: Agent | None = None
    """The agent that serves the session now."""
    known_as: AgentSessionId | None = None
    """The last agent's id of the session, with which a new agent is asked to load or resume it."""
    turn_end: TurnEnd | None = None
    """The signal that ends a turn of the newest agent, even after it exited; `None` before the first agent."""
    agent_version: int = 1
    """The ACP version of the newest agent, even after it exited: the payloads in the log are in that version."""
    echoes: bool = False
    """True if an agent of the session has shown its copy of a prompt."""
    turn: Turn | None = None
    """The active turn."""
    queue: tuple[Turn, ...] = ()
    held: str | None = None
    """The reason for which the queue is held; `None` while it runs."""
    offered: tuple[Turn, ...] = ()
    """Prompts that were offered to the agent while a turn runs, in order."""
    joined: tuple[Turn, ...] = ()
    last: Ended | None = None
    permissions: tuple[PermissionRequest, ...] = field(default=(), name="questions")
    """Open permission requests, in order of arrival. Snapshots use the field's original name."""
    resolved: tuple[Resolved, ...] = ()
    keys: dict[str, Key] = {}
    clients: dict[ClientId, str] = {}
    children: dict[str, Child] = {}
    """The children of the agent's session, by the agent's ids; oldest first."""
    child_count: int = 0
    """The highest child number so far: no id is assigned twice."""
    archived: bool = False
    """Lists omit an archived session until a user prompts or unarchives it."""

    @property
    def running_children(self) -> tuple[ChildId, ...]:
        """Return the children that run or wait for users."""
        return tuple(each.child_id for each in self.children.values() if each.is_busy)

    @property
    def work(self) -> AllWork:
        """Return the agent's background work; empty without an agent."""
        return self.agent.work if self.agent is not None else ()

    @property
    def background(self) -> frozenset[str]:
        """Return the ids of the background work that the agent lists."""
        agent = self.agent
        return ids(agent.work) if agent is not None and agent.lists_work else frozenset()

    @property
    def unsettled(self) -> bool:
        """True if a new owner must recover this session at once, before any client requests it."""
        return bool(self.turn or self.queue or self.offered or self.joined or self.permissions)

    @property
    def inserts(self) -> bool:
        """True if the agent itself puts prompts into its conversation. Without an agent, the last agent's
        behaviour.
        """
        return (self.turn_end if self.agent is None else self.agent.turn_end) is TurnEnd.IDLE


NOTHING = SessionState()
"""The state before the first event."""


def find_turn(state: SessionState, prompt_id: PromptId) -> Turn | None:
    """Return the unended turn with that id."""
    turn = state.turn
    if turn is not None and turn.prompt_id == prompt_id:
        return turn
    others = (*state.queue, *state.offered, *state.joined)
    return next((each for each in others if each.prompt_id == prompt_id), None)


def echoed(state: SessionState, message_id: str | None) -> Turn | None:
    """Return the prompt that an agent's user message copies: the one with its id, else the first without a copy."""
    known_as = message_id or ""
    known = (state.turn, *state.joined, *state.offered)
    prompts = [each for each in known if each and each.origin is Origin.CLIENT]
    same = (each for each in prompts if each.echo_id == known_as)
    return next(same, None) or next((each for each in prompts if each.echo_id is None), None)


def with_turn(state: SessionState, turn: Turn) -> SessionState:
    """Return the state with one turn replaced. The turn's own state decides where it is stored."""
    if turn.state is TurnState.QUEUED:
        return replace(state, queue=_put(state.queue, turn))
    queue, offered = _without(state.queue, turn), _without(state.offered, turn)
    if turn.state is TurnState.OFFERED:
        return replace(state, queue=queue, offered=_put(state.offered, turn))
    if turn.state is TurnState.JOINED:
        return replace(state, queue=queue, offered=offered, joined=_put(state.joined, turn))
    assert turn.state in ACTIVE
    return replace(state, queue=queue, offered=offered, turn=turn)


def _put(turns: tuple[Turn, ...], turn: Turn) -> tuple[Turn, ...]:
    """Return the turns with `turn` replaced in its position, or appended."""
    place = next((i for i, each in enumerate(turns) if each.prompt_id == turn.prompt_id), len(turns))
    return (*turns[:place], turn, *turns[place + 1 :])


def _without(turns: tuple[Turn, ...], turn: Turn) -> tuple[Turn, ...]:
    return tuple(each for each in turns if each.prompt_id != turn.prompt_id) if turns else turns
