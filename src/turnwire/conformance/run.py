"""The run of a set of cases against one peer: each on a connection of its own, some side by side.

Gives an outcome for each case, in the order of the cases, whoever was done first. What is not judged says why.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, cast

import anyio

from turnwire.conformance.capability import in_words, offers
from turnwire.conformance.case import SCENES, Carrier, Case, Scene
from turnwire.conformance.plain_text import plain, quoted
from turnwire.conformance.provocation import prompts_for
from turnwire.conformance.raw_client import Connections, RawClient, Subject, hello, stderr_of
from turnwire.conformance.tape import Frame, Tape, at, joined
from turnwire.conformance.transport import Opener
from turnwire.errors import LinkBroken, NotScored, RuleBroken, TurnwireError

Verdict: TypeAlias = Literal["passed", "failed", "not_scored"]

HANDSHAKE = "v1.init."
"""Who speaks no version at all is judged by these cases, so that it does not go without a failure."""


@dataclass(frozen=True)
class Outcome:
    """What became of one case."""

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
    """Not scored, because the judge itself went wrong. That is never the peer's failure, and never goes unseen."""


@dataclass(frozen=True)
class Bounds:
    """How long things may take."""

    patience_s: float = 10.0
    silence_s: float = 0.25


async def probe(
    opener: Opener,
    folder: str,
    *,
    carrier: Carrier = "stdio",
    given: Mapping[Scene, str] | None = None,
    bounds: Bounds | None = None,
) -> Subject:
    """Ask the peer for each version, and learn what it claims and who it is. Cases get directories in `folder`."""
    bounds = bounds or Bounds()
    found: dict[int, Any] = {}
    versions: dict[int, Any] = {}
    last_words = ""
    for version in (1, 2):
        async with opener() as transport:
            client = RawClient(transport, Subject(patience_s=bounds.patience_s, silence_s=bounds.silence_s))
            with suppress(NotScored):
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
    )


def _nobody_there(ended: str) -> LinkBroken:
    """Of a server over HTTP that does not even answer `initialize`."""
    if ended.endswith(("401", "403")):
        return LinkBroken(f"the server does not let the suite in: {ended}; give a credential, --header NAME:VALUE")
    return LinkBroken(f"no ACP server answers there: {ended}; look at the address and the headers")


def _behind(offer: object) -> str:
    """How the agent calls itself that a server has behind it, if the server tells."""
    return quoted(at(offer, "_meta", "turnwire", "agentName"))


def obstacle(case: Case, subject: Subject) -> str:
    """Why a case cannot be judged at this peer, as far as that is known before; empty if it can."""
    if case.id.startswith(HANDSHAKE) and not subject.offers:
        return ""
    if subject.carrier not in case.carriers:
        return f"it is about {' and '.join(case.carriers)}"
    if case.version not in subject.offers:
        return f"it does not speak version {case.version}"
    if case.capability and not offers(subject.offers[case.version], case.capability):
        return f"it does not claim {in_words(case.capability)}"
    return unknown_scene(case, subject.prompts)


def unknown_scene(case: Case, prompts: Mapping[Scene, str]) -> str:
    """Which scene of a case nobody knows a prompt for; empty if all are known."""
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
    """Judge each case. `told` hears of each as it is done."""
    return await run_each(cases, lambda case: judge(case, opener, subject), jobs=jobs, told=told)


async def run_each(
    cases: Sequence[Case],
    judged: Callable[[Case], Awaitable[Outcome]],
    *,
    jobs: int = 1,
    told: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """The same, by whoever judges this kind of peer."""
    outcomes: dict[str, Outcome] = {}
    limiter = anyio.CapacityLimiter(jobs)

    async def judge_one(case: Case) -> None:
        async with limiter:
            outcomes[case.id] = await unharmed(case, judged(case))
        told(outcomes[case.id])

    async with anyio.create_task_group() as tasks:
        for case in cases:
            tasks.start_soon(judge_one, case)
    return [outcomes[case.id] for case in cases]


async def judge(case: Case, opener: Opener, subject: Subject) -> Outcome:
    """Judge one case on connections of its own."""
    if reason := obstacle(case, subject):
        has_left = bool(subject.last_words) and case.version not in subject.offers
        return Outcome(case, "not_scored", reason, stderr=subject.last_words, has_left=has_left)
    cwd = os.path.join(subject.folder, case.id)
    os.makedirs(cwd, exist_ok=True)
    async with Connections(opener, subject, case.version, cwd) as connections:
        client = await connections.open()
        outcome = await outcome_of(case, case.judge(client), connections.tapes)
        has_left = any(tape.ended for tape in connections.tapes)
    errors = connections.stderr()
    return outcome if outcome.verdict == "passed" else replace(outcome, stderr=errors, has_left=has_left)


async def outcome_of(case: Case, judging: Awaitable[None], tapes: Sequence[Tape]) -> Outcome:
    """What becomes of a case that is put to the test. `tapes`: what passes meanwhile, one for each connection."""
    try:
        await judging
    except RuleBroken as broken:
        frames, places = joined(tapes)
        proof = tuple(places[id(each)] for each in broken.frames if id(each) in places)
        return Outcome(case, "failed", plain(str(broken)), proof, frames)
    except NotScored as reason:
        return Outcome(case, "not_scored", plain(str(reason)))
    except Exception as error:  # noqa: BLE001  One case that goes wrong must not lose what the others found.
        return replace(_fault(case, error), frames=joined(tapes)[0])
    return Outcome(case, "passed")


async def unharmed(case: Case, judged: Awaitable[Outcome]) -> Outcome:
    """The outcome of one case, also where its connections went wrong: no other case is lost by that."""
    try:
        return await judged
    except Exception as error:  # noqa: BLE001  The same for what its connections do.
        return _fault(case, error)


def _fault(case: Case, error: Exception) -> Outcome:
    """Of our own errors the words are told, of any other the kind and the place, for whoever has to mend it."""
    first = _first_of(error)
    if isinstance(first, TurnwireError):
        return Outcome(case, "not_scored", plain(str(first)))
    trace = traceback.extract_tb(first.__traceback__ or error.__traceback__)
    place = f"{os.path.basename(trace[-1].filename)}:{trace[-1].lineno}"
    words = f"the judge itself failed ({type(first).__name__} at {place}); report it as a fault of turnwire"
    return Outcome(case, "not_scored", words, is_fault=True)


def _first_of(error: Exception) -> Exception:
    """What went wrong first, where a group of tasks tells of it."""
    while isinstance(error, ExceptionGroup):
        error = cast("ExceptionGroup[Exception]", error).exceptions[0]
    return error
