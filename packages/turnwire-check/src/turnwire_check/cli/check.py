"""`turnwire check`: check an agent against the rules of ACP.

It runs the conformance suite, which sends and reads raw frames, against a command, and reports for people and for
programs. The exit code is 1 when a mandatory rule is broken, or when the baseline does not match.
"""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import anyio
import click
from anyio.abc import TaskStatus

from turnwire.cli.commands import WithAgent, agent_of
from turnwire.cli.output import CHECK_FAILED, print_table, printable
from turnwire.errors import ConfigError, TurnwireError
from turnwire_check.cli.progress import counting

if TYPE_CHECKING:
    from turnwire_check.case import Carrier, Case, Scene
    from turnwire_check.raw_client import Subject
    from turnwire_check.report import Tally
    from turnwire_check.run import Bounds, Outcome
    from turnwire_check.transport import Opener

Found = TypeVar("Found")
LISTED_CASES = 12
BY_SIGNAL = 128
"""Added to the number of a signal, as a shell does."""

EXAMPLES = """
turnwire check -- my-agent --flag                        judge an agent
turnwire check --url ws://127.0.0.1:4170/acp --cwd . --header "Authorization: Bearer TOKEN"
turnwire check --rest http://127.0.0.1:4170 --header "Authorization: Bearer TOKEN" --provoke wait="count"
turnwire check --case v1.cancel -- my-agent              only the cases of one part, or one case
turnwire check --provoke wait="count to a million" --provoke ask="run ls" -- my-agent
turnwire check --junit out.xml --html out.html -- my-agent
turnwire check --baseline known.json -- my-agent         only new failures fail
turnwire check --client -- my-client --agent {agent}     judge a client: it starts what stands for {agent}
turnwire check --client -- my-client --connect {url}     the same for one that connects to an agent over WebSocket
turnwire check --client --case client.cancel --report out.json    be the agent of the client that started this
turnwire check --fake-model claude -- claude-agent-acp   with a fake model behind it: no key, no tokens
turnwire check --registry agent.json                     judge the agent of a registry's entry
turnwire check --list                                    all cases, with their rules
turnwire check --dry-run -- my-agent                     which of them can be judged at this agent
"""


@click.command(cls=WithAgent, examples=EXAMPLES)
@click.option(
    "--url", metavar="URL", help="Judge the server at this address instead: ws(s)://… or http(s)://…/acp."
)
@click.option("--rest", metavar="URL", help="Judge the REST routes of the server at this address instead.")
@click.option(
    "--header", "headers", multiple=True, metavar="NAME:VALUE", help="With --url or --rest: sent with each request."
)
@click.option(
    "--client", "of_clients", is_flag=True, help="Judge a client: the one behind `--`, or who started this."
)
@click.option(
    "--report", type=click.Path(path_type=Path), metavar="FILE", help="With --client: where verdicts are added."
)
@click.option(
    "--registry",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Judge the agent of this registry entry (JSON) instead.",
)
@click.option(
    "--cwd",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where sessions work: below this directory, which a server must allow. Without it: a temporary one.",
)
@click.option("--list", "listing", is_flag=True, help="List the cases and judge nobody.")
@click.option("--dry-run", is_flag=True, help="Say which cases can be judged at this agent, and judge none.")
@click.option(
    "--set", "sets", multiple=True, metavar="NAME", help="A frozen set of cases; may be given several times."
)
@click.option("--case", "named", multiple=True, metavar="ID", help="A case, or all whose id begins so.")
@click.option(
    "--provoke", multiple=True, metavar="SCENE=TEXT", help="The prompt that makes the agent do something."
)
@click.option(
    "--fake-model",
    metavar="NAME",
    help="Put a fake model behind the agent, in a home of its own: a known agent's name, or the API of its model.",
)
@click.option("--drafts", is_flag=True, help="With --client: the client implements turnwire's drafts; judge them.")
@click.option("--strict", is_flag=True, help="Rules that only should be kept count, too.")
@click.option("--jobs", type=click.IntRange(1, 64), default=4, show_default=True, help="Cases side by side.")
@click.option(
    "--patience", type=click.FloatRange(0.1, 600), default=10.0, show_default=True, help="Seconds for an answer."
)
@click.option(
    "--silence",
    type=click.FloatRange(0, 60),
    default=0.1,
    show_default=True,
    help="Seconds in which nothing must come, where a rule says so.",
)
@click.option("--json", "json_file", type=click.Path(path_type=Path), metavar="FILE", help="Write all outcomes.")
@click.option("--junit", type=click.Path(path_type=Path), metavar="FILE", help="Write them as JUnit's XML.")
@click.option("--html", type=click.Path(path_type=Path), metavar="FILE", help="Write a page with the frames.")
@click.option("--badge", type=click.Path(path_type=Path), metavar="FILE", help="Write a picture with the result.")
@click.option(
    "--baseline", type=click.Path(path_type=Path), metavar="FILE", help="Known failures: only others fail."
)
@click.option(
    "--write-baseline", type=click.Path(path_type=Path), metavar="FILE", help="Write what fails now there."
)
@click.pass_context
def check(ctx: click.Context, listing: bool, dry_run: bool, **flags: Any) -> None:
    """Test an agent or client for ACP conformance, or a server for ACP or REST.

    Each case opens a separate connection, makes the agent perform an action, and examines the frames. A case fails
    for its own rule alone; a case that cannot be checked on this agent reports the reason.
    """
    agent = _with_known(agent_of(ctx), listing, flags)
    cases = _chosen(_pool(listing, flags), flags["sets"], flags["named"])
    _look_at_flags(agent, listing, dry_run, flags)
    if listing:
        _list(cases, flags["json_file"])
        return
    flags["known"] = _known(flags["baseline"])
    if flags["of_clients"]:
        ctx.exit(CHECK_FAILED if _check_client(agent, cases, dry_run, flags) else 0)
    flags["environment"] = {}
    if flags["registry"] is not None:
        from turnwire_check.registry_entry import read_entry

        agent, flags["environment"] = read_entry(flags["registry"])
    with _workplace(flags["cwd"]) as cwd:
        check = _check if flags["fake_model"] is None else _check_with_fake_model
        failed = _run(check, agent, cases, os.path.realpath(cwd), dry_run, flags)
    ctx.exit(CHECK_FAILED if failed else 0)


