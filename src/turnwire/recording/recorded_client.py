"""What the client of a recording did, in its order, as far as a program of the SDK can do it again.

It opened sessions, prompted them, cancelled, and heard how turns end. An end stands where it was heard: before what
the client did next, or behind it if turns ran side by side. A program of the SDK has one turn of a session at a
time; where the recorded client did otherwise, or prompted a session that it had not opened, the list ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

from turnwire.core.dialect import PERMISSION_METHODS
from turnwire.recording.faults import answer_to, end_of
from turnwire.recording.format import Entry, prompt_text
from turnwire.recording.matching import SESSION
from turnwire.wire.jsonrpc import Failure, Request, Result
from turnwire.wire.methods import SESSION_CANCEL, SESSION_NEW, SESSION_PROMPT


class Opening(NamedTuple):
    """A session is opened. Sessions and prompts are counted from 0."""

    session: int
    is_refused: bool


class Prompting(NamedTuple):
    """A prompt is sent."""

    turn: int
    session: int
    content: Any
    """A text, or blocks."""


class Cancelling(NamedTuple):
    """A turn is cancelled."""

    turn: int
    is_late: bool
    """The agent had said something before."""


class Ending(NamedTuple):
    """A turn has ended, or is open when the recording is over."""

    turn: int
    updates: int
    """How many the agent sent to the session meanwhile."""
    is_open: bool = False


Act: TypeAlias = Opening | Prompting | Cancelling | Ending


class Story(NamedTuple):
    """What a recorded client did."""

    acts: list[Act]
    answers: dict[int, list[dict[str, Any]]]
    """What it answered to permission requests, by session, in the order in which they were asked."""
    left_out: str | None
    """Where the list ends before the recording does, and why."""


def story_of(entries: Sequence[Entry]) -> Story:
    """What the client did, up to where the agent ends or says no more."""
    story = _Walk(_reached(entries))
    left_out = story.walk()
    return Story(story.acts, story.answers(), left_out)


def _reached(entries: Iterable[Entry]) -> list[Entry]:
    """What comes before the agent stalls or the client leaves, or up to where the agent ends."""
    reached: list[Entry] = []
    for each in entries:
        # A frame of the client that no frame fits is how `faults` lets an agent stall.
        if each.side == "client" and not each.line:
            break
        reached.append(each)
        if each.exit is not None:
            break
    return reached


class _Turn(NamedTuple):
    number: int
    begin: int
    end: int | None
    """Its place; none if it has none."""


class _Walk:
    """From the first frame to the last."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._entries = entries
        self._opened = _opened(entries)
        self._running: dict[int, _Turn] = {}
        self._openings = self._prompts = 0
        self.acts: list[Act] = []

    def walk(self) -> str | None:
        """Gives why it stopped before the end of the recording."""
        for place, entry in enumerate(self._entries):
            why = self._take(place, entry)
            if why is not None:
                self._leave_open(place)
                return f"the test ends before {entry}: {why}"
            for session, turn in list(self._running.items()):
                if place == turn.end or entry.exit is not None:
                    self.acts.append(Ending(turn.number, self._updates(session, turn.begin, place)))
                    del self._running[session]
        self._leave_open(len(self._entries))
        return None

    def _take(self, place: int, entry: Entry) -> str | None:
        """What the client did here. Gives why a program of the SDK cannot do it."""
        if entry.asks(SESSION_NEW):
            answer = answer_to(self._entries, place)
            if answer is None and not self._dies(place):
                return "the agent never answered it"
            self.acts.append(Opening(self._openings, answer is None or isinstance(answer.message, Failure)))
            self._openings += 1
            return None
        session = self._opened.get(str(entry.payload.get(SESSION)))
        if entry.asks(SESSION_PROMPT):
            if session is None:
                return "its session was not opened in the recording"
            if session in self._running:
                return "a turn of its session still runs"
            self._prompt(place, entry, session)
        elif entry.side == "client" and entry.method == SESSION_CANCEL and session in self._running:
            turn = self._running[session]
            self.acts.append(Cancelling(turn.number, self._updates(session, turn.begin, place) > 0))
        return None

    def _prompt(self, place: int, entry: Entry, session: int) -> None:
        blocks = entry.payload.get("prompt", [])
        is_text = [each.keys() for each in blocks] == [{"type", "text"}]
        content = prompt_text(entry.payload) if is_text else blocks
        self.acts.append(Prompting(self._prompts, session, content))
        self._running[session] = _Turn(self._prompts, place, end_of(self._entries, place))
        self._prompts += 1

    def _leave_open(self, place: int) -> None:
        for session, turn in self._running.items():
            self.acts.append(Ending(turn.number, self._updates(session, turn.begin, place), is_open=True))

    def _updates(self, session: int, begin: int, end: int) -> int:
        span = self._entries[begin:end]
        return sum(1 for each in span if each.update and self._opened.get(each.payload.get(SESSION, "")) == session)

    def _dies(self, place: int) -> bool:
        return any(each.exit is not None for each in self._entries[place:])

    def answers(self) -> dict[int, list[dict[str, Any]]]:
        """Those of a cancelled turn are left out: it answers for itself."""
        given = {
            each.message.id: each.payload
            for each in self._entries
            if each.side == "client" and isinstance(each.message, Result)
        }
        found: dict[int, list[dict[str, Any]]] = {}
        session = 0
        for each in self._entries:
            asked = each.message
            # What a child asks is asked of the session that was prompted last.
            session = self._opened.get(each.payload.get(SESSION, ""), session)
            if each.side == "agent" and isinstance(asked, Request) and asked.method in PERMISSION_METHODS:
                answer = given.get(asked.id)
                if answer is not None and answer.get("outcome") != {"outcome": "cancelled"}:
                    found.setdefault(session, []).append(answer)
        return found


def _opened(entries: Sequence[Entry]) -> dict[str, int]:
    """Which session a name is, counted from 0."""
    places = [place for place, each in enumerate(entries) if each.asks(SESSION_NEW)]
    answers = [answer_to(entries, place) for place in places]
    return {
        each.payload[SESSION]: number
        for number, each in enumerate(answers)
        if each is not None and not isinstance(each.message, Failure) and SESSION in each.payload
    }
