"""A session of the core without a runtime: short functions for inputs, and one object that holds log and effects.

It applies inputs as the runtime would; the log, the effects and the state follow. It never stores or sends: its
results are lists. Every accepted input is also checked against the stored form of the log.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec
import pytest
from msgspec import Raw
from msgspec.structs import replace

from turnwire.errors import TurnwireError
from turnwire.ids import AgentSessionId, ChildId, ClientId, MessageId, PermissionId, PromptId, RequestId, SessionId
from turnwire.limits import Limits
from turnwire.session import effects as ef
from turnwire.session import events as ev
from turnwire.session import inputs as i
from turnwire.session.codec import decode, encode
from turnwire.session.decide import Decision, decide
from turnwire.session.evolve import fold
from turnwire.session.state import NOTHING, SessionState
from turnwire.wire.peek import peek_update

AT = 1_790_000_000_000
PERMISSION, ELICITATION = "session/request_permission", "elicitation/create"
REFUSED = Raw(b'{"outcome":{"outcome":"cancelled"}}')
ERROR = Raw(b'{"code":-32603,"message":"no model"}')

_Kind = TypeVar("_Kind", bound=ev.Event)
_Effect = TypeVar("_Effect", bound=ef.Effect)
_Error = TypeVar("_Error", bound=TurnwireError)


def raw(value: object) -> Raw:
    return Raw(msgspec.json.encode(value))


def content(text: str = "hello") -> Raw:
    return raw([{"type": "text", "text": text}])


def chosen(option: str) -> Raw:
    return raw({"outcome": {"outcome": "selected", "optionId": option}})


# -- what clients ask ----------------------------------------------------------------------------------------


def prompt(
    prompt_id: str = "p1",
    *,
    when: i.WhenBusy = i.WhenBusy.QUEUE,
    key: str | None = None,
    digest: str | None = None,
    request_id: RequestId | None = None,
    author: str | None = "ann",
    client: str | None = "c1",
) -> i.Prompt:
    return i.Prompt(
        at=AT,
        prompt_id=PromptId(prompt_id),
        content=content(prompt_id),
        when_busy=when,
        key=key,
        digest=digest,
        prompt_request_id=request_id,
        author=author,
        client_id=None if client is None else ClientId(client),
    )


def edit(prompt_id: str, text: str | None = None, position: int | None = None) -> i.UpdatePrompt:
    new = None if text is None else content(text)
    return i.UpdatePrompt(at=AT, prompt_id=PromptId(prompt_id), content=new, position=position, author="bob")


def remove(prompt_id: str) -> i.RemovePrompt:
    return i.RemovePrompt(at=AT, prompt_id=PromptId(prompt_id), author="bob")


def cancel(prompt_id: str | None = None, *, author: str | None = "bob", client: str = "c2") -> i.Cancel:
    named = None if prompt_id is None else PromptId(prompt_id)
    return i.Cancel(at=AT, prompt_id=named, author=author, client_id=ClientId(client))


def answer(request_id: str = "q1", option: str | None = "allow", *, client: str = "c1") -> i.AnswerPermission:
    return i.AnswerPermission(
        at=AT,
        request_id=PermissionId(request_id),
        answer=REFUSED if option is None else chosen(option),
        option_id=option,
        author=f"author of {client}",
        client_id=ClientId(client),
    )


def settle(prompt_id: str) -> i.Settle:
    return i.Settle(at=AT, prompt_id=PromptId(prompt_id), author="bob")


def close() -> i.Close:
    return i.Close(at=AT, author="bob")


# -- what the agent says -------------------------------------------------------------------------------------


def ready(turn_end: ev.TurnEnd = ev.TurnEnd.RESPONSE, *, steering: bool = False) -> i.AgentReady:
    version = 2 if turn_end is ev.TurnEnd.IDLE else 1
    return i.AgentReady(
        at=AT,
        agent_session_id=AgentSessionId("a1"),
        protocol_version=version,
        turn_end=turn_end,
        steering=steering,
    )


def said(kind: str, /, **fields: object) -> i.AgentUpdate:
    update = raw({"sessionUpdate": kind, **fields})
    return i.AgentUpdate(at=AT, update=update, peek=peek_update(update))


def marked(
    stop_reason: str | None = "end_turn", *, ends: str | None = None, kind: str = "turn_complete"
) -> i.AgentUpdate:
    """Return the `turn_complete` marker, naming a turn or none."""
    named = None if ends is None else PromptId(ends)
    return replace(said(kind, stopReason=stop_reason), ends=named)


def chunk(text: str = "work") -> i.AgentUpdate:
    return said("agent_message_chunk", content={"type": "text", "text": text})


def agent_is(state: str, **fields: object) -> i.AgentUpdate:
    return said("state_update", state=state, **fields)


def tool(tool_call_id: str, status: str = "pending") -> i.AgentUpdate:
    return said("tool_call_update", toolCallId=tool_call_id, status=status)


def answered(
    prompt_id: str = "p1", stop_reason: str | None = "end_turn", message_id: str | None = None
) -> i.AgentAnswered:
    return i.AgentAnswered(at=AT, prompt_id=PromptId(prompt_id), stop_reason=stop_reason, message_id=message_id)


def overdue(prompt_id: str = "p1") -> i.AnswerOverdue:
    return i.AnswerOverdue(at=AT, prompt_id=PromptId(prompt_id))


def refused(prompt_id: str = "p1") -> i.AgentRefused:
    return i.AgentRefused(at=AT, prompt_id=PromptId(prompt_id), error=ERROR)


def has_prompt(prompt_id: str = "p1", agent_id: RequestId = 4) -> i.AgentHasPrompt:
    return i.AgentHasPrompt(at=AT, prompt_id=PromptId(prompt_id), agent_request_id=agent_id)


def asks(
    request_id: str = "q1",
    agent_id: RequestId = 1,
    *,
    method: str = PERMISSION,
    options: tuple[str, ...] = ("allow", "reject"),
) -> i.AgentAsks:
    return i.AgentAsks(
        at=AT,
        request_id=PermissionId(request_id),
        agent_request_id=agent_id,
        method=method,
        params=Raw(b"{}"),
        options=options,
    )


def withdraws(agent_id: RequestId) -> i.AgentWithdraws:
    return i.AgentWithdraws(at=AT, agent_request_id=agent_id)


def steered(prompt_id: str, *, injected: bool) -> i.SteerAnswered:
    return steer_outcome(prompt_id, i.SteerOutcome.INJECTED if injected else i.SteerOutcome.FAILED)


def steer_outcome(prompt_id: str, outcome: i.SteerOutcome) -> i.SteerAnswered:
    return i.SteerAnswered(at=AT, prompt_id=PromptId(prompt_id), outcome=outcome)


def gone(code: str = "agent_exited") -> i.AgentGone:
    return i.AgentGone(at=AT, code=code, message="it is gone", exit_code=9, signal="KILL", stderr_tail="oops")


def deadline(prompt_id: str, rung: ev.CancelRung) -> i.DeadlinePassed:
    return i.DeadlinePassed(at=AT, prompt_id=PromptId(prompt_id), rung=rung)


REPLAYED = i.AgentReplayed(at=AT, replayed=4, matched=3, missing=1, first_difference="the second message")
RECOVER = i.Recover(at=AT)
ADOPT = i.Adopt(at=AT, agent_session_id=AgentSessionId("a1"))

# -- the session ---------------------------------------------------------------------------------------------


class Session:
    """One session that accepts inputs one by one."""

    def __init__(
        self,
        turn_end: ev.TurnEnd | None = ev.TurnEnd.RESPONSE,
        *,
        steering: bool = False,
        limits: Limits | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self.state: SessionState = NOTHING
        self.log: list[ev.AnyEvent] = []
        self.effects: list[ef.AnyEffect] = []
        self.take(i.CreateSession(at=AT, session_id=SessionId("s1"), cwd="/w"))
        if turn_end is not None:
            self.take(ready(turn_end, steering=steering))

    def take(self, *inputs: i.AnyInput) -> Decision:
        """Apply inputs; return the decision of the last."""
        decision = Decision((), (), None, self.state)
        for given in inputs:
            decision = decide(self.state, given, offset=len(self.log), limits=self.limits)
            self.log.extend(decision.events)
            self.effects.extend(decision.effects)
            self.state = decision.state
        assert fold((decode(encode(each)) for each in self.log), NOTHING) == self.state
        return decision

    def refuses(self, given: i.AnyInput, error: type[_Error]) -> _Error:
        """Expect a rejection that changes nothing."""
        state, log, effects = self.state, list(self.log), list(self.effects)
        with pytest.raises(error) as caught:
            self.take(given)
        assert (self.state, self.log, self.effects) == (state, log, effects)
        return caught.value

    def found(self, kind: type[_Kind]) -> list[_Kind]:
        """The events of a kind."""
        return [each for each in self.log if isinstance(each, kind)]

    def effects_of(self, kind: type[_Effect]) -> list[_Effect]:
        """The effects of a kind."""
        return [each for each in self.effects if isinstance(each, kind)]

    def ends(self) -> dict[str, str]:
        """Stop reason or error code of each turn that has ended, in the order of their ends."""
        terminals = [each for each in self.log if isinstance(each, ev.TurnCompleted | ev.TurnFailed)]
        assert len({each.prompt_id for each in terminals}) == len(terminals)
        return {
            each.prompt_id: each.stop_reason if isinstance(each, ev.TurnCompleted) else each.code
            for each in terminals
        }

    def waiting(self) -> list[str]:
        """The queue by id."""
        return [each.prompt_id for each in self.state.queue]

    def running(self) -> str | None:
        """The active turn by id."""
        return self.state.turn.prompt_id if self.state.turn else None


def types(events: tuple[ev.AnyEvent, ...] | list[ev.AnyEvent]) -> list[str]:
    """The events by their stored type."""
    return [str(each.__struct_config__.tag) for each in events]


# -- one sample of every event -------------------------------------------------------------------------------

_T, _P, _Q = PromptId("t1"), ClientId("c1"), PermissionId("q1")

SAMPLES: tuple[ev.AnyEvent, ...] = (
    ev.SessionCreated(at=AT, session_id=SessionId("s1"), cwd="/w", mcp_servers=Raw(b'[{"name":"m"}]'), title="t"),
    ev.SetupChanged(at=AT, mcp_servers=Raw(b"[]"), additional_directories=("/x",), meta=Raw(b"{}"), author="ann"),
    ev.SessionRenamed(at=AT, title=None, author="ann"),
    ev.SessionArchived(at=AT, author="ann", client_id=_P),
    ev.SessionUnarchived(at=AT, author="ann"),
    ev.SessionClosed(at=AT, reason="closed", author="ann"),
    ev.ModeChanged(at=AT, mode="plan", previous="ask", author="ann", client_id=_P),
    ev.ModelSwitched(at=AT, model_id="big", previous="small", author="ann"),
    ev.OptionSet(at=AT, config_id="effort", value="high", author="ann"),
    ev.ChoicesRestored(at=AT),
    ev.ChoicesLost(at=AT, lost=(ev.LostChoice(name="mode", wanted="plan", why="refused"),)),
    ev.QueueHeld(at=AT, reason="asked", author="ann"),
    ev.QueueReleased(at=AT, author="ann"),
    ev.ClientAttached(at=AT, client_id=_P, role="observer", author="ann"),
    ev.ClientDetached(at=AT, client_id=_P, reason="lost"),
    ev.AgentStarted(
        at=AT,
        agent_session_id=AgentSessionId("a1"),
        protocol_version=2,
        turn_end=ev.TurnEnd.IDLE,
        steering=True,
        how="load",
        capabilities=Raw(b'{"session":{}}'),
        offers=Raw(b'{"modes":{}}'),
        refused=(ev.OpeningRefused("resume", ERROR),),
    ),
    ev.AgentExited(at=AT, reason="agent_exited", exit_code=9, signal="KILL", stderr_tail="oops"),
    ev.HistoryCompared(at=AT, replayed=4, matched=3, missing=1, first_difference="the second message"),
    ev.SessionUpdated(
        at=AT,
        kind="plan",
        update=raw({"sessionUpdate": "plan", "x": 1.0}),
        prompt_id=_T,
        child=ChildId("s1.1"),
        names={"a": "s1.1"},
    ),
    ev.PromptAccepted(
        at=AT,
        prompt_id=_T,
        after_offset=7,
        prompt_request_id="2",
        key="k",
        digest="d",
        meta=Raw(b"{}"),
        content=content(),
    ),
    ev.PromptQueued(at=AT, prompt_id=_T, content=content(), position=0, steering=True),
    ev.PromptOffered(at=AT, prompt_id=_T),
    ev.PromptUpdated(at=AT, prompt_id=_T, content=content("new"), position=0, author="bob"),
    ev.PromptDequeued(at=AT, prompt_id=_T),
    ev.PromptFinished(at=AT, prompt_id=_T, state=ev.QueueExit.REMOVED),
    ev.UserMessage(at=AT, prompt_id=_T, message_id=MessageId("msg-t1"), content=content(), client_id=_P),
    ev.PromptSent(at=AT, prompt_id=_T, agent_request_id="4"),
    ev.PromptAnswered(at=AT, prompt_id=_T, stop_reason="end_turn", usage=Raw(b'{"totalTokens":3}')),
    ev.PromptInserted(at=AT, prompt_id=_T, agent_message_id="m1"),
    ev.PromptInjected(at=AT, prompt_id=_T, into=PromptId("host")),
    ev.SteerDeclined(at=AT, prompt_id=_T),
    ev.TurnStarted(at=AT, prompt_id=_T, origin=ev.Origin.AGENT),
    ev.TurnBlocked(at=AT, prompt_id=_T),
    ev.TurnUnblocked(at=AT, prompt_id=_T),
    ev.PermissionRequested(
        at=AT,
        request_id=_Q,
        agent_request_id="7",
        method=PERMISSION,
        params=Raw(b'{"toolCall":{}}'),
        options=("allow", "reject"),
        prompt_id=_T,
    ),
    ev.PermissionResolved(
        at=AT, request_id=_Q, end=ev.PermissionEnd.ANSWERED, answer=chosen("allow"), prompt_id=_T
    ),
    ev.PermissionAnsweredLate(at=AT, request_id=_Q, author="bob", client_id=_P),
    ev.CancelAsked(at=AT, prompt_id=_T, author="bob", client_id=_P),
    ev.CancelEscalated(at=AT, prompt_id=_T, rung=ev.CancelRung.TERMINATE),
    ev.ChildCancelAsked(at=AT, child=ChildId("s1.1"), author="ann"),
    ev.TurnCompleted(
        at=AT,
        prompt_id=_T,
        stop_reason="end_turn",
        ending=ev.Ending.RESPONSE,
        prompt_request_id=2,
        usage=Raw(b'{"totalTokens":3}'),
        cancelled_by="bob",
        agent_stop_reason="refusal",
        agent_error=ERROR,
    ),
    ev.TurnFailed(at=AT, prompt_id=_T, code="agent_error", message="no", exit_code=9, agent_error=ERROR),
)
