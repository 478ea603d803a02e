"""A fold over one session's log that produces the frames of one ACP client.

It maps each event, in order, to the frames that the client is sent, in sending order. One class serves all
dialects: their differences are in `encoder`, and updates of an agent of another version are translated
(`projections.translate`). It never skips an event or looks ahead, so every client of one dialect is sent the same
frames, and a client that resumes from a cursor is sent the frames it missed.

Theory of operation
-------------------
The log is the source of truth and uses neither version. The client's dialect decides the form of an event: the end
of a turn is an answer on v1 and a state on v2. The difficulty is that an event may produce several frames (the
marker, then the answer) and that a client may disconnect between them. So the frames of one event are a unit: a
cursor is after the last of them, and a client that disconnected inside receives the whole unit again.

  D1  Frames of a turn come in log order; the one that ends it comes last.
  D2  A prompt is answered once: on v1 at its end, on v2 when its message is inserted.
  D3  An update is forwarded byte for byte if the agent speaks the client's version. Two exceptions: options that a
      v1 client must request and did not, and ids of a v2 agent that lost the session and restarted its count.
  D4  The state that a v2 client receives is the turn's, so each turn has one running and one idle state, regardless
      of the agent's repeats.
  D5  A turn whose agent acknowledges the prompt itself runs for the client from the message on, or from the first
      output of the agent. One that the agent rejected never ran, and has no idle state.
  D6  Child sessions are encoded by `children`. Their updates neither begin nor end the turn for the client.
"""

from __future__ import annotations

from collections import Counter
from copy import deepcopy

from msgspec import UNSET, Raw, Struct, UnsetType, field, json, structs

from turnwire.errors import ContentRefused
from turnwire.ids import AgentSessionId, ChildId, PermissionId, PromptId, SessionId
from turnwire.projections.encoder.children import children_for, knows_children
from turnwire.projections.encoder.encoder import (
    Ask,
    Dialect,
    EndedTurn,
    Outgoing,
    Tell,
    TellBlocked,
    Withdraw,
    encoder_for,
)
from turnwire.projections.translate.messages import CHUNKS, WHOLE, in_life, lived
from turnwire.projections.translate.offers import with_mode, without_booleans
from turnwire.projections.translate.permissions import translate_permission_request
from turnwire.projections.translate.sessions import updates_after
from turnwire.projections.translate.updates import Translator, translator_for
from turnwire.session import events as ev
from turnwire.session.child_names import ANNOUNCES, renamed
from turnwire.session.choices import mode_update, options_update
from turnwire.session.ending import CANCELLED
from turnwire.session.json_members import members, raw
from turnwire.session.permissions import KINDS
from turnwire.wire.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS
from turnwire.wire.peek import peek_update
from turnwire.wire.schema.update import MARKERS, STATES

AGENT_FAILED = INTERNAL_ERROR
BLOCKED = "requires_action"
"""The state of a turn that waits for its users."""
_OF_ANOTHER_PARTY = MARKERS | STATES
"""Updates whose meaning the turn's events carry."""
FOLDED = _OF_ANOTHER_PARTY | {"config_option_update"}
"""Updates that the fold decodes for agents of every version."""
_PARTS = (ev.UserMessage, ev.TurnCompleted, ev.TurnFailed)
"""Events after which an unnamed message cannot continue, and before which all withheld frames must be sent."""
_NOTHING = Raw(b"[]")


