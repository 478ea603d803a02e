"""How a prompt gets its place in the conversation: by us when it starts, or by an agent that says where.

A v1 agent never says that it has a prompt, so the message is recorded as the turn starts, under a name of ours. A
v2 agent owns its conversation: it answers the prompt when the message is in it, shows the message where it stands,
and may refuse it, and these come in any order. So the message is recorded where the agent shows it, under the
agent's name, and the answer is recorded by itself.

    P1  `UserMessage` is recorded once for each prompt that is in the conversation, and for no other.
    P2  `PromptInserted` is recorded once for each prompt that its agent answered: a v2 client is answered by it.
    P3  A prompt that goes into the conversation while another turn runs joins that turn.
    P4  An agent that gives the message no name, or never shows it, does not keep it from its place: that is before
        the first words of the turn, or else before its end.
"""

from __future__ import annotations

from msgspec import UNSET, Raw, UnsetType

from turnwire.core import events as ev
from turnwire.core.draft import Draft
from turnwire.core.inputs import AgentAnswered
from turnwire.core.state import Turn, echoed, find_turn
from turnwire.core.turn import TurnState
from turnwire.ids import MessageId


def record_message(draft: Draft, at: int, turn: Turn, content: Raw, message_id: str | None = None) -> None:
    """The message of a prompt stands here. Without a name of the agent's it has one of ours."""
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
    """The agent shows a user message. If it is a prompt whose place is not known yet, this is its place."""
    prompt = echoed(draft.state, message_id)
    if prompt is None or prompt.content is UNSET or not draft.state.inserts:
        return
    _join(draft, at, prompt)
    record_message(draft, at, prompt, prompt.content, message_id or prompt.echo_id)
    if prompt.answered is not None and prompt.echo_id is None:
        _confirm(draft, at, prompt, message_id, prompt.beside)


def answered(draft: Draft, input: AgentAnswered) -> None:
    """The agent answers a prompt that it puts into its conversation itself: it has it."""
    prompt = find_turn(draft.state, input.prompt_id)
    if prompt is None or prompt.state is TurnState.QUEUED or prompt.origin is ev.Origin.AGENT:
        return
    if prompt.answered is not None:
        return
    _join(draft, input.at, prompt)
    named = input.message_id or prompt.echo_id
    if named is None:
        # What the message is called is known when it is shown.
        draft.record(ev.PromptAnswered(at=input.at, prompt_id=prompt.prompt_id, beside=input.beside))
    else:
        _confirm(draft, input.at, prompt, named, input.beside)


def place(draft: Draft, at: int, turn: Turn) -> None:
    """See to it that a message that the agent has is in the log: nothing of it may come before it (P4)."""
    if turn.echo_id is not None or turn.answered is not None:
        _place(draft, at, turn)


def spoken(draft: Draft, at: int, turn: Turn) -> None:
    """The agent speaks in a turn: its message stands before that, if the agent has it.

    A v1 agent that offers the lifecycle draft may still answer as v1 does, at the end. That it has the prompt is
    known by its words: before the prompt it has nothing to say in the turn.
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
