"""`turnwire stdio --daemon URL` over a connection that accepts frames and loses them before it breaks (G9)."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import anyio
import pytest
from anyio.abc import ByteStream, SocketAttribute, SocketStream
from anyio.from_thread import BlockingPortal, start_blocking_portal
from anyio.streams.stapled import MultiListener
from tests.cli.editor import V1, V2, Editor, Json, editor, update
from tests.cli.rig import WAIT_S, Served, served
from tests.cli.test_relay_process import lines_of_ends, to_daemon, wired
from tests.interop.programs import Cable

pytestmark = pytest.mark.guarantee("G9")

VERSIONS = pytest.mark.parametrize("version", [1, 2])


class Leak(Cable):
    """A cable that can lose the daemon's frames."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.leaks = False
        self._lost = b""
        self._changed = threading.Condition()

    async def relay(self, near: ByteStream) -> None:
        leaky = _Leaky(near, self)
        await super().relay(leaky)

    def lose(self, piece: bytes) -> None:
        with self._changed:
            self._lost += piece
            self._changed.notify_all()

    def until_lost(self, words: bytes) -> None:
        """Wait until these words are among the lost ones."""
        with self._changed:
            assert self._changed.wait_for(lambda: words in self._lost, WAIT_S)


class _Leaky(ByteStream):
    """The cable's input; while it leaks, nothing arrives at the other end."""

    def __init__(self, near: ByteStream, leak: Leak) -> None:
        self._near = near
        self._leak = leak

    async def send(self, item: bytes) -> None:
        if self._leak.leaks:
            self._leak.lose(item)
        else:
            await self._near.send(item)

    async def receive(self, max_bytes: int = 65536) -> bytes:
        return await self._near.receive(max_bytes)

    async def send_eof(self) -> None:
        await self._near.send_eof()

    async def aclose(self) -> None:
        await self._near.aclose()


class LeakyWire:
    """The connection between the editor and the daemon."""

    def __init__(self, leak: Leak, portal: BlockingPortal) -> None:
        self._leak = leak
        self._portal = portal
        self.url = leak.url

    def leak(self) -> None:
        """Silently lose the daemon's output from now on."""
        self._portal.call(setattr, self._leak, "leaks", True)

    def cut_behind(self, words: bytes) -> None:
        """Break the connection after the daemon has sent these words; the next one is intact."""
        self._leak.until_lost(words)
        self._portal.call(setattr, self._leak, "leaks", False)
        self._portal.call(self._leak.cut)


@contextmanager
def leaking(daemon: Served) -> Generator[LeakyWire]:
    with start_blocking_portal() as portal:
        listener = portal.call(_listen)
        leak = Leak(f"http://127.0.0.1:{listener.extra(SocketAttribute.local_port)}")
        leak.lead_to(daemon.url)
        serving = portal.start_task_soon(listener.serve, leak.relay)
        try:
            yield LeakyWire(leak, portal)
        finally:
            serving.cancel()
            portal.call(listener.aclose)


async def _listen() -> MultiListener[SocketStream]:
    return await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)


@contextmanager
def talking(daemon: Served, version: int) -> Generator[tuple[LeakyWire, Editor, str]]:
    with leaking(daemon) as wire, editor(daemon.home, *to_daemon(daemon, url=wire.url)) as opened:
        yield wire, opened, opened.open(daemon.home, V1 if version == 1 else V2)


def hear(opened: Editor, text: str) -> None:
    """Wait until the agent has sent this; prompts contain the same words."""

    def is_said(message: Json) -> bool:
        told = update(message)
        return told.get("sessionUpdate") == "agent_message_chunk" and text in told["content"]["text"]

    opened.until(is_said)


def questions(opened: Editor) -> list[int | str]:
    return [each["id"] for each in opened.heard if each.get("method") == "session/request_permission"]


def answers(opened: Editor, request_id: int) -> int:
    return sum(each.get("id") == request_id and "method" not in each for each in opened.heard)


