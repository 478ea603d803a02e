"""Messages: chunks that append, whole-message updates that patch, the user's own prompts; and compactions, by which
the agent shortens its memory of them.

Each fold changes or adds one item of the transcript and gives whether the update could be applied.
Without an id a chunk follows the last item if that is a message of the same role and turn; with one it
follows the message of that role and id. A chunk's own `_meta` is not kept, unless it says that the chunk was said
inside of a tool call: such words are messages apart.

A prompt is in the transcript once, as the client sent it: the agent's copies of it add nothing. Late words
never change what a turn said: a message that goes on after the end of its turn is marked late and keeps
its content at the end in `in_time`.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, field

from turnwire.core.events import SessionUpdated, UserMessage
from turnwire.core.json_members import is_object, read_entries, read_members, read_text
from turnwire.core.view.patch import Patch
from turnwire.core.view.transcript import (
    NESTS,
    Compaction,
    Current,
    Message,
    MessageRole,
    PlainText,
    Transcript,
    ended_turn,
    nested_under,
)
from turnwire.wire.jsonrpc import UNREADABLE

CHUNKS = {
    "user_message_chunk": MessageRole.USER,
    "agent_message_chunk": MessageRole.AGENT,
    "agent_thought_chunk": MessageRole.THOUGHT,
}
WHOLE = {"user_message": MessageRole.USER, "agent_message": MessageRole.AGENT, "agent_thought": MessageRole.THOUGHT}


class _TextChunk(Struct, frozen=True, rename="camel", gc=False):
    content: PlainText
    message_id: str | None = None
    meta: Raw | UnsetType = field(name="_meta", default=UNSET)


_read_text_chunk = msgspec.json.Decoder(_TextChunk).decode


def append_chunk(transcript: Transcript, event: SessionUpdated) -> bool:
    """One more block at the end of a message. The common case, text that goes on, returns first."""
    role = CHUNKS[event.kind]
    try:
        chunk = _read_text_chunk(event.update)
    except UNREADABLE:
        return _append_block(transcript, event, role)
    if chunk.meta is not UNSET and NESTS in bytes(chunk.meta):
        return _append_block(transcript, event, role)
    message_id, current = chunk.message_id, transcript.current
    if (
        current is not None
        and current.role is role
        and current.message_id == message_id
        and current.prompt_id == event.prompt_id
        and current.after == event.after
    ):
        current.buffer.extend(chunk.content.text.encode())
        current.message.last_event_id = transcript.offset
        return True
    message = _continued(transcript, event, role, message_id)
    if not message.is_prompt:
        buffer = transcript.text.grow(message.content)
        buffer.extend(chunk.content.text.encode())
        transcript.current = Current(role, message_id, event.prompt_id, event.after, message, buffer)
    return True


def _append_block(transcript: Transcript, event: SessionUpdated, role: MessageRole) -> bool:
    """A block that is more than text, or a chunk with a field of a wrong type."""
    members = read_members(event.update)
    block = members.get("content") if members is not None else None
    if members is None or block is None or not is_object(block):
        return False
    meta = Patch(members, null_clears=False).meta({})
    message = _continued(transcript, event, role, read_text(members.get("messageId")), nested_under(meta))
    if not message.is_prompt:
        if nested_under(meta) is not None:
            message.meta = {**message.meta, **meta}
        transcript.current = None
        transcript.text.append(message.content, block)
    return True


def update_whole(transcript: Transcript, event: SessionUpdated) -> bool:
    """A v2 message update: omitted content stays, null clears, a list replaces."""
    members = read_members(event.update)
    message_id = read_text(members.get("messageId")) if members is not None else None
    if members is None or message_id is None:
        return False
    message = _continued(transcript, event, WHOLE[event.kind], message_id)
    if message.is_prompt:
        return True
    patch = Patch(members, null_clears=True)
    content = patch.entries("content", message.content)
    if content is not message.content:
        transcript.text.forget(message.content)
        transcript.current = None
        message.content = content
    message.meta = patch.meta(message.meta)
    return True


def _continued(
    transcript: Transcript,
    event: SessionUpdated,
    role: MessageRole,
    message_id: str | None,
    nested: str | None = None,
) -> Message:
    """The message that an update is about, ready to change; a new one if there is none.

    `nested`: the tool call in which it is said.
    """
    if message_id is not None:
        message = transcript.message(role, message_id)
    else:
        message = _last(transcript, event, role)
        message = message if message is None or message.nested == nested else None
    if message is None:
        message = Message(
            at=event.at, prompt_id=event.prompt_id, after=event.after, role=role, message_id=message_id
        )
        transcript.add(message)
    elif not message.is_prompt:
        message.last_event_id = transcript.offset
        _mark_late(transcript, message, event)
    return message


def _last(transcript: Transcript, event: SessionUpdated, role: MessageRole) -> Message | None:
    last = transcript.stored[-1] if transcript.stored else None
    if (
        isinstance(last, Message)
        and last.role is role
        and not last.is_prompt
        and last.life == transcript.speaker.life
        and last.prompt_id == event.prompt_id
        and last.after == event.after
    ):
        return last
    return None


def _mark_late(transcript: Transcript, message: Message, event: SessionUpdated) -> None:
    after = ended_turn(message, event)
    if after is None:
        return
    if message.prompt_id is not None and message.in_time is None:
        transcript.text.close(message.content)
        transcript.current = None
        message.in_time = list(message.content)
    message.after = after


# -- prompts -------------------------------------------------------------------------------------------------


def add_prompt(transcript: Transcript, event: UserMessage) -> int:
    """The message that a client prompted; gives its index."""
    blocks = read_entries(event.content)
    return transcript.add(
        Message(
            at=event.at,
            prompt_id=event.prompt_id,
            role=MessageRole.USER,
            message_id=event.message_id,
            content=[event.content.copy()] if blocks is None else blocks,
            is_prompt=True,
            author=event.author,
            client_id=event.client_id,
        )
    )


def hear_echo(transcript: Transcript, prompt: Message, event: SessionUpdated) -> None:
    """The agent's copy of a prompt: it adds its id and nothing else."""
    members = read_members(event.update)
    agent_message_id = read_text(members.get("messageId")) if members is not None else None
    if agent_message_id is not None:
        transcript.bind(prompt, agent_message_id)


