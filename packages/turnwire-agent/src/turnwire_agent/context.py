"""The model's context: a session's use of it, and compaction of the conversation before it is full.

Token counts are sent to the client with every answer and added up in the session's state. They are never estimated:
the numbers are the model's. A compacted conversation stays valid: every tool use has its result, and a partial
summary, a refusal or an empty answer never replaces the conversation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from turnwire_agent.conversation import plain_transcript, says
from turnwire_agent.model import AssistantMessage, Finished, Message, Text, ToolResult, Usage
from turnwire_agent.work import Work

KEY = "usage"

CONTEXT = "context"

NEARLY = 0.85
"""The part of the context that may be full before the conversation is made shorter."""


# The context is as full as the last request was long: its input and its output. The totals, in contrast, add up all
# requests, including those for summaries.


def count(work: Work, used: Usage) -> None:
    """Send the usage of an answer to the client, with the resulting context size."""
    context = used.input_tokens + used.output_tokens
    work.turn.session.state[CONTEXT] = context
    add_up(work, used, context)


def add_up(work: Work, used: Usage, context: int | None = None) -> None:
    """Add the usage of a request outside the conversation, which does not affect the context size."""
    state, size = work.turn.session.state, work.model.context_size
    state[KEY] = list(Usage(*(one + other for one, other in zip(total_of(state), used, strict=True))))
    work.turn.usage(
        input_tokens=used.input_tokens,
        output_tokens=used.output_tokens,
        cached_tokens=used.cached_tokens,
        thought_tokens=used.thought_tokens,
        context_used=None if size is None else context,
        context_size=None if context is None else size,
    )


def total_of(state: dict[str, Any]) -> Usage:
    """Everything that a session used so far."""
    return Usage(*state.get(KEY, Usage()))


def usage_words(state: dict[str, Any], context_size: int | None) -> str:
    """Return the usage as text for a person."""
    total, context = total_of(state), int(state.get(CONTEXT, 0))
    lines = [
        f"- input: {total.input_tokens} tokens, {total.cached_tokens} of them from the provider's cache",
        f"- output: {total.output_tokens} tokens, {total.thought_tokens} of them thoughts",
    ]
    if context_size is not None:
        lines.append(f"- context: {context} of {context_size} tokens ({100 * context / context_size:.0f} %)")
    return "This session has used:\n\n" + "\n".join(lines)


def is_nearly_full(state: dict[str, Any], context_size: int | None) -> bool:
    """Return True if the next prompt may not fit."""
    return context_size is not None and int(state.get(CONTEXT, 0)) > NEARLY * context_size


def forget_context(state: dict[str, Any]) -> None:
    """Reset the context size after the conversation was replaced; the next answer reports it."""
    state.pop(CONTEXT, None)


# -- making it shorter -------------------------------------------------------------------------------------


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
"""Maximum size of the summarised text if the model's context size is unknown."""

BEFORE = "[What was said before, in short]\n\n"

AGREED = "I go on from this summary."

KEPT = "The model gave no whole summary, so the conversation is kept as it is. Try `/compact` again, or `/clear`.\n"


async def compact(work: Work) -> bool:
    """Replace the conversation by a summary. It is unchanged if this returns False or raises `ModelFailed`."""
    if work.conversation.messages:
        await work.turn.think("The conversation is put into a summary.\n")
        summary = await _summary(work)
        if not summary:
            return False
        work.conversation.replace(summary_of(summary))
    forget_context(work.turn.session.state)
    return True


async def _summary(work: Work) -> str:
    """Return the model's summary of the conversation; empty if it is incomplete. Raises `ModelFailed`."""
    # Two characters for each token leave room in every language.
    text = plain_transcript(work.conversation.messages, 2 * (work.model.context_size or TRANSCRIPT_TOKENS))
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
    """Return a conversation that begins with a summary."""
    return [says(BEFORE + text), AssistantMessage(AGREED)]


def shortened(messages: Sequence[Message]) -> list[Message] | None:
    """Return the conversation with old tool results cut, or None if that would change nothing."""
    results = [at for at, each in enumerate(messages) if isinstance(each, ToolResult)]
    old = set(results[: max(len(results) - KEPT_RESULTS, 0)])
    shorter = [_short(each) if at in old else each for at, each in enumerate(messages)]
    return None if shorter == list(messages) else shorter


def _short(message: Message) -> Message:
    if not isinstance(message, ToolResult) or len(message.text) <= SHORT_CHARACTERS + len(LEFT_OUT):
        return message
    return replace(message, text=message.text[:SHORT_CHARACTERS] + LEFT_OUT)
