"""A turn as the author of an agent sees it.

Takes words, questions and work; gives what the user asked for. It is the argument of the author's function, and
ends when that returns. What is said through it later goes out in nobody's name, marked as late.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from turnwire.agent import workplace
from turnwire.agent.asking import Asking
from turnwire.agent.course import Course
from turnwire.agent.saying import Saying
from turnwire.agent.session import Session
from turnwire.agent.tool_call import ToolCall
from turnwire.agent.words import Json
from turnwire.agent.workplace import Ran


class Turn(Saying, Asking):
    """One turn: what was asked, and every way to answer."""

    def __init__(self, course: Course) -> None:
        super().__init__(course)
        self.session: Session = course.live.session
        self.content: list[Json] = course.content
        """The blocks of the prompt; none if the agent began the turn."""
        self.message_id = course.message_id
        self.meta: Json = course.meta

    def __repr__(self) -> str:
        return f"<Turn {self._course.prompt_id}>"

    @property
    def text(self) -> str:
        """The text of the prompt, its blocks as lines."""
        return "\n".join(str(each.get("text", "")) for each in self.content if each.get("type") == "text")

    @property
    def cancelled(self) -> bool:
        """The client has cancelled it; its work is being stopped."""
        return self._course.is_cancelled

    # -- work ----------------------------------------------------------------------------------------------------

    async def read_file(self, path: str | Path, line: int | None = None, limit: int | None = None) -> str:
        """A text file, or `limit` lines of it from `line` on. The client's, if it offers that. `RequestRefused`."""
        return await workplace.read_file(self, path, line, limit)

    async def write_file(self, path: str | Path, text: str) -> None:
        """Create or replace a text file. Raises `RequestRefused`."""
        await workplace.write_file(self, path, text)

    async def run(
        self,
        command: str,
        *args: str,
        cwd: str | Path | None = None,
        env: Mapping[str, str] | None = None,
        call: ToolCall | None = None,
        limit: int | None = None,
    ) -> Ran:
        """Run a command to its end; with `call`, its output is shown there. Raises `RequestRefused`."""
        return await workplace.run(self, command, args, cwd=cwd, env=env, call=call, limit=limit)
