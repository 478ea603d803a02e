"""Folds for messages (appended chunks, whole-message patches, users' prompts) and for compactions of agent memory.

Each fold changes or adds one item of the transcript and returns True if the update could be applied.

A chunk without an id continues the last item if that is a message of the same role and turn; one with an id
continues the message of that role and id. A chunk's `_meta` is not stored, unless it places the chunk inside a tool
call: such chunks form separate messages.

A prompt is in the transcript once, as the client sent it: the agent's copies of it add nothing. Late updates never
change the content of a turn: a message that continues after the end of its turn is marked late and retains its
content at the end in `in_time`.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, field

from turnwire.projections.view.patch import Patch
from turnwire.projections.view.transcript import (
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
from turnwire.session.events import SessionUpdated, UserMessage
from turnwire.session.json_members import is_object, read_entries, read_members, read_text
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
    """Append a block to a message. The common case, text that continues, returns first."""
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
    """Append a block other than plain text, or a chunk with a field of a wrong type."""
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
    """Apply a v2 message update: omitted content stays, null clears, a list replaces."""
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
    """Return the message of an update, ready to change; a new one if absent.

    `nested`: the tool call that contains it.
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
    """Add the message of a client's prompt. Return its index."""
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
    """Apply the agent's copy of a prompt: only its id is stored."""
    members = read_members(event.update)
    agent_message_id = read_text(members.get("messageId")) if members is not None else None
    if agent_message_id is not None:
        transcript.bind(prompt, agent_message_id)


# -- compactions -----------------------------------------------------------------------------------------------
#
# The first update determines the position of a compaction. `null` clears in both versions of ACP, by definition.


def update_compaction(transcript: Transcript, event: SessionUpdated) -> bool:
    """Apply `compaction_update`, a patch."""
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
    """Apply `compaction_summary_chunk`: append a block; an unseen id is a compaction in progress."""
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
