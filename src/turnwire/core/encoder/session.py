"""One session as one client sees it over ACP: a fold over the log that gives that client's frames.

Takes the session's events in order; gives, for each, what the client is sent because of it, in the order in which
it is sent. One class for all dialects: what differs between them is in `encoder`, and what an agent of another
version says goes through a translator (`core.translate`). Never skips an event and never looks ahead, so every
client of one dialect is sent the same, and a client that resumes from a cursor is sent what it missed.

Theory of operation
-------------------
The log is the truth and speaks neither version. Of an event, the client's own dialect decides the form: the end of
a turn is an answer on v1 and a state on v2. What is hard is that an event may make several frames (the marker, then
the answer) and that a client may be cut between them. So frames of one event are a unit: a cursor stands behind the
last of them, and one who was cut inside gets the whole unit again.

    D1  Frames of a turn come in log order; the one that ends it comes last (R19, R22, R36).
    D2  A prompt is answered once: on v1 at its end, on v2 when its message is inserted (R32).
    D3  An update is passed on byte for byte if the agent speaks the client's version. Two exceptions: options that
        a v1 client must ask for and did not, and ids of a v2 agent that lost the session and counts anew.
    D4  The state that a v2 client hears is the turn's, so each turn has one running and one idle, whatever the
        agent repeats.
    D5  A turn whose agent says itself that it took the prompt runs for the client from the message on, or from the
        first word of the agent. One that the agent refused never ran, and has no idle.
    D6  Child sessions are told by `children`. What they say neither begins the turn for the client nor ends it.
"""

from __future__ import annotations

from collections import Counter
from copy import deepcopy

from msgspec import UNSET, Raw, Struct, UnsetType, field, json, structs

from turnwire.core import events as ev
from turnwire.core.child_names import ANNOUNCES, renamed
from turnwire.core.choices import mode_update, options_update
from turnwire.core.encoder.children import children_for, knows_children
from turnwire.core.encoder.encoder import (
    Ask,
    Dialect,
    EndedTurn,
    Outgoing,
    Tell,
    TellBlocked,
    Withdraw,
    encoder_for,
)
from turnwire.core.ending import CANCELLED
from turnwire.core.json_members import members, raw
from turnwire.core.permissions import KINDS
from turnwire.core.translate.messages import CHUNKS, WHOLE, in_life, lived
from turnwire.core.translate.offers import with_mode, without_booleans
from turnwire.core.translate.permissions import translate_permission_request
from turnwire.core.translate.sessions import updates_after
from turnwire.core.translate.updates import Translator, translator_for
from turnwire.errors import ContentRefused
from turnwire.ids import AgentSessionId, ChildId, PermissionId, PromptId, SessionId
from turnwire.wire.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS
from turnwire.wire.peek import peek_update
from turnwire.wire.schema.update import MARKERS, STATES

AGENT_FAILED = INTERNAL_ERROR
BLOCKED = "requires_action"
"""The state of a turn that waits for its users."""
_OF_ANOTHER_PARTY = MARKERS | STATES
"""Updates whose meaning the turn's own events carry."""
FOLDED = _OF_ANOTHER_PARTY | {"config_option_update"}
"""Updates that the fold looks at, whatever version their agent speaks."""
_PARTS = (ev.UserMessage, ev.TurnCompleted, ev.TurnFailed)
"""Events behind which a message without a name does not go on, and before which nothing may be held back."""
_NOTHING = Raw(b"[]")


class Known(Struct):
    """What the fold of one session remembers."""

    session_id: SessionId
    agent_version: int | None = None
    agent_session_id: AgentSessionId | None = None
    life: int = 0
    """How often the agent's ids began to mean something new."""
    active: PromptId | None = None
    """The turn that the agent works on."""
    state: str = "idle"
    background: Raw | UnsetType = UNSET
    """The agent's last list of background work, as it came."""
    last: EndedTurn | None = None
    """How the last turn ended."""
    waiting: set[PromptId] = set()
    """Prompts that are accepted and whose message is not in the conversation yet."""
    asked: dict[PromptId, str] = {}
    """Prompts that the agent has and has not answered, with the id of each message, empty before it is shown."""
    answered: set[PromptId] = set()
    """Prompts that have not ended and whose acceptance was told to whoever sent them (D2)."""
    is_held: bool = False
    """The active turn has begun, and nothing says yet that its agent is at it."""
    requests: dict[PermissionId, str] = {}
    """Permission requests of the active turn that are open, each with its kind."""
    options: Raw = _NOTHING
    """The agent's config options, as it said them last."""
    losses: Counter[str] = field(default_factory=Counter[str])
    """What could not be said in the client's version, by the codes of `core.translate.losses`."""

    def ends(self, prompt_id: PromptId) -> bool:
        """Whether the end of this prompt ends the foreground's work. One that waited or had joined does not."""
        if self.active != prompt_id:
            return False
        self.active = None
        return True


