"""Making a conversation shorter: by leaving out what is old, or by a summary that the model writes.

Takes a turn's conversation; leaves fewer or shorter messages that still are one. Never leaves a tool wish without
its result, and never puts half a summary, a refusal or nothing in the place of what was said.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from turnwire.builtin.conversation import plain_transcript, says
from turnwire.builtin.model import AssistantMessage, Finished, Message, Text, ToolResult
from turnwire.builtin.script_model import ScriptModel
from turnwire.builtin.usage import add_up, forget_context
from turnwire.builtin.work import Work

KEPT_RESULTS = 2
"""The newest tool results stay whole."""
SHORT_CHARACTERS = 400
LEFT_OUT = "\n[The rest of this old result was left out to save room. Call the tool again if you need it.]"
SUMMARISE = """\
Write a summary of this conversation for yourself, so that you can go on without it. Keep what the user wants, \
what was found out, which files matter and why, what was changed, what is still to do. Leave out what is done. \
Answer with the summary only.\
"""
TRANSCRIPT_TOKENS = 50_000
"""What is summarised at most, if the model's size is not known."""
BEFORE = "[What was said before, in short]\n\n"
AGREED = "I go on from this summary."
KEPT = "The model gave no whole summary, so the conversation is kept as it is. Try `/compact` again, or `/clear`.\n"


def shortened(messages: Sequence[Message]) -> list[Message] | None:
    """With old tool results cut; none if that would change nothing."""
    results = [at for at, each in enumerate(messages) if isinstance(each, ToolResult)]
    old = set(results[: max(len(results) - KEPT_RESULTS, 0)])
    shorter = [_short(each) if at in old else each for at, each in enumerate(messages)]
    return None if shorter == list(messages) else shorter


def _short(message: Message) -> Message:
    if not isinstance(message, ToolResult) or len(message.text) <= SHORT_CHARACTERS + len(LEFT_OUT):
        return message
    return replace(message, text=message.text[:SHORT_CHARACTERS] + LEFT_OUT)


async def compact(work: Work) -> bool:
    """Put a summary in the conversation's place; false leaves it as it was. Raises `ModelFailed`, and then, too.

    A script cannot write one; there, old tool results are cut.
    """
    messages = work.talk.messages
    if isinstance(work.model, ScriptModel):
        work.talk.replace(shortened(messages) or messages)
    elif messages:
        await work.turn.think("The conversation is put into a summary.\n")
        summary = await _summary(work)
        if not summary:
            return False
        work.talk.replace(summary_of(summary))
    forget_context(work.turn.session.state)
    return True


async def _summary(work: Work) -> str:
    """What the model makes of the conversation; empty if it did not write all of it. Raises `ModelFailed`."""
    # Two characters for each token leave room in every language.
    text = plain_transcript(work.talk.messages, 2 * (work.model.context_size or TRANSCRIPT_TOKENS))
    said: list[str] = []
    is_whole = False
    async with work.model.stream(SUMMARISE, [says(text)], ()) as stream:
        async for piece in stream:
            if isinstance(piece, Text):
                said.append(piece.text)
            elif isinstance(piece, Finished):
                add_up(work, piece.usage)
                is_whole = piece.reason == "stop"
    return "".join(said).strip() if is_whole else ""


def summary_of(text: str) -> list[Message]:
    """A conversation that begins with a summary."""
    return [says(BEFORE + text), AssistantMessage(AGREED)]
