"""Running commands: real shells, real process trees, and nothing that outlives its call."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread
from tests.process.starting import is_listed, needs_linux, watching

from agent_kit.tool_kit import WAIT_S, Heard, refused, use
from turnwire.errors import LinkBroken
from turnwire_agent.tools import Workplace
from turnwire_agent.tools.run import Run
from turnwire_agent.tools.tool import shortened
from turnwire_agent.tools.workplace import TwoEnds

pytestmark = pytest.mark.anyio

TREE = "sleep 600 & echo $!; (setsid sleep 600 & echo $!); echo $$; echo ready; sleep 600"
"""A shell with a child in its group, and one in a separate session."""


async def test_a_command_gives_its_output_and_its_exit_code(tmp_path: Path) -> None:
    call = Heard()
    text = await use(Run(), tmp_path, call, command="pwd; echo oops >&2; exit 3")
    assert text == f"Exit code 3.\n{tmp_path}\noops\n"
    assert call.text == f"{tmp_path}\noops\n"
    assert call.has_failed, "a mark of success would be a lie"


async def test_a_silent_command_says_so(tmp_path: Path) -> None:
    assert await use(Run(), tmp_path, command="true") == "Exit code 0.\n(It printed nothing.)\n"


async def test_a_command_that_is_killed_names_the_signal(tmp_path: Path) -> None:
    assert await use(Run(), tmp_path, command="kill -TERM $$") == "Ended by SIGTERM.\n(It printed nothing.)\n"


async def test_a_command_has_no_input(tmp_path: Path) -> None:
    assert await use(Run(), tmp_path, command="cat; echo end") == "Exit code 0.\nend\n"


def gate(folder: Path) -> Path:
    """A pipe at which a command waits until the test comes to it."""
    os.mkfifo(folder / "gate")
    return folder / "gate"


async def test_output_is_told_while_the_command_runs(tmp_path: Path) -> None:
    """It continues only after its first line was received."""
    call, found = Heard(), list[str]()

    async def run() -> None:
        found.append(await use(Run(), tmp_path, call, command="echo first; read line < gate; echo $line"))

    door = gate(tmp_path)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        assert await call.until("first") == "first\n"
        await to_thread.run_sync(door.write_text, "second\n")
    assert found == ["Exit code 0.\nfirst\nsecond\n"]
    assert call.text == "first\nsecond\n"


async def test_of_long_output_both_ends_are_kept(tmp_path: Path) -> None:
    call = Heard()
    text = await use(Run(), tmp_path, call, command="echo begin; seq 1 100000; echo end")
    assert text.startswith("Exit code 0.\nbegin\n1\n2\n")
    assert text.endswith("\n100000\nend\n")
    assert "left out here …]" in text
    assert len(text) < 45_000
    assert call.text.startswith("begin\n1\n2\n")
    assert call.text.endswith("100000\nend\n")
    assert len(call.text) < 70_000


@needs_linux
async def test_a_command_that_takes_too_long_is_ended_with_its_tree(tmp_path: Path) -> None:
    call = Heard()
    with anyio.fail_after(WAIT_S):
        text = await Run().run(Workplace(tmp_path), {"command": TREE, "timeout": 2}, call)
    assert text.startswith("Ended after 2 s, before it was done.")
    pids = [int(word) for word in text.splitlines()[1:4]]
    assert [pid for pid in pids if is_listed(pid)] == []


@needs_linux
async def test_a_cancelled_command_is_ended_with_its_tree(tmp_path: Path) -> None:
    call, pids = Heard(), list[int]()
    with watching() as tree:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(Run().run, Workplace(tmp_path), {"command": TREE}, call)
            pids += [int(word) for word in (await call.until("ready")).split()[:3]]
            tree.add(*pids)
            tasks.cancel_scope.cancel()
        assert [pid for pid in pids if is_listed(pid)] == []


@needs_linux
async def test_what_a_command_leaves_in_the_background_is_ended(tmp_path: Path) -> None:
    text = await use(Run(), tmp_path, command="sleep 600 & echo $!")
    assert not is_listed(int(text.split()[-1]))


async def test_a_flood_does_not_fill_memory_when_the_client_is_slow(tmp_path: Path) -> None:
    """A viewer of the output takes the first piece and no more until the command has ended."""
    done = anyio.Event()

    class Slow(Heard):
        def say(self, text: str, /) -> Any:
            super().say(text)
            return done.wait()

    call, door = Slow(), gate(tmp_path)
    async with anyio.create_task_group() as tasks:

        async def run() -> None:
            text = await use(Run(), tmp_path, call, command="seq 1 300000; echo ended > gate")
            assert text.endswith("\n300000\n")

        tasks.start_soon(run)
        await call.until("1\n2\n")
        assert await to_thread.run_sync(door.read_text) == "ended\n"
        assert len(call.text) <= 33_000
        done.set()
    assert call.text.endswith("\n300000\n")


async def test_a_command_whose_output_cannot_be_told_ends_with_the_reason(tmp_path: Path) -> None:
    class Broken(Heard):
        def say(self, text: str, /) -> None:
            self.text += text
            raise LinkBroken("the client is gone")

    call = Broken()
    with anyio.fail_after(WAIT_S), pytest.raises(LinkBroken):
        await Run().run(Workplace(tmp_path), {"command": "echo $$; sleep 600"}, call)
    assert not is_listed(int(call.text))


async def test_a_command_gets_no_secrets_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "key-of-a-model")
    monkeypatch.setenv("TURNWIRE_TOKEN", "token")
    text = await use(Run(), tmp_path, command="env")
    assert "PATH=" in text
    assert "key-of-a-model" not in text
    assert "TURNWIRE" not in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "missing required field `command`"),
        ({"command": ""}, "length >= 1"),
        ({"command": "  "}, "empty"),
        ({"command": "a\0b"}, "zero byte"),
        ({"command": "true", "timeout": 0}, ">= 1"),
        ({"command": ["true"]}, "Expected `str`"),
    ],
)
async def test_what_cannot_be_run_is_told_in_words(tmp_path: Path, arguments: dict[str, Any], words: str) -> None:
    assert words in str(await refused(Run(), tmp_path, **arguments))


async def test_a_folder_that_is_gone_is_told(tmp_path: Path) -> None:
    assert (await refused(Run(), tmp_path / "gone", command="true")).reason == "root_missing"


def test_titles_are_one_short_line_whatever_was_sent() -> None:
    assert Run().title({"command": "make\n  test"}) == "Run make test"
    assert Run().title({"command": 7}) == "Run …"
    assert len(Run().title({"command": "x" * 1000})) < 100


async def test_both_ends_are_kept_at_any_cut_of_the_bytes() -> None:
    whole = "ä€😀" * 50
    for size in (1, 2, 3, 7):
        output = TwoEnds(head_bytes=40, tail_bytes=40)
        for at in range(0, len(whole.encode()), size):
            output.feed(whole.encode()[at : at + size])
        output.end()
        head, _, tail = output.text().partition("\n[… ")
        assert whole.startswith(head)
        assert whole.endswith(tail.partition("…]\n")[2])
        left_out = int(tail.split()[0])
        kept = len(head.encode()) + len(tail.partition("…]\n")[2].encode())
        assert left_out + kept == len(whole.encode())


def test_a_shortened_text_keeps_both_ends() -> None:
    assert shortened("short", 10) == "short"
    assert shortened("a" * 50 + "b" * 50, 10) == "aaaaa\n[… 90 characters are left out here …]\nbbbbb"
