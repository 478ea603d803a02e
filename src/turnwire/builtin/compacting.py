"""Making a conversation shorter: by leaving out what is old, or by a summary that the model writes.

Takes a turn's conversation; leaves fewer or shorter messages that still are one. Never leaves a tool wish without
its result.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from turnwire.builtin.conversation import plain_transcript, says
from turnwire.builtin.model import AssistantMessage, Message, Model, Text, ToolResult
from turnwire.builtin.script_model import ScriptModel
from turnwire.builtin.usage import forget_context
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


async def compact(work: Work) -> None:
    """Put a summary in the conversation's place. Raises `ModelFailed`.

    A script cannot write one; there, old tool results are cut.
    """
    messages = work.talk.messages
    if isinstance(work.model, ScriptModel):
        work.talk.replace(shortened(messages) or messages)
    elif messages:
        await work.turn.think("The conversation is put into a summary.\n")
        work.talk.replace(await summarised(work.model, messages))
    forget_context(work.turn.session.state)


async def summarised(model: Model, messages: Sequence[Message]) -> list[Message]:
    """The conversation as one summary. Raises `ModelFailed`."""
    # Two characters for each token leave room in every language.
    text = plain_transcript(messages, 2 * (model.context_size or TRANSCRIPT_TOKENS))
    async with model.stream(SUMMARISE, [says(text)], ()) as stream:
        pieces = [piece.text async for piece in stream if isinstance(piece, Text)]
    return summary_of("".join(pieces)) if pieces else list(messages)


def summary_of(text: str) -> list[Message]:
    """A conversation that begins with a summary."""
    return [says(BEFORE + text.strip()), AssistantMessage(AGREED)]
