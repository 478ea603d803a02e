"""What the papers say is still true: links lead somewhere, words are explained, promises have their numbers.

Reads the Markdown files of the repository and `docs/requirements.toml`.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")
HOME = re.compile(r"(?:^|[\s`\"'(=])(?:/(?:home|Users|root)/|[A-Z]:\\Users\\)")
TERM = re.compile(r"^- \*\*(?P<term>[^*]+)\*\*: \S")
SOURCE_FILE = re.compile(r"`((?:\w+/)*\w+\.py|(?:\w+/)+[\w{},]+)`")
"""A file, or something in a folder: a method of ACP looks like the second."""
READERS_OWN = {"my_agent.py"}
"""What a page tells its reader to write."""
STEP = re.compile(r"^\| \d+ \| `(?P<file>[\w/]+\.py)`", re.MULTILINE)
TERMS = [
    *(
        "agent",
        "client",
        "session",
        "turn",
        "prompt",
        "accepted",
        "queued",
        "started",
        "update",
        "late",
        "echo",
    ),
    *("permission request", "stop reason", "frame", "link", "peer", "input", "event", "effect", "decision", "plan"),
    *("position", "epoch", "offset", "head", "cursor", "follower", "ring", "snapshot", "view", "fold"),
    *("settle", "steer", "joined", "controller", "observer", "node", "unsettled"),
]


def papers(root: Path) -> list[Path]:
    return [*sorted(root.glob("*.md")), *sorted((root / "docs").rglob("*.md"))]


def prose(path: Path) -> str:
    """The text of a page without its code blocks, where brackets mean something else."""
    return re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def anchors(path: Path) -> set[str]:
    """The headings of a page as the part of a link after `#`."""
    headings = re.findall(r"^#+ (.+)$", prose(path), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def dead_links(root: Path) -> Iterator[str]:
    for path in papers(root):
        for match in LINK.finditer(prose(path)):
            target, _, anchor = match["target"].partition("#")
            if re.match(r"[a-z]+:", target):
                continue
            page = path.parent / target if target else path
            is_alive = page.exists() and (not anchor or (page.suffix == ".md" and anchor in anchors(page)))
            if not is_alive:
                yield f"{path.relative_to(root).as_posix()}: {match['target']} leads nowhere; mend the link"


def home_paths(root: Path) -> Iterator[str]:
    for path in papers(root):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if HOME.search(line):
                place = f"{path.relative_to(root).as_posix()}:{number}"
                yield f"{place}: a path of one machine; write `~` or a made-up folder"


def lost_files(root: Path, page: str) -> list[str]:
    """Files and modules of ours that a page names and that are not there: from the root, or in the package."""
    package = root / "src" / "turnwire"
    named = sorted(set(SOURCE_FILE.findall((root / page).read_text(encoding="utf-8"))))
    ours = [name for name in named if name.endswith(".py") or (package / name.split("/")[0]).is_dir()]
    return [
        name
        for name in ours
        if not (root / name).exists() and not any(package.rglob(name)) and name not in READERS_OWN
    ]


def terms(glossary: str) -> list[str]:
    return [match["term"] for line in glossary.splitlines() if (match := TERM.match(line))]


def promises(page: str) -> dict[str, tuple[str, str]]:
    """Number → the quoted promise and the `Shown by` line, for each guarantee on the page."""
    found: dict[str, tuple[str, str]] = {}
    for section in re.split(r"^## ", page, flags=re.MULTILINE)[1:]:
        if number := re.match(r"G\d+\b", section):
            quote = " ".join(re.findall(r"^> (.+)$", section, flags=re.MULTILINE))
            shown = re.search(
                r"^\*\*Shown by:\*\* (.+?)(?:\n\n|\Z)", section + "\n", flags=re.MULTILINE | re.DOTALL
            )
            assert number[0] not in found, f"{number[0]} stands twice in guarantees.md; keep one"
            found[number[0]] = (quote, shown[1].strip() if shown else "")
    return found


def guarantees() -> dict[str, tuple[str, str]]:
    """Number → sentence and status of each guarantee in the TOML."""
    listed = tomllib.loads((ROOT / "docs" / "requirements.toml").read_text(encoding="utf-8"))
    rows = [row for group in listed["group"] for row in group["requirement"]]
    return {row["number"]: (row["sentence"], row["status"]) for row in rows if row["number"].startswith("G")}


def names_of_tests() -> set[str]:
    """Every test of the repository by name."""
    folders = (ROOT / "tests", ROOT / "src" / "turnwire" / "testing" / "contracts")
    trees = [ast.parse(path.read_bytes()) for folder in folders for path in folder.rglob("*.py")]
    functions = [
        node
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return {node.name for node in functions}


def shown_complaint(number: str, status: str, shown: str, known: set[str]) -> str | None:
    """Whether the `Shown by` line fits the status, and names tests that exist."""
    named = re.findall(r"`(\w+)`", shown)
    if status == "planned":
        return (
            None if shown == "no test yet." else f"{number} is planned; its line says: **Shown by:** no test yet."
        )
    if not named:
        return f"{number} is {status}; name the tests after **Shown by:**, each in backticks"
    missing = [name for name in named if name not in known]
    return f"{number} names {missing}, and no test has that name" if missing else None


def test_every_relative_link_leads_somewhere() -> None:
    assert list(dead_links(ROOT)) == []


def test_every_page_has_its_place_in_the_order_of_the_site() -> None:
    """Once, in a list of `docs/index.md`."""
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    named = [
        line for block in re.findall(r"^```\{toctree\}\n(.*?)^```$", index, re.M | re.S) for line in block.split()
    ]
    pages = [path.relative_to(ROOT / "docs").with_suffix("").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    places = {page: sum(fnmatch(page, each) for each in named) for page in pages if page != "index"}
    assert {page: count for page, count in places.items() if count != 1} == {}, "name each once in docs/index.md"


def test_no_paper_shows_a_path_of_one_machine() -> None:
    assert list(home_paths(ROOT)) == []


def test_the_glossary_explains_every_word_once() -> None:
    listed = terms((ROOT / "docs" / "glossary.md").read_text(encoding="utf-8"))
    assert sorted(listed) == sorted(set(listed)), "one meaning per word: keep one entry"
    assert [term for term in TERMS if term not in listed] == []


def test_the_guarantees_page_says_what_the_list_says() -> None:
    page = promises((ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8"))
    assert {number: quote for number, (quote, _) in page.items()} == {
        number: sentence for number, (sentence, _) in guarantees().items()
    }


def test_every_guarantee_says_by_which_tests_it_is_shown() -> None:
    page = promises((ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8"))
    known = names_of_tests()
    complaints = [
        shown_complaint(number, status, page[number][1], known) for number, (_, status) in guarantees().items()
    ]
    assert [complaint for complaint in complaints if complaint] == []


def test_dead_links_and_home_paths_are_found(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text(
        "# A page\n[gone](b.md) [there](../README.md#two-words) [up](#nowhere)\n"
    )
    (tmp_path / "README.md").write_text(
        "## Two words!\n[a](docs/a.md#a-page) [out](https://example.org)\n"
        "```\n[x](y)\n```\nin /home/ann/x and ~/x\n"
    )
    assert [found.split(" leads")[0] for found in dead_links(tmp_path)] == [
        "docs/a.md: b.md",
        "docs/a.md: #nowhere",
    ]
    assert [found.split(": ")[0] for found in home_paths(tmp_path)] == ["README.md:6"]


@pytest.mark.parametrize(
    ("status", "shown", "is_right"),
    [
        ("planned", "no test yet.", True),
        ("planned", "`test_a`.", False),
        ("planned", "", False),
        ("covered", "`test_a`, `test_b`.", True),
        ("covered", "no test yet.", False),
        ("partial", "`test_gone`.", False),
    ],
)
def test_a_shown_by_line_that_does_not_fit_is_refused(status: str, shown: str, is_right: bool) -> None:
    assert (shown_complaint("G1", status, shown, {"test_a", "test_b"}) is None) is is_right


def test_a_promise_is_read_with_its_quote_and_its_tests() -> None:
    quote, shown = "> First line\n> second line.\n\n", "**Shown by:** `test_a`,\n`test_b`.\n\n"
    page = f"# Page\n\n## G1 One log\n\n{quote}Text.\n\n{shown}## Other\n"
    assert promises(page) == {"G1": ("First line second line.", "`test_a`,\n`test_b`.")}


@pytest.mark.parametrize("page", [path.relative_to(ROOT).as_posix() for path in papers(ROOT)])
def test_every_file_that_a_page_names_is_there(page: str) -> None:
    assert lost_files(ROOT, page) == []


def test_a_file_that_is_not_there_is_found(tmp_path: Path) -> None:
    (tmp_path / "src" / "turnwire" / "core").mkdir(parents=True)
    (tmp_path / "src" / "turnwire" / "core" / "turn.py").touch()
    text = "`core/turn.py`, `turn.py`, `core`, `core/gone.py`, `core/left`, `core/{a,b}`, `session/new`\n"
    (tmp_path / "map.md").write_text(text, encoding="utf-8")
    assert lost_files(tmp_path, "map.md") == ["core/gone.py", "core/left", "core/{a,b}"]


def test_a_prompt_can_be_followed_through_twelve_files() -> None:
    steps = STEP.findall((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"))
    assert 8 <= len(steps) == len(set(steps)) <= 12
