"""Facts in the pages that a machine can check: links, file names, names of tests, command lines, JSON and TOML.

Nothing is run. A command line is read by the command's own parser, so a renamed option is found here.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest

from turnwire.cli.commands import WithAgent
from turnwire.cli.main import cli

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(?P<language>\w*)[^\n`]*\n(?P<text>.*?)^```$", flags=re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")
SOURCE_FILE = re.compile(r"`((?:\w+/)+\w+\.py)`")
PLACEHOLDER = re.compile(r"\[[^\]]*\]|…|\.\.\.")
COMMAND_ENDS = {"|", "||", "&&", "&", ";", ">", ">>", "2>", "<", ")"}
OPTIONS_NAMED_WITHOUT_VALUE = {"--daemon"}
PAGES_OF_MISTAKES = {"troubleshooting.md", "CHANGELOG.md"}

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())


def prose(page: Path) -> str:
    """Return the text of a page without its code blocks."""
    return BLOCK.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", prose(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@cache
def python_files() -> list[str]:
    """Return the absolute paths of the Python files in the repository."""
    folders = ("src", "packages", "tests", "scripts", "bench", "fuzz", "examples", "realagents")
    return [path.as_posix() for folder in folders for path in (ROOT / folder).rglob("*.py")]


@each_page
def test_relative_links_resolve(page: Path) -> None:
    dead: list[str] = []
    for match in LINK.finditer(prose(page)):
        target, _, anchor = match["target"].partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        linked = page.parent / target if target else page
        if not linked.exists() or (anchor and not (linked.suffix == ".md" and anchor in anchors(linked))):
            dead.append(match["target"])
    assert dead == []


@each_page
def test_named_source_files_exist(page: Path) -> None:
    if page.name != "CHANGELOG.md":
        named = set(SOURCE_FILE.findall(page.read_text(encoding="utf-8")))
        missing = [name for name in named if not any(each.endswith(f"/{name}") for each in python_files())]
        assert missing == []


@cache
def known_tests() -> set[str]:
    """Return the names of all tests in the repository."""
    files = [path for folder in ("tests", "src", "packages") for path in (ROOT / folder).rglob("*.py")]
    return {name for path in files for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.M)}


def test_every_guarantee_names_tests_that_exist() -> None:
    text = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## (G\d+)\b(.*?)(?=^## |\Z)", text, flags=re.MULTILINE | re.DOTALL))
    assert list(sections) == [f"G{number}" for number in range(1, len(sections) + 1)]
    named = {number: re.findall(r"`(test_\w+)`", section) for number, section in sections.items()}
    assert [number for number, tests in named.items() if not tests] == []
    assert {test for tests in named.values() for test in tests} - known_tests() == set()


def test_every_promise_of_the_security_page_names_a_test_that_exists() -> None:
    text = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    promises = [row for row in rows if row[-1] != "shown by" and set(row[-1]) != {"-"} and row[0] != "operator"]
    assert len(promises) > 20
    for *promise, evidence in promises:
        named = re.findall(r"`([^`]+)`", evidence)
        assert named, promise
        tests = {each for each in named if each.startswith("test_")}
        assert tests <= known_tests(), promise
        assert all((ROOT / each).is_file() for each in set(named) - tests), promise


def test_guarantee_marks_name_numbers_that_exist() -> None:
    page = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
    known = set(re.findall(r"^## (G\d+)\b", page, flags=re.MULTILINE))
    marked: set[str] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        for arguments in re.findall(r"mark\.guarantee\(([^)]*)\)", path.read_text(encoding="utf-8")):
            marked |= set(ast.literal_eval(f"[{arguments}]"))
    assert marked <= known


def command_lines(text: str) -> Iterator[str]:
    """Yield the turnwire command lines of a page, from its shell blocks and from its prose."""
    for block in BLOCK.finditer(text):
        lines = block["text"].replace("\\\n", " ").splitlines()
        # In a block with shell prompts, lines without one are output.
        typed = [line for line in lines if line.startswith("$ ")] or lines
        for line in typed:
            match = re.match(r"(?:\$ )?(?:[A-Z_]+=\S+ )*(turnwire(?: .*)?)$", line.strip())
            if match and block["language"] in {"", "console", "sh", "bash"}:
                yield match[1]
    yield from re.findall(r"`(turnwire(?: [^`]*)?)`", BLOCK.sub("", text))


def words_of(line: str) -> list[str]:
    """Split a command line up to the end of its first command, without comments and placeholders."""
    bare = PLACEHOLDER.sub("", re.sub(r"\s{2,}\S.*$", "", line))
    reader = shlex.shlex(bare, posix=True, punctuation_chars=True)
    reader.whitespace_split = True
    words = list(reader)
    words = words[: next((at for at, word in enumerate(words) if word in COMMAND_ENDS), len(words))]
    return [*words, "VALUE"] if words[-1] in OPTIONS_NAMED_WITHOUT_VALUE else words


def usage_error(line: str) -> str | None:
    """Return the reason why the command line is rejected, or `None` when it is valid."""
    try:
        parse(words_of(line)[1:])
    except click.UsageError as error:
        return f"{line}: {error.format_message()}"
    except ValueError as error:
        return f"{line}: {error}"
    return None


def parse(words: list[str]) -> None:
    command: click.Command = cli
    context = click.Context(cli, info_name="turnwire")
    while True:
        if isinstance(command, WithAgent) and "--" in words:
            words = words[: words.index("--")]
        _, rest, _ = command.make_parser(context).parse_args(args=list(words))
        if not isinstance(command, click.Group):
            break
        if not rest or rest[0] == "COMMAND":
            return
        found = command.get_command(context, rest[0])
        if found is None:
            raise click.UsageError(f"No such command {rest[0]!r}.")
        command, words = found, rest[1:]
        context = click.Context(command, info_name=rest[0], parent=context)
    if rest:
        raise click.UsageError(f"Unexpected arguments: {rest}")


@each_page
def test_command_lines_parse(page: Path) -> None:
    if page.name not in PAGES_OF_MISTAKES:
        errors = [usage_error(line) for line in command_lines(page.read_text(encoding="utf-8"))]
        assert [each for each in errors if each] == []


@pytest.mark.parametrize(
    ("line", "is_valid"),
    [
        ("turnwire serve --port 0 -- my-agent --flag", True),
        ("turnwire serve --prot 0", False),
        ("turnwire token mint", False),
        ("turnwire export SESSION | gzip", True),
        ("turnwire version now", False),
    ],
)
def test_invalid_command_line_is_found(line: str, is_valid: bool) -> None:
    assert (usage_error(line) is None) is is_valid


@each_page
def test_json_and_toml_blocks_parse(page: Path) -> None:
    for block in BLOCK.finditer(page.read_text(encoding="utf-8")):
        if block["language"] == "json":
            json.loads(block["text"])
        elif block["language"] == "toml":
            tomllib.loads(block["text"])
