"""A recording as a test: a small pytest file that plays it and says how each of its turns ends.

What the test expects is not guessed from frames: the recording is played once, as the test will play it, and what a
client was told is written down. So the test passes when it is written, and fails when turnwire, or a recording that
somebody changed, tells something else.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import anyio
import msgspec

from turnwire.client.client import Client, connect
from turnwire.client.session import Session
from turnwire.client.turn import Turn
from turnwire.client.update import Update
from turnwire.errors import (
    AgentLaunchFailed,
    RecordingMismatch,
    RecordingUnreadable,
    TurnError,
    TurnwireError,
)
from turnwire.recording.format import Entry
from turnwire.recording.recorded_client import Act, Cancelling, Ending, Opening, Prompting, Story, story_of
from turnwire.wire.jsonrpc import ErrorObject

AT_MOST_S: Final = 60
"""What the test of a recording that does not wait may take."""
FEW_S: Final = 10
"""What the updates of a turn that stays open may take to come."""
QUIET_S: Final = 1
"""How long nothing must come of a turn to call it open."""


class Outcome(NamedTuple):
    """What a client is told of a turn."""

    kinds: dict[str, int]
    text: str
    stop_reason: str | None = None
    """None if it failed, or is open."""
    reason: str | None = None
    """Why it failed."""


class Told(NamedTuple):
    """What a client is told of a whole recording."""

    turns: dict[int, Outcome]
    refused: dict[int, str]
    """The codes of errors by which sessions could not be opened."""


class Bounds(NamedTuple):
    """Seconds for a play: more of them if it waits as long as the recorded agent did."""

    at_most: int
    few: int
    quiet: int


class Written(NamedTuple):
    """A test, and what of the recording is not in it."""

    text: str
    left_out: str | None


def write_test(
    entries: Sequence[Entry], file: Path, test: Path, flags: Sequence[str], speed: float | None
) -> Written:
    """The text of the test for the recording in this file.

    Args:
        entries: What is played, with its faults.
        file: The recording.
        test: Where the test will be.
        flags: How `turnwire replay` is to play it.
        speed: How much faster than it was recorded; none does not wait at all.

    Raises:
        RecordingUnreadable: It opens no session, or goes on otherwise than it was recorded.
        RecordingMismatch: What the test does is not what these flags ask for.
    """
    story, bounds = story_of(entries), _bounds(entries, speed)
    if not story.acts:
        raise RecordingUnreadable(f"{file} opens no session, so nothing can be tested; record one from its start")
    told = anyio.run(_observed, [str(file.resolve()), *flags], story, bounds)
    place = f"Path(__file__).parent / {os.path.relpath(file, test.parent)!r}"
    name = re.sub(r"\W+", "_", file.stem)
    return Written(_Text(story, told, bounds).whole(place, name, flags), story.left_out)


def _bounds(entries: Sequence[Entry], speed: float | None) -> Bounds:
    if speed is None or not entries:
        return Bounds(AT_MOST_S, FEW_S, QUIET_S)
    gap = max((later.ms - each.ms for each, later in pairwise(entries)), default=0)
    whole, longest = (int(each / 1000 / speed) for each in (entries[-1].ms, gap))
    return Bounds(AT_MOST_S + whole, FEW_S + whole, QUIET_S + longest)


# -- playing it once ---------------------------------------------------------------------------------------


async def _observed(words: Sequence[str], story: Story, bounds: Bounds) -> Told:
    with tempfile.TemporaryDirectory(prefix="turnwire-replay-") as cwd:
        async with connect([sys.executable, "-m", "turnwire", "replay", *words]) as client:
            play = _Play(client, cwd, story, bounds)
            doing: Act | None = None
            try:
                with anyio.fail_after(bounds.at_most):
                    for doing in story.acts:
                        await play.do(doing)
            except TimeoutError:
                raise RecordingUnreadable(
                    f"the play came to a stop before {_named(doing)}; play it by hand to see what it waits for:"
                    f" turnwire prompt TEXT -- turnwire replay {' '.join(words)}"
                ) from None
            return Told(play.turns, play.refused)


def _named(act: Act | None) -> str:
    match act:
        case Opening(session):
            return f"session {session + 1} is open"
        case Prompting(turn) | Cancelling(turn) | Ending(turn):
            return f"turn {turn + 1} has ended"
        case None:
            return "anything"


class _Play:
    """Does what the recorded client did, and writes down what it hears."""

    def __init__(self, client: Client, cwd: str, story: Story, bounds: Bounds) -> None:
        self._client = client
        self._cwd = cwd
        self._answers = {number: list(answers) for number, answers in story.answers.items()}
        self._bounds = bounds
        self._sessions: dict[int, Session] = {}
        self._running: dict[int, Turn] = {}
        self.turns: dict[int, Outcome] = {}
        self.refused: dict[int, str] = {}

    async def do(self, act: Act) -> None:
        match act:
            case Opening(session, is_refused):
                await self._open(session, is_refused)
            case Prompting(turn, session, content):
                self._running[turn] = self._sessions[session].prompt(content)
            case Cancelling(turn, is_late):
                await _cancel(self._running[turn], is_late)
            case Ending(turn, updates, is_open=True):
                heard = await _heard_of_open(self._running[turn], updates, self._bounds)
                self.turns[turn] = _outcome(heard)
            case Ending(turn):
                self.turns[turn] = await _ended(self._running[turn])

    async def _open(self, number: int, is_refused: bool) -> None:
        try:
            session = await self._client.new_session(self._cwd)
        except TurnwireError as error:
            _check_fits(error)
            if not is_refused:
                raise
            self.refused[number] = error.code
            return
        left = self._answers.get(number, [])
        session.on_permission(lambda _: left.pop(0) if left else None)
        self._sessions[number] = session


async def _cancel(turn: Turn, is_late: bool) -> None:
    if is_late:
        async for _ in turn:
            break
    await turn.cancel()


async def _ended(turn: Turn) -> Outcome:
    stop_reason = reason = None
    try:
        stop_reason = (await turn).stop_reason
    except TurnError as error:
        _check_fits(error)
        reason = error.reason
    return _outcome([each async for each in turn])._replace(stop_reason=stop_reason, reason=reason)


async def _heard_of_open(turn: Turn, count: int, bounds: Bounds) -> list[Update]:
    """The updates of a turn that does not end: as many as were recorded, and what comes right behind them."""
    heard: list[Update] = []
    with anyio.move_on_after(bounds.few if count else bounds.quiet) as waiting:
        async for update in turn:
            heard.append(update)
            if len(heard) >= count:
                waiting.deadline = anyio.current_time() + bounds.quiet
    if not waiting.cancelled_caught:
        raise RecordingUnreadable(
            "a turn has no end in the recording, and ended when it was played; record it anew, up to its end"
        )
    return heard


def _outcome(heard: Sequence[Update]) -> Outcome:
    said = "".join(each.text or "" for each in heard if each.kind == "agent_message_chunk")
    return Outcome(dict(Counter(each.kind for each in heard)), said)


def _check_fits(error: TurnwireError) -> None:
    """An error that the player makes is nothing that the recorded agent did."""
    given = error.agent_error if isinstance(error, AgentLaunchFailed | TurnError) else None
    if given is not None and RecordingMismatch.code.encode() in given:
        why = msgspec.json.decode(given, type=ErrorObject).message
        raise RecordingMismatch(f"the test cannot play this: {why}", frame=0) from None


# -- writing it down ---------------------------------------------------------------------------------------


class _Text:
    """The lines of a test."""

    def __init__(self, story: Story, told: Told, bounds: Bounds) -> None:
        self._story = story
        self._told = told
        self._bounds = bounds
        self._open = {each.turn for each in story.acts if isinstance(each, Ending) and each.is_open}

    def whole(self, place: str, name: str, flags: Sequence[str]) -> str:
        words = "".join(f', "{each}"' for each in flags)
        body = [line for act in self._story.acts for line in self._lines(act)]
        ending = [] if self._story.left_out is None else ["", f"# {self._story.left_out}"]
        lines = [
            '"""A recording, played: written by `turnwire replay --as-test`, and yours to change."""',
            "",
            *self._imports(),
            "",
            f"RECORDING = {place}",
            f'AGENT = [sys.executable, "-m", "turnwire", "replay", str(RECORDING){words}]',
            "",
            "",
            f"def test_{name}(tmp_path):",
            "    anyio.run(play, tmp_path)",
            "",
            "",
            "async def play(folder):",
            f"    with anyio.fail_after({self._bounds.at_most}):",
            "        async with turnwire.connect(AGENT) as client:",
            *(f"            {each}".rstrip() for each in (*body, *ending)),
            *(self._open_turn() if self._open else ()),
            "",
        ]
        return "\n".join(lines)

    def _imports(self) -> Iterator[str]:
        errors = [
            *(["TurnError"] if any(each.reason for each in self._told.turns.values()) else []),
            *(["TurnwireError"] if self._told.refused else []),
        ]
        yield "import sys"
        if self._told.turns:
            yield "from collections import Counter"
        yield "from pathlib import Path"
        yield ""
        yield "import anyio"
        if errors:
            yield "import pytest"
        yield "import turnwire"
        if errors:
            yield f"from turnwire.errors import {', '.join(errors)}"

    def _lines(self, act: Act) -> list[str]:
        match act:
            case Opening(session):
                return self._opening(session)
            case Prompting(turn, session, content):
                return ["", f"turn_{turn} = session_{session}.prompt({content!r})"]
            case Cancelling(turn, is_late):
                waits = [f"async for _ in turn_{turn}:", "    break"] if is_late else []
                return [*waits, f"await turn_{turn}.cancel()"]
            case Ending(turn):
                return self._ending(turn, self._told.turns[turn])

    def _opening(self, number: int) -> list[str]:
        opens = "await client.new_session(folder)"
        if number in self._told.refused:
            return [
                "with pytest.raises(TurnwireError) as refused:",
                f"    {opens}",
                f"assert refused.value.code == {self._told.refused[number]!r}",
            ]
        lines = [f"session_{number} = {opens}"]
        answers = self._story.answers.get(number)
        if answers:
            lines += [
                f"answers_{number} = {answers!r}",
                f"session_{number}.on_permission(lambda _: answers_{number}.pop(0))",
            ]
        return lines

    def _ending(self, turn: int, outcome: Outcome) -> list[str]:
        heard = f"heard = [update async for update in turn_{turn}]"
        if turn in self._open:
            lines = [f"heard = await open_turn(turn_{turn}, {sum(outcome.kinds.values())})"]
        elif outcome.reason is None:
            lines = [f"assert (await turn_{turn}).stop_reason == {outcome.stop_reason!r}", heard]
        else:
            lines = [
                "with pytest.raises(TurnError) as failed:",
                f"    await turn_{turn}",
                f"assert failed.value.reason == {outcome.reason!r}",
                heard,
            ]
        return [
            *lines,
            f"assert Counter(update.kind for update in heard) == {outcome.kinds!r}",
            'said = "".join(update.text or "" for update in heard if update.kind == "agent_message_chunk")',
            f"assert said == {outcome.text!r}",
        ]

    def _open_turn(self) -> list[str]:
        _, few, quiet = self._bounds
        return [
            "",
            "",
            "async def open_turn(turn, count):",
            '    """The updates of a turn that does not end: so many, and nothing more comes."""',
            "    heard = []",
            f"    with anyio.move_on_after({few} if count else {quiet}) as waiting:",
            "        async for update in turn:",
            "            heard.append(update)",
            "            if len(heard) >= count:",
            f"                waiting.deadline = anyio.current_time() + {quiet}",
            '    assert waiting.cancelled_caught, "the turn has ended"',
            "    return heard",
        ]
