"""The slash commands of the built-in agent.

Each says something, and changes the session if that is its job. None asks the model but `/compact`, so they work
also when the model does not.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeAlias

from turnwire.agent import Turn
from turnwire.builtin.context import KEPT, compact, forget_context, usage_words
from turnwire.builtin.loop import failure_of
from turnwire.builtin.offline_model import CAN, CONFIGURE, NO_MODEL
from turnwire.builtin.permits import MODE_IDS, MODES
from turnwire.builtin.script_model import ScriptModel
from turnwire.builtin.work import ALLOWED, Work
from turnwire.errors import AgentFailure, ModelFailed

Function: TypeAlias = Callable[[Turn, str], Awaitable[None]]
MODEL = "model"
"""The option that chooses among several models."""


class Row(NamedTuple):
    """One command."""

    name: str
    about: str
    hint: str | None
    run: Callable[[Work, str, tuple[str, ...]], Awaitable[None]]
    """Takes the turn's work, the words behind the command, and the names of all models."""


async def _help(work: Work, arguments: str, models: tuple[str, ...]) -> None:
    lines = [f"- `/{each.name}`: {each.about}" for each in COMMANDS]
    lines.append("- `/demo`: Show what an agent can do")
    tools = ", ".join(f"`{name}`" for name in work.tools)
    parts = ["Commands:\n\n" + "\n".join(lines), f"Tools: {tools}", f"Mode: `{work.mode}`"]
    if isinstance(work.model, ScriptModel):
        parts += [NO_MODEL, CAN, CONFIGURE]
    else:
        parts.append(f"Model: `{work.model.name}`")
    await work.turn.say("\n\n".join(parts))


async def _model(work: Work, arguments: str, models: tuple[str, ...]) -> None:
    if isinstance(work.model, ScriptModel):
        await work.turn.say(f"{NO_MODEL}\n\n{CONFIGURE}")
        return
    if not arguments:
        names = "\n".join(f"- `{each}`{' (in use)' if each == work.model.name else ''}" for each in models)
        more = "\n\n`/model NAME` changes it." if len(models) > 1 else ""
        await work.turn.say(f"Models:\n\n{names}{more}")
        return
    if arguments not in models:
        raise AgentFailure(f"there is no model {arguments!r}; there are: {', '.join(models)}", jsonrpc=-32602)
    if len(models) > 1:
        work.turn.session.choose(MODEL, arguments)
    await work.turn.say(f"The model is `{arguments}` now.")


async def _mode(work: Work, arguments: str, models: tuple[str, ...]) -> None:
    if not arguments:
        lines = [f"- `{each.id}`: {each.description}" for each in MODES]
        await work.turn.say(f"The mode is `{work.mode}`. There are:\n\n" + "\n".join(lines))
        return
    if arguments not in MODE_IDS:
        raise AgentFailure(f"there is no mode {arguments!r}; there are: {', '.join(MODE_IDS)}", jsonrpc=-32602)
    work.turn.session.mode = arguments
    await work.turn.say(f"The mode is `{arguments}` now.")


async def _clear(work: Work, arguments: str, models: tuple[str, ...]) -> None:
    count = work.conversation.place()
    work.conversation.replace(())
    work.turn.session.state.pop(ALLOWED, None)
    forget_context(work.turn.session.state)
    await work.turn.say(
        f"I have forgotten the conversation ({count} messages) and what you allowed for good. "
        "What you see above is still in the session's log."
    )


async def _compact(work: Work, arguments: str, models: tuple[str, ...]) -> None:
    before = work.conversation.place()
    try:
        is_done = await compact(work)
    except ModelFailed as failed:
        raise failure_of(work.model.name, failed) from None
    now = f"The conversation had {before} messages; now it has {work.conversation.place()}."
    await work.turn.say(now if is_done else KEPT)


async def _usage(work: Work, arguments: str, models: tuple[str, ...]) -> None:
    await work.turn.say(usage_words(work.turn.session.state, work.model.context_size))


COMMANDS = (
    Row("help", "Say what this agent can do", None, _help),
    Row("model", "Show the models, or choose one", "a model's name, or nothing", _model),
    Row("mode", "Show the modes, or choose one", "ask, accept_edits, plan, or nothing", _mode),
    Row("clear", "Forget the conversation", None, _clear),
    Row("compact", "Make the conversation shorter", None, _compact),
    Row("usage", "Show the tokens that were used", None, _usage),
)
"""All but `/demo`, which is the agent's."""
