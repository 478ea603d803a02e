"""An agent's requests to its client: the client that serves them, its disconnect, and that each is answered
once.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import anyio
import pytest
from anyio.abc import TaskGroup
from msgspec import Raw
from tests.support.driving import WAIT_S

from turnwire.errors import RequestRefused
from turnwire.hosting.client_requests import ClientRequests, Reached
from turnwire.ids import ClientId, RequestId
from turnwire.limits import Limits
from turnwire.wire.jsonrpc import Failure, Request, Result, raw
from turnwire_testing.patience import quiet

pytestmark = pytest.mark.anyio

READ = "fs/read_text_file"
ANN, BOB = ClientId("ann"), ClientId("bob")


class Desk:
    """A client that answers when the test allows it."""

    def __init__(self, name: str, error: Exception | None = None, *, deaf: bool = False) -> None:
        self.methods = frozenset({READ})
        self.name = name
        self.asked = 0
        self.after: list[int] = []
        self.may_answer = anyio.Event()
        self._error = error
        self._is_deaf = deaf

    async def serve(self, method: str, params: Raw, after: int) -> Raw:
        self.asked += 1
        self.after.append(after)
        with anyio.CancelScope(shield=self._is_deaf):
            await self.may_answer.wait()
        if self._error is not None:
            raise self._error
        return raw(self.name)


class Answers:
    """The agent's answers, in order."""

    def __init__(self, requests: ClientRequests) -> None:
        self.requests = requests
        self.given: list[tuple[RequestId | None, str]] = []
        self.unplaced: list[Reached] | None = None
        """If it is a list, requests wait in it for their place."""

    def ask(self, request_id: RequestId, method: str = READ, params: object = None) -> bool:
        return self.requests.begin(Request(request_id, method, raw(params or {})), self._place, self._answer)

    def _place(self, reached: Reached) -> None:
        if self.unplaced is None:
            reached(0)
        else:
            self.unplaced.append(reached)

    async def until(self, count: int) -> list[tuple[RequestId | None, str]]:
        """Return the answers, once there is this number; a moment later there are no more."""
        with anyio.fail_after(WAIT_S):
            while len(self.given) < count:
                await anyio.lowlevel.checkpoint()
        await quiet()
        return self.given

    def _answer(self, outcome: Result | Failure) -> None:
        shown = bytes(outcome.result).decode() if isinstance(outcome, Result) else f"{outcome.error.code}"
        self.given.append((outcome.id, shown))


@pytest.fixture
async def tasks() -> AsyncGenerator[TaskGroup]:
    async with anyio.create_task_group() as group:
        yield group
        group.cancel_scope.cancel()


def answers(tasks: TaskGroup, *, own: bool = False) -> Answers:
    return Answers(ClientRequests(tasks, Limits(), own=own))


async def test_nobody_who_can_is_said_at_once_and_not_answered(tasks: TaskGroup) -> None:
    given = answers(tasks)
    assert not given.ask(1)
    given.requests.offer(ANN, Desk("ann"))
    assert not given.ask(1, "terminal/create")
    assert given.requests.open == []


async def test_the_first_offer_wins_and_the_next_takes_over(tasks: TaskGroup) -> None:
    given, ann, bob = answers(tasks), Desk("ann"), Desk("bob")
    given.requests.offer(ANN, ann)
    given.requests.offer(BOB, bob)
    assert given.ask(1)
    await quiet()
    assert (ann.asked, bob.asked, given.requests.open) == (1, 0, [READ])
    given.requests.retract(ANN)
    bob.may_answer.set()
    assert await given.until(1) == [(1, '"bob"')]
    assert (ann.asked, bob.asked) == (1, 1)
    assert given.requests.open == []


async def test_a_request_without_anybody_left_is_answered_with_an_error(tasks: TaskGroup) -> None:
    given = answers(tasks)
    given.requests.offer(ANN, Desk("ann"))
    given.ask(1)
    await quiet()
    given.requests.retract(ANN)
    assert await given.until(1) == [(1, "-32603")]


async def test_a_client_that_leaves_takes_only_its_own_requests_along(tasks: TaskGroup) -> None:
    given, ann = answers(tasks), Desk("ann")
    given.requests.offer(ANN, ann)
    given.requests.offer(BOB, Desk("bob"))
    given.ask(1)
    await quiet()
    given.requests.retract(BOB)
    await quiet()
    ann.may_answer.set()
    assert await given.until(1) == [(1, '"ann"')]


