"""`turnwire prompt`: send a prompt, show the turn, exit with a code for its end.

The prompt is the arguments or stdin; the session is a daemon's, or that of a private agent after `--`. A prompt
that the agent adds to the running turn is followed there, to that turn's end. The first Ctrl-C cancels the turn,
the second one exits without waiting: an exit is no cancel. A permission request that cannot be asked is not
answered.
"""

from __future__ import annotations

import io
import signal
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any, NamedTuple

import anyio
import click
from anyio.abc import TaskGroup
from msgspec import Struct

from turnwire.cli.commands import WithAgent, agent_of, sendable_folder
from turnwire.cli.output import (
    INTERRUPTED,
    MAKE_ROOM,
    STOPPED,
    log_trouble,
    print_json,
    printable,
    stop_code,
    tell,
    tell_next,
)
from turnwire.cli.permissions import Asker
from turnwire.cli.reach import (
    Reach,
    WantedSession,
    enter,
    find_daemon,
    leave,
    open_agent,
    open_http,
    reach_options,
    session_options,
)
from turnwire.cli.screen import JsonLines, Screen, TextScreen, agent_words
from turnwire.client.arguments import to_raw
from turnwire.client.http import Http, segment
from turnwire.client.permission import asked
from turnwire.client.port import Accepted, DaemonSession, EventPage, NewPrompt
from turnwire.client.remote import key_header
from turnwire.client.tool_call import ToolCalls
from turnwire.errors import DaemonUnreachable, LocalProtocolError, LogFull, TurnError, TurnwireError
from turnwire.ids import PermissionId, PromptId, SessionId
from turnwire.projections.view import View
from turnwire.session import events as ev
from turnwire.session.inputs import WhenBusy
from turnwire.session.state import NO_SETUP

EXAMPLES = """
turnwire prompt "what does this project do?"        in the newest session of this folder, or a new one
turnwire prompt --new "start over"                  in a new session
turnwire prompt --agent codex "hello"               in a session of that agent of the daemon
turnwire prompt -s SESSION "and then?"              in this session
git diff | turnwire prompt - > review.txt           the prompt from stdin; stdout has the agent's words only
turnwire prompt --when-busy reject "now or never"   do not wait behind another prompt
turnwire prompt --json "say 1 hi" | tail -1         one JSON line per event, then the result
turnwire prompt "hi" -- my-agent --flag             without a daemon: start this agent, ask, end it
"""

NOT_STEERED = {
    ev.SteerRefusal.NO_TURN: "none runs",
    ev.SteerRefusal.NOT_AT_WORK: "its agent is not at work on it",
    ev.SteerRefusal.NOT_OFFERED: "the agent takes nothing in while it works",
    ev.SteerRefusal.NOT_ON_V2: "the agent takes nothing in while it works on ACP 2; try `protocol = 1`",
    ev.SteerRefusal.DECLINED: "the agent did not take it",
    ev.SteerRefusal.TURN_ENDED: "that ended before the agent took it",
    ev.SteerRefusal.AGENT_GONE: "the agent is gone",
}
"""Descriptions of the reasons why a prompt was not steered."""
LOG_WATCH_S = 3.0
"""Seconds between two looks at the daemon's log while a turn runs."""
CANCEL_SENT_S = 2.0
"""Seconds that an exit waits until the daemon has the cancel."""
BUSY = [each.value for each in WhenBusy]


