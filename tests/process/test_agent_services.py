"""Files and terminals for a real agent: by the daemon, by an attached client, handed on, withdrawn, cleaned up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from msgspec import Raw
from tests.interop.node_session import WAIT_S, Talk
from tests.process.hosted import hosted, scripted
from tests.process.starting import needs_linux, watching
from tests.support.driving import check_ends

from turnwire.errors import RequestRefused
from turnwire.hosting.agent_pool import AgentPolicy
from turnwire.ids import ClientId
from turnwire.limits import Limits
from turnwire.session.inputs import Close
from turnwire.wire.jsonrpc import raw
from turnwire_testing.patience import quiet

pytestmark = pytest.mark.anyio


class Desk:
    """A client that serves files; the test decides when."""

    methods = frozenset({"fs/read_text_file"})

    def __init__(self, text: str, *, is_slow: bool = False) -> None:
        self._text = text
        self._is_slow = is_slow
        self.asked = anyio.Event()
        self.was_stopped = False

    async def serve(self, method: str, params: Raw, after: int) -> Raw:
        self.asked.set()
        if self._is_slow:
            try:
                await anyio.sleep_forever()
            finally:
                self.was_stopped = True
        if not self._text:
            raise RequestRefused("nothing for you", jsonrpc=-32602, reason="closed")
        return raw({"content": self._text})


async def until(is_so: Callable[[], bool]) -> None:
    """Poll for a condition outside this process, which sends no notification."""
    with anyio.fail_after(WAIT_S):
        while not is_so():
            await anyio.lowlevel.checkpoint()


# -- by the daemon -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", ["v1", "v1plus"])
async def test_files_and_terminals_are_served_in_the_directory_of_the_session(profile: str, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("from the disk")
    async with hosted(scripted("--profile", profile)) as host:
        talk = await host.talk(tmp_path)
        assert await talk.said(f"read {tmp_path}/in.txt") == "from the disk"
        assert await talk.said(f"write {tmp_path}/new/out.txt hello") == f"wrote {tmp_path}/new/out.txt"
        assert (tmp_path / "new" / "out.txt").read_text() == "hello"
        assert await talk.said("terminal sh -c 'pwd; echo done'") == f"{tmp_path}\ndone\n"
        check_ends(await talk.events())


async def test_services_that_are_off_are_not_offered_and_not_done(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("secret")
    asks = (
        'raw {"jsonrpc":"2.0","id":"q","method":"fs/read_text_file","params":'
        f'{{"sessionId":"session-1","path":"{tmp_path}/in.txt"}}}}'
    )
    async with hosted(scripted(), policy=AgentPolicy(services=False)) as host:
        talk = await host.talk(tmp_path)
        for script, capability in (
            (f"read {tmp_path}/in.txt", "fs.readTextFile"),
            (f"write {tmp_path}/in.txt x", "fs.writeTextFile"),
            ("terminal true", "terminal"),
        ):
            assert await talk.said(script) == f"unavailable: the client does not offer {capability}"
        await talk.said(f"{asks}\nsay 1 x")
        sent = (await host.node.agents.explain(talk.session_id)).agent.last_sent
        [answer] = [each for each in sent if '"id":"q"' in each]
        assert '"code":-32601' in answer


# -- by an attached client -----------------------------------------------------------------------------------


async def test_an_offer_is_kept_while_nothing_happens_in_the_session(tmp_path: Path) -> None:
    async with hosted(
        scripted("--history", "/dev/null"), limits=Limits(agent_idle_s=100, idle_unload_s=100)
    ) as host:
        talk = await host.talk(tmp_path)
        async with host.node.agents.offering(talk.session_id, ClientId("ann"), Desk("ann")):
            for _ in range(8):
                await host.clock.wait_for_sleepers(1)
                host.clock.advance(50.0)
                await quiet()
            await until(lambda: not host.source.alive)
            assert await talk.said(f"read {tmp_path}/f") == "ann"


# -- withdrawn, and cleaned up -------------------------------------------------------------------------------


async def terminal_pid(talk: Talk, folder: Path) -> int:
    """The process of a command that does not end, once it runs."""
    note = folder / "pid"
    await talk.prompt(f"terminal sh -c 'echo $$ > {note}.part; mv {note}.part {note}; exec sleep 600'")
    await until(note.exists)
    return int(note.read_text())


@needs_linux
@pytest.mark.guarantee("G14")
@pytest.mark.parametrize("end", ["session", "agent"])
async def test_a_terminal_goes_with_its_session_and_with_its_agent(end: str, tmp_path: Path) -> None:
    async with hosted(scripted()) as host:
        talk = await host.talk(tmp_path)
        with watching(await terminal_pid(talk, tmp_path)) as command:
            if end == "session":
                await host.node.submit(talk.session_id, Close(at=1))
            else:
                host.source.newest.kill()
            await command.gone()
        if end == "agent":
            (tmp_path / "f").write_text("served again")
            assert await talk.said(f"read {tmp_path}/f") == "served again"


@needs_linux
@pytest.mark.guarantee("G14")
async def test_a_terminal_goes_with_the_node(tmp_path: Path) -> None:
    with watching() as command:
        async with hosted(scripted()) as host:
            talk = await host.talk(tmp_path)
            command.add(await terminal_pid(talk, tmp_path))
        await command.gone()