async def test_a_client_that_answers_and_leaves_at_once_has_answered_once(tasks: TaskGroup) -> None:
    given, ann = answers(tasks), Desk("ann")
    given.requests.offer(ANN, ann)
    given.ask(1)
    await quiet()
    ann.may_answer.set()
    await anyio.lowlevel.checkpoint()
    given.requests.retract(ANN)
    [(request_id, _)] = await given.until(1)
    assert request_id == 1


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RequestRefused("no", jsonrpc=-32002, reason="not_found", data={"uri": "file:///x"}), "-32002"),
        (RuntimeError("the socket broke"), "-32603"),
    ],
)
async def test_a_client_that_fails_fails_its_request_and_nothing_else(
    tasks: TaskGroup, error: Exception, code: str
) -> None:
    given, ann = answers(tasks), Desk("ann", error)
    ann.may_answer.set()
    given.requests.offer(ANN, ann)
    given.ask(1)
    given.ask(2)
    assert sorted(await given.until(2), key=str) == [(1, code), (2, code)]


async def test_a_request_is_withdrawn_by_its_exact_id(tasks: TaskGroup) -> None:
    given, ann = answers(tasks), Desk("ann")
    given.requests.offer(ANN, ann)
    given.ask(1)
    given.ask("1")
    await quiet()
    given.requests.withdraw("1")
    given.requests.withdraw(2)
    assert await given.until(1) == [("1", "-32800")]
    ann.may_answer.set()
    assert await given.until(2) == [("1", "-32800"), (1, '"ann"')]


async def test_a_new_agent_may_use_an_id_that_the_old_one_s_request_still_has(tasks: TaskGroup) -> None:
    given, ann, bob = answers(tasks), Desk("ann", deaf=True), Desk("bob")
    given.requests.offer(ANN, ann)
    given.ask(1)
    await quiet()
    given.requests.withdraw_all()
    given.requests.retract(ANN)
    given.requests.offer(BOB, bob)
    given.ask(1)
    await quiet()
    ann.may_answer.set()
    await given.until(1)
    assert given.requests.open == [READ], "the new one's is still under way"
    bob.may_answer.set()
    assert (await given.until(2))[1:] == [(1, '"bob"')]


async def test_the_daemon_serves_what_no_client_offers_once_the_session_has_settled(
    tasks: TaskGroup, tmp_path: Path
) -> None:
    (tmp_path / "f").write_text("disk")
    given = answers(tasks, own=True)
    wanted = {"sessionId": "a", "path": f"{tmp_path}/f"}
    assert not given.ask(1, params=wanted)
    given.requests.settle(str(tmp_path))
    given.requests.settle(str(tmp_path))
    assert given.ask(1, params=wanted)
    assert await given.until(1) == [(1, '{"content":"disk"}')]
    given.requests.withdraw_all()
    assert not given.ask(2, params=wanted), "a session without an agent has nothing to serve"


async def test_a_directory_that_cannot_be_served_is_not_served(tasks: TaskGroup) -> None:
    given = answers(tasks, own=True)
    given.requests.settle("relative")
    assert not given.ask(1)


# -- the place of a request ----------------------------------------------------------------------------------


async def test_nobody_is_asked_before_the_place_of_a_request_is_known(tasks: TaskGroup) -> None:
    given, ann = answers(tasks), Desk("ann")
    given.unplaced = []
    given.requests.offer(ANN, ann)
    assert given.ask(1)
    await quiet()
    assert (ann.asked, given.requests.open) == (0, [READ])
    given.unplaced[0](7)
    ann.may_answer.set()
    assert await given.until(1) == [(1, '"ann"')]
    assert ann.after == [7]


async def test_a_client_that_leaves_before_the_place_of_a_request_is_known_is_not_asked(tasks: TaskGroup) -> None:
    given, ann, bob = answers(tasks), Desk("ann"), Desk("bob")
    given.unplaced = []
    given.requests.offer(ANN, ann)
    given.ask(1)
    given.requests.retract(ANN)
    given.unplaced[0](3)
    assert await given.until(1) == [(1, "-32603")]
    given.requests.offer(BOB, bob)
    given.ask(2)
    given.unplaced[1](4)
    bob.may_answer.set()
    assert (await given.until(2))[1:] == [(2, '"bob"')]
    assert (ann.asked, bob.after) == (0, [4])


async def test_the_next_client_is_asked_in_the_same_place(tasks: TaskGroup) -> None:
    given, ann, bob = answers(tasks), Desk("ann"), Desk("bob")
    given.unplaced = []
    given.requests.offer(ANN, ann)
    given.requests.offer(BOB, bob)
    given.ask(1)
    given.unplaced[0](9)
    bob.may_answer.set()
    given.requests.retract(ANN)
    assert await given.until(1) == [(1, '"bob"')]
    assert (ann.after, bob.after) == ([9], [9])


@pytest.mark.parametrize("everything", [False, True])
async def test_a_request_that_is_withdrawn_before_its_place_is_known_is_answered_once(
    tasks: TaskGroup, everything: bool
) -> None:
    given, ann = answers(tasks), Desk("ann")
    given.unplaced = []
    given.requests.offer(ANN, ann)
    given.ask(1)
    if everything:
        given.requests.withdraw_all()
    else:
        given.requests.withdraw(1)
    given.unplaced[0](5)
    assert await given.until(1) == [(1, "-32800")]
    assert (ann.asked, given.requests.open) == (0, [])
