"""Running a command: `run`.

The user sees the output as it arrives. A command that exceeds its time limit, or whose turn is cancelled, is ended
with all processes it started. A failing command is a result, not a failure of the tool. A command never gets any
input.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from turnwire.agent.own_workplace import Ran
from turnwire_agent.tools.tool import Arguments, checked, shortened, told, tool_spec, wrong
from turnwire_agent.tools.workplace import ShownCall, Workplace

TIMEOUT_S, LONGEST_S = 120, 3600
OUTPUT_CHARACTERS = 40_000
"""Maximum characters of the output for the model. A build's first error and its last line fit."""


class RunArguments(Arguments):
    command: Annotated[str, Meta(description="A line for the shell.", min_length=1, max_length=100_000)]
    timeout: Annotated[int, Meta(description="Seconds after which the command is ended.", ge=1, le=LONGEST_S)] = (
        TIMEOUT_S
    )


class Run:
    """The tool that runs a command in the session's cwd."""

    spec = tool_spec(
        "run",
        "Run a shell command in the working directory and get its exit code and its output. It has no input and no "
        "terminal, and whatever it leaves running in the background is ended with it. Of long output the beginning "
        "and the end are kept.",
        RunArguments,
    )
    kind = "execute"
    asks = True
    edits = False

    def title(self, arguments: dict[str, Any]) -> str:
        return f"Run {told(arguments, 'command')}"

    async def prepare(self, workplace: Workplace, arguments: dict[str, Any], call: ShownCall) -> None:
        self._checked(arguments)

    async def run(self, workplace: Workplace, arguments: dict[str, Any], call: ShownCall) -> str:
        asked = self._checked(arguments)
        ran = await workplace.run(asked.command, call, asked.timeout)
        if ran.exit_code != 0:
            # The model receives the result and continues; other viewers must not mistake the call for completed.
            call.fail()
        output = shortened(ran.output, OUTPUT_CHARACTERS)
        if output and not output.endswith("\n"):
            output += "\n"
        return f"{_ending(ran, asked.timeout)}\n{output or '(It printed nothing.)' + chr(10)}"

    def _checked(self, arguments: dict[str, Any]) -> RunArguments:
        asked = checked(arguments, RunArguments, self.spec.name)
        if "\0" in asked.command or not asked.command.strip():
            raise wrong("the command is empty or holds a zero byte; give a line for the shell")
        return asked


def _ending(ran: Ran, timeout: int) -> str:
    if ran.timed_out:
        return f"Ended after {timeout} s, before it was done. Give a larger `timeout`, or do less at once."
    if ran.signal:
        return f"Ended by {ran.signal}."
    return "Nobody saw how it ended." if ran.exit_code is None else f"Exit code {ran.exit_code}."
