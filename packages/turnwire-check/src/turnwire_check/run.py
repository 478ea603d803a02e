"""The run of a set of cases against one peer: each on a separate connection, some in parallel.

The result is an outcome for each case, in the order of the cases, independent of the order of completion. Cases
that are not checked have the reason.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, cast

import anyio

from turnwire.errors import LinkBroken, NotScored, RuleBroken, TurnwireError
from turnwire_check.capability import in_words, offers, speaks_v2
from turnwire_check.case import SCENES, Carrier, Case, NoAnswer, Scene
from turnwire_check.plain_text import plain, quoted
from turnwire_check.pool import Pool
from turnwire_check.provocation import prompts_for
from turnwire_check.raw_client import Connections, RawClient, Subject, hello, stderr_of
from turnwire_check.tape import Frame, Tape, at, joined
from turnwire_check.transport import Opener
from turnwire_check.watch import judge_watch

Verdict: TypeAlias = Literal["passed", "failed", "unanswered", "not_scored"]
"""`unanswered`: the peer did not answer a required request, which fails the run. `not_scored`: the rule does not
apply to the peer, or could not be tested.
"""

V2_WORDS = "v2.init.words"
"""The only case that checks an agent which answers version 2 and uses the members of version 1."""
HANDSHAKE = "v1.init."
"""Cases that check a peer without any common version, so that it does not pass without a failure."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of one case."""

    case: Case
    verdict: Verdict
    words: str = ""
    """Why it failed, or why it was not scored."""
    proof: tuple[int, ...] = ()
    """The places of the frames that prove a failure."""
    frames: tuple[Frame, ...] = ()
    """All that passed; only of a failure, and of a fault."""
    stderr: str = ""
    """The end of it."""
    has_left: bool = False
    """The peer went away before the case was over."""
    is_fault: bool = False
    """Not scored, because of an error in the checker itself. It is never the peer's failure, and is always
    reported.
    """


@dataclass(frozen=True)
class Bounds:
    """Timeouts and settings of a run."""

    patience_s: float = 10.0
    silence_s: float = 0.1
    asking_mode: str = ""
    """The mode in which an agent asks for permission, if it starts in another one."""
    has_drafts: bool = False
    """A client implements turnwire's drafts. An agent claims them in `initialize`; a client has no way to."""


async def probe(
    opener: Opener,
    folder: str,
    *,
    carrier: Carrier = "stdio",
    given: Mapping[Scene, str] | None = None,
    bounds: Bounds | None = None,
) -> Subject:
    """Initialize the peer with each version, and record its capabilities and its identity. Cases get directories in
    `folder`.
    """
    bounds = bounds or Bounds()
    found: dict[int, Any] = {}
    versions: dict[int, Any] = {}
    last_words = ""
    for version in (1, 2):
        async with opener() as transport:
            client = RawClient(transport, Subject(patience_s=bounds.patience_s, silence_s=bounds.silence_s))
            with suppress(NoAnswer):
                answer = await client.call("initialize", hello(version))
                versions[version] = at(answer.result, "protocolVersion")
                if versions[version] == version:
                    found[version] = answer.result
        if transport.tape.ended and version not in versions:
            last_words = stderr_of(transport)
        if carrier == "http" and transport.tape.ended and not versions:
            raise _nobody_there(transport.tape.ended)
    who = at(found.get(1), "agentInfo") or at(found.get(2), "info")
    behind = next((each for each in map(_behind, found.values()) if each), "")
    name, number = (quoted(at(who, each)) for each in ("name", "version"))
    return Subject(
        name=f"{name} {number}".strip(),
        offers=found,
        versions=versions,
        prompts=prompts_for(behind or name, given or {}),
        carrier=carrier,
        folder=folder,
        patience_s=bounds.patience_s,
        silence_s=bounds.silence_s,
        last_words=last_words,
        asking_mode=bounds.asking_mode,
    )


def _nobody_there(ended: str) -> LinkBroken:
    """Return the error for a server over HTTP that does not even answer `initialize`."""
    if ended.endswith(("401", "403")):
        return LinkBroken(f"the server does not let the suite in: {ended}; give a credential, --header NAME:VALUE")
    return LinkBroken(f"no ACP server answers there: {ended}; look at the address and the headers")


def _behind(offer: object) -> str:
    """Return the reported name of the agent that a server runs, if the server has it."""
    return quoted(at(offer, "_meta", "turnwire", "agentName"))


def obstacle(case: Case, subject: Subject) -> str:
    """Why a case cannot be judged at this peer, as far as that is known before; empty if it can."""
    if case.id.startswith(HANDSHAKE) and not subject.offers:
        return ""
    if subject.carrier not in case.carriers:
        return f"it is about {' and '.join(case.carriers)}"
    if case.version not in subject.offers:
        return f"it does not speak version {case.version}"
    if case.version == 2 and case.id != V2_WORDS and not speaks_v2(subject.offers[2]):
        return "it says version 2 in the words of version 1"
    if case.capability and not offers(subject.offers[case.version], case.capability):
        return f"it does not claim {in_words(case.capability)}"
    return unknown_scene(case, subject.prompts)


def unknown_scene(case: Case, prompts: Mapping[Scene, str]) -> str:
    """Return the scene of a case without a known prompt; empty if all are known."""
    for scene in case.scenes:
        if scene not in prompts:
            return f"no prompt is known that makes it {SCENES[scene]}; give one: --provoke {scene}=TEXT"
    return ""