@click.command(cls=WithAgent, examples=EXAMPLES)
@click.argument("text", nargs=-1)
@session_options
@click.option(
    "--when-busy",
    type=click.Choice(BUSY),
    help="What to do while another turn runs.  [default: what the daemon does, which is to queue]",
)
@click.option("--key", metavar="KEY", help="Idempotency key: the same key and text is the same prompt.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line per event, then the result.")
@reach_options
@click.pass_context
def prompt(
    ctx: click.Context, text: tuple[str, ...], when_busy: str | None, key: str | None, as_json: bool, **options: Any
) -> None:
    """Send a prompt and show the turn as it happens.

    It goes to the session of -s; else to the newest open session of this folder (or of --cwd), with the agent of
    --agent if set; else to a new one, which --new creates in any case. stderr shows which session it was.

    TEXT is the prompt; `-` reads it from stdin; without it a terminal gets `turnwire chat`. Ctrl-C cancels the
    turn, a second one leaves it running. Permission requests are asked here if this is a terminal. The exit code
    reports how the turn ended: 0 for end_turn.
    """
    _check_key(key)
    reach = tuple(options.pop(name) for name in ("url", "token_file", "data"))
    wanted = WantedSession(**options)._replace(cwd=sendable_folder(options["cwd"]))
    agent = agent_of(ctx)
    if wanted.agent and wanted.session:
        raise click.UsageError("a session stays with its agent; give --agent for a new one, or leave it out")
    if agent and (any(reach) or wanted.session or wanted.mode or wanted.model or wanted.agent):
        raise click.UsageError(
            "an agent behind `--` is started for this one prompt; it has no daemon and no sessions"
        )
    where = agent or find_daemon(*reach)
    if not text and not (as_json or key or when_busy) and sys.stdin.isatty() and sys.stdout.isatty():
        # Imported here, so that a prompt with a text does not pay for it.
        from turnwire.cli.chat import open_chat

        open_chat(wanted, where)
    new_prompt = NewPrompt(to_raw(_text(text)), None if when_busy is None else WhenBusy(when_busy), key)
    sys.exit(anyio.run(_prompt, new_prompt, wanted, where, as_json))


def _text(words: tuple[str, ...]) -> str:
    text = read_stdin() if words == ("-",) else " ".join(words)
    if not text.strip():
        raise click.UsageError("there is no prompt; give it as words, or `-` to read it from stdin")
    return text


def read_stdin() -> str:
    """Read all of stdin. Invalid bytes become replacement characters, and a note reports them."""
    stdin = sys.stdin
    if isinstance(stdin, io.TextIOWrapper):
        stdin.reconfigure(errors="surrogateescape")
    content = stdin.read()
    text = content.encode(stdin.encoding, "surrogateescape").decode(stdin.encoding, "replace")
    if text != content:
        tell(f"stdin is not all {stdin.encoding.upper()} text; what is not is sent as U+FFFD")
    return text


def _check_key(key: str | None) -> None:
    """Check the key before a session is created for it. It is sent as the value of a header."""
    try:
        key_header(key)
    except LocalProtocolError as error:
        raise click.UsageError(f"--key is {key!a}: {error}") from None


async def _prompt(
    new_prompt: NewPrompt, wanted: WantedSession, where: Reach | tuple[str, ...], as_json: bool
) -> int:
    screen: Screen | None = None
    is_alone = not isinstance(where, Reach)
    async with _with_agent(where, wanted, lambda: screen) if is_alone else _at_daemon(where, wanted) as session:
        screen = JsonLines(session.session_id) if as_json else TextScreen(whole=False)
        try:
            end = await PromptedTurn(session, screen, Asker(alone=is_alone)).run(new_prompt)
        except TurnError as error:
            if as_json:
                _print_result(
                    session.session_id, error.prompt_id, error={"code": error.reason, "message": str(error)}
                )
            raise
        finally:
            # The next writer finds the terminal clean.
            screen.pause()
        return _report(session.session_id, end, as_json)


@asynccontextmanager
async def _at_daemon(reach: Reach, wanted: WantedSession) -> AsyncGenerator[DaemonSession]:
    async with open_http(reach) as http:
        await http.capabilities(patient=False)
        entered = await enter(http, wanted)
        if wanted.session is None:
            tell(f"session {entered.session.session_id}")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_watch_log, http, entered.session.session_id)
            try:
                yield entered.session
            finally:
                tasks.cancel_scope.cancel()
                await leave(http, entered)


async def _watch_log(http: Http, session_id: SessionId) -> None:
    """Report once that the daemon cannot store events, because nothing is shown meanwhile."""
    while True:
        await http.clock.sleep(LOG_WATCH_S)
        with suppress(TurnwireError):
            answer = await http.ask("GET", f"/session/{segment(session_id)}/explain", patient=False)
            code = answer.read(_LogState).log
            if code is not None:
                tell(f"the daemon cannot store events: {log_trouble(code)}")
                tell_next(MAKE_ROOM if code == LogFull.code else "turnwire doctor")
                return


