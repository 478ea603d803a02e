"""The operator's rules, applied before users are asked.

The rules see a session's agent inputs in order and give a verdict on a permission request if a rule matches. The
tool calls of the running turn are remembered, because a permission request may name its call only by id. If no rule
matches, the permission request waits for a user: nothing is allowed by default, nor when its call was forgotten. If
no user can ever be asked, because no client that can show such a form is or can be attached, the agent is answered
so at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Raw
from msgspec.structs import replace

from turnwire.ids import SessionId
from turnwire.limits import REMEMBERED_TOOLS, KiB
from turnwire.session.child_names import ANNOUNCES
from turnwire.session.inputs import AgentAsks, AgentGone, AgentHasPrompt, AgentReady, AgentUpdate, AnyInput, Verdict
from turnwire.session.json_members import members, text_of
from turnwire.session.permissions import NOT_ANSWERED
from turnwire.session.policy import KnownCall, Rule, amended, judge, read_request
from turnwire.wire.schema.update import ABOUT_TOOL_CALLS

NOT_SHOWN: Final = "no client can show it"
"""Used instead of a rule's name: the request is closed as unanswered."""
_LARGEST = 16 * KiB
"""Characters of a call's paths and command that are remembered; a larger call is asked about."""


def _nobody(session_id: SessionId) -> bool:
    return False


def _somebody(method: str, params: Raw) -> bool:
    return True


class Rules:
    """Rules, together with the presence of users."""

    def __init__(self, rules: Sequence[Rule] = ()) -> None:
        self.rules = tuple(rules)
        self.attended: Callable[[SessionId], bool] = _nobody
        """Returns true if a controller is attached to the session now. Set by the component that knows the
        clients.
        """
        self.can_be_asked: Callable[[str, Raw], bool] = _somebody
        """Returns true if a client that can show this request is attached, or may still attach. Set likewise."""


class KnownCalls:
    """The newest tool calls that an agent reported in a turn."""

    def __init__(self, protocol_version: int) -> None:
        """The meaning of null depends on the agent's protocol version."""
        self._calls: dict[str, KnownCall] = {}
        self._null_clears = protocol_version >= 2

    def told(self, tool_call_id: str | None, change: Raw, *, anew: bool = False) -> KnownCall | None:
        """Apply a change and return everything known of the call; `None` if the change is unreadable."""
        known = self._calls.pop(tool_call_id, None) if tool_call_id is not None else None
        call = amended(KnownCall() if anew or known is None else known, change, null_clears=self._null_clears)
        if call is None or tool_call_id is None:
            return call
        if call.size <= _LARGEST:
            self._calls[tool_call_id] = call
        while len(self._calls) > REMEMBERED_TOOLS:
            del self._calls[next(iter(self._calls))]
        return call


class SessionRules:
    """The rules at one session."""

    def __init__(self, rules: Rules, session_id: SessionId) -> None:
        self._rules = rules
        self._session_id = session_id
        self._calls: dict[str | None, KnownCalls] = {}
        """Calls of the session, and of each child session by the agent's id: their call ids are separate."""
        self._here: set[str | None] = {None}
        """The session, and its children that work where it does."""
        self._version = 1

    def judged(self, happened: AnyInput, cwd: str) -> AnyInput:
        """Process an agent input, in order. A permission request is returned with its verdict."""
        match happened:
            case AgentAsks():
                return replace(happened, verdict=self._verdict(happened, cwd))
            case _ if not self._rules.rules:
                # Without rules, calls need not be remembered.
                pass
            case AgentUpdate() if happened.peek.kind in ABOUT_TOOL_CALLS:
                peek = happened.peek
                calls = self._calls_of(happened.child)
                calls.told(peek.tool_call_id, happened.update, anew=peek.kind == "tool_call")
            case AgentUpdate() if happened.peek.kind == ANNOUNCES:
                self._announced(happened, cwd)
            case AgentReady():
                self._version = happened.protocol_version
                self._calls, self._here = {}, {None}
            case AgentHasPrompt() | AgentGone():
                self._calls = {}
            case _:
                pass
        return happened

    def _calls_of(self, child: str | None) -> KnownCalls:
        calls = self._calls.get(child)
        if calls is None:
            calls = self._calls[child] = KnownCalls(self._version)
        return calls

    def _announced(self, update: AgentUpdate, cwd: str) -> None:
        """Record a child session. It works in its parent's directory unless the agent names another."""
        said = members(update.update)
        child, placed = text_of(said, "sessionId"), text_of(said, "cwd")
        if placed not in {None, cwd} or update.child not in self._here:
            self._here.discard(child)
        elif child is not None and (placed == cwd or "cwd" not in said):
            self._here.add(child)

    def _verdict(self, asks: AgentAsks, cwd: str) -> Verdict | None:
        if not self._rules.can_be_asked(asks.method, asks.params):
            return Verdict(NOT_SHOWN, NOT_ANSWERED[asks.method])
        request = read_request(asks.method, asks.params) if self._rules.rules else None
        if request is None or asks.child not in self._here:
            # A rule applies to the session's directory. An agent must not change that by announcing a child
            # elsewhere.
            return None
        # A permission request's description of its call is an update like any other.
        call = self._calls_of(asks.child).told(request.tool_call_id, request.tool_call)
        if call is None:
            return None
        attended = self._rules.attended(self._session_id)
        return judge(self._rules.rules, request, call, cwd=cwd, attended=attended)
