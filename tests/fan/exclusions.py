"""What the fan leaves out, and why. `test_matrix.py` holds this table against the tests.

A row is about some numbers on some pairs: nothing named means all of them. `shown` is a test elsewhere that shows
the number where the fan cannot.
"""

from __future__ import annotations

from typing import NamedTuple

from tests.fan.matrix import AGENTS, DIALECTS, OF_V1, PLAIN, TRANSPORTS, Dialect, Pair, Transport

from turnwire.testing import Profile


def span(*ends: int) -> tuple[str, ...]:
    """`span(1, 3, 7, 7)` is R1, R2, R3 and R7."""
    bounds = zip(ends[::2], ends[1::2], strict=True)
    return tuple(f"R{number}" for first, last in bounds for number in range(first, last + 1))


class Row(NamedTuple):
    """One reason."""

    numbers: tuple[str, ...]
    why: str
    transports: tuple[Transport, ...] = TRANSPORTS
    dialects: tuple[Dialect, ...] = DIALECTS
    agents: tuple[Profile, ...] = AGENTS
    shown: str = ""

    def covers(self, number: str, pair: Pair) -> bool:
        return (
            number in self.numbers
            and pair.transport in self.transports
            and pair.dialect in self.dialects
            and pair.agent in self.agents
        )


ROWS: tuple[Row, ...] = (
    Row(
        span(1, 2, 4, 4, 7, 17, 28, 28, 31, 40, 42, 45, 48, 48, 50, 51, 54, 56, 70, 74),
        "the drafts that the agent itself speaks take no part in it; the v1 agent shows it",
        agents=("v1plus",),
    ),
    Row(span(10, 11), "it is about the answer that ends a v1 prompt", dialects=("v2",), agents=PLAIN),
    Row(span(18, 24), "nobody but a v1 client that asked for it is sent the marker", dialects=("v1", "v2")),
    Row(
        span(26, 27, 29, 29),
        "a client that does not say that it sends `session/ready` is not waited for",
        dialects=("v1",),
    ),
    Row(span(28, 28), "and so for no time either", dialects=("v1",), agents=PLAIN),
    Row(
        span(32, 37, 39, 39, 43, 43),
        "v1 has no words for it: a prompt is answered at its end, and there are no states",
        dialects=OF_V1,
        agents=PLAIN,
    ),
    Row(
        span(39, 39),
        "a v1 agent cannot say that it begins or ends; what it says unasked is in no turn (R40)",
        dialects=("v2",),
        agents=("v1",),
    ),
    Row(
        span(48, 48),
        "the mark is on our side: it is seen by REST or by our client, and our client asks for the drafts",
        transports=("stdio",),
        dialects=("v1",),
        agents=PLAIN,
        shown="tests/unit/core/view/test_tools.py::test_a_cancel_marks_the_unfinished_calls_of_its_turn",
    ),
    Row(
        span(53, 53),
        "that nothing waits for a time is seen only with a clock that stands still, inside one process",
        shown="tests/interaction/test_client_turns.py::test_no_time_passes_in_telling_that_a_turn_ended",
    ),
    Row(span(54, 54), "a v1 agent has no idle to repeat, and its answer is the end", agents=("v1",)),
    Row(span(70, 70), "it is about POST", transports=("stdio", "websocket"), agents=PLAIN),
    Row(
        span(71, 72),
        "a process on pipes has no REST beside it; `turnwire stdio --daemon` goes to a daemon that has",
        transports=("stdio",),
        agents=PLAIN,
        shown="tests/server/acp/test_five_clients.py::test_each_prompts_answers_and_cancels_and_all_see_the_same_order",
    ),
    Row(
        span(74, 74),
        "pipes are not lost: they end with the client that made them",
        transports=("stdio",),
        agents=PLAIN,
        shown="tests/cli/test_relay_process.py::test_a_turn_that_ends_while_the_way_is_lost_is_heard_and_answered_when_it_is_back",
    ),
)
