"""The system prompt: where the agent works, by which rules, and with which notes of the project."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from turnwire_agent.model import ToolSpec
from turnwire_agent.system_prompt import MAX_FOLDERS, MAX_NOTE_BYTES, RULES, Note, read_notes, system_prompt

TOOLS = [ToolSpec("read", "", {}), ToolSpec("run", "", {})]


@pytest.fixture
def deep(tmp_path: Path) -> Path:
    """A folder so far down that notes are looked for in the test's own folders only, whatever lies above them."""
    folder = tmp_path.joinpath(*(["down"] * MAX_FOLDERS))
    folder.mkdir(parents=True)
    return folder


def make_repository(folder: Path) -> None:
    """The files that make a folder a repository for git."""
    (folder / ".git").mkdir()
    (folder / ".git" / "HEAD").write_text("ref: refs/heads/main\n")


def test_the_prompt_names_the_folders_the_tools_and_the_mode(tmp_path: Path) -> None:
    text = system_prompt(tmp_path, [tmp_path / "more"], "plan", TOOLS, [Note(tmp_path / "AGENTS.md", "Use tabs.")])
    assert text.startswith(RULES)
    for each in (str(tmp_path), str(tmp_path / "more"), "read, run", "plan mode", "Use tabs."):
        assert each in text
    assert "plan mode" not in system_prompt(tmp_path, [], "ask", TOOLS)


def test_own_rules_stand_in_place_of_ours(tmp_path: Path) -> None:
    text = system_prompt(tmp_path, [], "ask", TOOLS, own="Be a pirate.")
    assert text.startswith("Be a pirate.")
    assert RULES not in text
    assert str(tmp_path) in text


def test_notes_are_read_from_the_root_of_the_repository_down_and_not_above(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    inner = repository / "a" / "b"
    inner.mkdir(parents=True)
    make_repository(repository)
    for folder in (tmp_path, repository, inner):
        (folder / "AGENTS.md").write_text(f"notes of {folder.name}")
    assert [note.text for note in read_notes(inner)] == ["notes of repository", "notes of b"]


def test_without_a_repository_only_the_folder_itself_has_notes(deep: Path) -> None:
    (deep / "AGENTS.md").write_text("above")
    inner = deep / "inner"
    inner.mkdir()
    assert read_notes(inner) == []
    (inner / "AGENTS.md").write_text("mine")
    assert [note.text for note in read_notes(inner)] == ["mine"]


@pytest.mark.parametrize("kind", ["folder", "file", "pipe", "words"])
def test_what_is_called_git_and_holds_no_repository_makes_none(deep: Path, kind: str) -> None:
    mark = deep / ".git"
    match kind:
        case "folder":
            mark.mkdir()
        case "pipe":
            os.mkfifo(mark)
        case _:
            mark.write_text("some words" if kind == "words" else "")
    (deep / "AGENTS.md").write_text("above")
    inner = deep / "inner"
    inner.mkdir()
    assert read_notes(inner) == []


def test_a_worktree_is_a_repository(deep: Path) -> None:
    (deep / ".git").write_text("gitdir: /somewhere/.git/worktrees/one\n")
    (deep / "AGENTS.md").write_text("above")
    inner = deep / "inner"
    inner.mkdir()
    assert [note.text for note in read_notes(inner)] == ["above"]


def test_notes_that_are_long_are_cut_and_those_that_are_none_are_passed_over(deep: Path) -> None:
    (deep / "AGENTS.md").write_text("x" * (MAX_NOTE_BYTES + 10))
    [note] = read_notes(deep)
    assert note.text.startswith("x" * MAX_NOTE_BYTES)
    assert "left out" in note.text
    (deep / "AGENTS.md").unlink()
    (deep / "AGENTS.md").mkdir()
    assert read_notes(deep) == []


def test_notes_that_lead_out_of_the_repository_are_not_read(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    inner = repository / "inner"
    inner.mkdir(parents=True)
    make_repository(repository)
    (tmp_path / "secret").write_text("a secret")
    (repository / "AGENTS.md").symlink_to(tmp_path / "secret")
    (inner / "AGENTS.md").symlink_to("../../secret")
    assert read_notes(inner) == []
    (repository / "docs").symlink_to(tmp_path)
    (repository / "AGENTS.md").unlink()
    (repository / "AGENTS.md").symlink_to("docs/secret")
    assert read_notes(inner) == []


def test_without_a_repository_notes_that_lead_out_of_the_folder_are_not_read(deep: Path) -> None:
    folder = deep / "folder"
    folder.mkdir()
    (deep / "secret").write_text("a secret")
    (folder / "AGENTS.md").symlink_to(deep / "secret")
    assert read_notes(folder) == []


def test_notes_may_be_a_link_inside_the_repository(deep: Path) -> None:
    repository = deep / "repository"
    inner = repository / "inner"
    inner.mkdir(parents=True)
    make_repository(repository)
    (repository / "RULES.md").write_text("use tabs")
    (inner / "AGENTS.md").symlink_to("../RULES.md")
    (repository / "AGENTS.md").symlink_to(repository / "RULES.md")
    assert [note.text for note in read_notes(inner)] == ["use tabs", "use tabs"]
    (deep / "link").symlink_to(inner)
    (inner / "AGENTS.md").unlink()
    (inner / "AGENTS.md").write_text("mine")
    assert [note.text for note in read_notes(deep / "link")] == ["mine"]


def test_a_pipe_in_the_place_of_notes_is_not_waited_for(deep: Path) -> None:
    os.mkfifo(deep / "AGENTS.md")
    assert read_notes(deep) == []