class _LogState(Struct):
    log: str | None = None


@asynccontextmanager
async def _with_agent(
    command: tuple[str, ...], wanted: WantedSession, screen: Callable[[], Screen | None]
) -> AsyncGenerator[DaemonSession]:
    def show(line: str) -> None:
        if line.startswith(f"turnwire: {STOPPED}"):
            tell(line.removeprefix("turnwire: "))
        elif (open_screen := screen()) is not None:
            open_screen.note(f"stderr: {line}")
        else:
            click.echo(f"stderr: {printable(line)}", err=True)

    async with open_agent(command, wanted.cwd, on_stderr=show) as daemon:
        yield await daemon.create(wanted.cwd, NO_SETUP)


def _print_result(session_id: SessionId, prompt_id: str, **members: Any) -> None:
    print_json({"type": "result", "sessionId": session_id, "promptId": prompt_id, **members})


def _report(session_id: SessionId, end: End, as_json: bool) -> int:
    stop_reason = None if end.terminal is None else end.terminal.stop_reason
    if as_json:
        _print_result(session_id, end.prompt_id, stopReason=stop_reason, text=end.text)
    elif stop_reason not in (None, "end_turn"):
        tell(f"the turn ended: {stop_reason}")
    return INTERRUPTED if stop_reason is None else stop_code(stop_reason)


class End(NamedTuple):
    """The end of a turn, as far as this command waited for it."""

    prompt_id: PromptId
    terminal: ev.TurnCompleted | None
    """`None` if the command exited before."""
    text: str = ""
    """The agent's last message."""