REPORTS = {"json_file": "--json", "junit": "--junit", "html": "--html", "badge": "--badge"}
WRITTEN = {**REPORTS, "write_baseline": "--write-baseline"}


def _with_known(agent: tuple[str, ...], listing: bool, flags: dict[str, Any]) -> tuple[str, ...]:
    """Return the agent's command, which the name in `--fake-model` can provide. Raises `UsageError`."""
    name: str | None = flags["fake_model"]
    if name is None or listing:
        return agent
    if find_spec("turnwire_testing") is None:
        raise click.UsageError("--fake-model needs the fake models. Install them: pip install 'turnwire[testing]'")
    from turnwire_check.cli.fake_model import command_for, recipe_for

    recipe_for(name)
    if flags["url"] or flags["rest"] or flags["of_clients"]:
        raise click.UsageError("--fake-model is for an agent that is started here, by its command or by --registry")
    return agent if agent or flags["registry"] else command_for(name)


def _look_at_flags(agent: tuple[str, ...], listing: bool, dry_run: bool, flags: dict[str, Any]) -> None:
    """Check that the flags are compatible and files can be written, before any process is started. Raises
    `UsageError`.
    """
    peers = sum(map(bool, (agent, flags["url"], flags["rest"], flags["registry"])))
    if not listing and not flags["of_clients"] and peers != 1:
        raise click.UsageError(
            "put the agent's command behind `--`, or give one of --url, --rest and --registry; --list has them all"
        )
    if flags["drafts"] and not flags["of_clients"]:
        raise click.UsageError("--drafts is for --client; an agent claims the drafts that it implements")
    if flags["report"] and not flags["of_clients"]:
        raise click.UsageError("--report is for --client; the outcomes of an agent are written by --json FILE")
    if flags["rest"] and flags["cwd"]:
        raise click.UsageError("--cwd is for --url and for commands; the sessions of --rest have no directory")
    for name, flag in WRITTEN.items():
        path: Path | None = flags[name]
        if path is None:
            continue
        if dry_run or (listing and name != "json_file"):
            raise click.UsageError(f"nothing is judged by {'--dry-run' if dry_run else '--list'}; leave {flag} out")
        if path.is_dir() or not os.access(path.parent, os.W_OK):
            raise click.UsageError(f"{flag} {path} cannot be written; name a file in a directory that is there")


def _known(baseline: Path | None) -> frozenset[str]:
    from turnwire_check.report import read_baseline

    return frozenset() if baseline is None else read_baseline(baseline)


