"""The prompts that one client sent: which JSON-RPC request each of them is.

Takes a prompt's id and the request that it came with; says which request an end in the log answers. Ids keep their
JSON type. An answered prompt is remembered for a while, because each reader of the client is sent the answer. While
the client is not at a prompt's session it has no reader there, and somebody else follows the prompt to its end.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

from turnwire.core.correlation import same_id
from turnwire.ids import PromptId, RequestId, SessionId

REMEMBERED = 1024
"""Answered prompts that a second reader may still come to; it is seldom more than one behind."""

Value = TypeVar("Value")


class Sent(NamedTuple):
    """A prompt of the client."""

    prompt_id: PromptId
    session_id: SessionId
    request_id: RequestId
    after: int = 0
    """Where the log stood before it was accepted."""


class Prompts:
    """One client's prompts."""

    def __init__(self) -> None:
        self._open: dict[PromptId, Sent] = {}
        self._answered: dict[PromptId, Sent] = {}
        self._repeats: set[Sent] = set()
        """Requests that no reader answers: the log had their prompt before they came, or their client has left."""
        self._followed: dict[PromptId, None] = {}
        """Prompts of clients that have left: no reader answers them, also when the client is back."""

    def __contains__(self, prompt_id: object) -> bool:
        return prompt_id in self._open or prompt_id in self._answered or prompt_id in self._followed

    def add(self, sent: Sent) -> None:
        """The client sent this one. Before it is in the log, so that no reader meets it unknown."""
        self._open[sent.prompt_id] = sent

    def accepted(self, prompt_id: PromptId, after: int) -> None:
        """It is in the log, behind this place. A reader may have answered it before this is known."""
        if (sent := self._open.get(prompt_id)) is not None:
            self._open[prompt_id] = sent._replace(after=after)

    def drop(self, prompt_id: PromptId) -> None:
        """It was refused: there is no such prompt."""
        self._open.pop(prompt_id, None)

    def repeat(self, sent: Sent) -> None:
        """The client asks for a prompt that the log has already: whoever answers that says so with `repeated`."""
        self._repeats.add(sent)

    def repeated(self, sent: Sent) -> None:
        """Such a request is answered."""
        self._repeats.discard(sent)

    def open_in(self, session_id: SessionId) -> list[Sent]:
        """The prompts of this session that wait for an answer of its readers."""
        return [each for each in self._open.values() if each.session_id == session_id]

    def follow(self, sent: Sent) -> None:
        """No reader answers this one any more: whoever does says so with `repeated`."""
        if self._open.pop(sent.prompt_id, None) is not None:
            _remember(self._followed, sent.prompt_id, None)
            self._repeats.add(sent)

    def has_open(self, request_id: RequestId) -> bool:
        """Whether a prompt with this request id waits for its answer."""
        return self.find(request_id) is not None

    def find(self, request_id: RequestId) -> Sent | None:
        """The unanswered prompt with this request id."""
        sent = (*self._open.values(), *self._repeats)
        return next((each for each in sent if same_id(each.request_id, request_id)), None)

    def answer(self, prompt_id: PromptId) -> RequestId | None:
        """The log answers this prompt: by which request id, if the client sent it."""
        sent = self._open.pop(prompt_id, None)
        if sent is not None:
            _remember(self._answered, prompt_id, sent)
        sent = self._answered.get(prompt_id)
        return None if sent is None else sent.request_id

    def is_open(self, prompt_id: PromptId) -> bool:
        """Whether a reader is still to answer this one."""
        return prompt_id in self._open


def _remember(known: dict[PromptId, Value], prompt_id: PromptId, value: Value) -> None:
    known[prompt_id] = value
    if len(known) > REMEMBERED:
        del known[next(iter(known))]
