"""The client without an event loop: the same turns, handlers and errors."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Generator
from functools import partial
from typing import Any

import pytest
from tests.support.clients import script

from turnwire.client import Question, Update, blocking
from turnwire.errors import ClientClosed, LocalProtocolError, PromptNotQueued, SessionBusy, TurnError
from turnwire_testing.patience import WAIT_S

AGENT = [sys.executable, "-m", "turnwire_testing.agent"]
MANY = 41
"""More than the default number of anyio's threads."""


@pytest.fixture(scope="module")
def client() -> Generator[blocking.Client]:
    with blocking.connect(AGENT) as client:
        yield client


def test_a_script_prompts_and_reads_the_answer(client: blocking.Client) -> None:
    result = client.new_session("/work").prompt('say 2 "hello "').result(WAIT_S)
    assert (result.text, result.stop_reason) == ("hello hello ", "end_turn")


def test_a_loop_gives_the_updates_in_order_and_again(client: blocking.Client) -> None:
    turn = client.new_session("/work").prompt("flood 300")
    assert [update.text for update in turn] == [str(number) for number in range(300)]
    assert len(list(turn)) == 300
    for _ in turn:
        break
    assert turn.prompt_id == turn.accepted().prompt_id


@pytest.mark.guarantee("G12")
def test_handlers_have_finished_when_the_result_is_there(client: blocking.Client) -> None:
    session = client.new_session("/work")
    heard: list[str] = []
    threads: set[int] = set()

    @session.on_update
    def hear(update: Update) -> None:
        threads.add(threading.get_ident())
        heard.append(update.text)

    session.prompt("flood 50").result(WAIT_S)
    assert heard == [str(number) for number in range(50)]
    assert threading.get_ident() not in threads


@pytest.mark.guarantee("G12")
def test_a_handler_may_wait_for_a_turn_of_its_own_session(client: blocking.Client) -> None:
    session = client.new_session("/work")
    texts: list[str] = []

    @session.on_update
    def follow_up(update: Update) -> None:
        if update.text == "ping":
            texts.append(session.prompt("say 1 pong").result(WAIT_S).text)
            texts.extend(each.text for each in session.prompt("say 2 loop"))

    session.prompt("say 1 ping").result(WAIT_S)
    assert texts == ["pong", "loop", "loop"]


def test_questions_are_answered_by_a_function_or_later(client: blocking.Client) -> None:
    session = client.new_session("/work")
    left: list[Question] = []
    asked = threading.Event()

    @session.on_permission
    def leave(question: Question) -> str | None:
        left.append(question)
        asked.set()
        return None if len(left) == 1 else "reject"

    turn = session.prompt("ask t1 allow_once,reject_once")
    assert asked.wait(WAIT_S)
    assert session.answer(left[0], "allow_once")
    assert turn.result(WAIT_S).text == "selected allow_once"
    assert session.prompt("ask t2 allow_once,reject_once").result(WAIT_S).text == "selected reject_once"


def test_errors_come_as_they_are(client: blocking.Client) -> None:
    session = client.new_session("/work")
    with pytest.raises(TurnError):
        session.prompt("error -32001 boom").result(WAIT_S)
    turn = session.prompt("never")
    with pytest.raises(SessionBusy):
        session.prompt("x", when_busy="reject").result(WAIT_S)
    with pytest.raises(TimeoutError):
        turn.result(0.01)
    waiting = session.prompt("say 1 x")
    waiting.edit("say 1 changed")
    turn.cancel()
    assert turn.result(WAIT_S).stop_reason == "cancelled"
    assert waiting.result(WAIT_S).text == "changed"
    with pytest.raises(PromptNotQueued):
        waiting.remove()


@pytest.mark.guarantee("G12")
def test_any_number_of_functions_may_wait_at_once() -> None:
    all_wait = threading.Barrier(MANY)

    def wait(_: object) -> str:
        all_wait.wait(WAIT_S / 2)
        return "allow_once"

    with blocking.connect(AGENT) as client:
        turns: list[blocking.Turn] = []
        for number in range(MANY):
            session = client.new_session("/work")
            session.on_update(wait) if number % 2 else session.on_permission(wait)
            turns.append(session.prompt("say 1 x" if number % 2 else "ask t1 allow_once"))
        assert all(turn.result(WAIT_S).handler_errors == () for turn in turns)


class Caller:
    """A function that is an object."""

    async def __call__(self, given: object) -> None: ...


async def wait_for_nothing(given: object) -> None: ...


@pytest.mark.parametrize("function", [wait_for_nothing, Caller(), partial(wait_for_nothing)])
def test_an_async_function_is_refused_because_it_would_never_run(
    client: blocking.Client, function: Callable[[object], Any]
) -> None:
    session = client.new_session("/work")
    for register in (session.on_update, session.on_permission, client.on_update, client.on_permission):
        with pytest.raises(LocalProtocolError, match="plain one"):
            register(function)
    assert session.prompt("say 1 x").result(WAIT_S).handler_errors == ()


def test_a_function_that_gives_a_coroutine_is_told_that_it_never_ran(client: blocking.Client) -> None:
    session = client.new_session("/work")
    session.on_update(lambda update: wait_for_nothing(update))
    (error,) = session.prompt("say 1 x").result(WAIT_S).handler_errors
    assert isinstance(error, LocalProtocolError)


def test_what_is_left_of_the_twin_works_alike() -> None:
    with blocking.connect(AGENT) as client:
        check_the_rest(client)


def check_the_rest(client: blocking.Client) -> None:
    heard: list[str] = []
    client.on_update(lambda update: heard.append(update.text))
    client.on_permission(lambda question: "reject")
    session = client.new_session("/work")
    again = client.attach(session.session_id)
    assert session.session_id in client.sessions()
    again.prompt(script("say 1 x", "ask t1 a,b"), request_id=5)
    assert session.completed(5).text == client.completed(5).text
    assert "x" in heard
    stuck = session.prompt("never")
    stuck.accepted()
    session.cancel()
    assert stuck.result(WAIT_S).stop_reason == "cancelled"
    stuck = session.prompt("never")
    stuck.accepted()
    stuck.settle()
    assert stuck.result(WAIT_S).ending == "settled"
    assert len(session.view().turns) == 3
    session.close()
    assert session.handler_errors == {}


def test_what_the_program_raises_comes_out_and_turns_end_with_the_client() -> None:
    turns: list[blocking.Turn] = []

    def program() -> None:
        with blocking.connect(AGENT) as client:
            turns.append(client.new_session("/work").prompt("never"))
            turns[0].accepted()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        program()
    with pytest.raises(ClientClosed):
        turns[0].result(WAIT_S)
