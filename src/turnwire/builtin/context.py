"""The model's context: what a session has used of it, and how the conversation is made shorter before it is full.

Tokens are told to the client with every answer and added up in the session's state; never estimated: the numbers
are the model's. What is made shorter still is a conversation: no tool use is without its result, and half a
summary, a refusal or nothing never stands in the place of what was said.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from turnwire.builtin.conversation import plain_transcript, says
from turnwire.builtin.model import AssistantMessage, Finished, Message, Text, ToolResult, Usage
from turnwire.builtin.script_model import ScriptModel
from turnwire.builtin.work import Work

KEY = "usage"

CONTEXT = "context"

NEARLY = 0.85
"""The part of the context that may be full before the conversation is made shorter."""


# The context is as full as the last request was long: what was sent with it and what came back. The totals, on the
# other hand, add up all requests, also those for summaries.


def count(work: Work, used: Usage) -> None:
    """Tell the client what an answer used, and how full the context is with it."""
    context = used.input_tokens + used.output_tokens
    work.turn.session.state[CONTEXT] = context
    add_up(work, used, context)


def add_up(work: Work, used: Usage, context: int | None = None) -> None:
    """The same for a request that is no part of the conversation, and says nothing of how long that is."""
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
    """The same for a person."""
    total, context = total_of(state), int(state.get(CONTEXT, 0))
    lines = [
        f"- input: {total.input_tokens} tokens, {total.cached_tokens} of them from the provider's cache",
        f"- output: {total.output_tokens} tokens, {total.thought_tokens} of them thoughts",
    ]
    if context_size is not None:
        lines.append(f"- context: {context} of {context_size} tokens ({100 * context / context_size:.0f} %)")
    return "This session has used:\n\n" + "\n".join(lines)


def is_nearly_full(state: dict[str, Any], context_size: int | None) -> bool:
    """Whether the next prompt may not fit."""
    return context_size is not None and int(state.get(CONTEXT, 0)) > NEARLY * context_size


def forget_context(state: dict[str, Any]) -> None:
    """The conversation is another one now; how long it is, the next answer tells."""
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
"""What is summarised at most, if the model's size is not known."""

BEFORE = "[What was said before, in short]\n\n"

AGREED = "I go on from this summary."

KEPT = "The model gave no whole summary, so the conversation is kept as it is. Try `/compact` again, or `/clear`.\n"


async def compact(work: Work) -> bool:
    """Put a summary in the conversation's place; false leaves it as it was. Raises `ModelFailed`, and then, too.

    A script cannot write one; there, old tool results are cut.
    """
    messages = work.conversation.messages
    if isinstance(work.model, ScriptModel):
        work.conversation.replace(shortened(messages) or messages)
    elif messages:
        await work.turn.think("The conversation is put into a summary.\n")
        summary = await _summary(work)
        if not summary:
            return False
        work.conversation.replace(summary_of(summary))
    forget_context(work.turn.session.state)
    return True


async def _summary(work: Work) -> str:
    """What the model makes of the conversation; empty if it did not write all of it. Raises `ModelFailed`."""
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
    """A conversation that begins with a summary."""
    return [says(BEFORE + text), AssistantMessage(AGREED)]


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