def _list(cases: list[Case], file: Path | None) -> None:
    if file is None:
        print_table(("case", "severity", "rule"), [(each.id, each.severity, each.rule) for each in cases])
        return
    from turnwire_check.report import listed_json

    file.write_text(listed_json(cases), encoding="utf-8")


def _workplace(below: Path | None) -> tempfile.TemporaryDirectory[str]:
    """Create the folder for the sessions' directories, and delete it afterwards. Raises `UsageError`."""
    try:
        return tempfile.TemporaryDirectory(prefix="turnwire-check-", dir=below and below.resolve())
    except OSError as error:
        words = f"--cwd {below}: no directory can be made there ({error.strerror}); name one where that works"
        raise click.UsageError(words) from None


def _run(function: Callable[..., Awaitable[Found]], *arguments: Any) -> Found:
    """Run it until it is done. A signal ends it and all that it has started, and then the process."""
    found: list[Found] = []
    failures: list[TurnwireError | click.ClickException] = []
    stopped: list[int] = []

    async def listen(scope: anyio.CancelScope, *, task_status: TaskStatus[None]) -> None:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
            task_status.started()
            async for number in signals:
                stopped.append(number)
                scope.cancel()

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            if threading.current_thread() is threading.main_thread():
                await tasks.start(partial(listen, tasks.cancel_scope))
            try:
                found.append(await function(*arguments))
            except (TurnwireError, click.ClickException) as error:
                # The error is raised below, outside of the group.
                failures.append(error)
            tasks.cancel_scope.cancel()

    anyio.run(main)
    if stopped:
        raise SystemExit(BY_SIGNAL + stopped[0])
    for failure in failures:
        raise failure
    return found[0]


def _check_client(words: tuple[str, ...], cases: list[Case], dry_run: bool, flags: dict[str, Any]) -> bool:
    """Judge a client; whether it failed."""
    from turnwire_check.cli.check_client import be_the_agent, judge_clients

    if flags["url"] or flags["rest"] or flags["provoke"] or flags["cwd"]:
        raise click.UsageError("--client judges a client; --url, --rest, --cwd and --provoke are for agents")
    if flags["registry"]:
        raise click.UsageError("--registry has agents; put the client's command behind `--`")
    if dry_run:
        from turnwire_check.client_run import scene_of

        # A client's offers are known once it has started, and no process is started here.
        print_table(("case", "scene", "needs"), [(each.id, scene_of(each), each.capability) for each in cases])
        return False
    if not words:
        return anyio.run(be_the_agent, cases, flags, partial(_write, flags=flags))
    with tempfile.TemporaryDirectory(prefix="turnwire-check-") as folder:
        tally = _run(judge_clients, cases, words, os.path.realpath(folder), flags)
    _print(tally)
    _write(tally, flags)
    return _fails(tally)


def _pool(listing: bool, flags: dict[str, Any]) -> Mapping[str, Case]:
    """The cases for this kind of peer."""
    from turnwire_check.catalogue import CASES, CLIENT_CASES, EVERY, HTTP_CASES, REST_CASES

    if flags["of_clients"]:
        return CLIENT_CASES
    if listing:
        return EVERY
    if flags["rest"]:
        return REST_CASES
    return {**CASES, **HTTP_CASES} if (flags["url"] or "").startswith("http") else CASES


def _chosen(pool: Mapping[str, Case], sets: Sequence[str], named: Sequence[str]) -> list[Case]:
    """The cases that the flags name. Raises `UsageError`."""
    from turnwire_check.catalogue import EVERY, belongs, named_cases
    from turnwire_check.frozen import SETS

    for each in sets:
        if each not in SETS:
            raise click.UsageError(f"there is no set {each!r}; the sets are {', '.join(SETS)}")
    ids = {case for name in sets or SETS for case in SETS[name]}
    found = [case for case in pool.values() if case.id in ids or not sets]
    if not found:
        raise click.UsageError(f"{', '.join(sets)} has no case for this kind of peer; {_kind_of(sets)}")
    for each in named:
        if not any(belongs(case, each) for case in pool) and any(belongs(case, each) for case in EVERY):
            raise click.UsageError(f"{each!r} is not for this kind of peer; {_kind_of([each])}")
    try:
        return named_cases({case.id: case for case in found}, named)
    except ConfigError as error:
        raise click.UsageError(str(error)) from None


