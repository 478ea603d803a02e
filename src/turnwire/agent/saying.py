"""What a turn tells: messages, thoughts, plans, tool calls, usage.

Takes words of the author; tells them in order and at once. Each gives something to await, which waits until the
client takes more. Never waits by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnwire.agent.course import Course
from turnwire.agent.outbox import Sent
from turnwire.agent.tool_call import ToolCall, described
from turnwire.agent.words import MESSAGE, THOUGHT, Json, as_block
from turnwire.errors import LocalProtocolError

PLAN = "main"
"""The one plan of a turn."""


@dataclass(frozen=True)
class Entry:
    """One step of a plan."""

    content: str
    status: str = "pending"
    priority: str = "medium"


class Saying:
    """The part of a turn that tells."""

    def __init__(self, course: Course) -> None:
        self._course = course

    def say(self, content: str | Json) -> Sent:
        """Text for the user, or a content block."""
        return self._course.speak(MESSAGE, as_block(content))

    def think(self, content: str | Json) -> Sent:
        """What the agent thinks."""
        return self._course.speak(THOUGHT, as_block(content))

    def plan(self, entries: Sequence[str | Entry]) -> Sent:
        """What it is going to do: all of it, each time."""
        listed = [Entry(each) if isinstance(each, str) else each for each in entries]
        items = [{"content": each.content, "priority": each.priority, "status": each.status} for each in listed]
        plan = {"type": "items", "planId": PLAN, "entries": items}
        return self._course.publish({"sessionUpdate": "plan_update", "plan": plan})

    def tool(
        self,
        title: str,
        *,
        kind: str = "other",
        id: str | None = None,
        input: Any = None,
        locations: Sequence[str | Path | tuple[str | Path, int]] = (),
    ) -> ToolCall:
        """A tool call, for `async with`."""
        return ToolCall(self._course, title, kind, id, described(input, locations))

    def usage(
        self,
        *,
        input_tokens: int = 0,
        output_tokens: int = 0,
        cached_tokens: int = 0,
        thought_tokens: int = 0,
        context_used: int | None = None,
        context_size: int | None = None,
        cost: tuple[float, str] | None = None,
    ) -> None:
        """Tokens, which add up and are told at the end; and how full the context is, told now."""
        tally = {
            "inputTokens": input_tokens,
            "outputTokens": output_tokens,
            "cachedReadTokens": cached_tokens,
            "thoughtTokens": thought_tokens,
        }
        for name, tokens in tally.items():
            if tokens:
                self._course.usage[name] = self._course.usage.get(name, 0) + tokens
        if context_used is None or context_size is None:
            if cost is not None or context_used is not context_size:
                raise LocalProtocolError("a cost or a context needs both context_used and context_size")
            return
        told: Json = {"sessionUpdate": "usage_update", "used": context_used, "size": context_size}
        if cost is not None:
            told["cost"] = {"amount": cost[0], "currency": cost[1]}
        self._course.publish(told)

    def update(self, update: Json, version: int | None = None) -> Sent:
        """Any update. `version`: in whose words it is; the client's by default."""
        sent = Sent(None)
        for each in self._course.live.canonical(update, version):
            sent = self._course.publish(each)
        return sent

    def new_id(self, letter: str) -> str:
        """A name that nothing else in the session has."""
        return self._course.new_id(letter)

    def publish(self, update: Json) -> Sent:
        """Any update in the words of v2, whatever the client speaks."""
        return self._course.publish(update)
