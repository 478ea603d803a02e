"""The operator's rules, asked before the users are.

Takes the rules and who is present; gives a verdict on a question of an agent, or none. With no rule that fits, the
question waits for a user: it is never allowed by default.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from turnwire.core.inputs import AgentAsks, Verdict
from turnwire.core.policy import Rule, judge
from turnwire.ids import SessionId


def _nobody(session_id: SessionId) -> bool:
    return False


class Rules:
    """Rules with the knowledge of who is there."""

    def __init__(self, rules: Sequence[Rule] = ()) -> None:
        self._rules = tuple(rules)
        self.attended: Callable[[SessionId], bool] = _nobody
        """Whether a controller is at the session now. Whoever knows the clients sets it."""

    def verdict(self, session_id: SessionId, cwd: str, asks: AgentAsks) -> Verdict | None:
        """What the first rule that fits says."""
        if not self._rules:
            return None
        return judge(self._rules, asks.method, asks.params, cwd=cwd, attended=self.attended(session_id))
