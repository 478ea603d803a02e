"""A session as the machine knows it: small, bounded, immutable, and nothing but a fold over the log.

`core.decide` reads it, `core.evolve` replaces it. Never holds content that has been shown already: the transcript
is `core.view`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from msgspec import UNSET, Raw, Struct, UnsetType, field
from msgspec.structs import replace

from turnwire.core.background import AllWork, ids
from turnwire.core.choices import NO_CHOICES, Choices
from turnwire.core.events import Origin, TurnEnd
from turnwire.core.turn import ACTIVE, TurnState
from turnwire.ids import AgentName, AgentSessionId, ChildId, ClientId, PermissionId, PromptId, RequestId, SessionId

STATE_VERSION = 3
"""Version of the encoded state in snapshots; another version is folded anew from the log."""


class Setup(Struct, frozen=True):
    """What an agent is given with a session besides its directory, by `session/new`, `load`, `resume` and `fork`.

    It is kept with the session and told to every agent that has to open it. Who takes it from a client judges it.
    """

    mcp_servers: Raw = Raw(b"[]")
    additional_directories: tuple[str, ...] = ()
    """Absolute; with `cwd`, the roots of the session."""
    meta: Raw | UnsetType = UNSET
    """For the agent, as it is."""


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
    """The types of content that it takes in a prompt."""
    how: str = "new"
    """The way in which it opened the session."""
    refused: tuple[str, ...] = ()
    """The ways that it offers and did not go, each with its words for why."""
    prompted: bool = False
    """It has been asked something since it came."""
    busy: bool = False
    """A v2 agent's last word on its foreground was not idle."""
    work: AllWork = ()
    """What it does in the background."""
    lists_work: bool = False
    """It reports that itself: what it does not list does not run."""


class Turn(Struct, frozen=True, omit_defaults=True):
    """A turn that has not ended."""

    prompt_id: PromptId
    state: TurnState
    origin: Origin = Origin.CLIENT
    prompt_request_id: RequestId | None = None
    content: Raw | UnsetType = UNSET
    """What it asks; kept until its message is in the log."""
    meta: Raw | UnsetType = UNSET
    """Its `_meta`, which the agent gets with it."""
    author: str | None = None
    client_id: ClientId | None = None
    waited: bool = False
    """It was shown in the queue."""
    steering: bool = False
    """The agent has been asked to take it into the running turn."""
    echo_id: str | None = None
    """The agent's id for its copy of the user message; empty if it gives none, none before it showed a copy."""
    marked: str | None = None
    """The stop reason in the agent's marker, until its answer is here, too; empty if it gave none: then the answer
    says how the turn ended."""
    answered: str | None = None
    """The stop reason in the answer of an agent whose turns end by something else; empty if it gave none."""
    usage: Raw | UnsetType = UNSET
    """What that answer said was used."""
    beside: Raw | UnsetType = UNSET
    """Its members that say nothing to us, as an object."""
    cancelled_by: str | None = None
    tools: dict[str, str] = {}
    """Tool calls of the turn by id, with their last status."""
    deadline_at: int | None = None
    """When it is cancelled if it has not ended by then."""

    @property
    def inserted(self) -> bool:
        """The agent has said that the message is in its conversation; its own turns need none."""
        return self.origin is Origin.AGENT or self.echo_id is not None or self.answered is not None


class Ended(Struct, frozen=True, omit_defaults=True):
    """What is remembered of the last turn that ran."""

    prompt_id: PromptId
    stop_reason: str | None = None
    """None if it ended with an error."""
    tools: frozenset[str] = frozenset()
    settled: bool = False
    """A person ended it, and no prompt was sent since: what the agent says is still about it."""


class ChildState(StrEnum):
    """What a child session does, as far as the agent has said."""

    RUNNING = "running"
    REQUIRES_ACTION = "requires_action"
    IDLE = "idle"
    UNKNOWN = "unknown"
    """The agent has not said, or has taken it back, or is gone."""


AT_WORK: Final = frozenset({ChildState.RUNNING, ChildState.REQUIRES_ACTION})


class Child(Struct, frozen=True, omit_defaults=True):
    """A child session that the agent has announced. How it is shown is in the view."""

    child_id: ChildId
    state: ChildState = ChildState.UNKNOWN
    can_cancel: bool = False
    """The agent lets clients cancel what it does."""
    tools: tuple[str, ...] = ()
    """Its tool calls that are not finished, newest kept."""

    @property
    def is_busy(self) -> bool:
        return self.state in AT_WORK


class PermissionRequest(Struct, frozen=True, omit_defaults=True):
    """What the agent asks its users, as long as nobody has answered: a permission, or an elicitation."""

    request_id: PermissionId
    agent_request_id: RequestId
    method: str
    options: tuple[str, ...] = ()
    prompt_id: PromptId | None = None
    child: ChildId | None = None
    """The child session that asks."""


