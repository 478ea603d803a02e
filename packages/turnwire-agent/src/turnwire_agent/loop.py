"""One turn of the built-in agent: the model answers, its tools run, and it answers again, until it is done.

The input is a user's message and the turn's work; the result is the stop reason. However the turn ends, the
conversation is ready for the next prompt: sent text is stored, accepted steering messages are in it, and every tool
use has its result. Prompt, tool uses and results are stored as they happen, so this also holds after a kill. Tool
uses get ids and names that every provider accepts back.

A model's failure is reported to the user in plain words (`AgentFailure`), never in those of its provider. After a
stream that breaks in the middle the model is asked once to continue, and the user sees that.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias, cast

import anyio
from msgspec.structs import replace

from turnwire.errors import AgentFailure, ModelFailed
from turnwire_agent.context import count, shortened
from turnwire_agent.conversation import Conversation, says, user_text
from turnwire_agent.model import (
    NAME_LENGTH,
    PROVIDERS,
    AssistantMessage,
    Finished,
    Message,
    Piece,
    ProviderName,
    Text,
    Thought,
    ToolUse,
    UserMessage,
    in_letters,
)
from turnwire_agent.tool_calls import run_tools
from turnwire_agent.work import Work

StopReason: TypeAlias = Literal["end_turn", "max_tokens", "max_turn_requests", "refusal"]

BROKE = "\nThe connection to the model broke in the middle of its answer. It is asked to go on.\n"

GO_ON = "[The connection broke in the middle of your answer. Go on where it stopped; do not repeat what you said.]"

STOPPED = "[The user stopped the turn here.]"

NOT_TAKEN = "[What came here, with its tool calls, was left out: the model's provider did not take it back.]"

SHORTENED = "The conversation was too long for the model. Old tool results were left out; it is asked again.\n"


async def run_turn(work: Work, prompt: UserMessage) -> StopReason:
    """The whole turn. Raises `AgentFailure`."""
    start = work.conversation.place()
    work.conversation.add(prompt)
    try:
        await work.keep()
        return await _answer(work, start)
    except ModelFailed as failed:
        _forget_refused(work.conversation, start, failed.reason)
        raise failure_of(work.model.name, failed) from None
    except anyio.get_cancelled_exc_class():
        _mark_stop(work.conversation)
        raise
    finally:
        # The steering client was notified that its message was accepted. If no request followed in this turn, the
        # next turn's request includes it.
        _add_steered(work)


async def _answer(work: Work, start: int) -> StopReason:
    for _ in range(work.bounds.max_requests):
        _add_steered(work)
        answer = await _ask_mending(work)
        if answer.finished.reason == "refusal":
            # ACP: neither the refused prompt nor later messages of its turn are part of the next prompt.
            work.conversation.rewind(start)
            return "refusal"
        if answer.finished.reason == "length":
            return "max_tokens"
        if not answer.tool_uses and not work.steered:
            return "end_turn"
        await work.keep()
        await run_tools(work, answer.tool_uses)
    return "max_turn_requests"


def _add_steered(work: Work) -> None:
    work.conversation.add(*work.steered)
    work.steered.clear()


def _forget_refused(conversation: Conversation, start: int, reason: str) -> None:
    """Remove the messages that would make every later request fail: those since the last accepted one.

    A provider that rejects a request does not identify the faulty message. All messages that it has answered are
    known to be valid, so the fault is after them.
    """
    keep = max(start, conversation.taken)
    if reason != "bad_request" and (reason != "too_long" or conversation.place() != start + 1):
        return
    # The prompt itself is removed, and its sender is notified. The text of later messages stays: pictures are the
    # reason of rejections.
    lost = conversation.messages[max(keep, start + 1) :]
    conversation.rewind(keep)
    if keep > start:
        conversation.add(AssistantMessage(NOT_TAKEN))
    conversation.add(*(says(text) for each in lost if (text := user_text(each)) and text != GO_ON))


def _mark_stop(conversation: Conversation) -> None:
    """Tell the model of the next prompt that this one was not answered completely."""
    last = conversation.messages[-1]
    if isinstance(last, AssistantMessage) and not last.tool_uses:
        conversation.rewind(conversation.place() - 1)
        conversation.add(AssistantMessage(f"{last.text}\n{STOPPED}"))
    else:
        conversation.add(AssistantMessage(STOPPED))


class _Answer(NamedTuple):
    tool_uses: tuple[ToolUse, ...]
    finished: Finished


async def _ask_mending(work: Work) -> _Answer:
    """Request one answer, with one more try for each failure that the loop can fix."""
    mended: set[str] = set()
    while True:
        place = work.conversation.place()
        try:
            return await _ask(work)
        except ModelFailed as failed:
            if failed.reason in mended or not _mend(work, failed.reason, place):
                raise
            mended.add(failed.reason)


def _mend(work: Work, reason: str, place: int) -> bool:
    """Fix the cause of a failure; return True if another try makes sense."""
    if reason == "cut":
        work.turn.think(BROKE)
        if work.conversation.place() > place:
            work.conversation.add(says(GO_ON))
        return True
    shorter: list[Message] | None = shortened(work.conversation.messages) if reason == "too_long" else None
    if shorter is None:
        return False
    work.turn.think(SHORTENED)
    work.conversation.replace(shorter)
    return True


async def _ask(work: Work) -> _Answer:
    """Call the model once and stream its output to the client. Raises `ModelFailed`."""
    heard = _AnswerSoFar()
    offered = work.offered()
    place = work.conversation.place()
    try:
        async with work.model.stream(
            work.system(offered),
            work.conversation.messages,
            offered,
            max_tokens=work.bounds.max_tokens,
            on_retry=lambda why, attempt, wait_s: work.turn.think(retry_words(why, attempt, wait_s)),
        ) as pieces:
            async for piece in pieces:
                work.conversation.taken = place
                heard.take(piece)
                await _tell(work, piece)
    finally:
        # Store the answer even when cut or cancelled: the user has read this text.
        message = heard.message()
        if message is not None:
            work.conversation.add(message)
    assert heard.finished is not None, "a stream ends with `Finished` or raises"
    count(work, heard.finished.usage)
    return _Answer(heard.uses_to_run(), heard.finished)


async def _tell(work: Work, piece: Piece) -> None:
    if isinstance(piece, Text):
        await work.turn.say(piece.text)
    elif isinstance(piece, Thought):
        await work.turn.think(piece.text)


class _AnswerSoFar:
    """One answer while it is received."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._thought: list[str] = []
        self._uses: list[ToolUse] = []
        self._is_as_sent = True
        self.finished: Finished | None = None

    def take(self, piece: Piece) -> None:
        if isinstance(piece, Text):
            self._text.append(piece.text)
        elif isinstance(piece, Thought):
            self._thought.append(piece.text)
        elif isinstance(piece, ToolUse):
            use = _mended(piece, {each.id for each in self._uses})
            self._is_as_sent &= use == piece
            self._uses.append(use)
        elif isinstance(piece, Finished):
            self.finished = piece

    def uses_to_run(self) -> tuple[ToolUse, ...]:
        """Return the tool uses of a complete answer. A cut answer may lack the one that gives the others their
        meaning.
        """
        return tuple(self._uses) if self._is_whole() else ()

    def message(self) -> AssistantMessage | None:
        """Return the message to store, or None if the answer is empty."""
        tool_uses, text = self.uses_to_run(), "".join(self._text)
        if not text and not tool_uses:
            return None
        if self.finished is None or not self._is_whole():
            # A provider's own form of half an answer may name tool uses that are not run.
            return AssistantMessage(text)
        # The provider's form has the ids and names that it would not accept back.
        opaque = self.finished.opaque if self._is_as_sent else None
        return AssistantMessage(text, "".join(self._thought), tool_uses, opaque)

    def _is_whole(self) -> bool:
        return self.finished is not None and self.finished.reason in ("stop", "tools")


