"""What a session has used: tokens, told to the client with every answer and added up in the session's state.

Takes the usage of one request; tells it. Never estimates: the numbers are the model's.
"""

from __future__ import annotations

from typing import Any

from turnwire.builtin.model import Usage
from turnwire.builtin.work import Work

KEY = "usage"
CONTEXT = "context"
NEARLY = 0.85
"""The part of the context that may be full before the conversation is made shorter."""


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
