"""Two daemons on one PostgreSQL: clients of one session on both, over each transport and version, see one order."""

from __future__ import annotations

import re
import socket
from collections.abc import AsyncGenerator, Awaitable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from msgspec import Raw
from tests.interop.schema_check import need_schemas
from tests.postgres.crowd import Crowd, Member, asks_about, hash_of, seen_by_rest, sessions_of
from tests.server.acp.http_client import initialize, new
from tests.server.reading import is_end, open_session, reading
from tests.server.seats import Seat, blocks
from tests.support.certificates import self_signed
from tests.support.daemons import SCRIPTED, Running, running_daemon
from tests.support.postgres import CLUSTER_KEY, PostgresServer, schema_of

from turnwire.errors import AnswerLost, LogUnavailable
from turnwire.ids import ClientId, SessionId
from turnwire.limits import KiB, Limits
from turnwire.log.bell import SharedLog
from turnwire.runtime.remote_sessions import RemoteSessions
from turnwire.server.daemon import prompts
from turnwire.server.readers.many_stream import ManyCursor, tag_of
from turnwire.session import events as ev
from turnwire.wire.jsonrpc import raw
from turnwire.wire.sse import SseReader
from turnwire_testing.patience import WAIT_S

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module", autouse=True)
def schemas() -> None:
    need_schemas()


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def node(
    address: str, folder: Path, name: str, place: str = "here", **options: Any
) -> AbstractAsyncContextManager[Running]:
    """Run a daemon that shares a log with others, and the files of this machine."""
    listening = f"127.0.0.1:{free_port()}"
    options |= {"node": name, "place": place, "cluster_listen": listening, "cluster_key": CLUSTER_KEY}
    return running_daemon(folder / name, log=address, **options)


async def know_each_other(*nodes: Running) -> None:
    with anyio.fail_after(WAIT_S):
        for each in nodes:
            while each.daemon.members is None or len(each.daemon.members.others) < len(nodes) - 1:
                await each.daemon.clock.sleep(0.05)


@asynccontextmanager
async def two_nodes(
    server: PostgresServer, folder: Path, **options: Any
) -> AsyncGenerator[tuple[Running, Running]]:
    address = server.new_log()
    async with node(address, folder, "one", **options) as one, node(address, folder, "two", **options) as two:
        await know_each_other(one, two)
        yield one, two


@pytest.mark.guarantee("G11")
@pytest.mark.parametrize("profile", ["v1", "v2"])
async def test_each_prompts_answers_and_cancels_on_either_node_and_all_see_the_same_order(
    postgres: PostgresServer, tmp_path: Path, profile: str
) -> None:
    agent = (*SCRIPTED, "--profile", profile)
    async with (
        two_nodes(postgres, tmp_path, agent=agent) as (one, two),
        anyio.create_task_group() as tasks,
        two.client() as rest,
    ):
        here, there = Crowd(one, tasks), Crowd(two, tasks)
        first = await here.over_http(1)
        session_id = next(iter(await sessions_of(first)))
        members: list[Member] = [
            first,
            await there.over_http(2, session_id),
            await here.over_socket(2),
            await there.over_socket(1),
            await there.over_socket(2),
        ]
        for each in members[1:]:
            await each.join(session_id)
        async with reading(rest, f"/session/{session_id}/events", **{"Last-Event-ID": "0"}) as events:
            ends = 0
            for place, member in enumerate(members):
                prompt = await member.prompt(session_id, f"think {place}\nsay 3 {place}\ntool t{place}")
                assert "result" in await member.answer(prompt)
                other = members[(place + 1) % 5]
                await member.prompt(session_id, f"ask a{place} allow_once,reject_once")
                for each in members:
                    await each.until(lambda heard, named=f"a{place}": asks_about(heard, named))
                await other.permit(f"a{place}")
                await member.prompt(session_id, f"say 1 waiting-{place}\nnever")
                third = members[(place + 2) % 5]
                await third.says(f"waiting-{place}")
                await third.cancel(session_id)
                ends += 3
                for each in members:
                    await each.ends(ends)
            told = [await events.next()]
            while sum(map(is_end, told)) < ends:
                told.append(await events.next())
        for each in members:
            each.check()
        hashes = {hash_of(each.identities()) for each in members} | {hash_of(seen_by_rest(told))}
        assert len(hashes) == 1
        assert list(two.daemon.node.loaded) == [], "the second node has opened nothing"
        tasks.cancel_scope.cancel()


