"""A node whose agent is recorded or played, in separate processes, and the comparable part of a log."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from tests.cli.rig import PROGRAM
from tests.interop.node_session import Talk, host
from tests.support.driving import check_ends

from turnwire.session import events as ev

Scene = Callable[[Talk], Awaitable[None]]


def recorded(agent: Sequence[str], file: Path, *flags: str) -> list[str]:
    """The command that records this agent."""
    return [*PROGRAM, "record", "-o", str(file), *flags, "--", *agent]


def replayed(file: Path, *flags: str) -> list[str]:
    """The command that plays this file."""
    return [*PROGRAM, "replay", str(file), *flags]


async def hosted(command: Sequence[str], scene: Scene) -> list[ev.AnyEvent]:
    """Play a scene with this agent; gives the log."""
    async with host(command) as opened:
        talk = await opened.talk()
        await scene(talk)
        events = await talk.events()
    check_ends(events)
    return events


def frames(file: Path) -> list[str]:
    """The lines of a recording without their times."""
    return [re.sub(r'"ms":\d+,', "", line) for line in file.read_text().splitlines()]


async def refuse_and_cancel(talk: Talk) -> None:
    """A permission request that is refused, and a turn that is cancelled."""
    asking = await talk.prompt("ask t2 yes,no")
    await talk.answer(await talk.until_asked(asking), "no")
    await talk.end(asking)
    waiting = await talk.prompt("say 1 waiting\nnever")
    await talk.until_said("waiting", waiting)
    await talk.cancel(waiting)
    await talk.end(waiting)


async def speak_to_a_script(talk: Talk) -> None:
    """Words, a permission request, a cancel, an error, and another turn."""
    await talk.turn("think well\nsay 3 hello\ntool t1 edit it\nusage 5 10")
    await refuse_and_cancel(talk)
    await talk.turn("error -32001 broken")
    await talk.turn("later say 1 more\nsay 1 last")


def told(events: Sequence[ev.AnyEvent]) -> list[dict[str, Any]]:
    """A log without its times, the ids that differ in each run, and the receipts, which are about both."""
    names: dict[str, str] = {}
    shown: list[dict[str, Any]] = []
    for event in events:
        members = msgspec.json.decode(msgspec.json.encode(event))
        for name in ("requestId", "sessionId"):
            if name in members:
                members[name] = names.setdefault(members[name], f"{name} {len(names)}")
        for each in members.get("waitsFor") or ():
            each["requestId"] = names.setdefault(each["requestId"], f"requestId {len(names)}")
        shown.append({name: value for name, value in members.items() if name not in ("at", "receipt")})
    return shown
