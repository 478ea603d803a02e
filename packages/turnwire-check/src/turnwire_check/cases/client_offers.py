"""Clients: the files, terminals and forms that they offer to agents, and their answers where they offer none."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from turnwire_check.capability import offers
from turnwire_check.case import Part, broken, holds, unscored
from turnwire_check.judging_agent import JudgingAgent
from turnwire_check.raw_peer import is_answer_to
from turnwire_check.tape import Frame, at

FILES = Part("client.fs", "File system")
TERMINAL = Part("client.terminal", "Terminals")
ELICIT = Part("client.elicit", "Elicitation")

READ, WRITE = "clientCapabilities.fs.readTextFile", "clientCapabilities.fs.writeTextFile"
TERMINALS = "clientCapabilities.terminal"
FORM = "clientCapabilities.elicitation.form"
LINES = "one\ntwo\nthrée\n"


def _directory(cwd: object) -> Path:
    if not isinstance(cwd, str) or not os.path.isdir(cwd):
        unscored("the directory of the session is not there")
    return Path(os.path.realpath(cwd))


@contextmanager
def _file(cwd: object, content: str | None) -> Generator[Path]:
    """Provide a file in the directory of the session and delete it afterwards. Raises `NotScored` if it cannot be
    created.
    """
    path = _directory(cwd) / f"turnwire-check-{secrets.token_hex(4)}.txt"
    try:
        if content is not None:
            path.write_text(content, encoding="utf-8")
    except OSError:
        unscored("nothing can be written to the directory of the session")
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


class Offer:
    """The client's offered methods, called within a turn."""

    def __init__(self, agent: JudgingAgent, prompt: Frame, cwd: Any) -> None:
        self._agent = agent
        self.session = prompt.session
        self.cwd = cwd

    async def call(self, method: str, **params: Any) -> Frame:
        """The answer, be it an error. Raises `NotScored` when it does not come."""
        return await self._agent.call(method, {"sessionId": self.session, **params})

    async def need(self, method: str, **params: Any) -> Frame:
        """The answer. Raises `NotScored` when it is an error: another case is about that."""
        answer = await self.call(method, **params)
        if not answer.succeeded:
            unscored(f"`{method}` was answered with an error")
        return answer

    async def terminal(self, script: str, **params: Any) -> str:
        """Run a command in a terminal and return the terminal's id."""
        answer = await self.need("terminal/create", command="sh", args=["-c", script], **params)
        found = at(answer.result, "terminalId")
        if not isinstance(found, str):
            unscored("`terminal/create` gave no terminal")
        return found

    async def printed(self, terminal: str) -> Frame:
        """Wait for the terminal's exit and return its output."""
        await self.need("terminal/wait_for_exit", terminalId=terminal)
        return await self.need("terminal/output", terminalId=terminal)


async def _offer(agent: JudgingAgent) -> Offer:
    prompt = await agent.prompted()
    return Offer(agent, prompt, at((await agent.opened()).params, "cwd"))


async def _refuses(
    agent: JudgingAgent, claim: str, method: str, params: dict[str, Any], *, refusals: tuple[str, ...] = ()
) -> None:
    """Broken unless a client that does not offer this answers with an error, or with one of these actions."""
    hello = await agent.initialized()
    if offers(hello.params, claim):
        unscored(f"it offers `{claim.partition('.')[2]}`")
    prompt = await agent.prompted()
    asked = await agent.ask(method, {"sessionId": prompt.session, **params})
    answer = await agent.until(is_answer_to(asked.id), asked.frame.number)
    if answer is None:
        broken("it was not answered", asked.frame)
    is_refused = answer.failed or at(answer.result, "action") in refusals
    holds(is_refused, "a request that the client does not offer was served", hello, asked.frame, answer)


# -- files ----------------------------------------------------------------------------------------------


@FILES.case("read", "A client that offers to read files does so.", capability=READ, section="Reading files")
async def read(agent: JudgingAgent) -> None:
    offer = await _offer(agent)
    with _file(offer.cwd, LINES) as path:
        answer = await offer.call("fs/read_text_file", path=str(path))
    holds(at(answer.result, "content") == LINES, "this is not what is in the file", answer)


@FILES.case("lines", "The first line of a file is line 1.", capability=READ, section="Reading files")
async def lines(agent: JudgingAgent) -> None:
    offer = await _offer(agent)
    with _file(offer.cwd, LINES) as path:
        answer = await offer.need("fs/read_text_file", path=str(path), line=2, limit=1)
    found = at(answer.result, "content")
    holds(found in ("two", "two\n"), f"line 2 is `two`, and it gave {found!r}", answer)


@FILES.case(
    "missing",
    "To read a file that is not there is an error.",
    severity="should",
    capability=READ,
    section="Reading files",
)
async def missing(agent: JudgingAgent) -> None:
    offer = await _offer(agent)
    with _file(offer.cwd, None) as path:
        answer = await offer.call("fs/read_text_file", path=str(path))
    holds(answer.failed, "it was answered with a result", answer)


