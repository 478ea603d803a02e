"""A session on a node with a real agent process: short functions for a test's actions.

A node and its log are the input; answers and the log's events are the result. It never inspects the node. Waits are
bounded.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from itertools import count
from typing import TypeVar, cast

import anyio
import msgspec
from msgspec import Raw
from tests.support.driving import Terminal, content, events_of, of

from turnwire.hosting.source import ProcessSource
from turnwire.ids import PromptId, SessionId
from turnwire.log import MemoryEventLog
from turnwire.log.base import EventLog, Position
from turnwire.runtime.node import Node, open_node
from turnwire.session import events as ev
from turnwire.session.codec import decode
from turnwire.session.inputs import AnswerPermission, Cancel, Prompt
from turnwire.session.queue import Accepted
from turnwire_testing.patience import WAIT_S

Event = TypeVar("Event", bound=ev.Event)


class Talk:
    """One session and its agent."""

    def __init__(self, node: Node, log: EventLog, session_id: SessionId, *, first: int = 1) -> None:
        """`first` is the number of its first prompt: another than those of a talk before it."""
        self._node = node
        self._log = log
        self._numbers = count(first)
        self.session_id = session_id

    async def prompt(self, text: str) -> PromptId:
        """Hand a prompt over; returns once it is recorded."""
        prompt_id = PromptId(f"p{next(self._numbers)}")
        given = Prompt(at=1, prompt_id=prompt_id, content=content(text))
        with anyio.fail_after(WAIT_S):
            return cast("Accepted", await self._node.submit(self.session_id, given)).prompt_id

    async def turn(self, text: str) -> Terminal:
        """Run a whole turn."""
        return await self.end(await self.prompt(text))

    async def said(self, text: str) -> str:
        """Run a whole turn that succeeds, and return the agent's text in it."""
        ended = await self.turn(text)
        assert isinstance(ended, ev.TurnCompleted), ended
        return "".join(spoken(await self.events(), ended.prompt_id))

    async def end(self, prompt_id: PromptId, *, within_s: float = WAIT_S) -> Terminal:
        """The end of a turn, waited for."""
        ended = await self.until(
            lambda event: isinstance(event, Terminal) and event.prompt_id == prompt_id, within_s=within_s
        )
        return cast("Terminal", ended)

    async def until(self, is_last: Callable[[ev.AnyEvent], bool], *, within_s: float = WAIT_S) -> ev.AnyEvent:
        """Follow from the start to the first event of which this is true."""
        head = await self._log.head(self.session_id)
        with anyio.fail_after(within_s):
            async with aclosing(self._node.follow(self.session_id, Position(head.epoch, 0))) as pages:
                async for page in pages:
                    for event in map(decode, page.frames):
                        if is_last(event):
                            return event
        raise AssertionError("the session ended first")

    async def until_said(self, text: str, prompt_id: PromptId) -> None:
        """Wait until the agent has sent this in a turn."""
        await self.until(lambda event: _says(event, text) and getattr(event, "prompt_id", None) == prompt_id)

    async def until_asked(self, prompt_id: PromptId) -> ev.PermissionRequested:
        """Until the agent asks for permission in a turn."""
        asked = await self.until(
            lambda event: isinstance(event, ev.PermissionRequested) and event.prompt_id == prompt_id
        )
        return cast("ev.PermissionRequested", asked)

    async def answer(self, asked: ev.PermissionRequested, option: str) -> None:
        chosen = Raw(msgspec.json.encode({"outcome": {"outcome": "selected", "optionId": option}}))
        given = AnswerPermission(at=2, request_id=asked.request_id, answer=chosen, option_id=option)
        with anyio.fail_after(WAIT_S):
            await self._node.submit(self.session_id, given)

    async def cancel(self, prompt_id: PromptId) -> None:
        with anyio.fail_after(WAIT_S):
            await self._node.submit(self.session_id, Cancel(at=3, prompt_id=prompt_id))

    async def events(self) -> list[ev.AnyEvent]:
        return await events_of(self._log, self.session_id)


class Host:
    """A node with one agent command."""

    def __init__(self, node: Node, log: EventLog) -> None:
        self.node = node
        self.log = log

    async def talk(self) -> Talk:
        """Open a new session."""
        with anyio.fail_after(WAIT_S):
            return Talk(self.node, self.log, await self.node.create("/"))


@asynccontextmanager
async def host(command: Sequence[str]) -> AsyncGenerator[Host]:
    """Run a node that starts this command when a session needs it."""
    log = MemoryEventLog()
    async with open_node(log, ProcessSource(command)) as node:
        yield Host(node, log)


def _says(event: ev.AnyEvent, text: str) -> bool:
    return isinstance(event, ev.SessionUpdated) and text.encode() in bytes(event.update)


def updates(events: list[ev.AnyEvent], kind: str) -> list[ev.SessionUpdated]:
    """Updates of one kind."""
    return [each for each in of(events, ev.SessionUpdated) if each.kind == kind]


def spoken(events: list[ev.AnyEvent], prompt_id: PromptId) -> list[str]:
    """Return the agent's text in a turn, chunk by chunk."""
    return [
        msgspec.json.decode(each.update)["content"]["text"]
        for each in updates(events, "agent_message_chunk")
        if each.prompt_id == prompt_id
    ]
