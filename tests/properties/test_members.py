"""Several incarnations monitor each other while anything fails: no node is declared gone that may still act.

The model has a log, the connections to it and between the nodes, and statements that arrive late. Each node runs
the real `Lease`; the steps between are those of `Members`, in any order that faults allow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from turnwire.limits import Limits
from turnwire.log.owners import Life
from turnwire.runtime import members
from turnwire.runtime.members import Lease, Sight

LIMITS = Limits(beat_s=0.5, self_s=2.5, lease_s=3.0, outage_s=6.0)
STOPPING_S = LIMITS.lease_s - LIMITS.self_s
MOST_LIVES = 4
EPSILON = 1e-9

which = st.integers(0, MOST_LIVES - 1)
TIMES = (0.25, 0.5)


@dataclass
class Row:
    beat: int = 0
    is_gone: bool = False


@dataclass
class Model:
    """One node: its lease, its connection to the log, and its position in its round."""

    number: int
    lease: Lease
    has_line: bool = True
    is_lost: bool = False
    began: float | None = None
    """Start time of its read, if it has not beaten since."""
    asked_at: float | None = None
    own_beat: int = 0
    said: set[int] = field(default_factory=set[int])


class Lives(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.rows: dict[int, Row] = {}
        self.nodes: list[Model] = []
        self.is_up = True
        self.links_cut: set[frozenset[int]] = set()
        self.late: list[Callable[[], object]] = []
        self.burials = 0

    # -- the world -------------------------------------------------------------------------------------------

    @initialize()
    def begin(self) -> None:
        self.join()
        self.join()

    @precondition(lambda self: len(self.nodes) < MOST_LIVES)
    @rule()
    def join(self) -> None:
        number = len(self.nodes) + 1
        self.rows[number] = Row()
        self.nodes.append(Model(number, Lease(LIMITS, self.now)))

    @rule(seconds=st.sampled_from(TIMES))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        for each in self.nodes:
            each.is_lost |= self.now >= each.lease.safe_until

    @rule()
    def the_log_goes_or_comes_back(self) -> None:
        self.is_up = not self.is_up

    @rule(at=which)
    def a_line_breaks_or_mends(self, at: int) -> None:
        if (node := self.node(at)) is not None:
            node.has_line = not node.has_line

    @rule(one=which, two=which)
    def a_link_breaks_or_mends(self, one: int, two: int) -> None:
        self.links_cut ^= {frozenset({one + 1, two + 1})}

    @precondition(lambda self: self.late)
    @rule(at=st.integers(0, 9))
    def a_late_statement_arrives(self, at: int) -> None:
        if self.is_up:
            self.late.pop(at % len(self.late))()

    # -- what a node does ------------------------------------------------------------------------------------

    @rule(at=which)
    def a_round_goes_well(self, at: int) -> None:
        node = self.node(at)
        if node is None or not self.reaches(node):
            return
        self.look(node)
        self.beat(node, is_answered=True)
        for each in node.lease.overdue(self.now):
            self.bury(node, each, is_answered=True)

    @rule(but=st.integers(0, 2 * MOST_LIVES))
    def everybody_goes_on(self, but: int) -> None:
        """Let every node continue by itself; one of them may be frozen meanwhile."""
        for at in range(len(self.nodes)):
            if at != but:
                self.a_round_goes_well(at)
                if not self.reaches(self.nodes[at]):
                    self.it_looks(at)
                    self.all_others_answer(at)
        self.time_passes(LIMITS.beat_s)

    @rule(at=which)
    def it_looks(self, at: int) -> None:
        node = self.node(at)
        if node is not None and self.reaches(node):
            self.look(node)
        elif node is not None:
            self.broke(node)

    @rule(at=which, is_answered=st.booleans(), is_late=st.booleans())
    def it_beats(self, at: int, is_answered: bool, is_late: bool) -> None:
        node = self.node(at)
        if node is None or node.began is None:
            return
        if self.reaches(node) and not is_late:
            self.beat(node, is_answered=is_answered)
        else:
            self.late.append(lambda: self.store_beat(node))
            self.broke(node)

    @rule(at=which, is_answered=st.booleans(), is_late=st.booleans())
    def it_asks_for_a_burial(self, at: int, is_answered: bool, is_late: bool) -> None:
        node = self.node(at)
        if node is None or node.lease.sight is not Sight.CLEAR or node.began is not None:
            return
        overdue = node.lease.overdue(self.now)
        if not overdue:
            return
        if self.reaches(node) and not is_late:
            self.bury(node, overdue[0], is_answered=is_answered)
        else:
            node.lease.asking()
            own, target = node.own_beat, overdue[0]
            self.late.append(lambda: self.store_burial(node.number, own, target))
            self.broke(node)

    @rule(at=which)
    def it_begins_to_ask_the_others(self, at: int) -> None:
        node = self.node(at)
        if node is not None and node.lease.sight in (Sight.CUT, Sight.UNANSWERED):
            node.asked_at, node.said = self.now, set()

    @rule(at=which, other=which)
    def another_one_answers(self, at: int, other: int) -> None:
        if (node := self.node(at)) is not None:
            self.answer(node, other + 1)

    @rule(at=which)
    def all_others_answer(self, at: int) -> None:
        node = self.node(at)
        if node is None or node.lease.sight not in (Sight.CUT, Sight.UNANSWERED):
            return
        if node.asked_at is None:
            node.asked_at, node.said = self.now, set()
        for each in node.lease.known:
            self.answer(node, each.number)

    def answer(self, node: Model, other: int) -> None:
        if node.asked_at is None or other > len(self.nodes) or frozenset({node.number, other}) in self.links_cut:
            return
        # A process that has stopped acting may still answer.
        if self.nodes[other - 1].lease.is_cut:
            node.said.add(other)
        if node.said >= {each.number for each in node.lease.known}:
            node.lease.others_are_cut(node.asked_at)
            node.asked_at = None

    # -- statements ------------------------------------------------------------------------------------------

    def look(self, node: Model) -> None:
        node.asked_at, node.began = None, self.now
        node.lease.looked(
            [
                Life(number, "", "", "", "", "", row.beat, False)
                for number, row in self.rows.items()
                if number != node.number and not row.is_gone
            ],
            self.now,
        )

    def beat(self, node: Model, *, is_answered: bool) -> None:
        began, node.began = node.began, None
        assert began is not None
        stored = self.store_beat(node)
        if not is_answered:
            self.broke(node)
        elif stored is None:
            node.is_lost = True
        else:
            node.own_beat = stored
            node.lease.beaten(began)

    def store_beat(self, node: Model) -> int | None:
        row = self.rows[node.number]
        if row.is_gone:
            return None
        row.beat += 1
        return row.beat

    def bury(self, node: Model, target: Life, *, is_answered: bool) -> None:
        node.lease.asking()
        self.store_burial(node.number, node.own_beat, target)
        if is_answered:
            node.lease.answered()
        else:
            self.broke(node)

    def store_burial(self, watcher: int, own: int, target: Life) -> None:
        mine, theirs = self.rows[watcher], self.rows[target.number]
        if mine.beat != own or mine.is_gone or theirs.beat != target.beat or theirs.is_gone:
            return
        theirs.is_gone = True
        self.burials += 1
        buried = self.nodes[target.number - 1]
        assert buried.lease.safe_until + STOPPING_S <= self.now + EPSILON, "it was declared gone while it might act"

    # -- helpers ---------------------------------------------------------------------------------------------

    def node(self, at: int) -> Model | None:
        return None if at >= len(self.nodes) or self.nodes[at].is_lost else self.nodes[at]

    def reaches(self, node: Model) -> bool:
        return self.is_up and node.has_line

    def broke(self, node: Model) -> None:
        node.began = None
        node.lease.broke()


def test_nobody_is_declared_gone_who_may_still_act() -> None:
    wander_often()
    run_state_machine_as_test(
        Lives, settings=settings(max_examples=60, stateful_step_count=60, deadline=None, database=None)
    )


STEPS, WALKS = 60, 2000
_A_STEP: tuple[tuple[int, Callable[[Lives, Random], object]], ...] = (
    (2, lambda lives, random: lives.time_passes(random.choice(TIMES))),
    (1, lambda lives, _: lives.join() if len(lives.nodes) < MOST_LIVES else None),
    (1, lambda lives, _: lives.the_log_goes_or_comes_back()),
    (2, lambda lives, random: lives.a_line_breaks_or_mends(random.randrange(MOST_LIVES))),
    (1, lambda lives, random: lives.a_link_breaks_or_mends(*random.choices(range(MOST_LIVES), k=2))),
    (2, lambda lives, random: lives.late and lives.a_late_statement_arrives(random.randrange(9))),
    (2, lambda lives, random: lives.a_round_goes_well(random.randrange(MOST_LIVES))),
    (30, lambda lives, random: lives.everybody_goes_on(random.randrange(2 * MOST_LIVES))),
    (3, lambda lives, random: lives.it_looks(random.randrange(MOST_LIVES))),
    (2, lambda lives, random: lives.it_beats(random.randrange(MOST_LIVES), is_answered(random), is_late(random))),
    (
        2,
        lambda lives, random: lives.it_asks_for_a_burial(
            random.randrange(MOST_LIVES), is_answered(random), is_late(random)
        ),
    ),
    (1, lambda lives, random: lives.it_begins_to_ask_the_others(random.randrange(MOST_LIVES))),
    (6, lambda lives, random: lives.all_others_answer(random.randrange(MOST_LIVES))),
)
STEPS_OF_A_WALK = [step for weight, step in _A_STEP for _ in range(weight)]


def is_answered(random: Random) -> bool:
    return random.random() < 0.5


is_late = is_answered


def wander(seed: int) -> None:
    """Run the same steps by a plain generator: a thousand times as many in the same time."""
    random = Random(seed)
    lives = Lives()
    lives.begin()
    for _ in range(STEPS):
        random.choice(STEPS_OF_A_WALK)(lives, random)


def wander_often() -> None:
    for seed in range(WALKS):
        wander(seed)


def _keeps_what_it_saw(lease: Lease) -> None:
    lease.sight = members.AFTER_A_BREAK[lease.sight]


def _whatever_the_outage(lease: Lease, asked_at: float) -> None:
    lease.safe_until = max(lease.safe_until, asked_at + LIMITS.self_s)


FAULTS: dict[str, tuple[object, str, object]] = {
    "N1 forgets nothing": (Lease, "broke", _keeps_what_it_saw),
    "N3 waits for the lease alone": (members, "_KNOWS_US_AFTER", 0),
    "N2 goes on for ever": (Lease, "others_are_cut", _whatever_the_outage),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_without_one_of_the_rules_somebody_is(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, name, wrong = FAULTS[fault]
    monkeypatch.setattr(where, name, wrong)
    with pytest.raises(AssertionError, match="declared gone while it might act"):
        wander_often()
