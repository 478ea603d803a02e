"""The position of a prompt in the conversation, recorded at its start or where a v2 agent shows it.

A v1 agent never acknowledges a prompt, so the message is recorded as the turn starts, under an id of turnwire. A v2
agent owns its conversation: it answers the prompt when the message is in it, shows the message in its position, and
may reject it, and these arrive in any order. So the message is recorded where the agent shows it, under the agent's
id, and the answer is recorded separately.

  P1  `UserMessage` is recorded once for each prompt that is in the conversation, and for no other.
  P2  `PromptInserted` is recorded once for each prompt that its agent answered; it answers a v2 client.
  P3  A prompt that is inserted into the conversation while another turn runs joins that turn.
  P4  A message that the agent never names or never shows is still recorded: before the first output of the turn,
      or else before its end.
"""

from __future__ import annotations

from msgspec import UNSET, Raw, UnsetType

from turnwire.ids import MessageId
from turnwire.session import events as ev
from turnwire.session.draft import Draft
from turnwire.session.inputs import AgentAnswered
from turnwire.session.state import Turn, echoed, find_turn
from turnwire.session.turn import TurnState


def record_message(draft: Draft, at: int, turn: Turn, content: Raw, message_id: str | None = None) -> None:
    """Record the message of a prompt here. Without the agent's id, turnwire assigns one."""
    draft.record(
        ev.UserMessage(
            at=at,
            prompt_id=turn.prompt_id,
            message_id=MessageId(message_id or f"msg-{turn.prompt_id}"),
            content=content,
            author=turn.author,
            client_id=turn.client_id,
        )
    )


def shown(draft: Draft, at: int, message_id: str | None) -> None:
    """Handle a user message that the agent shows. If it is a prompt without a position, record the prompt here."""
    prompt = echoed(draft.state, message_id)
    if prompt is None or prompt.content is UNSET or not draft.state.inserts:
        return
    _join(draft, at, prompt)
    record_message(draft, at, prompt, prompt.content, message_id or prompt.echo_id)
    if prompt.answered is not None and prompt.echo_id is None:
        _confirm(draft, at, prompt, message_id, prompt.beside)


def answered(draft: Draft, input: AgentAnswered) -> None:
    """Handle the agent's answer to a prompt that the agent inserts itself: the agent has it."""
    prompt = find_turn(draft.state, input.prompt_id)
    if prompt is None or prompt.state is TurnState.QUEUED or prompt.origin is ev.Origin.AGENT:
        return
    if prompt.answered is not None:
        return
    _join(draft, input.at, prompt)
    named = input.message_id or prompt.echo_id
    if named is None:
        # The id of the message is known once it is shown.
        draft.record(ev.PromptAnswered(at=input.at, prompt_id=prompt.prompt_id, beside=input.beside))
    else:
        _confirm(draft, input.at, prompt, named, input.beside)


def place(draft: Draft, at: int, turn: Turn) -> None:
    """Record a message that the agent has, so that none of its output precedes it (P4)."""
    if turn.echo_id is not None or turn.answered is not None:
        _place(draft, at, turn)


def spoken(draft: Draft, at: int, turn: Turn) -> None:
    """Record the message before the first output of its turn, if the agent has it.

    A v1 agent that offers the lifecycle draft may still answer as v1 does, at the end. Its output proves that it
    has the prompt: before the prompt it has no output in the turn.
    """
    if draft.state.agent_version == 1:
        _place(draft, at, turn)
    else:
        place(draft, at, turn)


def _place(draft: Draft, at: int, turn: Turn) -> None:
    if turn.content is UNSET:
        return
    record_message(draft, at, turn, turn.content, turn.echo_id)
    if turn.echo_id is None:
        _confirm(draft, at, turn, None, turn.beside)


def _confirm(draft: Draft, at: int, turn: Turn, message_id: str | None, beside: Raw | UnsetType) -> None:
    named = message_id or f"msg-{turn.prompt_id}"
    draft.record(ev.PromptInserted(at=at, prompt_id=turn.prompt_id, agent_message_id=named, beside=beside))


def _join(draft: Draft, at: int, prompt: Turn) -> None:
    host = draft.state.turn
    if prompt.state is TurnState.OFFERED:
        assert host is not None, "an offered prompt starts when nothing else runs"
        draft.record(ev.PromptInjected(at=at, prompt_id=prompt.prompt_id, into=host.prompt_id))
