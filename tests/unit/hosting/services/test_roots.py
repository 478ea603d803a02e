"""Every path leads into the roots or nowhere, even while another process changes it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from turnwire.errors import RequestRefused
from turnwire.hosting.services import Roots
from turnwire.hosting.services.roots import LINKS, STEPS
from turnwire_testing.patience import WAIT_S

SECRET = "outside"
INSIDE = "inside"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Create a root with a file, next to a directory that the agent must not access."""
    (tmp_path / "away").mkdir()
    (tmp_path / "away" / "f.txt").write_text(SECRET)
    (tmp_path / "root" / "a").mkdir(parents=True)
    (tmp_path / "root" / "a" / "f.txt").write_text(INSIDE)
    return tmp_path / "root"


def content(roots: Roots, path: Path | str, *, make_parents: bool = False) -> str:
    """Open a place as its users do."""
    with roots.locate(str(path), make_parents=make_parents) as place:
        fd = os.open(place.name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=place.directory)
        with os.fdopen(fd) as file:
            return file.read()


def reason(call: Callable[[], Any]) -> str:
    with pytest.raises(RequestRefused) as refusal:
        call()
    return refusal.value.reason


def test_a_file_below_a_root_is_found(root: Path) -> None:
    assert content(Roots(str(root)), root / "a" / "f.txt") == INSIDE


def test_every_directory_given_is_a_root(root: Path) -> None:
    roots = Roots(str(root), [str(root.parent / "away")])
    assert content(roots, root / "a" / "f.txt") == INSIDE
    assert content(roots, root.parent / "away" / "f.txt") == SECRET


def test_dots_and_repeated_slashes_mean_what_they_mean_to_the_system(root: Path) -> None:
    roots = Roots(str(root))
    assert content(roots, f"{root}//a/./../a///f.txt") == INSIDE
    assert content(roots, f"{root}/../root/a/f.txt") == INSIDE


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "{root}/../away/f.txt",
        "{root}/a/../../away/f.txt",
        "{root}/../../../../../../../../../../etc/passwd",
        "{root}x/f.txt",
        "{root}/..",
        "{parent}",
        "{parent}/root/../../{parent}",
        "/",
        "/..",
        "/proc/self/root/etc/passwd",
        "/proc/self/root{root}/a/f.txt",
        "/proc/self/cwd",
        "/dev/fd/0",
        "{root}/../nothing/../root/a/f.txt",
    ],
)
def test_a_path_that_leads_outside_is_refused(root: Path, path: str) -> None:
    roots = Roots(str(root))
    assert reason(lambda: content(roots, path.format(root=root, parent=root.parent))) == "outside_roots"


@pytest.mark.parametrize("path", ["", "f.txt", "./f.txt", "~/f.txt", "file:///etc/passwd"])
def test_a_path_that_is_not_absolute_is_refused(root: Path, path: str) -> None:
    assert reason(lambda: content(Roots(str(root)), path)) == "not_absolute"
    assert reason(lambda: Roots(path)) == "not_absolute"
    assert reason(lambda: Roots(str(root), [path])) == "not_absolute"


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_a_path_that_no_file_can_have_is_refused(root: Path, name: str) -> None:
    assert reason(lambda: content(Roots(str(root)), f"{root}/{name}")) == "malformed"


@pytest.mark.parametrize("name", ["with space", "-rf", "line\nfeed", "tab\t", "\x1b[31m", "ünïcödé", "..."])
def test_hard_to_read_names_are_names_like_others(root: Path, name: str) -> None:
    (root / name).write_text(name)
    assert content(Roots(str(root)), root / name) == name


def test_a_link_that_stays_inside_is_followed(root: Path) -> None:
    (root / "relative").symlink_to("a/f.txt")
    (root / "absolute").symlink_to(root / "a")
    (root / "a" / "up").symlink_to("../a/../relative")
    roots = Roots(str(root))
    for path in ("relative", "absolute/f.txt", "a/up"):
        assert content(roots, root / path) == INSIDE


def test_a_link_from_one_root_into_another_is_followed(root: Path) -> None:
    (root / "over").symlink_to("../away/f.txt")
    assert content(Roots(str(root), [str(root.parent / "away")]), root / "over") == SECRET


@pytest.mark.parametrize(
    "target", ["/etc/passwd", "../away/f.txt", "a/../../away/f.txt", "/proc/self/root/etc/passwd", "..", "/"]
)
def test_a_link_that_leads_outside_is_refused(root: Path, target: str) -> None:
    (root / "link").symlink_to(target)
    (root / "again").symlink_to("link")
    roots = Roots(str(root))
    for path in ("link", "again", "a/../link"):
        assert reason(lambda path=path: content(roots, root / path)) == "outside_roots"


def test_a_link_to_a_directory_outside_hides_whether_a_file_is_there(root: Path) -> None:
    (root / "link").symlink_to("../away")
    roots = Roots(str(root))
    for name in ("f.txt", "missing"):
        assert reason(lambda name=name: content(roots, root / "link" / name)) == "outside_roots"