# -- compactions -----------------------------------------------------------------------------------------------
#
# The first update fixes the place of one. `null` clears in both versions of ACP, as both define it so.


def update_compaction(transcript: Transcript, event: SessionUpdated) -> bool:
    """`compaction_update`: a patch."""
    members = read_members(event.update)
    compaction = _compaction(transcript, event, members)
    if members is None or compaction is None:
        return False
    patch = Patch(members, null_clears=True)
    compaction.status = patch.word("status", compaction.status, "in_progress")
    summary = patch.entries("summary", compaction.summary)
    if summary is not compaction.summary:
        transcript.text.forget(compaction.summary)
        compaction.summary = summary
    compaction.error = patch.text("error", compaction.error)
    compaction.meta = patch.meta(compaction.meta)
    return True


def append_summary(transcript: Transcript, event: SessionUpdated) -> bool:
    """`compaction_summary_chunk`: one more block; an unseen id is a compaction in progress."""
    members = read_members(event.update)
    block = members.get("content") if members is not None else None
    if block is None or not is_object(block):
        return False
    compaction = _compaction(transcript, event, members)
    if compaction is None:
        return False
    transcript.text.append(compaction.summary, block)
    return True


def _compaction(transcript: Transcript, event: SessionUpdated, members: dict[str, Raw] | None) -> Compaction | None:
    compaction_id = read_text(members.get("compactionId")) if members is not None else None
    if compaction_id is None:
        return None
    compaction = transcript.compaction(compaction_id)
    if compaction is None:
        compaction = Compaction(
            at=event.at, prompt_id=event.prompt_id, after=event.after, compaction_id=compaction_id
        )
        transcript.add(compaction)
    else:
        compaction.after = ended_turn(compaction, event) or compaction.after
        compaction.last_event_id = transcript.offset
    return compaction