@FILES.case("relative", "A path that is not absolute is refused.", severity="should", capability=READ)
async def relative(agent: JudgingAgent) -> None:
    offer = await _offer(agent)
    with _file(offer.cwd, LINES) as path:
        answer = await offer.call("fs/read_text_file", path=path.name)
    holds(answer.failed, "it was answered with a result", answer)


@FILES.case("write", "A client that offers to write files does so.", capability=WRITE, section="Writing files")
async def write(agent: JudgingAgent) -> None:
    offer = await _offer(agent)
    with _file(offer.cwd, "old\n") as path:
        answer = await offer.call("fs/write_text_file", path=str(path), content=LINES)
        holds(answer.succeeded, "it was answered with an error", answer)
        found = path.read_bytes()
    holds(found == LINES.encode(), f"the file holds {found!r}", answer)


@FILES.case("write-new", "Writing to a file that is not there makes it.", capability=WRITE, section="Writing files")
async def write_new(agent: JudgingAgent) -> None:
    offer = await _offer(agent)
    with _file(offer.cwd, None) as path:
        answer = await offer.call("fs/write_text_file", path=str(path), content=LINES)
        is_there = path.exists()
    holds(is_there, "the file is not there", answer)


@FILES.case("read-unclaimed", "Who does not offer to read files answers with an error.")
async def read_unclaimed(agent: JudgingAgent) -> None:
    await _refuses(agent, READ, "fs/read_text_file", {"path": "/etc/hostname"})


@FILES.case("write-unclaimed", "Who does not offer to write files answers with an error.")
async def write_unclaimed(agent: JudgingAgent) -> None:
    await _refuses(agent, WRITE, "fs/write_text_file", {"path": "/dev/null", "content": ""})


# -- terminals ------------------------------------------------------------------------------------------


@TERMINAL.case("output", "What a command printed is told.", capability=TERMINALS, section="Output")
async def output(agent: JudgingAgent) -> None:
    offer = await _offer(agent)
    answer = await offer.printed(await offer.terminal("printf hello"))
    holds(at(answer.result, "output") == "hello", f"it printed {at(answer.result, 'output')!r}", answer)


@TERMINAL.case("created", "A terminal is there at once, and has an id.", capability=TERMINALS)
async def created(agent: JudgingAgent) -> None:
    offer = await _offer(agent)
    answer = await offer.call("terminal/create", command="sh", args=["-c", "sleep 600"])
    found = at(answer.result, "terminalId")
    holds(isinstance(found, str), "it has no id", answer)
    await offer.call("terminal/release", terminalId=found)


@TERMINAL.case("exit", "How a command ended is told.", capability=TERMINALS, section="Waiting for exit")
async def exit_code(agent: JudgingAgent) -> None:
    offer = await _offer(agent)
    terminal = await offer.terminal("exit 3")
    answer = await offer.need("terminal/wait_for_exit", terminalId=terminal)
    holds(at(answer.result, "exitCode") == 3, f"it ended with 3, and {answer.result!r} was told", answer)


@TERMINAL.case(
    "running", "While a command runs, no end of it is told.", capability=TERMINALS, section="Getting output"
)
async def running(agent: JudgingAgent) -> None:
    offer = await _offer(agent)
    terminal = await offer.terminal("sleep 600")
    answer = await offer.need("terminal/output", terminalId=terminal)
    await offer.call("terminal/release", terminalId=terminal)
    holds(at(answer.result, "exitStatus") is None, "an end was told", answer)


@TERMINAL.case("ended", "With the output of a command that is over comes how it ended.", capability=TERMINALS)
async def ended(agent: JudgingAgent) -> None:
    offer = await _offer(agent)
    answer = await offer.printed(await offer.terminal("exit 4"))
    found = at(answer.result, "exitStatus", "exitCode")
    holds(found == 4, f"it ended with 4, and {found!r} was told", answer)


@TERMINAL.case("kill", "A command that is killed ends, and its id stays.", capability=TERMINALS, section="Killing")
async def kill(agent: JudgingAgent) -> None:
    offer = await _offer(agent)
    terminal = await offer.terminal("sleep 600")
    killed = await offer.need("terminal/kill", terminalId=terminal)
    asked = await agent.ask("terminal/wait_for_exit", {"sessionId": offer.session, "terminalId": terminal})
    answer = await agent.until(is_answer_to(asked.id), asked.frame.number)
    if answer is None:
        broken("it goes on", killed, asked.frame)
    holds(answer.succeeded, "its id is gone", killed, answer)


@TERMINAL.case("release", "A terminal that is released is gone.", capability=TERMINALS, section="Releasing")
async def release(agent: JudgingAgent) -> None:
    offer = await _offer(agent)
    terminal = await offer.terminal("printf hello")
    await offer.need("terminal/wait_for_exit", terminalId=terminal)
    await offer.need("terminal/release", terminalId=terminal)
    answer = await offer.call("terminal/output", terminalId=terminal)
    holds(answer.failed, "its output is still there", answer)