def _kind_of(names: Sequence[str]) -> str:
    """Return the kind of peer that the cases or sets of these names check."""
    kinds = {
        "rest": "give the address of a server that speaks REST: --rest URL",
        "http": "give the address of a server over HTTP: --url http://…/acp",
        "acp-http": "give the address of a server over HTTP: --url http://…/acp",
        "client": "judge a client: --client -- COMMAND",
        "acp-client": "judge a client: --client -- COMMAND",
    }
    found = [words for kind, words in kinds.items() if any(each.startswith(kind) for each in names)]
    return found[0] if found else "judge an agent: its command behind `--`, or --url"


async def _check_with_fake_model(
    agent: tuple[str, ...], cases: list[Case], cwd: str, dry_run: bool, flags: dict[str, Any]
) -> bool:
    """Run the check on an agent with a fake model, with prompts that this model understands."""
    from turnwire_check.cli.fake_model import home_with_model, recipe_for, unasked
    from turnwire_testing.models.told_model import prompts

    recipe = recipe_for(flags["fake_model"])
    known = [f"{scene}={text}" for scene, text in prompts(recipe).items()]
    async with home_with_model(recipe, flags["environment"]) as home:
        flags = {
            **flags,
            "home": home.environment,
            "asking_mode": recipe.asks_in or "",
            "provoke": [*known, *flags["provoke"]],
        }
        failed = await _check(agent, cases, cwd, dry_run, flags)
        words = unasked(home)
    if words and any(each.scenes for each in cases) and not dry_run:
        click.echo(printable(words))
    return failed


class _Peer(NamedTuple):
    """The checked peer and the way to check it."""

    name: str
    obstacle: Callable[[Case], str]
    run: Callable[..., Awaitable[list[Outcome]]]


async def _check(agent: tuple[str, ...], cases: list[Case], cwd: str, dry_run: bool, flags: dict[str, Any]) -> bool:
    """Run it; whether the run failed."""
    from turnwire_check.provocation import read_provocation
    from turnwire_check.report import Tally
    from turnwire_check.run import Bounds

    given: dict[Scene, str] = dict(map(read_provocation, flags["provoke"]))
    with counting("asking the agent who it is", len(cases)) as done:

        def told(outcome: Outcome) -> None:
            done(outcome.case.id)

        bounds = Bounds(flags["patience"], flags["silence"], flags.get("asking_mode", ""))
        if flags["rest"]:
            peer = await _rest_peer(flags["rest"], _headers(flags["headers"]), given, bounds)
        else:
            peer = await _acp_peer(agent, cwd, given, bounds, flags)
        outcomes = [] if dry_run else await peer.run(cases, jobs=flags["jobs"], told=told)
    if dry_run:
        rows = [(each.id, peer.obstacle(each) or "can be judged") for each in cases]
        print_table(("case", "here"), rows)
        return False
    tally = Tally(outcomes, peer.name, tuple(flags["sets"]), flags["strict"], flags["known"])
    _print(tally)
    _write(tally, flags)
    return _fails(tally)


async def _acp_peer(
    agent: tuple[str, ...], cwd: str, given: Mapping[Scene, str], bounds: Bounds, flags: dict[str, Any]
) -> _Peer:
    from turnwire_check.run import obstacle, probe, run

    headers = _headers(flags["headers"])
    environment: Mapping[str, str] = flags.get("home") or {**os.environ, **flags["environment"]}
    opener, carrier = _opener(agent, flags["url"], headers, environment)
    subject = await probe(opener, cwd, carrier=carrier, given=given, bounds=bounds)
    peer = _Peer(subject.name, partial(obstacle, subject=subject), partial(run, opener=opener, subject=subject))
    return _with_http(peer, opener, flags["url"], headers, subject) if carrier == "http" else peer


def _with_http(peer: _Peer, acp: Opener, url: str, headers: Mapping[str, str], subject: Subject) -> _Peer:
    """Return the same peer with the additional rules about HTTP."""
    from turnwire_check.acp_http import acp_subject, http_obstacle, judge_http
    from turnwire_check.catalogue import HTTP_CASES
    from turnwire_check.run import judge as judge_acp
    from turnwire_check.run import run_each

    opener, known = acp_subject(url, headers, subject)

    def obstacle(case: Case) -> str:
        return http_obstacle(case, known) if case.id in HTTP_CASES else peer.obstacle(case)

    async def judge(case: Case) -> Outcome:
        return await (judge_http(case, opener, known) if case.id in HTTP_CASES else judge_acp(case, acp, subject))

    return _Peer(peer.name, obstacle, partial(run_each, judged=judge))