class SessionEncoder:
    """The fold."""

    def __init__(self, dialect: Dialect, session_id: SessionId) -> None:
        self._dialect = dialect
        self._known = Known(session_id)
        self._encoder = encoder_for(dialect, self._known.losses)
        self._translator: Translator | None = None
        self._children = children_for(dialect, session_id, self._known.losses)
        self._has_children = False

    def copy(self) -> SessionEncoder | None:
        """A fold that stands where this one does, and goes on by itself. None if it translates: that is long."""
        if self._translator is not None or (self._has_children and self._children.is_long):
            return None
        other = SessionEncoder(self._dialect, self._known.session_id)
        other._known = deepcopy(self._known)
        other._encoder = encoder_for(self._dialect, other._known.losses)
        if self._has_children:
            other._has_children, other._children = True, deepcopy(self._children)
        return other

    @property
    def known(self) -> Known:
        """What the fold remembers."""
        return self._known

    @property
    def losses(self) -> Counter[str]:
        """What the client could not be told, by the codes of `core.translate.losses`."""
        return self._known.losses

    @property
    def passes_on(self) -> bool:
        """Whether updates that are not `FOLDED` and no echo may be told as they are, without `take`."""
        return self._translator is None and not self._renames and not self._known.is_held

    @property
    def _renames(self) -> bool:
        """Whether an agent of the client's version may say ids anew that the client knows. v2 wants them unique."""
        return self._dialect.version == 2 and self._known.life > 1

    def take(self, event: ev.AnyEvent, *, own: bool) -> list[Outgoing]:
        """What the client is sent because of `event`. `own`: it is of a prompt that this client sent."""
        if isinstance(event, ev.SessionUpdated):
            return self._said(event)
        if isinstance(event, ev.AgentStarted):
            return self._started(event)
        if isinstance(event, ev.ModeChanged):
            return self._mode(event)
        if isinstance(event, ev.PermissionRequested):
            return self._requested(event)
        if isinstance(event, ev.PermissionResolved):
            self._known.requests.pop(event.request_id, None)
            return [Withdraw(event.request_id), *self._children.resolved(event.request_id)]
        held = self._translator.part() if self._translator is not None and isinstance(event, _PARTS) else []
        return [Tell(each) for each in held] + self._of_children(event) + self._turn(event, own=own)

    def _of_children(self, event: ev.AnyEvent) -> list[Outgoing]:
        """What is told of child sessions before an event that is no update."""
        if not self._has_children:
            return []
        if isinstance(event, ev.AgentExited):
            return self._children.lost()
        told = self._children.part() if isinstance(event, _PARTS) else []
        if isinstance(event, ev.TurnCompleted | ev.TurnFailed) and event.prompt_id == self._known.active:
            is_done = isinstance(event, ev.TurnCompleted) and event.stop_reason != CANCELLED
            told += self._children.turn_ended(is_done=is_done)
        return told

    def children(self) -> list[Outgoing]:
        """The child sessions that there are, for a client that has not heard the history."""
        return self._children.standing()

    def _said(self, event: ev.SessionUpdated) -> list[Outgoing]:
        if event.names:
            event = structs.replace(event, update=renamed(event.kind, event.update, event.names))
        if event.child is None and (child := self._children.addressed(event)) is not None:
            event = structs.replace(event, child=child)
        if event.child is None and not (event.names and event.kind == ANNOUNCES):
            return self._release(event) + self._update(event)
        self._has_children = True
        begun = self._release(event) if event.child is None else []
        return begun + self._children.take(event)

    def state(self) -> list[Outgoing]:
        """Where the session stands, for a client that has just heard its history (R44)."""
        known = self._known
        return self._naming(self._encoder.standing(known.state, known.last, known.background))

    # -- turns ---------------------------------------------------------------------------------------------------

    def _turn(self, event: ev.AnyEvent, *, own: bool) -> list[Outgoing]:
        """Frames of an event that is no update and no question."""
        known = self._known
        match event:
            case ev.PromptAccepted() | ev.PromptOffered() | ev.PromptInserted() | ev.UserMessage():
                return self._prompt(event, own=own)
            case ev.TurnStarted():
                return self._begun(event)
            case ev.TurnBlocked():
                return self._state(BLOCKED)
            case ev.TurnUnblocked():
                return self._state("running")
            case ev.TurnCompleted() | ev.TurnFailed():
                return self._ended(event, own=own)
            case ev.AgentExited():
                return self._background(_NOTHING) if known.background is not UNSET else []
            case ev.SessionRenamed():
                return [Tell(raw({"sessionUpdate": "session_info_update", "title": event.title}))]
            case _:
                return []

    def _prompt(
        self, event: ev.PromptAccepted | ev.PromptOffered | ev.PromptInserted | ev.UserMessage, *, own: bool
    ) -> list[Outgoing]:
        """Frames of a prompt on its way into the conversation."""
        match event:
            case ev.PromptAccepted():
                self._known.waiting.add(event.prompt_id)
            case ev.PromptOffered():
                self._known.asked[event.prompt_id] = ""
            case ev.UserMessage():
                return self._message(event, own=own)
            case ev.PromptInserted():
                was_asked = self._known.asked.pop(event.prompt_id, None) is not None
                message_id = self._named(event.agent_message_id)
                answer = self._accepted(event.prompt_id, message_id, event.beside, own=own) if was_asked else []
                return answer + self._taken(event.prompt_id)
        return []

    def _taken(self, prompt_id: PromptId) -> list[Outgoing]:
        """The turn runs once its message is shown and its prompt answered, in this order, if nothing was faster."""
        known = self._known
        is_taken = prompt_id not in known.waiting and prompt_id not in known.asked
        return self._state("running") if known.is_held and known.active == prompt_id and is_taken else []

    def _begun(self, event: ev.TurnStarted) -> list[Outgoing]:
        known = self._known
        known.active = event.prompt_id
        if event.prompt_id not in known.waiting:
            return self._state("running")
        # Its message comes later: the agent decides whether it takes the prompt.
        known.asked.setdefault(event.prompt_id, "")
        known.is_held = True
        return []

    def _message(self, event: ev.UserMessage, *, own: bool) -> list[Outgoing]:
        known, message_id = self._known, self._named(event.message_id)
        known.waiting.discard(event.prompt_id)
        is_asked = event.prompt_id in known.asked
        if is_asked:
            known.asked[event.prompt_id] = message_id
        blocks = json.decode(event.content, type=list[Raw])
        told = self._encoder.user_message(event.prompt_id, message_id, blocks, own=own)
        if not is_asked:
            told += self._accepted(event.prompt_id, message_id, own=own)
        return told + self._taken(event.prompt_id)

    def _accepted(
        self, prompt_id: PromptId, message_id: str, beside: Raw | UnsetType = UNSET, *, own: bool
    ) -> list[Outgoing]:
        """The answer to the prompt, once (D2). What is remembered of it is the same for all readers of a fold."""
        if prompt_id in self._known.answered:
            return []
        self._known.answered.add(prompt_id)
        return self._encoder.accepted(prompt_id, message_id, beside) if own else []

    def _named(self, message_id: str) -> str:
        return lived(message_id, self._known.life) if self._renames else message_id

    def _release(self, event: ev.SessionUpdated) -> list[Outgoing]:
        """The agent is at the turn: that comes before its first word (R35)."""
        known = self._known
        if not known.is_held or event.echo or event.prompt_id != known.active:
            return []
        is_at_it = event.kind not in STATES or peek_update(event.update).state == "running"
        return self._state("running") if is_at_it else []

    def _requested(self, event: ev.PermissionRequested) -> list[Outgoing]:
        known = self._known
        params, told = self._own_session(event.method, event.params, event.child), list[Outgoing]()
        if event.child is not None:
            self._has_children = True
            told, params = self._children.asks(event, event.child, params)
        ask = Ask(event.request_id, event.method, params)
        if event.prompt_id is None or event.prompt_id != known.active:
            return [*told, ask]
        known.requests[event.request_id] = KINDS.get(event.method, event.method)
        # A turn that waits already waits for one thing more.
        return [*told, ask, *(self._state(known.state) if known.state == BLOCKED else [])]

    def _state(self, state: str) -> list[Outgoing]:
        known = self._known
        known.state, known.is_held = state, False
        return self._naming(self._encoder.state(state, known.background))

    def _naming(self, told: list[Outgoing]) -> list[Outgoing]:
        """What tells a state; a turn that waits says for what."""
        if self._known.state != BLOCKED:
            return told
        waits = tuple(self._known.requests.items())
        return [TellBlocked(each.update, waits) if isinstance(each, Tell) else each for each in told]

    def _ended(self, event: ev.TurnCompleted | ev.TurnFailed, *, own: bool) -> list[Outgoing]:
        known, ended = self._known, _ended_turn(event)
        is_inserted, is_foreground = event.prompt_id not in known.waiting, known.ends(event.prompt_id)
        known.waiting.discard(event.prompt_id)
        # An agent that never answers a prompt that it has shown has taken it all the same.
        message_id = known.asked.pop(event.prompt_id, "")
        answer = self._accepted(event.prompt_id, message_id, own=own) if message_id else []
        known.answered.discard(event.prompt_id)
        if is_foreground and known.is_held:
            is_foreground = known.is_held = False
        if is_foreground:
            # The usage, and what else the agent said with the end, is told once.
            known.state, known.last = "idle", structs.replace(ended, usage=UNSET, beside=UNSET)
            known.requests.clear()
        return answer + self._encoder.end(
            ended, own=own, is_inserted=is_inserted, is_foreground=is_foreground, background=known.background
        )

    def _background(self, background: Raw) -> list[Outgoing]:
        """What runs in the agent's background now. Of an agent that is gone, nothing does."""
        known = self._known
        if known.background is not UNSET and bytes(known.background) == bytes(background):
            return []
        known.background = background
        return self.state()

    # -- what the agent says -------------------------------------------------------------------------------------

    def _started(self, event: ev.AgentStarted) -> list[Outgoing]:
        known = self._known
        version = event.protocol_version
        came_back = event.agent_session_id == known.agent_session_id and event.how != "lost"
        same_life = version == known.agent_version == 2 and came_back
        known.agent_version, known.agent_session_id = version, event.agent_session_id
        self._children.started(version, known.life, came_back=came_back and event.how in {"load", "resume"})
        if same_life and self._translator is not None:
            self._translator.offers(event.offers)
        elif not same_life:
            known.life += 1
            self._translator = translator_for(
                version,
                self._dialect.version,
                event.offers,
                life=known.life,
                boolean_options=self._dialect.boolean_options,
                losses=known.losses,
            )
        known.options = members(event.offers).get("configOptions", known.options).copy()
        told = updates_after(event.offers, version, self._dialect.version, known.losses)
        return [Tell(each) for each in told]

    def _mode(self, event: ev.ModeChanged) -> list[Outgoing]:
        """A client set the mode. v2 has modes among the options, which are always told as a whole."""
        if self._translator is not None:
            return [Tell(each) for each in self._translator.mode(event.mode)]
        if self._dialect.version == 1:
            return [Tell(mode_update(event.mode))]
        self._known.options = with_mode(self._known.options, event.mode)
        return [Tell(options_update(self._known.options))]

    def _update(self, event: ev.SessionUpdated) -> list[Outgoing]:
        if event.kind in STATES:
            if self._translator is not None:
                # It gives nothing and counts what is lost.
                self._translator.take(event.update, turn=None)
            # Of its foreground the turn's own events tell; new is only what it says of the background.
            background = peek_update(event.update).background
            return self._background(background) if background is not None and self._encoder.tells_background else []
        if event.echo or event.kind in _OF_ANOTHER_PARTY:
            return []
        if self._translator is None:
            return [Tell(self._alike(event), event.beside)]
        turn: PromptId | None = event.prompt_id or event.after
        return [Tell(each, event.beside) for each in self._translator.take(event.update, turn=turn)]

    def _alike(self, event: ev.SessionUpdated) -> Raw:
        """An update of an agent of the client's version."""
        if event.kind == "config_option_update":
            return self._options(event.update)
        if self._renames and (event.kind in CHUNKS or event.kind in WHOLE):
            return in_life(event.update, self._known.life)
        return event.update

    def _options(self, update: Raw) -> Raw:
        """New options of an agent of the client's version."""
        fields = members(update)
        self._known.options = fields.get("configOptions", self._known.options).copy()
        if self._dialect.boolean_options or "configOptions" not in fields:
            return update
        return raw({**fields, "configOptions": without_booleans(self._known.options, self._known.losses)})

    def _own_session(self, method: str, params: Raw, child: ChildId | None) -> Raw:
        version = self._known.agent_version or self._dialect.version
        asking = child if child is not None and knows_children(self._dialect) else self._known.session_id
        return translate_permission_request(
            method, params, version, self._dialect.version, asking, self._known.losses
        )


def _ended_turn(event: ev.TurnCompleted | ev.TurnFailed) -> EndedTurn:
    failed = isinstance(event, ev.TurnFailed)
    return EndedTurn(
        prompt_id=event.prompt_id,
        request_id=event.prompt_request_id,
        by_agent=event.prompt_id.startswith("agent-"),
        stop_reason=None if failed else event.stop_reason,
        error=error_of(event) if failed else None,
        usage=UNSET if failed else event.usage,
        assumed=not failed and event.assumed is True,
        beside=event.beside,
    )


def error_of(event: ev.TurnFailed) -> Raw:
    """The failure as a JSON-RPC error: the agent's own if it gave one, else with how the agent ended."""
    if event.agent_error is not UNSET:
        return event.agent_error
    data = {
        "code": event.code,
        "exitCode": event.exit_code,
        "signal": event.signal,
        "stderrTail": event.stderr_tail,
    }
    known = {name: value for name, value in data.items() if value is not None}
    code = INVALID_PARAMS if event.code == ContentRefused.code else AGENT_FAILED
    return raw({"code": code, "message": event.message, "data": known})
