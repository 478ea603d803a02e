"""Both stores fulfil the contract of `turnwire.agent.store`; the folder also after crashes and torn lines."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import anyio
import msgspec
import pytest

from turnwire.agent.folder_store import FolderStore
from turnwire.agent.store import Kept, MemoryStore, SessionStore
from turnwire.errors import (
    AppendConflict,
    ConfigError,
    LogCorrupt,
    LogUnavailable,
    LogVersionMismatch,
    RequestRefused,
    SessionNotFound,
)
from turnwire.hosting.services.roots import MARK
from turnwire_testing.patience import WAIT_S

pytestmark = pytest.mark.anyio

ODD_NAMES = ["..", ".", "a/b", "../../etc/passwd", "x" * 300, "é ", "%2E", "", "A", "a", "/"]


def memory(_: Path) -> SessionStore:
    return MemoryStore()


@pytest.fixture(params=[memory, FolderStore], ids=["memory", "folder"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> SessionStore:
    """Return one of the stores."""
    make: Callable[[Path], SessionStore] = request.param
    return make(tmp_path / "sessions")


def kept(session_id: str = "one", **changes: object) -> Kept:
    return msgspec.structs.replace(Kept(id=session_id, cwd="/work", updated_at="2026-01-01T00:00:00Z"), **changes)


async def ids(store: SessionStore, limit: int = 50, cwd: str | None = None) -> list[list[str]]:
    """The ids of all pages."""
    pages: list[list[str]] = []
    cursor: str | None = None
    with anyio.fail_after(WAIT_S):
        while True:
            page = await store.list(cwd, cursor, limit)
            pages.append([each.id for each in page.sessions])
            cursor = page.next_cursor
            if cursor is None:
                return pages


async def history(store: SessionStore, session_id: str = "one") -> list[bytes]:
    found = await store.load(session_id)
    assert found is not None
    return list(found.history)


async def test_what_was_saved_is_what_is_loaded(store: SessionStore) -> None:
    record = kept(
        directories=("/a", "/b"),
        title="A title",
        mode="code",
        options={"model": "m", "fast": True},
        state={"messages": [{"role": "user", "content": "é\n"}], "none": None, "number": 1.5},
    )
    await store.save(record)
    await store.append("one", [b'{"n":1}', b'{"n":2}'])
    await store.append("one", [b'{"n":3}'])
    assert await store.load("one") == msgspec.structs.replace(record, history=(b'{"n":1}', b'{"n":2}', b'{"n":3}'))


async def test_saving_again_replaces_the_record_and_leaves_the_history(store: SessionStore) -> None:
    await store.save(kept(state={"a": 1}))
    await store.append("one", [b"{}"])
    await store.save(kept(title="later", state={"b": 2}, revision=2))
    found = await store.load("one")
    assert found is not None
    assert (found.title, found.state, found.history) == ("later", {"b": 2}, (b"{}",))
    assert found.revision == 2


async def test_a_state_that_its_author_changes_later_is_not_saved_yet(store: SessionStore) -> None:
    state = {"messages": ["first"]}
    await store.save(kept(state=state))
    state["messages"].append("second")
    found = await store.load("one")
    assert found is not None
    assert found.state == {"messages": ["first"]}
    found.state["messages"].append("third")
    again = await store.load("one")
    assert again is not None
    assert again.state == {"messages": ["first"]}


async def test_what_was_never_saved_is_not_there(store: SessionStore) -> None:
    assert await store.load("one") is None
    assert await ids(store) == [[]]
    with pytest.raises(SessionNotFound, match="save it first"):
        await store.append("one", [b"{}"])
    assert await store.load("one") is None


async def test_a_deleted_session_does_not_come_back_by_an_append(store: SessionStore) -> None:
    await store.save(kept())
    await store.save(kept("two"))
    await store.delete("one")
    await store.delete("one")
    with pytest.raises(SessionNotFound):
        await store.append("one", [b"{}"])
    assert await store.load("one") is None
    assert await ids(store) == [["two"]]


async def test_a_deleted_session_does_not_come_back_by_a_save(store: SessionStore) -> None:
    await store.save(kept())
    await store.delete("one")
    with pytest.raises(SessionNotFound):
        await store.save(kept(revision=2))
    assert await store.load("one") is None
    assert await ids(store) == [[]]
    # A new session may have the name of an old one.
    await store.save(kept(title="new"))
    assert await history(store) == []


@pytest.mark.parametrize("revision", [1, 2, 3, 5])
async def test_a_save_that_has_not_seen_the_last_one_is_refused_and_changes_nothing(
    store: SessionStore, revision: int
) -> None:
    for number in (1, 2, 3):
        await store.save(kept(state={"n": number}, revision=number))
    before = await store.load("one")
    with pytest.raises(AppendConflict, match="load it"):
        await store.save(kept(state={"n": "another"}, revision=revision))
    assert await store.load("one") == before
    await store.save(kept(state={"n": 4}, revision=4))


async def test_a_list_is_newest_first_in_pages_without_gap_or_repetition(store: SessionStore) -> None:
    for number in range(7):
        # Two at a time have the same moment.
        await store.save(kept(f"s{number}", updated_at=f"2026-01-01T00:00:0{number // 2}Z", state={"big": "x"}))
    assert await ids(store, 3) == [["s6", "s5", "s4"], ["s3", "s2", "s1"], ["s0"]]
    page = await store.list(limit=1)
    assert (page.sessions[0].state, page.sessions[0].history) == ({}, ())


async def test_a_list_can_be_of_one_working_directory(store: SessionStore) -> None:
    for name, cwd in (("a", "/x"), ("b", "/y"), ("c", "/x")):
        await store.save(kept(name, cwd=cwd))
    assert await ids(store, 1, "/x") == [["c"], ["a"]]
    assert await ids(store, 1, "/z") == [[]]


async def test_a_cursor_of_somebody_else_is_refused(store: SessionStore, subtests: pytest.Subtests) -> None:
    cases: list[str] = ["", "x", "!!", "e30=", "WzFd", "é"]
    for cursor in cases:
        with subtests.test(repr(cursor)):
            with pytest.raises(RequestRefused, match="leave it out") as refused:
                await store.list(cursor=cursor)
            assert refused.value.jsonrpc == -32602


async def test_any_name_is_a_session_of_its_own(store: SessionStore, tmp_path: Path) -> None:
    for name in ODD_NAMES:
        await store.save(kept(name, title=name))
        await store.append(name, [msgspec.json.encode(name)])
    for name in ODD_NAMES:
        found = await store.load(name)
        assert found is not None
        assert (found.id, found.title, found.history) == (name, name, (msgspec.json.encode(name),))
    for name in ODD_NAMES:
        await store.delete(name)
    assert await ids(store) == [[]]
    assert set(os.listdir(tmp_path)) <= {"sessions"}


async def test_appends_that_overlap_keep_the_order_of_their_calls(store: SessionStore) -> None:
    await store.save(kept())
    async with anyio.create_task_group() as tasks:
        for number in range(50):
            tasks.start_soon(store.append, "one", [b"%d" % number])
    assert await history(store) == [b"%d" % number for number in range(50)]


async def test_a_state_that_json_cannot_hold_is_refused_and_the_old_record_stays(store: SessionStore) -> None:
    await store.save(kept(state={"a": 1}))
    with pytest.raises(ConfigError, match="plain values"):
        await store.save(kept(state={"a": object()}, revision=2))
    found = await store.load("one")
    assert found is not None
    assert found.state == {"a": 1}


# -- the folder alone ----------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "kept"


async def test_another_process_finds_everything(folder: Path) -> None:
    await FolderStore(folder).save(kept(state={"a": [1]}))
    await FolderStore(folder).append("one", [b'{"n":\n1}'])
    found = await FolderStore(folder).load("one")
    assert found == kept(state={"a": [1]}, history=(b'{"n": 1}',))


@pytest.mark.parametrize("tail", [b"{", b'{"n":2', b'"' * 200_000, b"\0\0\0"])
async def test_a_torn_tail_is_dropped_by_readers_and_by_the_next_append(folder: Path, tail: bytes) -> None:
    store = FolderStore(folder)
    await store.save(kept())
    await store.append("one", [b'{"n":1}'])
    with (folder / "one" / "history.ndjson").open("ab") as file:
        file.write(tail)
    assert await history(store) == [b'{"n":1}']
    await store.append("one", [b'{"n":3}'])
    assert await history(store) == [b'{"n":1}', b'{"n":3}']


async def test_a_line_that_is_no_json_is_left_out_and_the_rest_counts(folder: Path) -> None:
    store = FolderStore(folder)
    await store.save(kept())
    (folder / "one" / "history.ndjson").write_bytes(b'{"n":1}\n\0\0\0\n{"n":2}\n')
    assert await history(store) == [b'{"n":1}', b'{"n":2}']


KILLED = """
import sys, anyio
from turnwire.agent.folder_store import FolderStore
from turnwire.agent.store import Kept