class Known(Struct):
    """The state of one session's fold."""

    session_id: SessionId
    agent_version: int | None = None
    agent_session_id: AgentSessionId | None = None
    life: int = 0
    """The number of times that the agent's ids began to mean something new."""
    active: PromptId | None = None
    """The turn that the agent works on."""
    state: str = "idle"
    background: Raw | UnsetType = UNSET
    """The agent's last list of background work, unchanged."""
    last: EndedTurn | None = None
    """The end of the last turn."""
    waiting: set[PromptId] = set()
    """Accepted prompts whose message is not in the conversation yet."""
    asked: dict[PromptId, str] = {}
    """Prompts that the agent has and has not answered, with the id of each message; empty before it is shown."""
    answered: set[PromptId] = set()
    """Unended prompts whose sender has received the answer (D2)."""
    is_held: bool = False
    """True if the active turn has begun without any sign yet that its agent works on it."""
    requests: dict[PermissionId, str] = {}
    """Open permission requests of the active turn, each with its kind."""
    options: Raw = _NOTHING
    """The agent's latest config options."""
    losses: Counter[str] = field(default_factory=Counter[str])
    """Counts of values that the client's version cannot express, by the codes of `projections.translate.losses`."""

    def ends(self, prompt_id: PromptId) -> bool:
        """True if the end of this prompt ends the foreground's work: not if it was queued or had joined."""
        if self.active != prompt_id:
            return False
        self.active = None
        return True


