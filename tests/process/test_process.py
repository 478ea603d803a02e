"""A real agent process: its start, its end, and that it cannot harm us in between."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from itertools import count
from pathlib import Path

import anyio
import pytest
from anyio.lowlevel import checkpoint
from msgspec import Raw
from tests.patience import SOON_S
from tests.process.starting import WAIT_S, python, running, take, take_all

from turnwire.errors import AgentLaunchFailed, LimitExceeded, LinkBroken, LinkClosed
from turnwire.hosting import process
from turnwire.hosting.base import FrameLink
from turnwire.hosting.peer import Peer
from turnwire.hosting.process import STDERR_TAIL_BYTES, Exit, spawn
from turnwire.limits import KiB, Limits
from turnwire.wire.jsonrpc import Notification, Request, Result
from turnwire_testing.clock import ManualClock
from turnwire_testing.patience import quiet

pytestmark = pytest.mark.anyio

EASY = Limits()

DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready'); time.sleep(600)"
POLITE = """
import signal, sys, time
def leave(*_):
    sys.exit(7)
signal.signal(signal.SIGTERM, leave)
print("ready")
time.sleep(600)
"""


# -- the ladder -------------------------------------------------------------------------------------------


async def test_an_agent_that_leaves_at_the_end_of_its_input_is_not_signalled(manual_clock: ManualClock) -> None:
    async with running(["cat"], sleep=manual_clock.sleep) as agent:
        with anyio.fail_after(WAIT_S):
            assert await agent.stop() == Exit(0, None, "", "eof")


@pytest.mark.parametrize(
    ("code", "rungs", "expected"),
    [
        (POLITE, ["stop_eof_s"], Exit(7, None, "", "term")),
        (POLITE.replace("sys.exit(7)", "signal.raise_signal(9)"), ["stop_eof_s"], Exit(None, 9, "", "term")),
        (DEAF, ["stop_eof_s", "stop_term_s"], Exit(None, 9, "", "kill")),
    ],
    ids=["leaves on TERM", "dies on TERM", "deaf to TERM"],
)
async def test_each_rung_waits_its_time_and_then_the_next_one_acts(
    code: str, rungs: list[str], expected: Exit, manual_clock: ManualClock
) -> None:
    async with running(python(code), sleep=manual_clock.sleep) as agent:
        assert await take(agent.link, 1) == [b"ready"]
        with anyio.fail_after(WAIT_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(agent.stop)
                for rung in rungs:
                    await manual_clock.wait_for_sleepers(1)
                    manual_clock.advance(getattr(EASY, rung) - 0.001)
                    await quiet()
                    assert agent.exit is None
                    manual_clock.advance(0.001)
                    await quiet()
        assert agent.exit == expected


async def test_stopping_twice_and_at_once_gives_the_same_exit() -> None:
    exits: list[Exit] = []
    async with running(["cat"]) as agent:

        async def stop() -> None:
            exits.append(await agent.stop())

        with anyio.fail_after(WAIT_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(stop)
                tasks.start_soon(stop)
            await stop()
        assert exits == [agent.exit] * 3
    agent.terminate()
    agent.kill()


async def test_a_cancelled_stop_kills_at_once() -> None:
    async with running(python(DEAF)) as agent:
        await take(agent.link, 1)
        with anyio.move_on_after(0.01):
            await agent.stop()
        with anyio.fail_after(SOON_S):
            assert (await agent.exited()).stopped_by == "kill"


async def test_terminate_and_kill_act_without_waiting() -> None:
    async with running(["sleep", "600"]) as agent, running(python(DEAF)) as deaf:
        await take(deaf.link, 1)
        agent.terminate()
        deaf.terminate()
        with anyio.fail_after(SOON_S):
            assert await agent.exited() == Exit(None, signal.SIGTERM, "", "term")
        assert deaf.exit is None
        deaf.kill()
        with anyio.fail_after(SOON_S):
            assert await deaf.exited() == Exit(None, signal.SIGKILL, "", "kill")


async def test_what_an_agent_says_at_the_end_of_its_input_is_received() -> None:
    async with running(["sh", "-c", "cat; echo last words"]) as agent:
        await agent.link.send(b"first")
        with anyio.fail_after(WAIT_S):
            assert (await agent.stop()).exit_code == 0
        assert await take_all(agent.link) == [b"first", b"last words"]
        with pytest.raises(LinkClosed):
            agent.link.send_nowait(b"late")


# -- launching --------------------------------------------------------------------------------------------


def make_program(path: Path, text: str, mode: int) -> str:
    path.write_text(text)
    path.chmod(mode)
    return str(path)


@pytest.mark.parametrize(
    ("text", "mode", "reason", "name"),
    [
        (None, 0, "not_found", "ENOENT"),
        ("#!/bin/sh\n", 0o644, "not_executable", "EACCES"),
        ("just text\n", 0o755, "not_executable", "ENOEXEC"),
        ("#!/no/such/interpreter\n", 0o755, "not_found", "ENOENT"),
    ],
)
async def test_a_program_that_cannot_run_is_a_definite_failure(
    tmp_path: Path, text: str | None, mode: int, reason: str, name: str
) -> None:
    program = make_program(tmp_path / "agent", text, mode) if text is not None else str(tmp_path / "missing")
    before = open_descriptors()
    with anyio.fail_after(WAIT_S), pytest.raises(AgentLaunchFailed) as failure:
        await spawn([program], cwd=tmp_path, env={})
    assert failure.value.context == {"definite": True, "reason": reason, "errno": name}
    assert failure.value.definite
    assert str(tmp_path) not in str(failure.value)
    assert open_descriptors() == before


async def test_a_directory_that_is_not_there_is_told_apart_from_a_missing_program(tmp_path: Path) -> None:
    with anyio.fail_after(WAIT_S), pytest.raises(AgentLaunchFailed) as failure:
        await spawn(["cat"], cwd=tmp_path / "nowhere", env={"PATH": os.defpath})
    assert failure.value.context["reason"] == "bad_cwd"


@pytest.mark.parametrize(("command", "reason"), [([], "empty_command"), (["a\0b"], "refused")])
async def test_a_command_that_is_none_is_refused(command: list[str], reason: str) -> None:
    before = open_descriptors()
    with pytest.raises(AgentLaunchFailed) as failure:
        await spawn(command, cwd="/", env={})
    assert failure.value.context["reason"] == reason
    assert open_descriptors() == before


@pytest.mark.parametrize(
    ("guard", "reason"), [("raise SystemExit", "guard_lost"), ("import time; time.sleep(600)", "too_slow")]
)
async def test_a_launch_without_an_answer_is_an_indefinite_failure_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, guard: str, reason: str
) -> None:
    path = tmp_path / "guard.py"
    path.write_text(guard)
    monkeypatch.setattr(process, "GUARD", path)
    before = open_descriptors()
    limits = Limits(launch_s=0.3 if reason == "too_slow" else 10, stop_kill_s=0.05)
    with anyio.fail_after(WAIT_S), pytest.raises(AgentLaunchFailed) as failure:
        await spawn(["cat"], cwd="/", env={}, limits=limits)
    assert failure.value.context == {"definite": False, "reason": reason}
    # On a busy machine the killed guard is reaped after the bounded wait of `spawn`.
    with anyio.fail_after(WAIT_S):
        while open_descriptors() != before:
            await checkpoint()


async def test_a_cancelled_launch_leaves_nothing() -> None:
    before = open_descriptors()
    with anyio.move_on_after(0.001) as scope:
        await spawn(["sleep", "600"], cwd="/", env={"PATH": os.defpath})
    assert scope.cancelled_caught
    assert open_descriptors() == before


async def test_an_agent_has_a_session_of_its_own() -> None:
    async with running(["cat"]) as agent:
        assert os.getsid(agent.pid) == os.getpgid(agent.pid) == agent.pid


async def test_an_agent_gets_its_directory_its_environment_and_its_three_streams(tmp_path: Path) -> None:
    code = "import os; print(os.getcwd()); print(sorted(os.environ)); print(sorted(os.listdir('/dev/fd'))[:-1])"
    with anyio.fail_after(WAIT_S):
        agent = await spawn(python(code), cwd=tmp_path, env={"A": "1", "LC_CTYPE": "C.UTF-8"})
        lines = await take_all(agent.link)
        await agent.aclose()
    assert lines == [os.fsencode(tmp_path), b"['A', 'LC_CTYPE']", b"['0', '1', '2']"]


def open_descriptors() -> set[str]:
    return set(os.listdir("/dev/fd"))


# -- how it ended -----------------------------------------------------------------------------------------


async def test_an_exit_is_told_with_its_code_and_the_end_of_stderr_within_a_second() -> None:
    async with running(["sh", "-c", "read line; echo oops >&2; exit 3"]) as agent:
        await agent.link.send(b"go")
        with anyio.fail_after(SOON_S):
            assert await agent.exited() == Exit(3, None, "oops\n", None)


async def test_a_signal_is_told_within_a_second() -> None:
    async with running(["sh", "-c", "echo going >&2; kill -SEGV $$"]) as agent:
        with anyio.fail_after(SOON_S):
            assert await agent.exited() == Exit(None, signal.SIGSEGV, "going\n", None)


async def test_everything_said_before_an_exit_is_received_after_it() -> None:
    async with running(["sh", "-c", "seq 1 5000; exit 1"]) as agent:
        with anyio.fail_after(WAIT_S):
            assert (await agent.exited()).exit_code == 1
        assert await take_all(agent.link) == [b"%d" % number for number in range(1, 5001)]


async def test_a_signal_that_python_ignores_ends_the_agent_as_it_ends_any_program() -> None:
    async with running(["sh", "-c", "kill -PIPE $$; echo survived"]) as agent:
        with anyio.fail_after(SOON_S):
            assert (await agent.exited()).signal == signal.SIGPIPE


# -- what it prints to standard error ---------------------------------------------------------------------


async def test_of_a_flood_on_stderr_the_end_is_kept_and_nothing_waits_for_it() -> None:
    code = "import sys; sys.stderr.write('x' * 20_000_000 + '\\n' + 'the end\\n'); print('done')"
    async with running(python(code)) as agent:
        assert await take(agent.link, 1) == [b"done"]
        with anyio.fail_after(WAIT_S):
            tail = (await agent.exited()).stderr_tail
        assert tail.endswith("x\nthe end\n")
        assert len(tail) == STDERR_TAIL_BYTES


async def test_stderr_that_is_no_text_is_kept_as_far_as_it_is() -> None:
    async with running(["sh", "-c", r"printf 'caf\303\251 \377\n' >&2"]) as agent:
        with anyio.fail_after(WAIT_S):
            assert (await agent.exited()).stderr_tail == "café \N{REPLACEMENT CHARACTER}\n"


async def test_secrets_are_seen_neither_in_the_tail_nor_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="turnwire.agent")
    command = ["sh", "-c", 'printf "%s\\n" "key $KEY in $HOME" >&2']
    async with running(command, additions=["KEY=hunter2hunter2", "HOME=/somewhere"]) as agent:
        with anyio.fail_after(WAIT_S):
            tail = (await agent.exited()).stderr_tail
    assert tail == "key [redacted] in /somewhere\n"
    assert "stderr: key [redacted] in /somewhere" in caplog.messages
    assert "hunter2" not in caplog.text


async def test_half_a_secret_at_the_cut_of_the_tail_is_not_shown() -> None:
    secret = "abcdefghij" * 10
    dots = STDERR_TAIL_BYTES - KiB + 500
    code = f"import os, sys; key = os.environ['KEY']; sys.stderr.write(key + '.' * 473 + key + '.' * {dots} + '!')"
    async with running(python(code), additions=[f"KEY={secret}"]) as agent:
        with anyio.fail_after(WAIT_S):
            tail = (await agent.exited()).stderr_tail
    assert tail == "." * 423 + "[redacted]" + "." * dots + "!"


# -- what it does to the link -----------------------------------------------------------------------------


async def test_a_flood_of_lines_arrives_in_order_while_memory_stays_bounded() -> None:
    code = "import sys\nfor n in range(100_000): sys.stdout.write('%d %s\\n' % (n, 'x' * 90))"
    async with running(python(code), limits=Limits(link_buffer_bytes=64 * KiB)) as agent:
        seen, largest = 0, 0
        with anyio.fail_after(WAIT_S):
            while seen < 100_000:
                frames = await agent.link.receive()
                largest = max(largest, sum(map(len, frames)))
                assert [int(frame.split()[0]) for frame in frames] == list(range(seen, seen + len(frames)))
                seen += len(frames)
        assert largest < 64 * KiB + 256 * KiB


async def test_a_line_of_60_megabytes_arrives_and_one_beyond_the_limit_is_counted() -> None:
    code = "import sys; w = sys.stdout.write; w('a' * 60_000_000 + '\\n'); w('b' * 70_000_000 + '\\n'); w('c\\n')"
    async with running(python(code)) as agent:
        frames = await take_all(agent.link, 30)
        assert [(frame[:1], len(frame)) for frame in frames] == [(b"a", 60_000_000), (b"c", 1)]
        assert agent.link.breaches == {"oversized": 1}
        assert agent.link.last_breaches[0].head == b"b" * 256


async def test_garbage_on_stdout_is_counted_and_what_follows_is_heard() -> None:
    heard: list[str] = []

    async def settled() -> None:
        return

    def incoming(frame: Request | Notification) -> None:
        heard.append(frame.method)

    script = r"""printf 'Welcome!\n\377\376\n{"a":\n\n[]\n{"jsonrpc":"2.0","method":"still/there"}\n'"""
    async with running(["sh", "-c", script]) as agent:
        peer = Peer(agent.link, incoming, settled)
        with anyio.fail_after(WAIT_S):
            await peer.run()
        assert heard == ["still/there"]
        assert sum(peer.breaches.values()) == 4


async def test_a_peer_that_never_reads_stops_neither_us_nor_its_own_end() -> None:
    limits = Limits(link_buffer_bytes=64 * KiB, stop_eof_s=0.1)
    async with running(["sleep", "600"], limits=limits) as agent:
        begun = time.monotonic()
        assert fill(agent.link) < 64 * KiB + 256 * KiB
        with anyio.move_on_after(0.05) as scope:
            await agent.link.send(b"waits")
        assert scope.cancelled_caught
        assert time.monotonic() - begun < SOON_S
        with anyio.fail_after(WAIT_S):
            assert (await agent.stop()).stopped_by == "term"


async def test_an_agent_that_closes_its_output_breaks_the_link_and_lives_until_it_is_stopped() -> None:
    async with running(["sh", "-c", "echo bye; exec >&-; cat >/dev/null"]) as agent:
        assert await take_all(agent.link) == [b"bye"]
        assert agent.exit is None
        with anyio.fail_after(WAIT_S):
            assert await agent.stop() == Exit(0, None, "", "eof")


async def test_an_agent_that_closes_its_input_is_heard_to_its_end() -> None:
    code = "import os; os.close(0); print('deaf'); import signal; signal.pause()"
    async with running(python(code)) as agent:
        assert await take(agent.link, 1) == [b"deaf"]
        with anyio.fail_after(WAIT_S), pytest.raises(LinkBroken):
            await send_for_ever(agent.link)
        agent.terminate()
        assert await take_all(agent.link) == []


def fill(link: FrameLink) -> int:
    """Send until the link refuses; how many bytes it took."""
    for taken in count(step=KiB):
        try:
            link.send_nowait(b"x" * (KiB - 1))
        except LimitExceeded:
            return taken
    raise AssertionError


async def send_for_ever(link: FrameLink) -> None:
    while True:
        await link.send(b"x" * KiB)
        await checkpoint()


async def test_a_scripted_agent_answers_over_its_pipes() -> None:
    async def settled() -> None:
        return

    async with running([sys.executable, "-m", "turnwire_testing.agent"]) as agent:
        peer = Peer(agent.link, lambda _: None, settled)
        with anyio.fail_after(2 * WAIT_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(peer.run)
                answer = await peer.call("initialize", Raw(b'{"protocolVersion":1}'))
                assert isinstance(answer, Result)
                assert (await agent.stop()).exit_code == 0


async def test_a_flood_on_stderr_is_a_few_warnings_and_the_rest_is_for_who_looks_for_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, logger="turnwire.agent.stderr")
    async with running(["sh", "-c", "for i in $(seq 100); do echo line $i >&2; done"]) as agent:
        with anyio.fail_after(WAIT_S):
            await agent.exited()
    lines = [each for each in caplog.records if each.getMessage().startswith("stderr: line")]
    assert [each.levelno for each in lines] == [logging.WARNING] * 20 + [logging.DEBUG] * 80
    assert len([each for each in caplog.records if "20 lines a minute" in each.getMessage()]) == 1
