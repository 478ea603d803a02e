"""Every requirement that is called covered has a test naming it, and every number a test names exists.

Reads `docs/requirements.toml` and the `requirement` markers of all tests. Markers are found in the syntax
tree, not by running, so a test that was not selected still counts and a broken import hides nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import pytest

ROOT = Path(__file__).resolve().parents[2]
KITS = "src/turnwire/testing/contracts"
NUMBERS = [*(f"R{number}" for number in range(1, 101)), *(f"G{number}" for number in range(1, 15))]
ORIGINS = {
    "v1 prompt turn",
    "turn_complete draft",
    "session/ready draft",
    "v2 prompt lifecycle",
    "daemon REST proposal",
    "turnwire design",
    "completed by turnwire",
}

LITERAL = "tests/literal/"
OUR_CLIENT = "a promise of our client, which has no peer to be literal"
BESIDE_LITERAL = {
    **dict.fromkeys(("R2", "R48", "R50", "R52", "R54", "R55"), OUR_CLIENT),
    **dict.fromkeys(("R80", "R81", "R82", "R83", "R84", "R85"), OUR_CLIENT),
    "R51": "the published agents of tests/interop take or refuse the content",
    "R53": "what the code must not have",
    "R65": "needs nginx: tests/server/test_nginx.py, with plain HTTP requests",
    "R68": "needs the published SDK of the contract: tests/interop/test_daemon_sdk.py",
    "R69": "settings of the daemon",
    "R70": "raw HTTP requests in tests/server/acp/test_http_routing.py",
    "R72": "seen from both surfaces at once: tests/fan",
    "R73": "spellings that we read and no text has",
    **dict.fromkeys(("R86", "R87"), "a browser shows our page: tests/page"),
    **dict.fromkeys(("R88", "R90"), "the suite is ours"),
    "R96": "our schemas against all that is sent: tests/interop/test_schema.py",
}
"""Numbers of published texts that no literal peer shows, and why. The others need one: a test that speaks our own
words cannot tell whether a stranger is served."""

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class Requirement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    number: str
    status: Literal["planned", "partial", "covered"]
    where: list[str]
    sentence: str
    note: str = ""


class Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    title: str
    requirement: list[Requirement]


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    group: list[Group]


class Marker(NamedTuple):
    """One use of the marker: the numbers it names, or what is wrong with it."""

    place: str
    numbers: list[str]
    wrong: str = ""


def requirements() -> list[Requirement]:
    text = (ROOT / "docs" / "requirements.toml").read_bytes()
    return [each for group in msgspec.toml.decode(text, type=Source).group for each in group.requirement]


def is_mark(node: ast.AST, *names: str) -> bool:
    """Whether `node` is `pytest.mark.<name>` or a call of it."""
    target = node.func if isinstance(node, ast.Call) else node
    return (
        isinstance(target, ast.Attribute)
        and target.attr in names
        and isinstance(target.value, ast.Attribute)
        and target.value.attr == "mark"
    )


def mark_calls(node: ast.AST) -> Iterator[ast.Call]:
    for each in ast.walk(node):
        if isinstance(each, ast.Call) and is_mark(each, "requirement"):
            yield each


def is_pytestmark(node: ast.AST) -> bool:
    return isinstance(node, ast.Assign) and any(
        isinstance(target, ast.Name) and target.id == "pytestmark" for target in node.targets
    )


def attached(tree: ast.Module, *, kit: bool) -> Iterator[ast.Call]:
    """The markers pytest will see: on tests and test classes, in `pytestmark`, in `marks=` of a parameter."""
    for node in ast.walk(tree):
        if isinstance(node, Definition):
            skipped = any(is_mark(each, "skip", "xfail") for each in node.decorator_list)
            if not skipped and (kit or node.name.startswith(("test", "Test"))):
                for decorator in node.decorator_list:
                    yield from mark_calls(decorator)
        elif is_pytestmark(node) or (isinstance(node, ast.keyword) and node.arg == "marks"):
            yield from mark_calls(node)


def markers(root: Path) -> list[Marker]:
    """Every `requirement` marker in the tests and the contract kits under `root`."""
    found: list[Marker] = []
    for path in [*sorted((root / "tests").rglob("*.py")), *sorted((root / KITS).rglob("*.py"))]:
        tree = ast.parse(path.read_bytes())
        seen = {id(call) for call in attached(tree, kit=(root / KITS) in path.parents)}
        for call in mark_calls(tree):
            place = f"{path.relative_to(root).as_posix()}:{call.lineno}"
            found.append(read_marker(call, place, is_attached=id(call) in seen))
    return found


def read_marker(call: ast.Call, place: str, *, is_attached: bool) -> Marker:
    numbers = [each.value for each in call.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    if not numbers or len(numbers) != len(call.args) or call.keywords:
        return Marker(place, [], "name the numbers as plain strings")
    if not is_attached:
        return Marker(place, [], "it is not on a test that runs; move it there or drop it")
    return Marker(place, numbers)


def marker_complaints(known: list[Requirement], found: list[Marker]) -> list[str]:
    """What is wrong between the list and the tests, in words that say what to do."""
    status = {each.number: each.status for each in known}
    complaints = [f"{marker.place}: {marker.wrong}" for marker in found if marker.wrong]
    named: dict[str, str] = {}
    for marker in found:
        for number in marker.numbers:
            named.setdefault(number, marker.place)
            if number not in status:
                complaints.append(f"{marker.place}: {number} is not in docs/requirements.toml; mend the number")
    for number, state in status.items():
        if state == "planned" and number in named:
            complaints.append(f"{number} is planned but {named[number]} names it; make it covered or partial")
        if state != "planned" and number not in named:
            complaints.append(f"{number} is {state} but no test names it; write the test or make it planned")
    return complaints


def stranger_complaints(known: list[Requirement], found: list[Marker]) -> list[str]:
    """Numbers of published texts that only tests with our own words name."""
    literal = {number for marker in found if marker.place.startswith(LITERAL) for number in marker.numbers}
    return [
        f"{each.number} comes from a published text, and nothing in {LITERAL} names it; write that test"
        for each in known
        if each.number.startswith("R")
        and each.status != "planned"
        and each.number not in literal | BESIDE_LITERAL.keys()
    ] + [
        f"{number} has a literal test; take it from BESIDE_LITERAL"
        for number in BESIDE_LITERAL
        if number in literal
    ]


def list_complaints(known: list[Requirement]) -> list[str]:
    """What is wrong with the list itself."""
    numbers = [each.number for each in known]
    complaints = [f"{number} is missing; add it" for number in NUMBERS if number not in numbers]
    complaints += [
        f"{number} stands {numbers.count(number)} times; keep one"
        for number in NUMBERS
        if numbers.count(number) > 1
    ]
    complaints += [
        f"{number} is not one of ours; R1 … R100 and G1 … G14 are" for number in numbers if number not in NUMBERS
    ]
    for each in known:
        if (each.status == "partial") != bool(each.note):
            complaints.append(
                f"{each.number}: a note says what a partial one still lacks, and only a partial one has it"
            )
        if not each.where or not ORIGINS.issuperset(each.where):
            complaints.append(f"{each.number}: `where` takes one or more of {sorted(ORIGINS)}")
        if not each.sentence.endswith("."):
            complaints.append(f"{each.number}: the sentence does not end")
    return complaints


def test_the_list_is_complete_and_well_formed() -> None:
    assert list_complaints(requirements()) == []


def test_the_list_and_the_tests_agree() -> None:
    assert marker_complaints(requirements(), markers(ROOT)) == []


def test_what_a_published_text_wants_is_shown_by_a_peer_that_knows_only_the_text() -> None:
    assert stranger_complaints(requirements(), markers(ROOT)) == []


def test_a_number_that_only_our_own_words_show_is_refused() -> None:
    ours, theirs = Marker("tests/server/test_a.py:9", ["R1"]), Marker("tests/literal/test_a.py:9", ["R1"])
    assert stranger_complaints([one("R1", "covered")], [ours])[0].startswith("R1 comes from a published text")
    assert stranger_complaints([one("R1", "covered")], [ours, theirs]) == []
    assert stranger_complaints([one("R1", "planned")], []) == []


def one(number: str, status: Literal["planned", "partial", "covered"], note: str = "") -> Requirement:
    return Requirement(number, status, ["turnwire design"], "A sentence.", note)


def whole(changed: Requirement) -> list[Requirement]:
    return [changed if number == changed.number else one(number, "planned") for number in NUMBERS]


@pytest.mark.parametrize(
    ("known", "complaint"),
    [
        ([one("R1", "covered")], "R1 is covered but no test names it"),
        ([one("R1", "partial", "half")], "R1 is partial but no test names it"),
        ([one("R1", "planned"), one("R2", "planned")], "R2 is planned but tests/test_a.py:9 names it"),
        ([one("R1", "planned")], "tests/test_a.py:9: R2 is not in docs/requirements.toml"),
    ],
)
def test_a_list_that_disagrees_with_the_tests_is_refused(known: list[Requirement], complaint: str) -> None:
    [found] = marker_complaints(known, [Marker("tests/test_a.py:9", ["R2"])] if "R2" in complaint else [])
    assert found.startswith(complaint)


def test_a_covered_number_with_a_test_is_in_order() -> None:
    assert marker_complaints([one("G3", "covered")], [Marker("tests/test_a.py:9", ["G3"])]) == []


@pytest.mark.parametrize(
    ("known", "complaint"),
    [
        (whole(one("R1", "planned"))[1:], "R1 is missing"),
        ([*whole(one("R1", "planned")), one("G14", "planned")], "G14 stands 2 times"),
        ([*whole(one("R1", "planned")), one("R101", "planned")], "R101 is not one of ours"),
        (whole(one("R1", "partial")), "R1: a note says"),
        (whole(one("R1", "covered", "half")), "R1: a note says"),
        (whole(Requirement("R1", "planned", ["hearsay"], "A sentence.")), "R1: `where` takes"),
        (whole(Requirement("R1", "planned", ["turnwire design"], "A sentence")), "R1: the sentence"),
    ],
)
def test_a_list_with_a_flaw_is_refused(known: list[Requirement], complaint: str) -> None:
    [found] = list_complaints(known)
    assert found.startswith(complaint)


MADE_UP = """
import pytest
pytestmark = [pytest.mark.anyio, pytest.mark.requirement("R1")]
@pytest.mark.requirement("R2", "G3")
async def test_a(): ...
@pytest.mark.requirement("R4")
class TestB:
    pytestmark = pytest.mark.requirement("R5")
    @pytest.mark.requirement("R6")
    def test_c(self): ...
@pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.requirement("R7"))])
def test_d(x): ...
"""
MADE_UP_WRONG = """
import pytest
@pytest.mark.requirement("R1")
def not_a_test(): ...
@pytest.mark.skip(reason="later")
@pytest.mark.requirement("R2")
def test_a(): ...
loose = pytest.mark.requirement("R3")
@pytest.mark.requirement(NUMBER)
def test_b(): ...
@pytest.mark.requirement()
def test_c(): ...
"""


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def test_markers_are_found_wherever_pytest_would_see_them(tmp_path: Path) -> None:
    write(tmp_path / "tests" / "unit" / "test_made_up.py", MADE_UP)
    write(tmp_path / KITS / "link.py", '@pytest.mark.requirement("G1")\ndef check_order(): ...\n')
    found = markers(tmp_path)
    assert [marker.wrong for marker in found if marker.wrong] == []
    assert sorted(number for marker in found for number in marker.numbers) == [
        "G1", "G3", "R1", "R2", "R4", "R5", "R6", "R7",
    ]  # fmt: skip


def test_a_marker_that_has_no_effect_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "tests" / "test_made_up.py", MADE_UP_WRONG)
    found = markers(tmp_path)
    assert [marker.numbers for marker in found] == [[]] * 5
    assert sorted(marker.wrong.split(";")[0] for marker in found) == [
        *["it is not on a test that runs"] * 3,
        *["name the numbers as plain strings"] * 2,
    ]