async def main():
    store = FolderStore(sys.argv[1])
    number = 0
    await store.save(Kept(id="one", cwd="/"))
    while True:
        number += 1
        await store.append("one", [b'{"n":%d}' % number, b'{"more":"%s"}' % (b"x" * 5000)])
        await store.save(Kept(id="one", cwd="/", state={"n": number, "more": "x" * 5000}, revision=number + 1))
        print(number, flush=True)

anyio.run(main)
"""


async def test_a_process_that_is_killed_loses_nothing_that_it_was_told_is_kept(folder: Path) -> None:
    with anyio.fail_after(WAIT_S):
        process = await anyio.open_process([sys.executable, "-c", KILLED, str(folder)], stderr=subprocess.PIPE)
        async with process:
            assert process.stdout is not None
            heard = b""
            while heard.count(b"\n") < 20:
                heard += await process.stdout.receive()
            os.kill(process.pid, signal.SIGKILL)
            async for piece in process.stdout:
                heard += piece
    told = int(heard.split(b"\n")[-2])
    found = await FolderStore(folder).load("one")
    assert found is not None
    assert found.state["n"] in (told, told + 1)
    numbers = [line["n"] for line in map(msgspec.json.decode, found.history) if "n" in line]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) in (told, told + 1)


async def test_two_processes_may_add_to_one_session(folder: Path) -> None:
    await FolderStore(folder).save(kept())

    async def add(store: FolderStore, name: str) -> None:
        for number in range(30):
            await store.append("one", [msgspec.json.encode([name, number])])

    async with anyio.create_task_group() as tasks:
        for name in "ab":
            # A separate store has its own thread and file, like another process.
            tasks.start_soon(add, FolderStore(folder), name)
    lines = [msgspec.json.decode(line) for line in await history(FolderStore(folder))]
    for name in "ab":
        assert [number for each, number in lines if each == name] == list(range(30))


async def test_of_two_processes_that_save_at_once_one_is_refused(folder: Path) -> None:
    await FolderStore(folder).save(kept(state={"a": 0, "b": 0}))
    refused = list[str]()

    async def count(store: FolderStore, name: str) -> None:
        for _ in range(30):
            found = await store.load("one")
            assert found is not None
            state = {**found.state, name: found.state[name] + 1}
            try:
                await store.save(msgspec.structs.replace(found, state=state, revision=found.revision + 1))
            except AppendConflict:
                refused.append(name)

    async with anyio.create_task_group() as tasks:
        for name in "ab":
            tasks.start_soon(count, FolderStore(folder), name)
    found = await FolderStore(folder).load("one")
    assert found is not None
    # Every save that was not refused is still counted.
    assert found.state == {name: 30 - refused.count(name) for name in "ab"}
    assert found.revision == 1 + sum(found.state.values())


async def test_what_one_process_deletes_no_other_one_saves_again(folder: Path) -> None:
    one, two = FolderStore(folder), FolderStore(folder)
    await one.save(kept())
    await two.delete("one")
    with pytest.raises(SessionNotFound):
        await one.save(kept(revision=2))
    assert os.listdir(folder) == [MARK]


async def test_a_session_whose_maker_crashed_can_be_made_again_and_deleted(folder: Path) -> None:
    store = FolderStore(folder)
    for name in ("one", "two"):
        (folder / name).mkdir(parents=True)
    await store.save(kept())
    assert await history(store) == []
    await store.delete("two")
    assert sorted(os.listdir(folder)) == [MARK, "one"]


async def test_a_record_that_is_none_is_told_and_left_out_of_the_list(folder: Path) -> None:
    store = FolderStore(folder)
    for name in ("one", "two", "three"):
        await store.save(kept(name))
    (folder / "one" / "meta.json").write_bytes(b"{")
    (folder / "two" / "meta.json").write_bytes(b'{"version": 2, "id": "two", "cwd": "/"}')
    (folder / "stray").write_text("not a folder")
    with pytest.raises(LogCorrupt, match="one"):
        await store.load("one")
    with pytest.raises(LogVersionMismatch):
        await store.load("two")
    assert await ids(store) == [["three"]]


async def test_a_folder_that_cannot_be_used_is_an_error_with_a_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LogUnavailable, match="cannot be used: File exists"):
        await FolderStore(tmp_path / "file").save(kept())


async def test_files_are_for_their_owner_alone_and_nothing_is_left_beside_them(folder: Path) -> None:
    store = FolderStore(folder)
    for number in range(3):
        await store.save(kept(revision=number + 1))
        await store.append("one", [b"{}"])
    modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in (folder / "one").iterdir()}
    assert modes == {"meta.json": 0o600, "history.ndjson": 0o600}
    assert stat.S_IMODE((folder / "one").stat().st_mode) == 0o700