class SessionEncoder:
    """The fold of one session for one dialect."""

    def __init__(self, dialect: Dialect, session_id: SessionId) -> None:
        self._dialect = dialect
        self._known = Known(session_id)
        self._encoder = encoder_for(dialect, self._known.losses)
        self._translator: Translator | None = None
        self._children = children_for(dialect, session_id, self._known.losses)
        self._has_children = False

    def copy(self) -> SessionEncoder | None:
        """Return an independent fold with the same state; `None` if it translates, because it is as large as the
        session.
        """
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
        """The state of the fold."""
        return self._known

    @property
    def losses(self) -> Counter[str]:
        """Counts of values that the client could not be sent, by the codes of `projections.translate.losses`."""
        return self._known.losses

    @property
    def passes_on(self) -> bool:
        """True if updates that are neither `FOLDED` nor an echo may be forwarded unchanged, without `take`."""
        return self._translator is None and not self._renames and not self._known.is_held

    @property
    def _renames(self) -> bool:
        """True if an agent of the client's version may reuse ids that the client knows. v2 requires unique ids."""
        return self._dialect.version == 2 and self._known.life > 1

    def take(self, event: ev.AnyEvent, *, own: bool) -> list[Outgoing]:
        """Return the client's frames for `event`. `own`: the event belongs to a prompt that this client sent."""
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
        """Return the frames of child sessions that precede an event that is not an update."""
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
        """Return the current child sessions, for a client that has not received the history."""
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
        """Return the session's current state, for a client that has just received its history."""
        known = self._known
        return self._naming(self._encoder.standing(known.state, known.last, known.background))

    # -- turns ---------------------------------------------------------------------------------------------------

    def _turn(self, event: ev.AnyEvent, *, own: bool) -> list[Outgoing]:
        """Return the frames of an event that is neither an update nor a question."""
        known = self._known
        match event:
            case ev.PromptAccepted() | ev.PromptOffered() | ev.PromptInserted() | ev.UserMessage():
                return self._prompt(event, own=own)
            case ev.TurnStarted():
                return self._begun(event)
            case ev.TurnBlocked():
                # A repeated event names the request, and the request has repeated the state already.
                return [] if known.state == BLOCKED else self._state(BLOCKED)
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
        """Return the frames of a prompt before its turn runs."""
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
        """Return the running state once the message is shown and the prompt answered, in this order, unless sent
        earlier.
        """
        known = self._known
        is_taken = prompt_id not in known.waiting and prompt_id not in known.asked
        return self._state("running") if known.is_held and known.active == prompt_id and is_taken else []

    def _begun(self, event: ev.TurnStarted) -> list[Outgoing]:
        known = self._known
        known.active = event.prompt_id
        if event.prompt_id not in known.waiting:
            return self._state("running")
        # Its message comes later: the agent accepts or rejects the prompt.
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
        """Return the answer to the prompt, once (D2). The recorded state is equal for all readers of a fold."""
        if prompt_id in self._known.answered:
            return []
        self._known.answered.add(prompt_id)
        return self._encoder.accepted(prompt_id, message_id, beside) if own else []

    def _named(self, message_id: str) -> str:
        return lived(message_id, self._known.life) if self._renames else message_id

    def _release(self, event: ev.SessionUpdated) -> list[Outgoing]:
        """Return the running state before the agent's first output of the turn."""
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
        # A blocked turn now waits for one more request.
        return [*told, ask, *(self._state(known.state) if known.state == BLOCKED else [])]

    def _state(self, state: str) -> list[Outgoing]:
        known = self._known
        known.state, known.is_held = state, False
        return self._naming(self._encoder.state(state, known.background))

    def _naming(self, told: list[Outgoing]) -> list[Outgoing]:
        """Add the open requests to the frames of a blocked state."""
        if self._known.state != BLOCKED:
            return told
        waits = tuple(self._known.requests.items())
        return [TellBlocked(each.update, waits) if isinstance(each, Tell) else each for each in told]

    def _ended(self, event: ev.TurnCompleted | ev.TurnFailed, *, own: bool) -> list[Outgoing]:
        known, ended = self._known, _ended_turn(event)
        is_inserted, is_foreground = event.prompt_id not in known.waiting, known.ends(event.prompt_id)
        known.waiting.discard(event.prompt_id)
        # An agent that shows a prompt and never answers it has accepted it nevertheless.
        message_id = known.asked.pop(event.prompt_id, "")
        answer = self._accepted(event.prompt_id, message_id, own=own) if message_id else []
        known.answered.discard(event.prompt_id)
        if is_foreground and known.is_held:
            is_foreground = known.is_held = False
        if is_foreground:
            # The usage and the other members of the end are sent once.
            known.state, known.last = "idle", structs.replace(ended, usage=UNSET, beside=UNSET)
            known.requests.clear()
        return answer + self._encoder.end(
            ended, own=own, is_inserted=is_inserted, is_foreground=is_foreground, background=known.background
        )

    def _background(self, background: Raw) -> list[Outgoing]:
        """Return the frames for a new list of background work. It is empty once the agent is gone."""
        known = self._known
        if known.background is not UNSET and bytes(known.background) == bytes(background):
            return []
        known.background = background
        return self.state()

    # -- updates of the agent ------------------------------------------------------------------------------------

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
                terminals=self._dialect.terminals,
                losses=known.losses,
            )
        known.options = members(event.offers).get("configOptions", known.options).copy()
        told = updates_after(event.offers, version, self._dialect.version, known.losses)
        return [Tell(each) for each in told]

    def _mode(self, event: ev.ModeChanged) -> list[Outgoing]:
        """Handle a mode set by a client. v2 has modes among the options, which are always sent completely."""
        if self._translator is not None:
            return [Tell(each) for each in self._translator.mode(event.mode)]
        if self._dialect.version == 1:
            return [Tell(mode_update(event.mode))]
        self._known.options = with_mode(self._known.options, event.mode)
        return [Tell(options_update(self._known.options))]

    def _update(self, event: ev.SessionUpdated) -> list[Outgoing]:
        if event.kind in STATES:
            if self._translator is not None:
                # It returns nothing and counts the losses.
                self._translator.take(event.update, turn=None)
            # The turn's events report the foreground; only the background list is new.
            background = peek_update(event.update).background
            return self._background(background) if background is not None and self._encoder.tells_background else []
        if event.echo or event.kind in _OF_ANOTHER_PARTY:
            return []
        if self._translator is None:
            return [Tell(self._alike(event), event.beside)]
        turn: PromptId | None = event.prompt_id or event.after
        return [Tell(each, event.beside) for each in self._translator.take(event.update, turn=turn)]

    def _alike(self, event: ev.SessionUpdated) -> Raw:
        """Return an update of an agent of the client's version."""
        if event.kind == "config_option_update":
            return self._options(event.update)
        if self._renames and (event.kind in CHUNKS or event.kind in WHOLE):
            return in_life(event.update, self._known.life)
        return event.update

    def _options(self, update: Raw) -> Raw:
        """Return new options of an agent of the client's version."""
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
    """Return the failure as a JSON-RPC error: the agent's if it sent one, else with the agent's exit."""
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
