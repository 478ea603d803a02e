"""What the pages tell a reader to type or to paste: command lines are ones that we take, JSON and TOML can be read.

Nothing is run. A command line is parsed by the command's own parser, so an option that was renamed is found here.
"""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click
import pytest
from tests.architecture.test_papers import ROOT, papers

from turnwire.cli.commands import WithAgent
from turnwire.cli.main import cli

BLOCK = re.compile(r"^```(?P<language>\w*)[^\n`]*\n(?P<text>.*?)^```$", flags=re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`(turnwire(?: [^`]*)?)`")
NOT_TYPED = re.compile(r"\[[^\]]*\]|…|\.\.\.")
"""What stands for something else: `[options]`, `agent…`."""
SHELLS = {"", "console", "sh", "bash"}
ENDS = {"|", "||", "&&", "&", ";", ">", ">>", "2>", "<", ")"}
"""What the shell takes a command's words up to."""


VALUED = {"--daemon"}
WRONG = {"troubleshooting.md"}
"""Pages of mistakes, with what is said to them; their own tests make them."""


class Block(NamedTuple):
    page: Path
    language: str
    text: str


def blocks() -> list[Block]:
    pages = [(page, BLOCK.finditer(page.read_text(encoding="utf-8"))) for page in papers(ROOT)]
    return [Block(page, found["language"], found["text"]) for page, all_found in pages for found in all_found]


def typed(page: Path) -> Iterator[str]:
    """The command lines of ours on a page: in blocks, and in the text."""
    text = page.read_text(encoding="utf-8")
    for block in BLOCK.finditer(text):
        joined = block["text"].replace("\\\n", " ")
        # Where a prompt is shown, what has none is what the commands print.
        told = re.findall(r"^\$ .*$", joined, flags=re.MULTILINE)
        for line in told or joined.splitlines():
            if block["language"] in SHELLS and (
                match := re.match(r"(?:\$ )?(?:[A-Z_]+=\S+ )*(turnwire(?: .*)?)$", line.strip())
            ):
                yield match[1]
            # As words of a setting of an editor, and behind a program that starts it.
            yield from re.findall(r"\"(turnwire \w[^\"]*)\"", line)
    yield from INLINE.findall(BLOCK.sub("", text))


def words_of(line: str) -> list[str]:
    """The words up to the end of the command, without a comment and what stands for something else."""
    reader = shlex.shlex(NOT_TYPED.sub("", re.sub(r"\s{2,}\S.*$", "", line)), posix=True, punctuation_chars=True)
    reader.whitespace_split = True
    words = list(reader)
    end = next((at for at, word in enumerate(words) if word in ENDS), len(words))
    words = words[:end]
    # In a sentence an option may be named without its value.
    return [*words, "VALUE"] if words[-1] in VALUED else words


def complaint(line: str) -> str | None:
    """Why our command line would not take it."""
    try:
        _check(words_of(line)[1:])
    except click.UsageError as refused:
        return f"{line}: {refused.format_message()}"
    except ValueError as unreadable:
        return f"{line}: {unreadable}"
    return None


def _check(words: list[str]) -> None:
    command: click.Command = cli
    ctx = click.Context(cli, info_name="turnwire")
    while True:
        if isinstance(command, WithAgent) and "--" in words:
            words = words[: words.index("--")]
        _, rest, _ = command.make_parser(ctx).parse_args(args=list(words))
        if not isinstance(command, click.Group):
            break
        if not rest or rest[0] == "COMMAND":
            return
        found = command.get_command(ctx, rest[0])
        if found is None:
            raise click.UsageError(f"there is no command {rest[0]!r}")
        command, words = found, rest[1:]
        ctx = click.Context(command, info_name=rest[0], parent=ctx)
    if rest:
        raise click.UsageError(f"nobody takes {rest}")


@pytest.mark.parametrize(
    "page",
    [page for page in papers(ROOT) if page.name not in WRONG],
    ids=lambda page: page.relative_to(ROOT).as_posix(),
)
def test_every_command_line_of_a_page_is_one_that_we_take(page: Path) -> None:
    complaints = [complaint(line) for line in typed(page)]
    assert [each for each in complaints if each] == []


def test_every_command_line_in_the_heads_of_the_files_of_deploy_is_one_that_we_take() -> None:
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "deploy").iterdir()]
    lines = [line for text in texts for line in re.findall(r"^#   (turnwire .*)$", text, flags=re.MULTILINE)]
    assert len(lines) >= 2
    assert [each for each in map(complaint, lines) if each] == []


@pytest.mark.parametrize(
    ("line", "is_right"),
    [
        ("turnwire serve --port 0 -- my-agent --flag", True),
        ("turnwire serve --prot 0", False),
        ("turnwire token create --role owner", True),
        ("turnwire token mint", False),
        ("turnwire nothing", False),
        ("turnwire export SESSION | gzip", True),
        ("turnwire version now", False),
    ],
)
def test_a_command_line_that_we_do_not_take_is_found(line: str, is_right: bool) -> None:
    assert (complaint(line) is None) is is_right


def test_every_piece_of_json_and_toml_can_be_read() -> None:
    for block in blocks():
        if block.language == "json":
            json.loads(block.text)
        elif block.language == "toml":
            tomllib.loads(block.text)


def test_every_editor_says_whether_it_was_tried() -> None:
    page = (ROOT / "docs" / "editors.md").read_text(encoding="utf-8")
    sections = re.split(r"^## ", page, flags=re.MULTILINE)[1:]
    assert len(sections) == 9
    for section in sections:
        title, _, text = section.partition("\n")
        assert re.search(r"^Tried: .*\d|\bFrom (?:the|`)", text, flags=re.MULTILINE), title
