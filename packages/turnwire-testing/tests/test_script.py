"""Scripts: every command can be written and read back, and anything else is rejected with the usage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwire.errors import ConfigError
from turnwire_testing.scripted import commands as c
from turnwire_testing.scripted.actions import ACTIONS
from turnwire_testing.scripted.commands import COMMANDS, Command, Kind, parts_of, usage_of
from turnwire_testing.scripted.script import command_list, load_script, parse_command, parse_prompt, parse_script

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
LINE = TEXT.map(lambda text: text.replace("\n", " ")).filter(lambda text: bool(text.strip()))
ENTRY = LINE.map(lambda text: text.replace(";", ",").strip()).filter(bool)
ITEM = TEXT.map(lambda text: text.replace(",", "")).filter(bool)

VALUES: dict[Kind, st.SearchStrategy[Any]] = {
    Kind.COUNT: st.integers(0, 10**9),
    Kind.NUMBER: st.integers(-(10**9), 10**9),
    Kind.WORD: TEXT,
    Kind.TEXT: TEXT,
    Kind.ITEMS: st.lists(ITEM, min_size=1, max_size=4).map(tuple),
    Kind.WORDS: st.lists(TEXT, min_size=1, max_size=4).map(tuple),
    Kind.ENTRIES: st.lists(ENTRY, min_size=1, max_size=4).map(tuple),
    Kind.VERBATIM: LINE,
}


def commands(depth: int = 2) -> st.SearchStrategy[Command]:
    kinds = [each for each in COMMANDS.values() if depth or Kind.COMMAND not in {p.kind for p in parts_of(each)}]
    return st.sampled_from(kinds).flatmap(lambda kind: of_kind(kind, depth))


def of_kind(kind: type[Command], depth: int) -> st.SearchStrategy[Command]:
    return st.builds(
        kind,
        *(commands(depth - 1) if part.kind is Kind.COMMAND else VALUES[part.kind] for part in parts_of(kind)),
    )


@given(commands())
def test_a_command_is_read_back_from_its_line(command: Command) -> None:
    assert parse_command(str(command)) == command


@given(st.lists(commands(), max_size=6))
def test_a_script_is_read_back_from_its_lines(script: list[Command]) -> None:
    assert parse_script("\n".join(map(str, script))) == tuple(script)


@given(TEXT)
def test_any_prompt_is_a_script_or_an_echo_or_refused_as_a_script(text: str) -> None:
    try:
        parsed = parse_prompt(text)
    except ConfigError:
        first = next(line for line in text.split("\n") if line.strip() and not line.lstrip().startswith("#"))
        assert first.split()[0].startswith("/") or first.split()[0] in {*COMMANDS, "sleep-until"}
    else:
        assert parsed == (c.Echo(text),) or all(type(each) in COMMANDS.values() for each in parsed)


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ('say 5 "hello "', c.Say(5, "hello ")),
        ("think one two", c.Think("one two")),
        ("plan a; b ;c", c.Plan(("a", "b", "c"))),
        ("tool t1", c.Tool("t1")),
        ("tool t1 edit the title", c.Tool("t1", "edit", "the title")),
        ("ask t allow_once,reject_once", c.Ask("t", ("allow_once", "reject_once"))),
        ("terminal ls -l 'a b'", c.Terminal(("ls", "-l", "a b"))),
        ('update {"a": "don\'t"}', c.Update('{"a": "don\'t"}')),
        ("raw  two spaces ", c.Raw(" two spaces ")),
        ("sleep-until g", c.Gate("g")),
        ("after repeat 2 say 1 x", c.After(c.Repeat(2, c.Say(1, "x")))),
        ("error -32603 out of order", c.Error(-32603, "out of order")),
        ("/never", c.Never()),
        ("garbage", c.Garbage(0)),
    ],
)
def test_a_line_is_the_command_it_looks_like(line: str, command: Command) -> None:
    assert parse_command(line) == command


def test_empty_lines_and_comments_are_skipped_and_an_open_quote_goes_on() -> None:
    text = "# two commands\n\nsay 1 'one\ntwo'\n   never\n"
    assert parse_script(text) == (c.Say(1, "one\ntwo"), c.Never())


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("nonsense", "there is no command 'nonsense'"),
        ("say", "'n' is missing; write: say <n> <text…>"),
        ("say x y", "'n' is 'x', no number"),
        ("say -1 y", "must be 0 or more"),
        ("never mind", "'mind' is too much; write: never"),
        ("ask t ,", "at least one item"),
        ("plan ;", "at least one entry"),
        ("say 1 'open", "does not close it"),
        ("after", "'command' is missing"),
        ("after nonsense", "there is no command 'nonsense'"),
    ],
)
def test_a_line_that_is_no_command_is_refused_with_the_reason(line: str, reason: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        parse_command(line)
    assert reason in str(refusal.value)


@pytest.mark.parametrize("text", ["hello there", "", "what does 'say' do?", '"quoted" start', "Say hello"])
def test_other_text_is_echoed(text: str) -> None:
    assert parse_prompt(text) == (c.Echo(text),)


def test_an_unknown_slash_command_names_the_commands_that_exist() -> None:
    with pytest.raises(ConfigError) as refusal:
        parse_prompt("/nonsense")
    assert all(name in str(refusal.value) for name in COMMANDS)


@pytest.mark.parametrize(
    "build",
    [
        lambda: c.Raw("two\nlines"),
        lambda: c.Raw("  "),
        lambda: c.Commands(("a,b",)),
        lambda: c.Plan((" not stripped",)),
        lambda: c.Terminal(()),
        lambda: c.Say(-1, "x"),
    ],
)
def test_a_command_that_no_line_could_give_cannot_be_built(build: Any) -> None:
    with pytest.raises(ConfigError):
        build()


def test_a_script_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.script"
    path.write_text("say 1 grüße\n", encoding="utf-8")
    assert load_script(path) == (c.Say(1, "grüße"),)


def test_a_script_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refusal:
        load_script(tmp_path / "missing.script")
    assert "missing.script" in str(refusal.value)


def test_the_agent_can_do_every_command_and_the_list_shows_it() -> None:
    assert set(ACTIONS) == set(COMMANDS.values())
    assert all(f"{usage_of(each)} " in command_list() for each in COMMANDS.values())