def test_a_circle_of_links_is_refused(root: Path) -> None:
    (root / "x").symlink_to("y")
    (root / "y").symlink_to("x")
    assert reason(lambda: content(Roots(str(root)), root / "x")) == "too_many_links"


def test_a_chain_of_links_is_followed_as_far_as_the_system_would(root: Path) -> None:
    (root / "link1").symlink_to("a/f.txt")
    for number in range(1, LINKS + 1):
        (root / f"link{number + 1}").symlink_to(f"link{number}")
    assert content(Roots(str(root)), root / f"link{LINKS}") == INSIDE
    assert reason(lambda: content(Roots(str(root)), root / f"link{LINKS + 1}")) == "too_many_links"


def test_a_path_of_endless_names_is_refused(root: Path) -> None:
    assert reason(lambda: content(Roots(str(root)), f"{root}{'/a/..' * STEPS}")) == "too_deep"


def test_a_root_itself_is_no_file(root: Path) -> None:
    (root / "a" / "home").symlink_to("..")
    roots = Roots(str(root))
    for path in (root, root / "a" / "home", f"{root}/a/.."):
        assert reason(lambda path=path: content(roots, path)) == "not_a_file"


def test_a_root_that_is_a_link_is_known_by_both_its_names(root: Path) -> None:
    (root.parent / "alias").symlink_to("root")
    roots = Roots(str(root.parent / "alias"))
    assert content(roots, root.parent / "alias" / "a" / "f.txt") == INSIDE
    assert content(roots, root / "a" / "f.txt") == INSIDE
    assert reason(lambda: content(roots, root.parent / "alias" / ".." / "away" / "f.txt")) == "outside_roots"


def test_a_root_that_is_swapped_for_a_link_is_refused(root: Path) -> None:
    roots = Roots(str(root))
    roots.pin()
    root.rename(root.parent / "moved")
    root.symlink_to("away")
    assert reason(lambda: content(roots, root / "f.txt")) == "outside_roots"


def test_a_root_that_is_swapped_for_a_link_to_another_root_is_refused(root: Path) -> None:
    roots = Roots(str(root), [str(root.parent / "away")])
    roots.pin()
    root.rename(root.parent / "moved")
    root.symlink_to("away")
    assert reason(lambda: content(roots, root / "f.txt")) == "outside_roots"
    assert content(roots, root.parent / "away" / "f.txt") == SECRET


def test_a_root_that_is_gone_is_not_made_anew(root: Path) -> None:
    roots = Roots(str(root))
    roots.pin()
    root.rename(root.parent / "moved")
    assert reason(lambda: content(roots, root, make_parents=True)) == "not_a_file"
    assert reason(lambda: content(roots, root / "f", make_parents=True)) == "not_found"
    assert sorted(os.listdir(root.parent)) == ["away", "moved"]


def test_a_root_that_was_made_anew_is_still_the_root(root: Path) -> None:
    roots = Roots(str(root))
    roots.pin()
    root.rename(root.parent / "moved")
    root.mkdir()
    (root / "f.txt").write_text("new")
    assert content(roots, root / "f.txt") == "new"


@pytest.mark.parametrize("name", ["missing", "a/f.txt"])
def test_a_root_that_is_no_directory_cannot_be_pinned(root: Path, name: str) -> None:
    roots = Roots(str(root), [str(root / name)])
    assert reason(roots.pin) == "root_missing"
    assert reason(lambda: content(roots, root / "a" / "f.txt")) == "root_missing"


def test_the_whole_disk_can_be_a_root(root: Path) -> None:
    (root / "link").symlink_to("../away/f.txt")
    assert content(Roots("/"), root / "link") == SECRET


def test_a_missing_directory_on_the_way_is_told_with_the_path_as_it_was_given(root: Path) -> None:
    with pytest.raises(RequestRefused) as refusal:
        content(Roots(str(root)), root / "no such" / "f.txt")
    assert (refusal.value.jsonrpc, refusal.value.reason) == (-32002, "not_found")
    assert refusal.value.data == {"uri": f"file://{root}/no%20such/f.txt"}
    assert str(root) not in f"{refusal.value} {refusal.value.context}"


def test_a_file_on_the_way_is_refused(root: Path) -> None:
    assert reason(lambda: content(Roots(str(root)), root / "a" / "f.txt" / "g")) == "not_a_directory"


def test_missing_directories_are_made_inside_only(root: Path) -> None:
    (root / "dangling").symlink_to("made/here")
    roots = Roots(str(root))
    for path in ("x/y/f", "dangling/z/f"):
        with roots.locate(str(root / path), make_parents=True):
            pass
    assert (root / "x" / "y").is_dir()
    assert (root / "made" / "here" / "z").is_dir()
    for path in (root.parent / "other" / "f", root / ".." / "other" / "f"):
        assert reason(lambda path=path: content(roots, path, make_parents=True)) == "outside_roots"
    assert sorted(os.listdir(root.parent)) == ["away", "root"]


