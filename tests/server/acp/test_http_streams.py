"""The streams of a Streamable HTTP client: nothing is lost before them, between them or after a cursor."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from tests.server.acp.http_client import (
    EVENTS,
    PATH,
    YES,
    Talk,
    connect,
    is_answer,
    is_mark,
    load,
    prompt,
    talking,
)
from tests.server.reading import ended
from tests.server.seats import Seat

from turnwire.ids import SessionId
from turnwire.limits import Limits
from turnwire.session import events as ev
from turnwire_testing.patience import WAIT_S

pytestmark = pytest.mark.anyio


def seat_of(talk: Talk) -> Seat:
    """Return the same session as seen inside the daemon."""
    return Seat(talk.client.running, talk.client.http, SessionId(talk.session_id))


async def test_a_silent_stream_is_kept_alive_and_not_buffered_by_proxies(tmp_path: Path) -> None:
    async with talking(tmp_path / "d", limits=Limits(heartbeat_s=0.1)) as talk:
        for stream in (talk.connection, talk.session):
            assert stream.response.headers["Content-Type"] == EVENTS
            assert stream.response.headers["X-Accel-Buffering"] == "no"
            assert "no-cache" in stream.response.headers["Cache-Control"]
            await stream.until_bytes(b"retry: ")
            await stream.until_bytes(b": heartbeat\n\n")


def test_a_heartbeat_comes_every_fifteen_seconds_by_default() -> None:
    assert Limits().heartbeat_s <= 15


async def test_what_happens_before_a_session_has_a_stream_is_on_it_when_it_comes(tmp_path: Path) -> None:
    async with talking(tmp_path / "d") as talk:
        client = talk.client
        session_id = await client.new(talk.connection)
        asked = await client.prompt(session_id, "flood 200")
        await ended(client.running, SessionId(session_id))
        async with client.stream(session_id) as late:
            heard = await late.until(lambda each: is_answer(each, asked))
        assert len([each for each in heard if each.text]) == 200


async def test_messages_of_a_session_are_taken_in_the_order_of_their_arrival(tmp_path: Path) -> None:
    async with talking(tmp_path / "d") as talk:
        for number in range(8):
            await talk.client.post(prompt(talk.session_id, f"say 1 {number}", f"p{number}"), talk.session_id)
        heard = await talk.session.until(lambda each: is_answer(each, "p7"))
        assert [each.text for each in heard if each.text] == [str(number) for number in range(8)]
        assert [each.message["id"] for each in heard if "method" not in each.message] == [f"p{n}" for n in range(8)]


@pytest.mark.guarantee("G8", "G9")
async def test_a_turn_goes_on_without_its_stream_and_is_told_from_the_cursor(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with talking(tmp_path / "d") as talk:
        client, session_id = talk.client, await talk.client.new(talk.connection)
        async with client.stream(session_id) as first:
            asked = await client.prompt(session_id, f"say 2 before\ngate {gate}\nsay 2 after")
            heard = await first.until(lambda each: each.text == "before")
            heard += await first.until(lambda each: each.text == "before")
            cursor = heard[-1].id
        assert cursor is not None
        gate.touch()
        await ended(client.running, SessionId(session_id))
        async with client.stream(session_id, **{"Last-Event-ID": str(cursor)}) as second:
            heard = await second.until(lambda each: is_answer(each, asked))
        assert [each.text for each in heard if each.text] == ["after", "after"]
        assert heard[-1].message["result"]["stopReason"] == "end_turn"


@pytest.mark.guarantee("G8")
async def test_a_connection_without_streams_ends_after_its_grace_time_and_its_turn_does_not(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with talking(tmp_path / "d", limits=Limits(connection_grace_s=0.5)) as talk:
        seat = seat_of(talk)
        other = await connect(talk.client.running, talk.client.http)
        async with other.stream() as connection, other.stream(talk.session_id):
            await other.call(
                connection, "session/load", load(talk.session_id, other.cwd, 0)["params"], talk.session_id
            )
            await other.prompt(talk.session_id, f"gate {gate}\nsay 1 done")
            await seat.until(ev.TurnStarted)
        # Its streams are gone; only the outside observer is still there.
        await seat.until(ev.ClientDetached)
        await other.post(prompt(talk.session_id, "say 1 no", 99), talk.session_id, status=404)
        gate.touch()
        heard = await talk.session.until(lambda each: each.text == "done")
        assert heard[-1].text == "done"


async def test_a_connection_with_an_open_stream_is_kept_beyond_the_grace_time(tmp_path: Path) -> None:
    limits = Limits(connection_grace_s=0.2, heartbeat_s=0.1)
    async with talking(tmp_path / "d", limits=limits) as talk:
        for _ in range(6):
            talk.session.bytes = b""
            await talk.session.until_bytes(b": heartbeat\n\n")
        asked = await talk.client.prompt(talk.session_id, "say 1 hi")
        assert (await talk.session.answer(asked))["result"]["stopReason"] == "end_turn"


@pytest.mark.guarantee("G9")
@pytest.mark.parametrize(
    ("headers", "reason"),
    [({"Last-Event-ID": "3", "Turnwire-Epoch": "another"}, "epoch"), ({"Last-Event-ID": "99999"}, "ahead")],
)
async def test_a_cursor_that_cannot_be_honoured_is_told_once_and_the_stream_begins_anew(
    tmp_path: Path, headers: dict[str, str], reason: str
) -> None:
    async with talking(tmp_path / "d") as talk:
        asked = await talk.client.prompt(talk.session_id, "say 2 hi")
        await talk.session.answer(asked)
        async with talk.client.stream(talk.session_id, **headers) as stream:
            marker = (await stream.next()).message
            heard = await stream.until(is_mark)
        assert marker["method"] == "_turnwire/state_resync_required"
        assert marker["params"] == {
            "sessionId": talk.session_id,
            "reason": reason,
            "lastDeliveredId": int(headers["Last-Event-ID"]),
            "earliestAvailableId": 1,
        }
        assert [each.text for each in heard if each.text] == ["hi", "hi"]


async def test_a_stream_tells_its_epoch_and_takes_it_back(tmp_path: Path) -> None:
    async with talking(tmp_path / "d") as talk:
        asked = await talk.client.prompt(talk.session_id, "say 1 hi")
        await talk.session.answer(asked)
        epoch = talk.session.response.headers["Turnwire-Epoch"]
        async with talk.client.stream(talk.session_id, **{"Last-Event-ID": "0", "Turnwire-Epoch": epoch}) as stream:
            assert (await stream.next()).method != "_turnwire/state_resync_required"


@pytest.mark.parametrize("cursor", ["x", "-1", "1.5", "9" * 30])
async def test_what_is_no_cursor_is_400(tmp_path: Path, cursor: str) -> None:
    async with talking(tmp_path / "d") as talk:
        headers = talk.client.headers(talk.session_id, Accept=EVENTS) | {"Last-Event-ID": cursor}
        assert (await talk.client.http.get(PATH, headers=headers)).status_code == 400


@pytest.mark.guarantee("G10")
async def test_two_readers_of_a_session_hear_the_same_and_one_may_leave(tmp_path: Path) -> None:
    async with talking(tmp_path / "d") as talk:
        client = talk.client
        async with client.stream(talk.session_id) as second:
            asked = await client.prompt(talk.session_id, "flood 300")
            one = await talk.session.until(lambda each: is_answer(each, asked))
            two = await second.until(lambda each: is_answer(each, asked))
            assert [each for each in one if each.text] == [each for each in two if each.text]
            assert one[-1].message == two[-1].message
            # A request is one request for any number of readers.
            asked = await client.prompt(talk.session_id, "ask t1 yes,no")
            question = await talk.session.ask()
            assert question == await second.ask()
        await client.post({"jsonrpc": "2.0", "id": question["id"], "result": YES}, talk.session_id)
        heard = await talk.session.until(lambda each: is_answer(each, asked))
        assert "selected yes" in [each.text for each in heard]


async def test_both_readers_of_a_connection_hear_its_answers(tmp_path: Path) -> None:
    async with talking(tmp_path / "d") as talk:
        async with talk.client.stream() as second:
            listed = talk.client.next_id()
            await talk.client.post({"jsonrpc": "2.0", "id": listed, "method": "session/list", "params": {}})
            assert await talk.connection.answer(listed) == await second.answer(listed)
        again = await talk.client.new(talk.connection)
        assert again != talk.session_id


@pytest.mark.guarantee("G10")
async def test_a_stream_that_nobody_reads_stalls_no_other_session(tmp_path: Path) -> None:
    async with talking(tmp_path / "d") as talk:
        client = talk.client
        other = await client.new(talk.connection)
        async with (
            client.running.client() as lazy,
            lazy.stream("GET", PATH, headers=client.headers(other, Accept=EVENTS)),
        ):
            await client.prompt(other, "flood 5000 1000")
            with anyio.fail_after(WAIT_S):
                await ended(client.running, SessionId(other))
                for number in range(3):
                    asked = await client.prompt(talk.session_id, f"say 1 {number}")
                    assert (await talk.session.answer(asked))["result"]["stopReason"] == "end_turn"


async def test_streams_end_when_the_daemon_stops(tmp_path: Path) -> None:
    async with talking(tmp_path / "d") as talk:
        await talk.client.prompt(talk.session_id, "never")
        talk.client.running.daemon.stopping.set()
        with anyio.fail_after(WAIT_S):
            await talk.session.to_the_end()
            await talk.connection.to_the_end()
        assert b"about to stop" in talk.session.bytes
