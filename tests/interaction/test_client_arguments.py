"""Arguments of a wrong type: rejected before anything is sent, and nothing is lost by it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.support.clients import Connected, seated
from tests.support.driving import open_world

from turnwire.errors import LocalProtocolError
from turnwire.ids import PromptId
from turnwire.limits import Limits
from turnwire.log import Durability, MemoryEventLog, SqliteEventLog
from turnwire.session.inputs import Asked, Prompt, Rename, UpdatePrompt
from turnwire.wire.jsonrpc import raw

pytestmark = pytest.mark.anyio

HALF = "\ud800"
ASKED: list[tuple[Any, dict[str, Any]]] = [
    (None, {}),
    (5, {}),
    (b"bytes", {}),
    ({"type": "text", "text": "x"}, {}),
    (HALF, {}),
    ([{"type": "text", "text": HALF}], {}),
    ([{"type": "text", "text": "x", "_meta": {"a": object()}}], {}),
    ("x", {"key": 5}),
    ("x", {"key": b"k"}),
    ("x", {"key": HALF}),
    ("x", {"request_id": 1.5}),
    ("x", {"request_id": True}),
    ("x", {"request_id": [1]}),
    ("x", {"request_id": object()}),
    ("x", {"request_id": HALF}),
    ("x", {"when_busy": "later"}),
    ("x", {"when_busy": ["queue"]}),
]
PLACES: list[Any] = [True, "a", 0.5, [0]]
CONTENTS: list[Any] = [5, HALF, []]


class Name(str):
    """A subclass of `str` defined by the program."""

    __slots__ = ()


async def test_a_prompt_of_wrong_types_is_refused_and_the_session_goes_on(connected: Connected) -> None:
    async with connected() as seat:
        for content, more in ASKED:
            with pytest.raises(LocalProtocolError, match="give"):
                seat.session.prompt(content, **more)
        assert (await seat.session.prompt("say 1 next")).text == "next"
        assert len((await seat.session.view()).turns) == 1


async def test_an_edit_of_wrong_types_is_refused_and_what_runs_goes_on(connected: Connected) -> None:
    async with connected() as seat:
        running, waiting = seat.session.prompt("never"), seat.session.prompt("say 1 x")
        await waiting.accepted
        for place in PLACES:
            with pytest.raises(LocalProtocolError, match="whole number"):
                await waiting.edit(place=place)
        for content in CONTENTS:
            with pytest.raises(LocalProtocolError):
                await waiting.edit(content)
        await waiting.edit("say 1 y", place=0)
        await running.cancel()
        assert (await running).stop_reason == "cancelled"
        assert (await waiting).text == "y"


async def test_names_of_a_type_made_from_text_are_taken_as_text(connected: Connected) -> None:
    async with connected() as seat:
        given = seat.session.prompt(Name("say 1 x"), key=Name("k"), request_id=Name("r"))
        assert (await given).request_id == "r"
        assert (await seat.session.completed("r")).text == "x"


async def test_other_calls_refuse_wrong_types_too(connected: Connected) -> None:
    wrong: list[Any] = [None, 1.5, True, object(), HALF]
    async with connected() as seat:
        for given in wrong:
            with pytest.raises(LocalProtocolError):
                await seat.session.completed(given)
            with pytest.raises(LocalProtocolError):
                await seat.client.completed(given)
            with pytest.raises(LocalProtocolError):
                await seat.client.attach(given)
            with pytest.raises(LocalProtocolError):
                await seat.client.new_session(given)
            with pytest.raises(LocalProtocolError):
                await seat.client.new_session(seat.cwd, mcp_servers=given)
        assert (await seat.session.prompt("say 1 next")).text == "next"


async def test_a_durable_session_can_be_read_again_after_wrong_values_were_given(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    opening = partial(SqliteEventLog.open, path, limits=Limits(), durability=Durability.NORMAL)
    async with await opening() as log, seated(log=log) as seat:
        session_id = seat.session.session_id
        await seat.session.prompt("say 1 precious")
        for content, more in ASKED:
            with pytest.raises(LocalProtocolError):
                await seat.session.prompt(content, **more)
    async with await opening() as log, seated(log=log) as seat:
        session = await seat.client.attach(session_id)
        assert len((await session.view()).turns) == 1
        assert (await session.prompt("say 1 again")).text == "again"


X = raw([{"type": "text", "text": "say 1 x"}])


def a_prompt(**more: Any) -> Prompt:
    return Prompt(at=1, prompt_id=PromptId("p"), content=X, **more)


@pytest.mark.parametrize(
    "given",
    [
        a_prompt(key=5),
        a_prompt(key=HALF),
        a_prompt(prompt_request_id=1.5),
        a_prompt(prompt_request_id=object()),
        a_prompt(author=[1]),
        a_prompt(deadline_at="soon"),
        UpdatePrompt(at=1, prompt_id=PromptId("p"), position="a"),  # pyright: ignore[reportArgumentType] on purpose
        UpdatePrompt(at=1, prompt_id=PromptId("p"), position=True),
        Rename(at=1, title=5),  # pyright: ignore[reportArgumentType] on purpose
    ],
)
async def test_a_node_takes_nothing_from_clients_that_its_log_could_not_give_back(given: Asked) -> None:
    async with open_world(MemoryEventLog(), "v1") as world:
        head = (await world.node.head(world.session_id)).head
        with pytest.raises(LocalProtocolError, match="wrong type"):
            await world.node.submit(world.session_id, given)  # pyright: ignore[reportArgumentType] one of them
        assert (await world.node.head(world.session_id)).head == head
        await world.node.submit(world.session_id, a_prompt(key="k", prompt_request_id=7, author="me"))
        assert len((await world.node.view(world.session_id)).turns) == 1
