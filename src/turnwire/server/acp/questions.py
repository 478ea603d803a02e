"""What one client was asked: our JSON-RPC ids, and what becomes of its answers.

Takes questions of agents to their users and errands for the client itself; gives ids, finds what an answer belongs
to. A question has one id on a connection, whoever reads it. Never asks again what is settled.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import anyio

from turnwire.ids import PermissionId, RequestId, SessionId
from turnwire.wire.jsonrpc import Failure, Result

ELICITATION_ID = "elicitationId"
"""What the agent calls a question that its user answers on a page; the end of it is told by this name."""
REMEMBERED = 256
"""Settled questions whose late answers are still known as such, and not as answers to nothing."""


@dataclass
class Question:
    """One request to the client."""

    id: int
    session_id: SessionId
    method: str
    permission_id: PermissionId | None = None
    """The question to users that it is; none for an errand."""
    is_settled: bool = False
    """Answered by this client, or by somebody else, or taken back."""
    is_answered: bool = False
    """This client answered."""
    at: int = 0
    """The log had the question at the latest with this event; 0 for an errand."""


@dataclass
class Errand(Question):
    """A request that somebody here waits for."""

    done: anyio.Event = field(default_factory=anyio.Event)
    outcome: Result | Failure | None = None


class Questions:
    """Everything that one client was asked."""

    def __init__(self) -> None:
        self._count = 0
        self._asked: dict[RequestId, Question] = {}
        self._permissions: dict[PermissionId, Question] = {}
        self._elicited: dict[tuple[SessionId, str], None] = {}
        """Elicitations with a name of the agent's that the client was asked, newest last."""

    def ask(
        self,
        permission_id: PermissionId,
        session_id: SessionId,
        method: str,
        at: int,
        elicitation_id: str | None = None,
    ) -> int | None:
        """The id to ask users under; none if it is settled, and nobody should be asked.

        `at`: how far whoever asks has read the log.
        """
        known = self._permissions.get(permission_id)
        if known is None:
            if elicitation_id is not None:
                self._elicited[session_id, elicitation_id] = None
                if len(self._elicited) > REMEMBERED:
                    del self._elicited[next(iter(self._elicited))]
            known = Question(self._next(), session_id, method, permission_id, at=at)
            self._permissions[permission_id] = known
            self._keep(known)
        return None if known.is_settled else known.id

    def unsettled(self, session_id: SessionId, upto: int) -> list[PermissionId]:
        """What the client was asked of a session's log up to this event, and was not told of as settled."""
        return [
            permission_id
            for permission_id, each in self._permissions.items()
            if each.session_id == session_id and not each.is_settled and each.at <= upto
        ]

    def has_elicited(self, session_id: SessionId, elicitation_id: str) -> bool:
        """Whether the client was asked this by the session's agent."""
        return (session_id, elicitation_id) in self._elicited

    def settle(self, permission_id: PermissionId) -> int | None:
        """The question needs no answer any more; under which id the client must hear that, if it must."""
        known = self._permissions.get(permission_id)
        if known is None:
            return None
        known.is_settled = True
        return None if known.is_answered else known.id

    def send(self, session_id: SessionId, method: str) -> Errand:
        """A request for the client itself. Its `done` is set with the answer."""
        errand = Errand(self._next(), session_id, method)
        self._keep(errand)
        return errand

    def take_back(self, errand: Errand) -> None:
        """Nobody waits for this any more."""
        self._asked.pop(errand.id, None)

    def answer(self, request_id: RequestId | None) -> Question | None:
        """What the client answers with this id; none if it is not open."""
        found = self._asked.get(request_id) if isinstance(request_id, int) else None
        if found is None or found.is_settled:
            return None
        found.is_settled = found.is_answered = True
        return found

    def _next(self) -> int:
        self._count += 1
        return self._count

    def _keep(self, question: Question) -> None:
        self._asked[question.id] = question
        if len(self._asked) > REMEMBERED:
            settled = next((each for each in self._asked.values() if each.is_settled), None)
            if settled is not None:
                del self._asked[settled.id]
                if settled.permission_id is not None:
                    self._permissions.pop(settled.permission_id, None)
