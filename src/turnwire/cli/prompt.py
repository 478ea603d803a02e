"""`turnwire prompt`: send a prompt, show the turn, end with a code that says how it ended.

Takes the prompt as words or from stdin; talks to a daemon, or to an agent of its own behind `--`.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import anyio
import click
from msgspec import Raw, Struct

from turnwire.cli.asking import Asker
from turnwire.cli.examples import WithAgent, agent_of
from turnwire.cli.failing import INTERRUPTED, stop_code, tell
from turnwire.cli.folders import sendable_folder
from turnwire.cli.reaching import Reach, find_daemon, open_http, reach_options
from turnwire.cli.screen import JsonLines, TextScreen
from turnwire.cli.showing import print_json
from turnwire.cli.streams import read_stdin
from turnwire.cli.talking import End, Talk
from turnwire.client.content import to_raw
from turnwire.client.embedded import open_embedded
from turnwire.client.http import Http, segment
from turnwire.client.port import Asking, DaemonSession
from turnwire.client.remote import RemoteDaemon, key_header
from turnwire.core.inputs import WhenBusy
from turnwire.errors import LocalProtocolError, TurnError
from turnwire.ids import SessionId
from turnwire.limits import Limits
from turnwire.runtime.agent_source import ProcessSource

EXAMPLES = """
turnwire prompt "what does this project do?"        in the newest session of this folder, or a new one
turnwire prompt --new "start over"                  in a new session
turnwire prompt -s SESSION "and then?"              in this session
git diff | turnwire prompt - > review.txt           the prompt from stdin; stdout has the agent's words only
turnwire prompt --when-busy reject "now or never"   do not wait behind another prompt
turnwire prompt --json "say 1 hi" | tail -1         one JSON line per event, then the result
turnwire prompt "hi" -- my-agent --flag             without a daemon: start this agent, ask, end it
"""
BUSY = [each.value for each in WhenBusy]


class Wanted(NamedTuple):
    """Which session, and how it is to be."""

    session: str | None
    is_new: bool
    cwd: str
    mode: str | None
    model: str | None


class _Opened(Struct, rename="camel"):
    session_id: str


@click.command(cls=WithAgent, examples=EXAMPLES)
@click.argument("text", nargs=-1)
@click.option("-s", "--session", metavar="SESSION", help="The session to prompt.")
@click.option("--new", "is_new", is_flag=True, help="Make a new session.")
@click.option("--cwd", metavar="DIR", default=".", help="Where the session works.  [default: here]")
@click.option("--mode", help="Set the agent's mode first.")
@click.option("--model", help="Set the agent's model first.")
@click.option("--when-busy", type=click.Choice(BUSY), default="queue", help="What to do while another turn runs.")
@click.option("--key", metavar="KEY", help="Idempotency key: the same key and text is the same prompt.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line per event, then the result.")
@reach_options
@click.pass_context
def prompt(
    ctx: click.Context, text: tuple[str, ...], when_busy: str, key: str | None, as_json: bool, **options: Any
) -> None:
    """Send a prompt and show the turn as it happens.

    TEXT is the prompt; `-` reads it from stdin. Ctrl-C cancels the turn, a second one leaves it running. Permission
    requests are asked here if this is a terminal. The exit code says how the turn ended: 0 for end_turn.
    """
    _check_key(key)
    asking = Asking(to_raw(_text(text)), WhenBusy(when_busy), key)
    reach = tuple(options.pop(name) for name in ("url", "token_file", "data"))
    wanted = Wanted(**options)._replace(cwd=sendable_folder(options["cwd"]))
    agent = agent_of(ctx)
    if agent and (any(reach) or wanted.session or wanted.mode or wanted.model):
        raise click.UsageError(
            "an agent behind `--` is started for this one prompt; it has no daemon and no sessions"
        )
    sys.exit(anyio.run(_prompt, asking, wanted, agent or find_daemon(*reach), as_json))


def _text(words: tuple[str, ...]) -> str:
    text = read_stdin() if words == ("-",) else " ".join(words)
    if not text.strip():
        raise click.UsageError("there is no prompt; give it as words, or `-` to read it from stdin")
    return text


def _check_key(key: str | None) -> None:
    """Before a session is made for it. A key is a header's value on its way."""
    try:
        key_header(key)
    except LocalProtocolError as error:
        raise click.UsageError(f"--key is {key!a}: {error}") from None


async def _prompt(asking: Asking, wanted: Wanted, where: Reach | tuple[str, ...], as_json: bool) -> int:
    opening = _at_daemon(where, wanted) if isinstance(where, Reach) else _with_agent(where, wanted)
    async with opening as session:
        screen = JsonLines(session.session_id) if as_json else TextScreen(whole=False)
        try:
            end = await Talk(session, screen, Asker(alone=not isinstance(where, Reach))).run(asking)
        except TurnError as error:
            if as_json:
                _print_result(
                    session.session_id, error.prompt_id, error={"code": error.reason, "message": str(error)}
                )
            raise
        return _report(session.session_id, end, as_json)


@asynccontextmanager
async def _at_daemon(reach: Reach, wanted: Wanted) -> AsyncGenerator[DaemonSession]:
    async with open_http(reach) as http:
        await http.capabilities(patient=False)
        session_id = wanted.session or await _enter(http, wanted)
        session = await RemoteDaemon(http).find(SessionId(session_id))
        for name, value in (("mode", wanted.mode), ("model", wanted.model)):
            if value is not None:
                await http.ask("POST", f"/session/{segment(session_id)}/{name}", {f"{name}Id": value})
        if wanted.session is None:
            tell(f"session {session_id}")
        yield session


@asynccontextmanager
async def _with_agent(command: tuple[str, ...], wanted: Wanted) -> AsyncGenerator[DaemonSession]:
    limits = Limits()
    async with open_embedded(ProcessSource(command, cwd=wanted.cwd, limits=limits), None, limits, None) as daemon:
        yield await daemon.create(wanted.cwd, Raw(b"[]"))


async def _enter(http: Http, wanted: Wanted) -> str:
    scope = "thread" if wanted.is_new else "single"
    answer = await http.ask("POST", "/session", {"cwd": wanted.cwd, "sessionScope": scope}, patient=False)
    return answer.read(_Opened).session_id


def _print_result(session_id: SessionId, prompt_id: str, **members: Any) -> None:
    print_json({"type": "result", "sessionId": session_id, "promptId": prompt_id, **members})


def _report(session_id: SessionId, end: End, as_json: bool) -> int:
    stop_reason = None if end.terminal is None else end.terminal.stop_reason
    if as_json:
        _print_result(session_id, end.prompt_id, stopReason=stop_reason, text=end.text)
    elif stop_reason not in (None, "end_turn"):
        tell(f"the turn ended: {stop_reason}")
    return INTERRUPTED if stop_reason is None else stop_code(stop_reason)