@TERMINAL.case("limit", "Output over the limit loses its beginning, and that is told.", capability=TERMINALS)
async def limit(agent: JudgingAgent) -> None:
    offer = await _offer(agent)
    answer = await offer.printed(await offer.terminal("printf 0123456789", outputByteLimit=4))
    found = at(answer.result, "output"), at(answer.result, "truncated")
    holds(found == ("6789", True), f"it gave {found!r}", answer)


@TERMINAL.case("characters", "Output is cut between characters.", capability=TERMINALS)
async def characters(agent: JudgingAgent) -> None:
    offer = await _offer(agent)
    answer = await offer.printed(await offer.terminal("printf 'ééé'", outputByteLimit=3))
    found = at(answer.result, "output")
    if not isinstance(found, str) or len(found.encode(errors="replace")) > 6:
        unscored("the limit was not kept")
    holds(found in ("é", ""), f"it gave {found!r}", answer)


@TERMINAL.case("place", "A command runs in the directory that was named.", capability=TERMINALS)
async def place(agent: JudgingAgent) -> None:
    offer = await _offer(agent)
    with tempfile.TemporaryDirectory(prefix="turnwire-check-", dir=_directory(offer.cwd)) as there:
        answer = await offer.printed(await offer.terminal("pwd -P", cwd=there))
    holds(at(answer.result, "output") == f"{there}\n", f"it did not run in {there}", answer)


@TERMINAL.case("environment", "A command gets the variables that were named.", capability=TERMINALS)
async def environment(agent: JudgingAgent) -> None:
    offer = await _offer(agent)
    named = [{"name": "JUDGE", "value": "a b"}]
    answer = await offer.printed(await offer.terminal('printf %s "$JUDGE"', env=named))
    holds(at(answer.result, "output") == "a b", "it did not get it", answer)


@TERMINAL.case("unclaimed", "Who does not offer terminals answers with an error.")
async def unclaimed(agent: JudgingAgent) -> None:
    await _refuses(agent, TERMINALS, "terminal/create", {"command": "true", "args": []})


# -- forms ----------------------------------------------------------------------------------------------

FIELDS = {"type": "object", "properties": {"who": {"type": "string"}}, "required": ["who"]}


@ELICIT.case("action", "A form is answered with what became of it.", capability=FORM)
async def action(agent: JudgingAgent) -> None:
    offer = await _offer(agent)
    form = {"mode": "form", "message": "Who are you?", "requestedSchema": FIELDS}
    answer = await offer.call("elicitation/create", **form)
    found = at(answer.result, "action")
    holds(found in ("accept", "decline", "cancel"), f"the action is {found!r}", answer)
    if found == "accept":
        holds(isinstance(at(answer.result, "content", "who"), str), "a field that must be there is not", answer)


@ELICIT.case("unclaimed", "A client without forms answers with an error, `decline` or `cancel`.")
async def form_unclaimed(agent: JudgingAgent) -> None:
    form = {"mode": "form", "message": "Who are you?", "requestedSchema": FIELDS}
    await _refuses(agent, FORM, "elicitation/create", form, refusals=("decline", "cancel"))


LIMITED = {
    "type": "object",
    "properties": {
        "who": {"type": "string"},
        "count": {"type": "integer", "minimum": 2, "maximum": 5},
        "colour": {"type": "string", "enum": ["red", "green"]},
        "sure": {"type": "boolean"},
    },
    "required": ["who", "count", "colour", "sure"],
}


@ELICIT.case(
    "content",
    "What a form was filled with is what its schema allows.",
    severity="should",
    capability=FORM,
    section="Form mode",
)
async def content(agent: JudgingAgent) -> None:
    offer = await _offer(agent)
    answer = await offer.call("elicitation/create", mode="form", message="How many?", requestedSchema=LIMITED)
    if at(answer.result, "action") != "accept":
        unscored("the form was not filled in; have the client accept it")
    count, colour, sure = (at(answer.result, "content", each) for each in ("count", "colour", "sure"))
    is_number = isinstance(count, int) and not isinstance(count, bool)
    holds(is_number and 2 <= count <= 5, f"`count` is {count!r}", answer)
    holds(colour in ("red", "green"), f"`colour` is {colour!r}", answer)
    holds(isinstance(sure, bool), f"`sure` is {sure!r}", answer)


@ELICIT.case(
    "complete",
    "That something is complete which is unknown or over does nothing.",
    section="URL completion",
)
async def complete(agent: JudgingAgent) -> None:
    await agent.attentive()
    named = {"elicitationId": "no such elicitation"}
    sent = [await agent.notify("elicitation/complete", named) for _ in range(2)]
    if await agent.hears() is None:
        broken(agent.tape.ended or "it does not answer any more", *sent)