def test_nothing_is_made_on_a_way_that_goes_back(root: Path) -> None:
    assert reason(lambda: content(Roots(str(root)), root / "new" / ".." / "f", make_parents=True)) == "not_found"
    assert os.listdir(root) == ["a"]


def test_a_directory_is_given_by_its_true_path(root: Path) -> None:
    (root / "link").symlink_to("a")
    roots = Roots(str(root))
    assert roots.directory() == roots.directory(str(root)) == os.path.realpath(root)
    assert roots.directory(f"{root}/link/../link") == os.path.realpath(root / "a")


def test_a_directory_outside_missing_or_not_one_is_refused(root: Path) -> None:
    (root / "out").symlink_to("../away")
    roots = Roots(str(root))
    assert reason(lambda: roots.directory("/")) == "outside_roots"
    assert reason(lambda: roots.directory(f"{root}/..")) == "outside_roots"
    assert reason(lambda: roots.directory(str(root / "out"))) == "outside_roots"
    assert reason(lambda: roots.directory(str(root / "missing"))) == "not_found"
    assert reason(lambda: roots.directory(str(root / "a" / "f.txt"))) == "not_a_directory"


def test_no_descriptor_is_left_open_whatever_happens(root: Path) -> None:
    (root / "out").symlink_to("/etc")
    roots = Roots(str(root))
    roots.pin()
    before = os.listdir("/dev/fd")
    for path in ("a/f.txt", "out/passwd", "a/../a/f.txt", "missing/f", "a/f.txt/g", "..", "a/.."):
        with suppress(RequestRefused):
            content(roots, root / path)
        with suppress(RequestRefused):
            roots.directory(str(root / path))
    assert len(os.listdir("/dev/fd")) == len(before)


# -- while somebody changes the path ---------------------------------------------------------------------------


def swap_after(monkeypatch: pytest.MonkeyPatch, call: str, name: str, swap: Callable[[], object]) -> list[str]:
    """Let `swap` happen right after the system answered the first `call` about `name`."""
    real: Callable[..., Any] = getattr(os, call)
    done: list[str] = []

    def answered(path: Any, *args: Any, **options: Any) -> Any:
        try:
            return real(path, *args, **options)
        finally:
            if path == name and not done:
                done.append(name)
                swap()

    monkeypatch.setattr(os, call, answered)
    return done


def replace_by_link(path: Path, target: str) -> None:
    path.rename(path.with_name("put-away"))
    path.symlink_to(target)


@pytest.mark.parametrize("call", ["stat", "open"])
def test_a_directory_swapped_for_a_link_leads_nowhere(
    root: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    done = swap_after(monkeypatch, call, "a", lambda: replace_by_link(root / "a", "../away"))
    found = ""
    with suppress(RequestRefused):
        found = content(Roots(str(root)), root / "a" / "f.txt")
    assert done
    # Once it is open, it is the directory that was there.
    assert found == (INSIDE if call == "open" else "")


def test_a_file_swapped_for_a_link_is_not_opened(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = swap_after(
        monkeypatch, "stat", "f.txt", lambda: replace_by_link(root / "a" / "f.txt", "../../away/f.txt")
    )
    assert reason(lambda: content(Roots(str(root)), root / "a" / "f.txt")) == "changed"
    assert done


def test_a_directory_moved_outside_does_not_take_the_way_back_along(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "f.txt").write_text(INSIDE)
    done = swap_after(monkeypatch, "open", "a", lambda: (root / "a").rename(root.parent / "away" / "a"))
    assert content(Roots(str(root)), f"{root}/a/../f.txt") == INSIDE
    assert done


def test_a_directory_that_is_just_made_and_swapped_leads_nowhere(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = swap_after(monkeypatch, "mkdir", "new", lambda: replace_by_link(root / "new", "../away"))
    assert reason(lambda: content(Roots(str(root)), root / "new" / "f.txt", make_parents=True)) == "not_a_directory"
    assert done


def test_flipping_a_component_for_ever_never_lets_anything_out(root: Path) -> None:
    over = threading.Event()

    def flip() -> None:
        while not over.is_set():
            replace_by_link(root / "a", "../away")
            (root / "a").unlink()
            (root / "put-away").rename(root / "a")

    roots = Roots(str(root))
    flipping = threading.Thread(target=flip)
    flipping.start()
    found: list[str] = []
    refusals = 0
    try:
        for _ in range(3000):
            try:
                found.append(content(roots, root / "a" / "f.txt"))
            except RequestRefused:
                refusals += 1
    finally:
        over.set()
        flipping.join(timeout=WAIT_S)
    assert set(found) <= {INSIDE}
    assert len(found) + refusals == 3000