async def _rest_peer(url: str, headers: Mapping[str, str], given: Mapping[Scene, str], bounds: Bounds) -> _Peer:
    from turnwire_check.http_exchange import http_opener
    from turnwire_check.rest_client import judge_rest, probe_rest, rest_obstacle
    from turnwire_check.run import run_each

    if not url.startswith(("http://", "https://")):
        raise click.UsageError(f"--rest {url!r} does not begin with http:// or https://")
    opener = http_opener(url)
    subject = await probe_rest(opener, headers, given=given, bounds=bounds)
    judged = partial(judge_rest, opener=opener, subject=subject)
    return _Peer(subject.name, partial(rest_obstacle, subject=subject), partial(run_each, judged=judged))


def _headers(headers: Sequence[str]) -> dict[str, str]:
    given: dict[str, str] = {}
    for each in headers:
        name, separator, value = each.partition(":")
        if not separator:
            raise click.UsageError(f"--header {each!r} is not NAME:VALUE")
        given[name.strip()] = value.strip()
    return given


def _opener(
    agent: tuple[str, ...], url: str | None, headers: Mapping[str, str], environment: Mapping[str, str]
) -> tuple[Opener, Carrier]:
    from turnwire_check.remote import url_opener
    from turnwire_check.transport import process_opener

    if url is None:
        return process_opener(agent, os.getcwd(), environment), "stdio"
    if not url.startswith(("ws://", "wss://", "http://", "https://")):
        raise click.UsageError(f"--url {url!r} does not begin with ws://, wss://, http:// or https://")
    return url_opener(url, headers), "websocket" if url.startswith("ws") else "http"


def _print(tally: Tally) -> None:
    from turnwire_check.report import failure_lines, fault_lines, stderr_lines

    for each in tally.faults:
        for line in fault_lines(each):
            click.echo(f"{click.style('ERROR ', fg='red')} {printable(line)}")
    for each in (*tally.failed, *tally.advised):
        mark, colour = ("FAILED", "red") if tally.counts(each) else ("should", "yellow")
        mark, colour = ("known ", "yellow") if tally.is_known(each) else (mark, colour)
        first, *rest = failure_lines(each)
        click.echo(f"{click.style(mark, fg=colour)} {printable(first)}")
        for line in rest:
            click.echo(f"       {printable(line)}")
    reasons: dict[tuple[str, str], list[Outcome]] = {}
    for each in (*tally.unanswered, *tally.unscored):
        colour, mark = ("red", "FAILED not answered") if each.verdict == "unanswered" else ("", "not scored")
        reasons.setdefault((click.style(mark, fg=colour or None), each.words), []).append(each)
    for (mark, reason), found in reasons.items():
        click.echo(f"{mark}: {printable(reason)}: {_listed([each.case for each in found])}")
        for line in stderr_lines(found[0]):
            click.echo(f"       stderr: {printable(line)}")
    click.echo(f"{printable(tally.peer) or 'the peer'}: {tally.in_words()}")


def _listed(cases: Sequence[Case]) -> str:
    """The ids of cases; where there are many, the parts that they belong to."""
    if len(cases) <= LISTED_CASES:
        return ", ".join(each.id for each in cases)
    parts: dict[str, int] = {}
    for each in cases:
        part = each.id.rpartition(".")[0]
        parts[part] = parts.get(part, 0) + 1
    return f"{len(cases)} cases: " + ", ".join(f"{part} ({count})" for part, count in parts.items())


def _write(tally: Tally, flags: dict[str, Any]) -> None:
    from turnwire_check.report import as_badge, as_html, as_json, as_junit, written_baseline

    writers = {
        "json_file": as_json,
        "junit": as_junit,
        "html": as_html,
        "badge": as_badge,
        "write_baseline": written_baseline,
    }
    unwritten: list[str] = []
    for name, writer in writers.items():
        path: Path | None = flags[name]
        try:
            if path is not None:
                path.write_text(writer(tally), encoding="utf-8")
        except OSError as error:
            # The others are still worth having.
            unwritten.append(f"{WRITTEN[name]} {path} ({error.strerror})")
    if unwritten:
        raise ConfigError(f"not written: {', '.join(unwritten)}; name other files")


def _fails(tally: Tally) -> bool:
    if not (tally.passed or tally.failures or tally.advised):
        click.echo("nothing could be judged")
        return True
    if tally.faults:
        return True
    from turnwire_check.report import compare

    found = compare(tally)
    for each in found.new if tally.known else ():
        click.echo(f"not in the baseline: {each}")
    for each in found.stale:
        click.echo(f"in the baseline, and does not fail any more: {each}; take it out")
    return bool(found.new or found.stale)
