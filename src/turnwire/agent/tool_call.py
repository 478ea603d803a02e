"""A tool call as the author sees it: announced before it runs, with one final status.

Use it with `async with`: leaving completes it, an exception fails it, a cancel cancels it. It gets exactly one
final status: the turn closes calls that are still open.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import anyio

from turnwire.agent.connected_client import Sent
from turnwire.agent.turn_run import TurnRun
from turnwire.agent.v2_updates import Json, client_terminal_item, content_item, diff_item

PENDING, IN_PROGRESS, COMPLETED, FAILED, CANCELLED = "pending", "in_progress", "completed", "failed", "cancelled"


class ToolCall:
    """A tool call. Create it with `turn.tool`."""

    def __init__(self, run: TurnRun, title: str, kind: str, call_id: str | None, described: Json) -> None:
        self.id = call_id or run.new_id("t")
        self.status = PENDING
        self._run = run
        self._title = title
        self._described: Json = {"kind": kind, **described}
        self._shown: list[Json] = []
        self._is_announced = False
        self._is_denied = False
        self._output: Any = None
        run.unused_calls[self.id] = title

    async def __aenter__(self) -> Self:
        self.announce()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._finish(FAILED if self._is_denied else COMPLETED)
        elif issubclass(kind, anyio.get_cancelled_exc_class()) or self._run.is_cancelled:
            self._finish(CANCELLED)
        else:
            self._finish(FAILED)

    # -- its life ------------------------------------------------------------------------------------------------

    def announce(self) -> Sent:
        """Announce the call. `async with` does this; call it to announce several before the first runs."""
        if self._is_announced:
            return Sent(None)
        self._is_announced = True
        self._run.unused_calls.pop(self.id, None)
        self._run.open_calls[self.id] = self._finish
        return self._patch(title=self._title, status=PENDING, **self._described)

    def start(self) -> Sent:
        """Report that the call runs. Granted permission, the first output and leaving do this as well."""
        if self.status != PENDING:
            return Sent(None)
        self.announce()
        self.status = IN_PROGRESS
        return self._patch(status=IN_PROGRESS)

    def fail(self, text: str | None = None) -> Sent:
        """It has failed, for good; there is no need for an exception."""
        if text is not None and self.status in {PENDING, IN_PROGRESS}:
            self.say(text)
        return self._finish(FAILED)

    def deny(self) -> None:
        """Mark the call as denied by the user: it does not run, and fails when left."""
        self._is_denied = True

    def _finish(self, status: str) -> Sent:
        """Its last status, once."""
        self._run.open_calls.pop(self.id, None)
        if self.status not in {PENDING, IN_PROGRESS}:
            return Sent(None)
        if status == COMPLETED and self.status == PENDING:
            self._patch(must=True, status=IN_PROGRESS)
        self.status = status
        return self._patch(must=True, status=status)

    # -- what it shows -------------------------------------------------------------------------------------------

    def say(self, content: str | Json) -> Sent:
        """Show text, or a content block."""
        return self.show(content_item(content))

    def diff(self, path: str | Path, old: str | None, new: str) -> Sent:
        """Show how it changes a file, before it does or after. Without an old text the file is new."""
        return self.show(diff_item(str(path), old, new), starts=False)

    def terminal(self, terminal_id: str) -> Sent:
        """Show a terminal of the client."""
        return self.show(client_terminal_item(terminal_id))

    def show(self, item: Json, *, starts: bool = True) -> Sent:
        """Show any content item in v2 form. `starts`: it is output, so the call runs."""
        self.announce()
        if starts and not self._is_denied:
            self.start()
        self._shown.append(item)
        told = {"sessionUpdate": "tool_call_content_chunk", "toolCallId": self.id, "content": item}
        return self._run.publish(told)

    def locate(self, path: str | Path, line: int | None = None) -> Sent:
        """Report the file that the call works on."""
        where: list[Json] = [*self._described.get("locations", ()), location(path, line)]
        self._described["locations"] = where
        return self._patch(locations=where)

    @property
    def title(self) -> str:
        return self._title

    @title.setter
    def title(self, title: str) -> None:
        self._title = title
        self._patch(title=title)

    @property
    def output(self) -> Any:
        """Report the tool's result as JSON."""
        return self._output

    @output.setter
    def output(self, output: Any) -> None:
        self._output = output
        self._patch(rawOutput=output)

    @property
    def described(self) -> Json:
        """All of it, as a permission request about it shows it."""
        shown = {"content": self._shown} if self._shown else {}
        return {"toolCallId": self.id, "title": self._title, "status": self.status, **self._described, **shown}

    def _patch(self, *, must: bool = False, **members: Any) -> Sent:
        if not self._is_announced:
            return Sent(None)
        patch = {"sessionUpdate": "tool_call_update", "toolCallId": self.id, **members}
        return self._run.publish(patch, must=must)


def location(path: str | Path, line: int | None = None) -> Json:
    """Return a location in a file."""
    return {"path": str(path)} if line is None else {"path": str(path), "line": line}


def described(raw_input: Any, locations: Sequence[str | Path | tuple[str | Path, int]]) -> Json:
    """Return the known properties of a call before it runs."""
    found: Json = {} if raw_input is None else {"rawInput": raw_input}
    places = [location(*each) if isinstance(each, tuple) else location(each) for each in locations]
    return {**found, "locations": places} if places else found
