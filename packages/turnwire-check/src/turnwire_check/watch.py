"""Rules about every message: they are checked on all connections of a run, not in a separate scene.

A run records each connection. When all other cases are done, a watching case examines the recordings, and one tour
of the known scenes.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from turnwire.errors import NotScored, RuleBroken
from turnwire_check.case import Case, NoAnswer, Scene
from turnwire_check.plain_text import plain
from turnwire_check.raw_client import Connections, RawClient, Subject
from turnwire_check.raw_peer import is_answer_to, text
from turnwire_check.shapes import as_key
from turnwire_check.tape import Frame, Tape, at
from turnwire_check.transport import Opener
from turnwire_check.v2_work import work

TOUR: tuple[Scene, ...] = ("plain", "tool", "plan", "usage", "ask", "child", "plain")
NON_ASCII = "Grüße, 世界 🌍"


@dataclass(frozen=True)
class Conversation:
    """The frames of one connection, with both sides' members of the handshake."""

    frames: Sequence[Frame]

    @cached_property
    def heard(self) -> list[Frame]:
        return [each for each in self.frames if not each.is_ours]

    @cached_property
    def updates(self) -> list[Frame]:
        return [each for each in self.heard if each.method == "session/update"]

    @cached_property
    def capabilities(self) -> Any:
        """The capabilities of the client."""
        hello = next((each for each in self.frames if each.is_ours and each.method == "initialize"), None)
        if hello is None:
            return None
        return at(hello.params, "clientCapabilities") or at(hello.params, "capabilities")

    @cached_property
    def offer(self) -> Any:
        """The answer to `initialize`."""
        return next((each.result for each in self.heard if at(each.result, "protocolVersion") is not None), None)

    def sent(self, method: str) -> list[Frame]:
        return [each for each in self.frames if each.is_ours and each.method == method]

    def answers(self, method: str) -> Iterator[Frame]:
        """The first answer to each request of this method."""
        for asked in self.sent(method):
            is_answer = is_answer_to(asked.id)
            yield from itertools.islice(
                (each for each in self.heard if each.number > asked.number and is_answer(each)), 1
            )

    @cached_property
    def reopened(self) -> set[str]:
        """The ids, as JSON, of sessions that were loaded or resumed here: their earlier messages may be missing."""
        return {as_key(each.session) for method in ("session/load", "session/resume") for each in self.sent(method)}


async def tour(opener: Opener, subject: Subject, version: int) -> None:
    """Record one session with every known scene, an unknown method and text outside of ASCII."""
    cwd = os.path.join(subject.folder, f"tour-v{version}")
    os.makedirs(cwd, exist_ok=True)
    async with Connections(opener, subject, version, cwd) as connections:
        client = await connections.open()
        subject.recorded.append((version, client.tape))
        session = await client.open()
        await client.call("session/no_such_method", {})
        for scene in TOUR:
            if scene in subject.prompts:
                await _play(client, session, scene)
        await client.call("session/prompt", _prompt(session, f"{client.words('plain')} {NON_ASCII}"))
        await client.barrier()


async def _play(client: RawClient, session: str, scene: Scene) -> None:
    try:
        await (client.turn(session, scene) if client.version == 1 else work(client, session, scene))
    except NotScored:
        """The prompt was refused. The next scene may work."""


def _prompt(session: str, words: str) -> dict[str, Any]:
    return {"sessionId": session, "prompt": [text(words)]}


async def judge_watch(
    case: Case, opener: Opener, subject: Subject
) -> tuple[Literal["passed", "failed", "not_scored"], str, Tape | None, tuple[Frame, ...]]:
    """Return the verdict, the reason, and for a failure the recording with the frames that prove it."""
    gave_up = ""
    async with subject.touring:
        if case.version not in subject.toured:
            subject.toured.add(case.version)
            try:
                await tour(opener, subject, case.version)
            except (NotScored, NoAnswer) as reason:
                gave_up = str(reason)
    reasons: list[str] = []
    has_passed = False
    for version, tape in subject.recorded:
        if version != case.version:
            continue
        try:
            case.judge(Conversation(tape.frames))
            has_passed = True
        except RuleBroken as broken:
            proof = tuple(each for each in broken.frames if isinstance(each, Frame))
            return "failed", plain(str(broken)), tape, proof
        except NotScored as reason:
            reasons.append(str(reason))
    if has_passed:
        return "passed", "", None, ()
    return "not_scored", plain(next(iter(reasons), gave_up)), None, ()
