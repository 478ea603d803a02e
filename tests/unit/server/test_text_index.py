"""The text index, in memory and in a file."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from turnwire.ids import ChildId, Epoch, PromptId, SessionId
from turnwire.server.daemon import text_index
from turnwire.server.daemon.text_index import VERSION, Text, TextIndex

pytestmark = pytest.mark.anyio

ONE, TWO = SessionId("one"), SessionId("two")
EPOCH = Epoch("e1")


@pytest.fixture(params=["memory", "file"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return None if request.param == "memory" else tmp_path / "search.db"


@asynccontextmanager
async def opened(path: Path | None) -> AsyncGenerator[TextIndex]:
    index = await TextIndex.open(path)
    assert index is not None
    try:
        yield index
    finally:
        await index.aclose()


async def say(index: TextIndex, session_id: SessionId, *texts: str, offset: int = 9) -> None:
    rows = [Text(place, text, "agent") for place, text in enumerate(texts, 1)]
    await index.save(session_id, EPOCH, offset, "names", rows)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("parser", True),
        ("PARSER", True),
        ("pars", True),
        ("arser", False),
        ("pars bug", False),
        ("parser bu", True),
        ("bug parser", True),
        ("resume", True),
        ("Résumé", True),
        ("grosse", False),
        ("große", True),
        ("GROß", True),
        ("naive", True),
        ("don't", True),
        ("foo-bar", True),
        ("bar-foo", False),
        ("foo_b", True),
        ("a.b", True),
        ('"', False),
        ('"parser"', True),
        ('par"ser', False),
        ("parser AND", False),
        ("parser OR nothing", False),
        ("NOT nothing", False),
        ("parser* bug", True),
        ("text:parser", False),
        ("( parser", True),
        ("parser - bug", True),
        ("---", False),
        ("\0", False),
        ("parser\0", True),
        ("\udc80", False),
        ("日本", True),
        ("42", True),
    ],
)
async def test_a_text_has_words_by_letters_and_digits_alone(path: Path | None, words: str, expected: bool) -> None:
    async with opened(path) as index:
        said = "The parser has a bug; Resume, Große, nai\u0308ve, don't, foo-bar a.b 日本語 42"
        await say(index, ONE, said)
        await say(index, TWO, "something else")
        asked = words.split() or [words]
        assert await index.find(asked) == ({ONE} if expected else set())
        assert bool(await index.matches(asked, ONE, 3)) is expected


async def test_all_words_are_in_one_text(path: Path | None) -> None:
    async with opened(path) as index:
        await say(index, ONE, "one word", "another thing")
        await say(index, TWO, "one thing")
        assert await index.find(["one", "thing"]) == {TWO}
        assert await index.find([]) == set()


async def test_newest_matches_come_first_as_marked_snippets(path: Path | None) -> None:
    async with opened(path) as index:
        rows = [Text(number, f"word {number}", "agent") for number in range(1, 10)]
        rows.append(Text(10, "a long " * 50 + "word of mine", "user", PromptId("p"), ChildId("c")))
        await index.save(ONE, EPOCH, 10, "", rows)
        await say(index, TWO, "word")
        found = await index.matches(["word"], ONE, 3)
        assert [each.event_id for each in found] == [10, 9, 8]
        assert found[0]._replace(text="") == Text(10, "", "user", PromptId("p"), ChildId("c"))
        assert found[0].text.startswith("…")
        assert found[0].text.endswith("\1word\2 of mine")
        assert found[1].text == "\1word\2 9"
        assert await index.matches(["word"], SessionId("unknown"), 3) == []


async def test_text_of_the_same_event_is_replaced_and_an_empty_one_removes_it(path: Path | None) -> None:
    async with opened(path) as index:
        await say(index, ONE, "begun", "second")
        await say(index, ONE, "begun and finished", "")
        assert [each.text for each in await index.matches(["begun"], ONE, 9)] == ["\1begun\2 and finished"]
        assert await index.find(["second"]) == set()


async def test_what_is_forgotten_is_not_found_and_the_others_are(path: Path | None) -> None:
    async with opened(path) as index:
        await say(index, ONE, "word")
        await say(index, TWO, "word")
        await index.forget(ONE)
        await index.forget(ONE)
        await index.forget(SessionId("unknown"))
        assert await index.find(["word"]) == {TWO}
        assert set(index.cursors) == {TWO}


async def test_a_write_that_fails_leaves_the_cursor_where_it_was(
    path: Path | None,
) -> None:
    async with opened(path) as index:
        await say(index, ONE, "word", offset=1)
        bad = [Text(place, "more", "agent") for place in range(2, 6)]
        bad[3] = bad[3]._replace(role=object())  # pyright: ignore[reportArgumentType]
        with pytest.raises(sqlite3.Error):
            await index.save(ONE, EPOCH, 5, "", bad)
        assert index.cursors[ONE].offset == 1
        await index.save(ONE, EPOCH, 5, "", [each._replace(role="agent") for each in bad])
        assert index.cursors[ONE].offset == 5
        assert len(await index.matches(["more"], ONE, 9)) == 4


def files(folder: Path) -> list[Path]:
    return list(folder.iterdir())


async def test_a_file_has_all_of_it_again_and_is_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "search.db"
    async with opened(path) as index:
        await say(index, ONE, "word", offset=7)
        assert {each.stat().st_mode & 0o777 for each in files(tmp_path)} == {0o600}
        before = index.cursors
    async with opened(path) as index:
        assert index.cursors == before
        assert await index.find(["word"]) == {ONE}


async def test_a_key_is_not_used_again_by_another_session(tmp_path: Path) -> None:
    path = tmp_path / "search.db"
    async with opened(path) as index:
        await say(index, ONE, "word")
        key = index.cursors[ONE].key
        await index.forget(ONE)
    async with opened(path) as index:
        await say(index, TWO, "word")
        assert index.cursors[TWO].key != key


@pytest.mark.parametrize("content", [b"no database", b"SQLite format 3\0" + b"x" * 5000, b""])
async def test_a_file_that_is_no_index_becomes_one(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "search.db"
    path.write_bytes(content)
    async with opened(path) as index:
        assert index.cursors == {}
        await say(index, ONE, "word")
    async with opened(path) as index:
        assert await index.find(["word"]) == {ONE}


async def test_a_file_of_another_form_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "search.db"
    async with opened(path) as index:
        await say(index, ONE, "word")
    with closing(sqlite3.connect(path)) as file:
        file.execute(f"PRAGMA user_version = {VERSION + 1}")
    async with opened(path) as index:
        assert index.cursors == {}


async def test_without_fts5_or_a_place_for_it_there_is_no_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await TextIndex.open(tmp_path / "missing" / "search.db") is None

    def refuse() -> None:
        raise sqlite3.OperationalError("no such module: fts5")

    monkeypatch.setattr(text_index, "_check_fts5", refuse)
    assert await TextIndex.open(None) is None


async def test_a_very_long_text_is_found_by_its_beginning(
    path: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_index, "MAX_CHARACTERS", 20)
    async with opened(path) as index:
        await say(index, ONE, "first " * 3 + "   last")
        assert await index.find(["first"]) == {ONE}
        assert await index.find(["last"]) == set()
