"""Compactions: the agent shortened its memory of the conversation.

Takes a transcript and an update; changes or adds one compaction and gives whether the update could be
applied. The first update fixes its place. `null` clears in both versions of ACP, as both define it so.
"""

from __future__ import annotations

from msgspec import Raw

from turnwire.core.events import SessionUpdated
from turnwire.core.view.items import Compaction
from turnwire.core.view.patch import Patch, is_object, read_members, read_text
from turnwire.core.view.transcript import Transcript, ended_turn


def update(transcript: Transcript, event: SessionUpdated) -> bool:
    """`compaction_update`: a patch."""
    members = read_members(event.update)
    compaction = _find_or_add(transcript, event, members)
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
    compaction = _find_or_add(transcript, event, members)
    if compaction is None:
        return False
    transcript.text.append(compaction.summary, block)
    return True


def _find_or_add(
    transcript: Transcript, event: SessionUpdated, members: dict[str, Raw] | None
) -> Compaction | None:
    compaction_id = read_text(members.get("compactionId")) if members is not None else None
    if compaction_id is None:
        return None
    compaction = transcript.compactions.get(compaction_id)
    if compaction is None:
        compaction = Compaction(
            at=event.at, prompt_id=event.prompt_id, after=event.after, compaction_id=compaction_id
        )
        transcript.add(compaction)
    else:
        compaction.after = ended_turn(compaction, event) or compaction.after
    return compaction