class Resolved(Struct, frozen=True, omit_defaults=True):
    """A permission request that was answered, for those who answer too late."""

    request_id: PermissionId
    answer: Raw
    client_id: ClientId | None = None


class Key(Struct, frozen=True):
    """An idempotency key and what it stands for."""

    prompt_id: PromptId
    digest: str | None
    after_offset: int
    """The log's head just before the prompt was accepted."""


class SessionState(Struct, frozen=True, omit_defaults=True):
    """The whole of a session that decisions depend on."""

    phase: Phase = Phase.NEW
    session_id: SessionId = SessionId("")
    cwd: str = ""
    setup: Setup = NO_SETUP
    """What the agent is given when it opens the session."""
    agent_name: AgentName | None = None
    """Which agent serves it, for life; none is the node's default one."""
    context: str | None = None
    """What was said before, to another agent: told to each that opens the session as a new one, with its first
    prompt."""
    choices: Choices = NO_CHOICES
    """What users chose at the agent; one that comes anew is told it."""
    lost: tuple[str, ...] = ()
    """The names of choices that the agent did not take."""
    agent: Agent | None = None
    """The agent that serves the session now."""
    known_as: AgentSessionId | None = None
    """What the last agent called the session: what a new one is asked to load or resume."""
    turn_end: TurnEnd | None = None
    """What ends a turn of the newest agent, also once it is gone; none before the first."""
    agent_version: int = 1
    """The version of ACP that the newest agent speaks, also once it is gone: what is in the log is in its words."""
    echoes: bool = False
    """An agent of the session has shown its own copy of a prompt."""
    turn: Turn | None = None
    """The active turn."""
    queue: tuple[Turn, ...] = ()
    held: str | None = None
    """Why nothing starts from the queue; none while it runs."""
    offered: tuple[Turn, ...] = ()
    """Prompts that the agent has been handed while a turn runs, in their order."""
    joined: tuple[Turn, ...] = ()
    last: Ended | None = None
    permissions: tuple[PermissionRequest, ...] = field(default=(), name="questions")
    """Open permission requests, in the order in which they were asked. Snapshots keep the name they began with."""
    resolved: tuple[Resolved, ...] = ()
    keys: dict[str, Key] = {}
    clients: dict[ClientId, str] = {}
    children: dict[str, Child] = {}
    """The children of the agent's session, by the agent's ids; oldest first."""
    child_count: int = 0
    """The highest number of a child: no id of ours is given twice."""
    archived: bool = False
    """Lists leave it out until somebody prompts it or takes it back."""

    @property
    def running_children(self) -> tuple[ChildId, ...]:
        """The children that are at work, or wait for users."""
        return tuple(each.child_id for each in self.children.values() if each.is_busy)

    @property
    def work(self) -> AllWork:
        """What the agent does in the background; nothing without an agent."""
        return self.agent.work if self.agent is not None else ()

    @property
    def background(self) -> frozenset[str]:
        """The ids of what the agent itself lists as running in the background."""
        agent = self.agent
        return ids(agent.work) if agent is not None and agent.lists_work else frozenset()

    @property
    def unsettled(self) -> bool:
        """Whether a new owner must look at this session at once, before anybody asks for it."""
        return bool(self.turn or self.queue or self.offered or self.joined or self.permissions)

    @property
    def inserts(self) -> bool:
        """Whether the agent itself puts prompts into its conversation; of one that is to come, as the last did."""
        return (self.turn_end if self.agent is None else self.agent.turn_end) is TurnEnd.IDLE


NOTHING = SessionState()
"""The state before the first event."""


def find_turn(state: SessionState, prompt_id: PromptId) -> Turn | None:
    """The unended turn with that id."""
    turn = state.turn
    if turn is not None and turn.prompt_id == prompt_id:
        return turn
    others = (*state.queue, *state.offered, *state.joined)
    return next((each for each in others if each.prompt_id == prompt_id), None)


def echoed(state: SessionState, message_id: str | None) -> Turn | None:
    """The prompt whose copy a user message of the agent is: known by its id, else the first without a copy."""
    known_as = message_id or ""
    known = (state.turn, *state.joined, *state.offered)
    prompts = [each for each in known if each and each.origin is Origin.CLIENT]
    same = (each for each in prompts if each.echo_id == known_as)
    return next(same, None) or next((each for each in prompts if each.echo_id is None), None)


def with_turn(state: SessionState, turn: Turn) -> SessionState:
    """The state with one turn replaced, kept where its own state says it belongs."""
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
    """With the turn where it was, or at the end."""
    place = next((i for i, each in enumerate(turns) if each.prompt_id == turn.prompt_id), len(turns))
    return (*turns[:place], turn, *turns[place + 1 :])


def _without(turns: tuple[Turn, ...], turn: Turn) -> tuple[Turn, ...]:
    return tuple(each for each in turns if each.prompt_id != turn.prompt_id) if turns else turns
