"""Webhooks of nodes that share a log: calls that one node did not complete are made by another."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from tests.postgres.test_two_nodes import free_port, know_each_other, node
from tests.server.reading import open_session
from tests.server.seats import Seat
from tests.server.test_webhooks import SECRET, Receiver, live, receiving
from tests.support.daemons import Running
from tests.support.postgres import CLUSTER_KEY, PostgresServer

from turnwire.ids import SessionId
from turnwire.limits import Limits
from turnwire.log.postgres_nodes import open_nodes
from turnwire_testing.patience import WAIT_S

pytestmark = pytest.mark.anyio


class Moody:
    """A receiver's responses: unavailable until it is back."""

    def __init__(self) -> None:
        self.is_back = False

    def __call__(self, _delivery: object) -> str:
        return "204 No Content" if self.is_back else "503 Service Unavailable"


async def bury(address: str, name: str) -> None:
    async with open_nodes(address, Limits()) as nodes:
        [row] = [each for each in await nodes.list() if each.name == name]
        assert await nodes.bury(row)


async def trust(watcher: Running, name: str) -> None:
    """Wait until the named node has sent enough beats to be given up soon when it stops."""
    with anyio.fail_after(WAIT_S):
        while not any(each.name == name and each.beat > 4 for each in await watcher.daemon.owners.lives()):
            await watcher.daemon.clock.sleep(0.1)


def configuration(folder: Path, receiver: Receiver) -> Path:
    config = folder / "turnwire.toml"
    named = f'name = "r"\nurl = "{receiver.url}/hook"\nsecret = "{SECRET}"'
    config.write_text(f"[[webhooks]]\n{named}\n", encoding="utf-8")
    config.chmod(0o600)
    return config


@pytest.mark.parametrize("by", ["the lease", "hand"])
async def test_what_a_node_had_not_told_when_it_was_killed_is_told_by_another_one(
    postgres: PostgresServer, tmp_path: Path, by: str
) -> None:
    address, moody = postgres.new_log(), Moody()
    async with (
        receiving(moody) as receiver,
        node(address, tmp_path, "two", webhooks=(receiver.entry("r"),)) as two,
    ):
        shared = ("--log", address, "--node", "one", "--place", "here")
        listening = ("--cluster-listen", f"127.0.0.1:{free_port()}", "--cluster-key", CLUSTER_KEY)
        one = await live(tmp_path, configuration(tmp_path, receiver), *shared, *listening)
        try:
            made = await one.client.post("/session", json={"cwd": str(tmp_path)})
            session_id = made.json()["sessionId"]
            asking = {"prompt": [{"type": "text", "text": "say 1 hello"}]}
            ended = await one.client.post(
                f"/session/{session_id}/prompt", json=asking, headers={"Prefer": "wait=60"}
            )
            await receiver.until(lambda: bool(receiver.came))
            await trust(two, "one")
        finally:
            await one.kill()
        moody.is_back = True
        if by == "hand":
            await bury(address, "one")
        await receiver.until(lambda: bool(receiver.taken))
        for each in receiver.taken:
            each.check()
            assert (each.session_id, each.envelope["promptId"]) == (session_id, ended.json()["promptId"])


async def test_what_a_node_had_not_told_when_it_left_is_told_by_another_one(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    address, moody = postgres.new_log(), Moody()
    async with receiving(moody) as receiver:
        hooks = (receiver.entry("r"),)
        async with node(address, tmp_path, "two", webhooks=hooks) as two:
            async with node(address, tmp_path, "one", webhooks=hooks) as one, one.client() as client:
                await know_each_other(one, two)
                session_id = SessionId(await open_session(one))
                ended = await Seat(one, client, session_id).run("say 1 hello")
                await receiver.until(lambda: bool(receiver.came))
            moody.is_back = True
            await receiver.until(lambda: bool(receiver.taken))
            assert {each.envelope["promptId"] for each in receiver.taken} == {ended.prompt_id}
