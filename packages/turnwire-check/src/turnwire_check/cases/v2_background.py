"""v2, a draft: work that continues after the end of a prompt's turn, and its reports."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from turnwire_check.case import Part, holds, unscored
from turnwire_check.raw_client import RawClient
from turnwire_check.shapes import is_one_of
from turnwire_check.tape import Frame, at, has, items
from turnwire_check.v2_work import work

BACKGROUND = Part("v2.background", "v2 draft, prompt lifecycle, state updates: Background work")

NAMES = {"terminal": "terminalId", "tool_call": "toolCallId", "subagent": "sessionId"}
"""The id member of each kind of work."""
ANNOUNCES = {"terminal": "terminal_update", "tool_call": "tool_call_update", "subagent": "subagent_update"}
OVER = ("completed", "failed", "cancelled")


def _identity(item: Any) -> tuple[str, Any] | None:
    """Return the identity of an item of the list; None for an unknown kind."""
    kind = at(item, "type")
    return (kind, at(item, NAMES[kind])) if is_one_of(kind, NAMES) else None


async def _states(client: RawClient) -> list[Frame]:
    """The states of a session with work in the background, from the first one that lists any."""
    session = await client.open()
    await work(client, session)
    await work(client, session, "background")
    await work(client, session)
    await client.barrier()
    states = [each for each in client.tape.heard() if each.kind == "state_update" and each.session == session]
    if not any(items(at(each.update, "background")) for each in states):
        unscored("it tells of no work in the background")
    return states


@BACKGROUND.case(
    "every-state", "Who has told of background work tells of it with every state.", scenes=("background",)
)
async def every_state(client: RawClient) -> None:
    states = await _states(client)
    # An agent that forwards another agent's states does not know in advance that background work will be reported.
    with_it = next(each for each in states if has(each.update, "background"))
    without = [each for each in states[states.index(with_it) :] if not has(each.update, "background")]
    holds(not without, "a later state does not tell of it", with_it, *without[:1])


@BACKGROUND.case("items", "Each work in the background has its kind and its id.", scenes=("background",))
async def named(client: RawClient) -> None:
    for each in await _states(client):
        for item in items(at(each.update, "background")):
            holds(isinstance(at(item, "type"), str), "an item has no `type`", each)
            known = _identity(item)
            holds(known is None or isinstance(known[1], str), f"a {at(item, 'type')} has no id", each)


@BACKGROUND.case(
    "announced", "Work in the background is announced before a state lists it.", scenes=("background",)
)
async def announced(client: RawClient) -> None:
    for state in await _states(client):
        for item in items(at(state.update, "background")):
            known = _identity(item)
            if known is None or known[1] is None:
                continue
            kind, name = known
            told = [
                each
                for each in client.tape.heard(0, state.number)
                if each.kind == ANNOUNCES[kind] and at(each.update, NAMES[kind]) == name
            ]
            holds(told, f"nothing was told of the {kind} {name!r} before", state)


@BACKGROUND.case(
    "over",
    "The end of work in the background is told before a state leaves it out.",
    scenes=("background",),
)
async def over(client: RawClient) -> None:
    states = await _states(client)
    left_out = 0
    for before, state in pairwise(states):
        now = [_identity(item) for item in items(at(state.update, "background"))]
        for item in items(at(before.update, "background")):
            known = _identity(item)
            if known is None or known in now or not has(state.update, "background"):
                continue
            left_out += 1
            ended = [each for each in client.tape.heard(0, state.number) if _is_end(each, *known)]
            holds(ended, f"the end of the {known[0]} {known[1]!r} was not told", before, state)
    if not left_out:
        unscored("its work in the background goes on")


def _is_end(frame: Frame, kind: str, name: Any) -> bool:
    if frame.kind != ANNOUNCES[kind] or at(frame.update, NAMES[kind]) != name:
        return False
    if kind == "terminal":
        return at(frame.update, "exitStatus") is not None
    if kind == "tool_call":
        return at(frame.update, "status") in OVER
    return at(frame.update, "state", "state") == "idle"
