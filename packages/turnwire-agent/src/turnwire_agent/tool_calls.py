"""The tool calls of one answer: announced at once, allowed in order, run, and their results returned in order.

Each tool use of the model gets exactly one result: no provider accepts a conversation in which one is missing.
Adjacent read-only calls run concurrently; all others run one after the other, each when the one before has ended. A
call that the user or the mode does not allow never runs.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any

import anyio
from anyio import to_thread
from anyio.abc import TaskStatus

from turnwire.agent import Entry, PermissionOption, ToolCall
from turnwire.errors import LimitExceeded, LinkBroken, NotOffered, ProtocolError, RequestRefused
from turnwire_agent.conversation import stopped
from turnwire_agent.model import ToolResult, ToolUse
from turnwire_agent.permits import ToolPermit, always_words, is_run_by_others, judge, permit_key
from turnwire_agent.tools.plan import UpdatePlan
from turnwire_agent.tools.tool import Tool
from turnwire_agent.work import Work

RESULT_CHARACTERS = 100_000
"""Maximum characters of one result for a model; tools have lower bounds themselves."""
SHOWN_CHARACTERS = 20_000
"""More of one result is not shown to the user."""
DENIED = "The user did not allow this call. Do not try it again; ask what to do, or go on without it."
REFUSED = "In the mode `plan` nothing is changed and nothing is run. Put it into the plan instead."
BROKEN = "The tool failed in a way that nobody expected. Go on without it, or try another way."
_TOLD = (RequestRefused, NotOffered, LimitExceeded, ProtocolError, LinkBroken)
"""Exceptions of a tool that are reported to the model, including a client that disconnected while it was asked."""

logger = logging.getLogger(__name__)


async def run_tools(work: Work, tool_uses: Sequence[ToolUse]) -> None:
    """Do them all, and add each result to the conversation when its turn has come; also when cancelled."""
    calls = [_PendingCall(work, use) for use in tool_uses]
    kept = 0
    try:
        async with anyio.create_task_group() as tasks:
            for pending in calls:
                # Returns once the call is announced, so the announcements are in order.
                await tasks.start(pending.run)
            for batch in _batches(calls):
                for pending in batch:
                    pending.go.set()
                for pending in batch:
                    await pending.done.wait()
                    work.conversation.add(pending.result or stopped(pending.use))
                    kept += 1
                    await work.keep()
    finally:
        work.conversation.add(*(pending.result or stopped(pending.use) for pending in calls[kept:]))


def _batches(calls: Sequence[_PendingCall]) -> list[list[_PendingCall]]:
    """Group the calls that may run concurrently: adjacent read-only ones."""
    batches: list[list[_PendingCall]] = []
    for pending in calls:
        if batches and pending.only_looks and batches[-1][-1].only_looks:
            batches[-1].append(pending)
        else:
            batches.append([pending])
    return batches


class _PendingCall:
    """One tool use that has no result yet."""

    def __init__(self, work: Work, use: ToolUse) -> None:
        self._work = work
        self.use = use
        self._tool = work.tools.get(use.name)
        self.go = anyio.Event()
        self.done = anyio.Event()
        self.result: ToolResult | None = None

    @property
    def only_looks(self) -> bool:
        return self._tool is not None and not self._tool.asks and not self._tool.edits

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        try:
            if isinstance(self._tool, UpdatePlan):
                task_status.started()
                await self.go.wait()
                self.result = self._plan(self._tool)
                return
            async with self._announced() as call:
                task_status.started()
                await self.go.wait()
                self.result = await self._perform(call)
        finally:
            self.done.set()

    def _announced(self) -> ToolCall:
        arguments = self.use.arguments or {}
        if self._tool is None:
            return self._work.turn.tool(self.use.name or "unknown tool", input=arguments)
        title, kind = self._tool.title(arguments), self._tool.kind
        return self._work.turn.tool(title, kind=kind, input=arguments)

    async def _perform(self, call: ToolCall) -> ToolResult:
        try:
            text = await self._done(call)
        except _TOLD as error:
            call.fail(str(error))
            return self._told(str(error), is_error=True)
        except Exception:  # a fault in one tool must not end the turn
            logger.exception("the tool %s failed", self.use.name)
            call.fail(BROKEN)
            return self._told(BROKEN, is_error=True)
        return self._told(text)

    async def _done(self, call: ToolCall) -> str:
        """Return the tool's text. Raises the error to report to the model."""
        tool, arguments = self._usable()
        await tool.prepare(self._work.workplace, arguments, call)
        await self._allow(tool, arguments, call)
        call.start()
        text = await tool.run(self._work.workplace, arguments, call)
        if "content" not in call.described:
            # A tool that shows nothing by itself shows its result.
            await call.say(_cut(text, SHOWN_CHARACTERS))
        return text

    def _usable(self) -> tuple[Tool, dict[str, Any]]:
        if self._tool is None:
            known = ", ".join(sorted(self._work.tools))
            raise refused(f"there is no tool {self.use.name!r}; there are: {known}")
        if self.use.arguments is None:
            raise refused(f"the arguments are no JSON object: {self.use.text[:500]}")
        return self._tool, self.use.arguments

    async def _allow(self, tool: Tool, arguments: dict[str, Any], call: ToolCall) -> None:
        key = permit_key(tool.spec.name, arguments)
        allowed = self._work.allowed
        always_asks = tool.edits and await to_thread.run_sync(self._is_run_by_others, call)
        verdict = judge(
            self._work.mode, asks=tool.asks, edits=tool.edits, is_allowed=key in allowed, always_asks=always_asks
        )
        if verdict is ToolPermit.REFUSE:
            raise refused(REFUSED)
        if verdict is ToolPermit.RUN:
            return
        choice = await self._work.turn.ask(call, ONCE if always_asks else _options(key))
        if not choice:
            raise refused(DENIED)
        if choice.always and key not in allowed and not always_asks:
            allowed.append(key)

    def _is_run_by_others(self, call: ToolCall) -> bool:
        """Return True if an edit is about to write an executed file, by the files that it has shown; an edit that
        shows none is not trusted.
        """
        session = self._work.turn.session
        paths = [each["path"] for each in call.described.get("locations", ())]
        roots, programs = [str(each) for each in (session.cwd, *session.directories)], os.environ.get("PATH", "")
        return not paths or any(is_run_by_others(each, roots, programs) for each in paths)

    def _plan(self, tool: UpdatePlan) -> ToolResult:
        """The plan belongs to the turn, so there is no tool call to see."""
        try:
            entries = tool.entries(self.use.arguments or {})
        except RequestRefused as error:
            return self._told(str(error), is_error=True)
        self._work.turn.plan([Entry(each.content, each.status, each.priority) for each in entries])
        return self._told("The plan is shown to the user.")

    def _told(self, text: str, *, is_error: bool = False) -> ToolResult:
        return ToolResult(self.use.id, self.use.name, _cut(text, RESULT_CHARACTERS), is_error)


def _cut(text: str, most: int) -> str:
    return (text if len(text) <= most else f"{text[:most]}\n[The rest is left out: it is too long.]") or "(nothing)"


ONCE = [
    PermissionOption("allow_once", "Allow once", "allow_once"),
    PermissionOption("reject_once", "Do not allow", "reject_once"),
]


def _options(key: str) -> list[PermissionOption]:
    return [*ONCE[:1], PermissionOption("allow_always", always_words(key), "allow_always"), *ONCE[1:]]


def refused(text: str) -> RequestRefused:
    """Return an error that the model should see."""
    return RequestRefused(text, jsonrpc=-32602, reason="tool_refused")