def _mended(use: ToolUse, taken: set[str]) -> ToolUse:
    """Return the tool use with a unique id and a name in valid letters; invalid ones would be rejected together
    with all later messages.
    """
    name = in_letters(use.name)[:NAME_LENGTH] or "unknown"
    known, number = use.id or "call", 2
    identity = known
    while identity in taken:
        identity, number = f"{known}_{number}", number + 1
    return replace(use, id=identity, name=name)


# -- messages to the user about a failing model ------------------------------------------------------------


WORDS = {
    "rate_limited": "its provider lets no more requests through for now. Wait a while, or choose another model.",
    "overloaded": "its provider is overloaded or broken. Wait a while and send the prompt again.",
    "unreachable": "it cannot be reached. Check the network and the address (--model-url), then send it again.",
    "cut": "its answer broke off twice. What it said is kept: send `go on` to let it continue.",
    "bad_request": "its provider did not take the request. Check the model's name and what it can do.",
    "too_long": "the conversation is longer than it takes. `/compact` makes it shorter; `/clear` begins anew.",
    "unknown": "something went wrong at its provider. Send the prompt again, or choose another model.",
}

RETRYING = {
    "rate_limited": "The model's provider lets no more requests through for now",
    "overloaded": "The model's provider is overloaded",
    "unreachable": "The model cannot be reached",
    "cut": "The connection to the model broke",
}


def failure_of(model: str, failed: ModelFailed) -> AgentFailure:
    """Return the end of a turn whose model failed."""
    if failed.reason == "unauthorized":
        provider = PROVIDERS.get(cast("ProviderName", model.partition(":")[0]))
        key = "its key" if provider is None else " or ".join(provider.keys)
        words = f"its provider does not accept the key. Set {key} where the agent is started, and start it again."
    else:
        words = WORDS.get(failed.reason, WORDS["unknown"])
    return AgentFailure(f"the model {model} did not answer: {words}")


def retry_words(reason: str, attempt: int, wait_s: float) -> str:
    """Return the notice to show while waiting for the next try."""
    why = RETRYING.get(reason, "The model did not answer")
    return f"{why}; try {attempt} comes in {wait_s:.0f} s.\n"