@pytest.mark.guarantee("G2", "G7")
async def test_over_rest_either_node_takes_prompts_answers_and_cancels(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    async with (
        two_nodes(postgres, tmp_path) as (one, two),
        one.client() as at_one,
        two.client() as at_two,
    ):
        session_id = SessionId(await open_session(one))
        here, there = Seat(one, at_one, session_id), Seat(two, at_two, session_id)
        assert (await there.run("say 1 hello")).prompt_id in {each["promptId"] for each in await turns(here)}
        key = {"Idempotency-Key": "k"}
        body = {"prompt": blocks("say 1 once")}
        asked = [await each.post("prompt", body, 202, **key) for each in (there, here, there)]
        assert len({each["promptId"] for each in asked}) == 1
        await here.end(asked[0]["promptId"])
        for asks, answers in ((here, there), (there, here), (there, there)):
            prompted = await asks.prompt("ask may-it allow_once,reject_once")
            waiting = await answers.until(ev.PermissionRequested, prompted["promptId"])
            chosen = {"outcome": {"outcome": "selected", "optionId": "allow_once"}}
            await answers.post(f"permission/{waiting.request_id}", chosen)
            assert await asks.end(prompted["promptId"])
        running = await here.prompt("say 1 working\nnever")
        await there.until(ev.SessionUpdated, running["promptId"])
        await there.post("cancel", status=204)
        ended = await here.end(running["promptId"])
        assert isinstance(ended, ev.TurnCompleted)
        assert ended.stop_reason == "cancelled"
        await there.patch("metadata", {"displayName": "from two"})
        assert (await here.get("status"))["state"] == "idle"
        assert list(two.daemon.node.loaded) == []
        forwards = [await answered_forwards(each) for each in (at_one, at_two)]
        assert forwards[0] == 0 < 5 <= forwards[1]
        assert (await at_two.delete(f"/session/{session_id}")).status_code in (200, 204)
        await here.prompt("say 1 too-late", 410)


@pytest.mark.parametrize("dialler", [0, 1])
async def test_a_prompt_as_large_as_a_body_may_be_goes_to_its_owner_whichever_node_has_dialled(
    postgres: PostgresServer, tmp_path: Path, dialler: int
) -> None:
    limits = Limits(frame_bytes=128 * KiB, body_bytes=256 * KiB)
    async with (
        two_nodes(postgres, tmp_path, limits=limits) as nodes,
        nodes[0].client() as at_one,
        nodes[1].client() as at_two,
    ):
        one, two = nodes
        session_id = SessionId(await open_session(one))
        here, there = Seat(one, at_one, session_id), Seat(two, at_two, session_id)
        if dialler == 0:
            # Of a session of the other node, so that it is the first one that has something to ask for.
            await Seat(one, at_one, SessionId(await open_session(two))).run("say 1 hello")
        small = httpx.Request("POST", "http://x", json={"prompt": blocks("say 1 hello\n#")}).content
        text = "say 1 hello\n#" + "#" * (limits.body_bytes - len(small))
        assert (await there.run(text)).prompt_id in {each["promptId"] for each in await turns(here)}
        assert await answered_forwards(at_two) == 1


@pytest.mark.guarantee("G9")
async def test_a_node_that_has_lost_a_session_and_does_not_know_it_yet_takes_no_cursor_for_a_wrong_one(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    async with (
        two_nodes(postgres, tmp_path) as (one, two),
        one.client() as at_one,
        two.client() as at_two,
    ):
        session_id = SessionId(await open_session(one))
        here, there = Seat(one, at_one, session_id), Seat(two, at_two, session_id)
        await here.run("say 1 hello")
        # The state that a node finds after it was frozen for longer than its lease: it lost the session.
        postgres.ask(
            f"update tw_sessions set owner = null, fence = fence + 1 where name = '{session_id}'",
            schema_of(two.daemon.settings.log),
        )
        await there.run("say 1 behind-its-back")
        seen = (await two.daemon.node.head(session_id)).head
        assert one.daemon.node.loaded[session_id].head < seen, "the first node knows it: nothing is tested here"

        part = await here.get(f"log?after={seen}")
        assert (part["events"], part["lastEventId"]) == ([], seen)
        many = ManyCursor()
        many.place(tag_of(session_id, part["eventEpoch"]), seen)
        for path in ("/events", f"/events?session={session_id}"):
            async with at_one.stream("GET", path, headers={"Last-Event-ID": many.text().decode()}) as answer:
                sse, chunks = SseReader(64 * KiB), answer.aiter_raw()
                with anyio.fail_after(WAIT_S):
                    while not (first := list(sse.feed(await anext(chunks)))):
                        pass
                assert [each.event for each in first] == ["replay_complete"]
        told: list[tuple[str | None, str]] = []
        async with at_one.stream(
            "GET", f"/session/{session_id}/events", headers={"Last-Event-ID": str(seen)}
        ) as answer:
            sse, chunks = SseReader(64 * KiB), answer.aiter_raw()
            with anyio.fail_after(WAIT_S):
                while not told or told[-1][1] != "turn_complete":
                    told += [(each.id, each.event) for each in sse.feed(await anext(chunks))]
                    if told and told[-1][1] == "replay_complete":
                        # The first node detects this here, and continues as a reader.
                        await here.prompt("say 1 more")
        assert told[0][1] == "replay_complete"
        assert [each for each, _ in told[1:]] == [str(seen + n) for n in range(1, len(told))]


@pytest.mark.guarantee("G3")
async def test_a_session_whose_node_has_stopped_goes_on_at_the_one_that_is_asked(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    address = postgres.new_log()
    async with node(address, tmp_path, "two") as two, two.client() as at_two:
        async with node(address, tmp_path, "one") as one:
            await know_each_other(one, two)
            session_id = SessionId(await open_session(one))
            there = Seat(two, at_two, session_id)
            assert isinstance(await there.run("say 1 hello"), ev.TurnCompleted)
            assert list(one.daemon.node.loaded) == [session_id]
            running = await there.prompt("say 1 working\nnever")
            await there.until(ev.SessionUpdated, running["promptId"])
        ended = await there.end(running["promptId"])
        assert isinstance(ended, ev.TurnFailed)
        with anyio.fail_after(WAIT_S):
            assert isinstance(await there.run("say 1 again"), ev.TurnCompleted)
        assert list(two.daemon.node.loaded) == [session_id]


async def test_nodes_talk_over_tls_with_an_authority_of_their_own(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = self_signed(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(tls.cert))
    async with (
        two_nodes(postgres, tmp_path, tls=tls, tls_cert=tls.cert, tls_key=tls.key) as (one, two),
        one.client() as at_one,
        two.client() as at_two,
    ):
        session_id = SessionId(await open_session(one))
        assert isinstance(await Seat(two, at_two, session_id).run("say 1 hello"), ev.TurnCompleted)
        opened = await at_one.post("/acp", json=initialize())
        named = {"Acp-Connection-Id": opened.headers["Acp-Connection-Id"]}
        asked = await at_two.post("/acp", json=new(one.daemon.roots[0], 1), headers=named)
        assert asked.status_code == 202
        assert 'turnwire_relays_total{kind="request"} 1' in (await at_two.get("/metrics")).text


async def test_a_node_whose_certificate_nobody_trusts_is_not_reached(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trusted, unknown = self_signed(tmp_path), self_signed(tmp_path, name="unknown-")
    monkeypatch.setenv("SSL_CERT_FILE", str(trusted.cert))
    limits, address = Limits(request_retry_s=0.1), postgres.new_log()
    async with (
        node(address, tmp_path, "one", tls=unknown, tls_cert=unknown.cert, tls_key=unknown.key) as one,
        node(
            address, tmp_path, "two", tls=trusted, tls_cert=trusted.cert, tls_key=trusted.key, limits=limits
        ) as two,
        two.client() as at_two,
    ):
        await know_each_other(one, two)
        session_id = await open_session(one)
        refused = await at_two.post(f"/session/{session_id}/prompt", json={"prompt": blocks("say 1 never")})
        assert (refused.status_code, refused.json()["code"]) == (503, "session_moving")
        assert (await one.daemon.node.session(session_id)).state.turn is None


class Looks:
    """A listener of a bell that waits for a reason to look."""

    def __init__(self) -> None:
        self.missing = anyio.Event()

    def grown(self, heads: Mapping[SessionId, int]) -> None:
        """Count growth as another reason."""

    def missed(self) -> None:
        self.missing.set()


async def test_when_a_node_is_gone_every_other_looks_for_what_it_stored_and_did_not_ring(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    async with two_nodes(postgres, tmp_path) as (one, two):
        looks = [Looks(), Looks()]
        for each, looking in zip((one, two), looks, strict=True):
            assert isinstance(each.daemon.log, SharedLog)
            each.daemon.log.bell.add_listener(looking)
        assert one.daemon.members is not None
        one.daemon.members.gone(99)
        with anyio.fail_after(WAIT_S):
            for looking in looks:
                await looking.missing.wait()


async def answered_forwards(client: httpx.AsyncClient) -> int:
    found = re.search(
        r'^turnwire_forwards_total{result="answered"} (\d+)', (await client.get("/metrics")).text, re.M
    )
    return 0 if found is None else int(found[1])


async def turns(seat: Seat) -> list[dict[str, Any]]:
    return (await seat.get("turns"))["turns"]


async def test_a_client_at_another_node_attends_the_session_and_serves_its_files(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    async with two_nodes(postgres, tmp_path) as (one, two), one.client() as at_one, two.client() as at_two:
        session_id = SessionId(await open_session(one))
        there = Seat(two, at_two, session_id)
        assert not one.daemon.clients.attended(session_id)
        async with reading(at_two, there.path("events"), **{"Last-Event-ID": "0"}):
            with anyio.fail_after(WAIT_S):
                while not one.daemon.clients.attended(session_id):
                    await one.daemon.clock.sleep(0.02)
        desk = Desk()
        async with two.daemon.node.agents.offering(session_id, ClientId("ann"), desk):
            ended = await there.run("read /far/away.txt")
            said = [each for each in await there.events() if isinstance(each, ev.SessionUpdated)]
            assert isinstance(ended, ev.TurnCompleted)
            assert any(b"from afar" in bytes(each.update) for each in said)
        assert at_one is not at_two


async def test_clients_are_counted_wherever_they_are(postgres: PostgresServer, tmp_path: Path) -> None:
    async with two_nodes(postgres, tmp_path) as (one, two), one.client() as at_one, two.client() as at_two:
        session_id = SessionId(await open_session(one))
        for client in (at_one, at_two, at_two):
            assert (await client.post(f"/session/{session_id}/resume", json={})).status_code == 200
        with anyio.fail_after(WAIT_S):
            for client in (at_one, at_two):
                while (await Seat(one, client, session_id).get("status"))["clientCount"] != 3:
                    await one.daemon.clock.sleep(0.02)
                [entry] = (await client.get("/session")).json()["sessions"]
                assert entry["clientCount"] == 3


async def test_a_fork_that_is_asked_for_at_another_node_is_made_where_the_agent_is(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    async with two_nodes(postgres, tmp_path) as (one, two), two.client() as at_two:
        session_id = SessionId(await open_session(one))
        assert isinstance(await Seat(two, at_two, session_id).run("say 1 hello"), ev.TurnCompleted)
        answer = await at_two.post(f"/session/{session_id}/fork", json={"title": "another"})
        assert answer.status_code == 200, answer.text
        fork = SessionId(answer.json()["sessionId"])
        assert await two.daemon.owners.owner(fork) == one.daemon.owners.life
        assert isinstance(await Seat(two, at_two, fork).run("say 1 hello"), ev.TurnCompleted)
        entries = {each["sessionId"]: each for each in (await at_two.get("/session")).json()["sessions"]}
        assert (entries[fork]["forkOf"], entries[fork]["title"]) == (session_id, "another")
        assert list(two.daemon.node.loaded) == []


async def test_a_directory_is_shared_by_the_nodes_of_one_place_and_not_by_those_of_another(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    address, found = postgres.new_log(), dict[str, str]()
    async with (
        node(address, tmp_path, "one") as one,
        node(address, tmp_path, "two") as two,
        node(address, tmp_path, "far", place="elsewhere") as far,
    ):
        await know_each_other(one, two, far)
        wanted = {"cwd": str(one.daemon.roots[0]), "sessionScope": "single"}
        for name, each in {"one": one, "far": far, "two": two, "far again": far}.items():
            async with each.client() as client:
                answer = await client.post("/session", json=wanted)
                assert answer.status_code in (200, 201), answer.text
                found[name] = answer.json()["sessionId"]
    assert found["one"] == found["two"] != found["far"] == found["far again"]


class Desk:
    """A client that has one file."""

    methods = frozenset({"fs/read_text_file"})

    async def serve(self, method: str, params: Raw, after: int) -> Raw:
        return raw({"content": "from afar"})


@pytest.mark.guarantee("G3", "G7")
@pytest.mark.parametrize("place", [0, 1], ids=["at the owner", "at the other"])
async def test_a_prompt_whose_answer_fails_behind_its_acceptance_still_runs(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    failures = [LogUnavailable("the log went away")]

    def find_turn(*given: Any) -> Any:
        if failures:
            raise failures.pop()
        return found(*given)

    found = prompts.find_turn
    monkeypatch.setattr(prompts, "find_turn", find_turn)
    async with two_nodes(postgres, tmp_path) as nodes, nodes[place].client() as client:
        seat = Seat(nodes[place], client, SessionId(await open_session(nodes[0])))
        body, key = {"prompt": blocks("say 1 once")}, {"Idempotency-Key": "k"}
        await seat.post("prompt", body, 503, **key)
        asked = await seat.post("prompt", body, 202, **key)
        with anyio.fail_after(WAIT_S):
            assert isinstance(await seat.end(asked["promptId"]), ev.TurnCompleted)


@pytest.mark.guarantee("G3", "G7")
async def test_a_prompt_whose_owner_could_not_answer_in_time_still_runs(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lost(_: RemoteSessions, session_id: SessionId, asking: Awaitable[object]) -> object:
        await asking
        raise AnswerLost("the session's node did not answer in time", session_id=session_id)

    hasty = Limits(request_retry_s=0.1)
    async with two_nodes(postgres, tmp_path, limits=hasty) as (one, two), two.client() as at_two:
        there = Seat(two, at_two, SessionId(await open_session(one)))
        monkeypatch.setattr(RemoteSessions, "_answer", lost)
        asked = await there.prompt("say 1 once")
        with anyio.fail_after(WAIT_S):
            assert isinstance(await there.end(asked["promptId"]), ev.TurnCompleted)