async def run(
    cases: Sequence[Case],
    opener: Opener,
    subject: Subject,
    *,
    jobs: int = 1,
    told: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """Check each case. `told` is called with each outcome."""
    if subject.carrier != "stdio":
        return await run_each(cases, lambda case: judge(case, opener, subject), jobs=jobs, told=told)
    async with Pool(opener) as pool:
        return await run_each(
            cases, lambda case: judge(case, pool.connection, subject), jobs=jobs, told=told, is_alone=is_alone
        )


def is_alone(case: Case) -> bool:
    """Return True if a case is about sessions on disk, which all processes of the agent share."""
    return case.id.partition(".")[2].startswith(("list.", "delete.", "again."))


async def run_each(
    cases: Sequence[Case],
    judged: Callable[[Case], Awaitable[Outcome]],
    *,
    jobs: int = 1,
    told: Callable[[Outcome], None] = lambda outcome: None,
    is_alone: Callable[[Case], bool] = lambda case: False,
) -> list[Outcome]:
    """Judge each case with this function: first side by side, then those that run alone, then watching cases."""
    outcomes: dict[str, Outcome] = {}
    side_by_side = anyio.CapacityLimiter(jobs)
    alone = anyio.CapacityLimiter(1)

    async def judge_one(case: Case) -> None:
        async with alone if is_alone(case) else side_by_side:
            outcomes[case.id] = await unharmed(case, judged(case))
        told(outcomes[case.id])

    for phase in range(3):
        async with anyio.create_task_group() as tasks:
            for case in cases:
                if (2 if case.is_watch else 1 if is_alone(case) else 0) == phase:
                    tasks.start_soon(judge_one, case)
    return [outcomes[case.id] for case in cases]


async def judge(case: Case, opener: Opener, subject: Subject) -> Outcome:
    """Check one case on separate connections."""
    if reason := obstacle(case, subject):
        has_left = bool(subject.last_words) and case.version not in subject.offers
        return Outcome(case, "not_scored", reason, stderr=subject.last_words, has_left=has_left)
    if case.is_watch:
        verdict, words, tape, found = await judge_watch(case, opener, subject)
        frames = () if tape is None else tuple(tape.frames)
        return Outcome(case, verdict, words, tuple(each.number for each in found), frames)
    outcome, was_used = await _judge_once(case, opener, subject)
    if was_used and outcome.verdict != "passed":
        outcome, _ = await _judge_once(case, opener, subject, needs_new=True)
    return outcome


async def _judge_once(
    case: Case, opener: Opener, subject: Subject, *, needs_new: bool = False
) -> tuple[Outcome, bool]:
    """Judge a case; also return whether it ran on a process that had served other cases."""
    cwd = os.path.join(subject.folder, case.id)
    os.makedirs(cwd, exist_ok=True)
    async with Connections(opener, subject, case.version, cwd, needs_new=needs_new) as connections:
        client = await connections.open()
        outcome = await outcome_of(case, case.judge(client), connections.tapes)
        has_left = any(tape.ended for tape in connections.tapes)
        was_used = any(each.was_used for each in connections.pooled)
        for each in connections.pooled:
            each.is_reusable = outcome.verdict in ("passed", "not_scored")
    if outcome.verdict == "passed" or not was_used:
        subject.recorded += [(case.version, tape) for tape in connections.tapes]
    errors = connections.stderr()
    outcome = outcome if outcome.verdict == "passed" else replace(outcome, stderr=errors, has_left=has_left)
    return outcome, was_used


async def outcome_of(case: Case, judging: Awaitable[None], tapes: Sequence[Tape]) -> Outcome:
    """Run a case and return its outcome. `tapes`: the recorded frames, one tape for each connection."""
    try:
        await judging
    except RuleBroken as broken:
        frames, places = joined(tapes)
        proof = tuple(places[id(each)] for each in broken.frames if id(each) in places)
        return Outcome(case, "failed", plain(str(broken)), proof, frames)
    except NotScored as reason:
        return Outcome(case, "not_scored", plain(str(reason)))
    except NoAnswer as reason:
        return Outcome(case, "unanswered", plain(str(reason)))
    except Exception as error:  # noqa: BLE001  One case that goes wrong must not lose what the others found.
        return replace(_fault(case, error), frames=joined(tapes)[0])
    return Outcome(case, "passed")


async def unharmed(case: Case, judged: Awaitable[Outcome]) -> Outcome:
    """Return the outcome of one case, including connection errors, so that other cases still run."""
    try:
        return await judged
    except Exception as error:  # noqa: BLE001  The same for what its connections do.
        return _fault(case, error)


def _fault(case: Case, error: Exception) -> Outcome:
    """Return the fault's text: the message of our own errors, the type and location of any other, for the developer
    who fixes it.
    """
    first = _first_of(error)
    if isinstance(first, TurnwireError):
        return Outcome(case, "not_scored", plain(str(first)))
    trace = traceback.extract_tb(first.__traceback__ or error.__traceback__)
    place = f"{os.path.basename(trace[-1].filename)}:{trace[-1].lineno}"
    words = f"the judge itself failed ({type(first).__name__} at {place}); report it as a fault of turnwire"
    return Outcome(case, "not_scored", words, is_fault=True)


def _first_of(error: Exception) -> Exception:
    """Return the first error in a group of tasks."""
    while isinstance(error, ExceptionGroup):
        error = cast("ExceptionGroup[Exception]", error).exceptions[0]
    return error