@VERSIONS
def test_what_is_swallowed_with_the_way_comes_once_and_in_order_when_it_is_back(
    daemon: Served, tmp_path: Path, version: int
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    with talking(daemon, version) as (wire, opened, session):
        script = f"say 1 one.\ngate {first}\nsay 1 two.\nsay 1 three.\ngate {second}\nsay 1 four."
        prompt = opened.prompt(session, script)
        hear(opened, "one.")
        wire.leak()
        first.touch()
        wire.cut_behind(b"three.")
        second.touch()
        assert opened.ended(prompt, version) == "end_turn"
        assert opened.ended(opened.prompt(session, "say 1 five."), version) == "end_turn"
        assert opened.text() == "one.two.three.four.five."
        assert answers(opened, prompt) == 1
        states = [each["state"] for each in opened.updates("state_update")]
        assert states == (["running", "idle"] * 2 if version == 2 else [])
        spoken = len(opened.updates("user_message_chunk") + opened.updates("user_message"))
        assert spoken == (2 if version == 2 else 0), "a client's own prompts are told as they are live"
        assert opened.leave() == 0


@VERSIONS
def test_an_end_that_is_swallowed_with_the_way_is_heard_and_answered_once(
    daemon: Served, tmp_path: Path, version: int
) -> None:
    gate = tmp_path / "gate"
    with talking(daemon, version) as (wire, opened, session):
        prompt = opened.prompt(session, f"say 1 begun.\ngate {gate}\nsay 1 done.")
        hear(opened, "begun.")
        wire.leak()
        gate.touch()
        wire.cut_behind(b'"stopReason"')
        assert opened.ended(prompt, version) == "end_turn"
        assert opened.ended(opened.prompt(session, "say 1 more."), version) == "end_turn"
        assert opened.text() == "begun.done.more."
        assert answers(opened, prompt) == 1
        assert lines_of_ends(opened) == (["end_turn"] * 2 if version == 1 else [])
        assert opened.leave() == 0


@VERSIONS
def test_a_question_that_is_swallowed_with_the_way_is_asked_when_it_is_back(
    daemon: Served, tmp_path: Path, version: int
) -> None:
    gate = tmp_path / "gate"
    with talking(daemon, version) as (wire, opened, session):
        prompt = opened.prompt(session, f"say 1 begun.\ngate {gate}\nask edit allow_once,reject_once")
        hear(opened, "begun.")
        wire.leak()
        gate.touch()
        wire.cut_behind(b"session/request_permission")
        question = opened.until(lambda each: each.get("method") == "session/request_permission")
        chosen = question["params"]["options"][0]["optionId"]
        opened.send(id=question["id"], result={"outcome": {"outcome": "selected", "optionId": chosen}})
        assert opened.ended(prompt, version) == "end_turn"
        assert opened.text() == f"begun.selected {chosen}"
        assert questions(opened) == [question["id"]]
        assert opened.leave() == 0


@VERSIONS
def test_a_question_that_was_heard_is_not_asked_again_when_the_way_is_back(
    daemon: Served, tmp_path: Path, version: int
) -> None:
    gate = tmp_path / "gate"
    with talking(daemon, version) as (wire, opened, session):
        prompt = opened.prompt(session, f"ask edit allow_once,reject_once\ngate {gate}\nsay 1 end.")
        question = opened.until(lambda each: each.get("method") == "session/request_permission")
        wire.cut_behind(b"")
        chosen = question["params"]["options"][0]["optionId"]
        # The answer to this comes over the new connection, after the daemon's state of the session there.
        opened.ask("session/set_config_option", {"sessionId": session, "configId": "mode", "value": "code"})
        opened.send(id=question["id"], result={"outcome": {"outcome": "selected", "optionId": chosen}})
        hear(opened, f"selected {chosen}")
        gate.touch()
        assert opened.ended(prompt, version) == "end_turn"
        assert questions(opened) == [question["id"]]
        assert opened.leave() == 0


@VERSIONS
def test_a_session_that_was_resumed_without_its_history_misses_nothing_over_a_restart(
    tmp_path: Path, version: int
) -> None:
    with ExitStack() as stack:
        first = stack.enter_context(served(tmp_path))
        session = first.session()
        first.prompt(session, "say 1 before.")
        first.until(session, "turn_complete")
        wire = stack.enter_context(wired(first))
        with editor(tmp_path, *to_daemon(first, url=wire.url)) as opened:
            opened.ask("initialize", V1 if version == 1 else V2)
            opened.ask("session/resume", {"sessionId": session, "cwd": str(tmp_path), "mcpServers": []})
            wire.cut()
            assert first.stop() == 0
            with served(tmp_path) as second:
                second.prompt(session, "say 1 meanwhile.")
                second.until(session, "turn_complete")
                wire.mend(second)
                hear(opened, "meanwhile.")
                assert opened.text() == "meanwhile."
                opened.prompt(session, "say 1 after.")
                hear(opened, "after.")
                assert opened.text() == "meanwhile.after."
                assert opened.leave() == 0
