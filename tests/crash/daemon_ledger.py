"""The acknowledgements of the kill test's clients over all processes of the daemon, and the check of them.

The input is receipts, events and answers as clients got them; the result is complaints, empty if every promise was
fulfilled. It knows only JSON and the contract: it imports nothing of turnwire, so that one mistake cannot hide in
both.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

TERMINALS = frozenset({"turn_complete", "turn_error"})
INTERRUPTED = frozenset({"daemon_restarted"})
"""The errors that a turn may end with: its agent fails only when the daemon dies."""

Json = dict[str, Any]


class Receipt(NamedTuple):
    """The members of a 202 that must not change when the same key is repeated."""

    prompt_id: str
    last_event_id: int
    epoch: str


@dataclass
class Reading:
    """The events that one client has read of one session, over all its connections."""

    first: int = 1
    """The id it begins with."""
    envelopes: list[str] = field(default_factory=list[str])
    """The envelopes as received, in the order of their ids."""
    epoch: str | None = None

    @property
    def last(self) -> int:
        """Return the id of the newest event, from which the client resumes."""
        return self.first + len(self.envelopes) - 1

    def open(self, epoch: str) -> list[str]:
        """Record a new connection."""
        was, self.epoch = self.epoch or epoch, epoch
        return [] if was == epoch else [f"G1 the epoch was {was} and is {epoch}"]

    def take(self, number: int, envelope: str) -> list[str]:
        """Record the next event; it must directly follow the last one."""
        if number != self.last + 1:
            return [f"G9 event {number} came after {self.last}"]
        self.envelopes.append(envelope)
        return []


class Ledger:
    """All acknowledgements of the clients of one folder."""

    def __init__(self, interruptions: frozenset[str] = INTERRUPTED) -> None:
        self._interruptions = interruptions
        self.receipts: dict[str, Receipt] = {}
        """By idempotency key, which is also the prompt's tag at the agent."""
        self.sent: dict[str, str] = {}
        """Key → text, for every prompt that was ever sent."""
        self.readings: dict[tuple[str, str], Reading] = {}
        """Client and session → its read events."""
        self.ends: dict[str, Json] = {}
        """Prompt id → its terminal event, as the first reader saw it."""
        self.turns: dict[str, Json] = {}
        """Prompt id → the response of the turn's own route after its end."""
        self.repeats = 0
        """Keys that were sent again and came back as the same prompt."""
        self.complaints: list[str] = []

    # -- what clients were told ----------------------------------------------------------------------------

    @property
    def doubtful(self) -> list[str]:
        """Return the keys that were sent and whose outcome is unknown."""
        return [key for key in self.sent if key not in self.receipts]

    def waiting(self, session: str) -> int:
        """Return the number of accepted prompts of a session that have no end yet."""
        mine = (receipt for key, receipt in self.receipts.items() if session_of(key) == session)
        return sum(each.prompt_id not in self.ends for each in mine)

    def hold(self, key: str, receipt: Receipt) -> None:
        """Record a client's 202."""
        self.repeats += key in self.receipts
        was = self.receipts.setdefault(key, receipt)
        if was != receipt:
            self.complaints.append(f"G7 {key} was accepted as {was} and again as {receipt}")

    def read(self, client: str, session: str, number: int, envelope: str) -> Json:
        """Record an event that a client read, and return it decoded."""
        reading = self.readings[client, session]
        self.complaints += [f"{client} of {session}: {each}" for each in reading.take(number, envelope)]
        event: Json = json.loads(envelope)
        if event["type"] in TERMINALS:
            self.ends.setdefault(event["promptId"], event)
        return event

    def told_turn(self, prompt_id: str, answer: Json) -> None:
        """Record the response of the turn's own route about a completed turn."""
        was = self.turns.setdefault(prompt_id, answer)
        if was != answer:
            self.complaints.append(f"G3 the turn {prompt_id} was {was} and is {answer}")
        end = self.ends[prompt_id]["data"]
        failure: Json = answer.get("error", {})
        if (answer.get("stopReason"), failure.get("code")) != (end.get("stopReason"), end.get("code")):
            self.complaints.append(f"G3 the turn {prompt_id} ended with {end}, and its route says {answer}")

    # -- what must be true in the end ----------------------------------------------------------------------

    def check(self, whole: Mapping[str, Sequence[str]], tags: Sequence[tuple[str, int]]) -> list[str]:
        """Compare all of it with the sessions in their final state, and with the agents' records of their
        prompts.
        """
        found = [*self.complaints, *self._check_readings(whole)]
        events: list[Json] = [json.loads(each) for envelopes in whole.values() for each in envelopes]
        found += self._check_receipts(events)
        found += self._check_agents(events, tags)
        return found

    def _check_readings(self, whole: Mapping[str, Sequence[str]]) -> Iterator[str]:
        for (client, session), reading in self.readings.items():
            kept = list(whole[session][reading.first - 1 :])
            if reading.last < len(whole[session]):
                yield f"G9 {client} has read {reading.last} of the {len(whole[session])} events of {session}"
            for number, (mine, stored) in enumerate(zip(reading.envelopes, kept, strict=False), reading.first):
                if mine != stored:
                    yield f"G2 event {number} of {session} was {mine} for {client} and is {stored}"

    def _check_receipts(self, events: Sequence[Json]) -> Iterator[str]:
        for key in self.doubtful:
            yield f"G7 {key} was sent, and nobody knows what became of it"
        ends = Counter(each["promptId"] for each in events if each["type"] in TERMINALS)
        for key, receipt in self.receipts.items():
            if ends[receipt.prompt_id] != 1:
                yield f"G3 {key} was accepted as {receipt.prompt_id} and has {ends[receipt.prompt_id]} ends"
        prompts = {each.prompt_id for each in self.receipts.values()}
        if len(prompts) != len(self.receipts):
            yield "G7 two keys are one prompt"
        yield from (f"G7 {each} ended and nobody sent it" for each in ends.keys() - prompts)

    def _check_agents(self, events: Sequence[Json], tags: Sequence[tuple[str, int]]) -> Iterator[str]:
        got = Counter(tag for tag, _ in tags)
        yield from (f"G7 {tag} was given to agents {count} times" for tag, count in got.items() if count > 1)
        yield from (
            f"G2 {tag} was given to an agent and never accepted" for tag in got.keys() - self.receipts.keys()
        )
        started = {each["promptId"] for each in events if each["_meta"].get("event") == "turn_started"}
        for key, receipt in self.receipts.items():
            end = self.ends.get(receipt.prompt_id, {"data": {}})["data"]
            if receipt.prompt_id not in started:
                yield f"G7 {key} was accepted and never ran"
            elif "code" in end and end["code"] not in self._interruptions:
                yield f"G7 {key} failed with {end['code']}"
            elif end.get("stopReason") == "end_turn" and not got[key]:
                yield f"G3 {key} is complete and no agent got it"
        yield from self._check_order(tags)

    def _check_order(self, tags: Sequence[tuple[str, int]]) -> Iterator[str]:
        """Agents got the prompts of a session in the order in which they were accepted."""
        reached: dict[str, tuple[int, str]] = {}
        # Of two lives' agents the older one may write later: it is dying while the younger one starts.
        for tag, _ in sorted(tags, key=lambda each: each[1]):
            if tag in self.receipts:
                here = self.receipts[tag].last_event_id, tag
                before = reached.setdefault(session_of(tag), here)
                if here < before:
                    yield f"G7 {tag} was given to an agent after {before[1]}"
                reached[session_of(tag)] = max(here, before)


def session_of(key: str) -> str:
    """The session of a key: `s1-17` is of `s1`."""
    return key.rpartition("-")[0]