class PromptedTurn:
    """One turn and the user at the terminal."""

    def __init__(self, session: DaemonSession, screen: Screen, asker: Asker) -> None:
        self._session = session
        self._screen = screen
        self._asker = asker
        self._view = View()
        self._calls = ToolCalls()
        """Known data of the tool calls in permission requests."""
        self._open_permissions: dict[PermissionId, anyio.CancelScope] = {}
        self._asked: set[PermissionId] = set()
        self._cancel_arrived = anyio.Event()
        self._host: PromptId | None = None
        """The running turn that the agent added the prompt to."""

    async def run(self, new_prompt: NewPrompt) -> End:
        """Send the prompt and wait for its end. Raises `TurnError`, and the error that rejects the prompt."""
        accepted = await self._session.prompt(new_prompt)
        terminal: ev.TurnCompleted | ev.TurnFailed | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._hear_ctrl_c, accepted.prompt_id, tasks)
            async with aclosing(self._session.follow(accepted.after_offset)) as pages:
                terminal = await self._until_end(pages, accepted, tasks)
            tasks.cancel_scope.cancel()
        self._screen.pause()
        if isinstance(terminal, ev.TurnFailed):
            raise _failure(terminal, with_tail=not self._asker.alone)
        return End(accepted.prompt_id, terminal, await self._text(accepted.prompt_id, terminal))

    async def _until_end(
        self, pages: AsyncGenerator[EventPage], accepted: Accepted, tasks: TaskGroup
    ) -> ev.TurnCompleted | ev.TurnFailed | None:
        async for page in pages:
            for offset, event in enumerate(page.events, page.offset - len(page.events) + 1):
                of = getattr(event, "prompt_id", accepted.prompt_id)
                if of is None or of not in (accepted.prompt_id, self._host):
                    continue
                if of == accepted.prompt_id:
                    self._view.apply(event)
                self._calls.take(event)
                self._screen.show(offset, event)
                self._mind(event, tasks)
                if isinstance(event, ev.PromptInjected):
                    await self._join(event.into, tasks)
                elif isinstance(event, ev.SteerDeclined):
                    self._screen.pause()
                    tell(f"it is not in the turn that runs: {NOT_STEERED[event.reason]}; it gets a turn of its own")
                # The end of the host turn is followed by the prompt's own, which has the same content.
                if isinstance(event, ev.TurnCompleted | ev.TurnFailed) and of == accepted.prompt_id:
                    return event
        return None

    async def _join(self, host: PromptId, tasks: TaskGroup) -> None:
        """Follow the turn that the prompt was added to; its earlier permission requests are asked here as well."""
        self._host = host
        self._screen.pause()
        tell(f"the agent took it into the turn that runs, {host}; following that")
        for each in (await self._whole()).permissions.values():
            if each.prompt_id == host:
                self._mind(each, tasks)

    async def _whole(self) -> View:
        """Return the session from its start; empty on failure, which is no reason to abandon the turn."""
        try:
            return await self._session.view()
        except DaemonUnreachable:
            return View()

    async def _text(self, prompt_id: PromptId, terminal: ev.TurnCompleted | None) -> str:
        if self._host is None or terminal is None:
            return self._view.result_text(prompt_id) or ""
        # That turn began before this command subscribed, so its events here are incomplete.
        return (await self._whole()).result_text(self._host) or ""

    def _mind(self, event: ev.AnyEvent, tasks: TaskGroup) -> None:
        """Ask permission requests, and stop asking once they are answered."""
        if isinstance(event, ev.PermissionRequested) and event.request_id not in self._asked:
            self._asked.add(event.request_id)
            scope = self._open_permissions[event.request_id] = anyio.CancelScope()
            tasks.start_soon(self._ask, event, scope)
        elif isinstance(event, ev.PermissionResolved):
            scope = self._open_permissions.pop(event.request_id, None)
            if scope is not None:
                scope.cancel()
                # Not in the asking task: that one wakes up later, after the agent's next output, or not at all.
                self._screen.pause()
                self._asker.stop_line()
                tell("the permission request is closed: answered elsewhere, or its turn is over")

    async def _ask(self, event: ev.PermissionRequested, scope: anyio.CancelScope) -> None:
        with scope:
            self._screen.pause()
            reply = await self._asker.ask(asked(event, self._session.session_id, self._calls))
            # From here on no question is open: this command's own answer, which closes the request, is no news.
            self._open_permissions.pop(event.request_id, None)
            if reply is None:
                return
            if not await self._session.answer(event.request_id, reply.answer, reply.option_id):
                tell("somebody else had answered before")

    async def _hear_ctrl_c(self, prompt_id: PromptId, tasks: TaskGroup) -> None:
        is_first = True
        with anyio.open_signal_receiver(signal.SIGINT) as signals:
            async for _ in signals:
                self._screen.pause()
                if not is_first:
                    break
                is_first = False
                tell("cancelling; Ctrl-C again leaves the turn to itself")
                # A daemon that does not answer must not delay the second Ctrl-C.
                tasks.start_soon(self._cancel, prompt_id)
        await self._leave(prompt_id)
        tasks.cancel_scope.cancel()

    async def _leave(self, prompt_id: PromptId) -> None:
        """Exit once the cancel has arrived, with a limited wait for the daemon's answer."""
        with anyio.move_on_after(CANCEL_SENT_S):
            await self._cancel_arrived.wait()
        sent = "it is asked to stop" if self._cancel_arrived.is_set() else "the daemon did not answer the cancel"
        turn = f"the turn {prompt_id} of session {self._session.session_id}"
        tell(f"left; {turn} goes on without us: {sent}")
        tell_next(f"turnwire attach {self._session.session_id}")

    async def _cancel(self, prompt_id: PromptId) -> None:
        try:
            await self._session.cancel(prompt_id)
            self._cancel_arrived.set()
        except TurnwireError as error:
            self._screen.pause()
            tell(f"the turn could not be cancelled: {error}")
            tell_next(f"turnwire cancel {self._session.session_id} {prompt_id}; Ctrl-C leaves the turn to itself")


def _failure(event: ev.TurnFailed, *, with_tail: bool) -> TurnError:
    tail = f"\n  its last lines:\n{event.stderr_tail.rstrip()}" if event.stderr_tail and with_tail else ""
    return TurnError(
        f"the turn failed ({event.code}): {event.message}{agent_words(event)}{tail}",
        reason=event.code,
        prompt_id=event.prompt_id,
        exit_code=event.exit_code,
        signal=event.signal,
        stderr_tail=event.stderr_tail,
    )
