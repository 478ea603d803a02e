"""No text of a peer controls the terminal of a viewer: not as text, not as JSON, not as an export."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.rig import Served, served
from tests.cli.test_terminal import on_terminal

from turnwire.cli.output import escaped

HOSTILE = "\x7f\x9b31m\x9d0;title\x9c\u202eevil\u2066\u200b\u2028"
"""Rubout, control sequences in one byte, text that runs backwards, text that is not seen."""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Generator[Served]:
    home: Path = tmp_path_factory.mktemp("home")
    with served(home) as running:
        yield running


@pytest.fixture(scope="module")
def session(daemon: Served) -> str:
    """Return a session whose agent has sent the text, and whose title is the text."""
    session = daemon.session()
    titled = json.dumps({"sessionUpdate": "session_info_update", "title": f"a {HOSTILE}"})
    said = daemon.run("prompt", "-s", session, f"update {titled}\nsay 1 '{HOSTILE}'")
    assert said.code == 0, said.err
    return session


def controls(text: str) -> list[str]:
    return sorted({each for each in text if each not in "\r\n\t" and not each.isprintable()})


@pytest.mark.parametrize(
    "words",
    [
        ("export", "SESSION"),
        ("export", "SESSION", "-o", "-"),
        ("tail", "SESSION", "--until-now", "--json"),
        ("tail", "SESSION", "--until-now"),
        ("explain", "SESSION", "--json"),
        ("explain", "SESSION"),
        ("sessions", "--json"),
        ("prompt", "-s", "SESSION", "--json", f"say 1 '{HOSTILE}'"),
        ("prompt", "-s", "SESSION", f"say 1 '{HOSTILE}'"),
    ],
    ids=" ".join,
)
def test_nothing_that_a_terminal_obeys_reaches_it(daemon: Served, session: str, words: tuple[str, ...]) -> None:
    given = [session if each == "SESSION" else each for each in words]
    with on_terminal(daemon, *given) as terminal:
        assert terminal.finish() == 0, terminal.shown
    shown = terminal.shown
    if "--json" in words or "export" in words:
        assert controls(shown) == []
        assert "\\u009b31m" in shown, "it is told, in another way"
        for line in shown.replace("\r", "").splitlines():
            if line.startswith("{"):
                json.loads(line)
    else:
        assert set(controls(shown)) <= {"\x1b", "\x07"}, "only our own"
        assert "\x9b" not in shown


def test_a_pipe_gets_what_was_said_as_it_is(daemon: Served, session: str) -> None:
    assert HOSTILE in daemon.run("export", session).out
    told = daemon.run("tail", session, "--until-now", "--json")
    # A stream is ASCII, so it is escaped in there, and means the same.
    assert HOSTILE in json.dumps(told.lines, ensure_ascii=False)


@given(
    st.recursive(
        st.text() | st.integers() | st.none(), lambda each: st.lists(each) | st.dictionaries(st.text(), each)
    )
)
def test_escaped_json_means_the_same(value: object) -> None:
    for text in (json.dumps(value, ensure_ascii=False), json.dumps(value, indent="\t")):
        shown = escaped(text)
        assert json.loads(shown) == value
        assert controls(shown) == []
        assert "\r" not in shown
