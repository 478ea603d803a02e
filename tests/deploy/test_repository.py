"""The contribution files of the repository: they are valid, and the programs they run exist."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
WORKFLOW = ROOT / ".github" / "workflows" / "ci.yml"
FORMS = sorted(path for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")
INPUTS = {"markdown", "textarea", "input", "dropdown", "checkboxes"}


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))


def commands() -> list[str]:
    hooks = [hook["entry"] for repo in read(ROOT / ".pre-commit-config.yaml")["repos"] for hook in repo["hooks"]]
    steps = [step for job in read(WORKFLOW)["jobs"].values() for step in job["steps"]]
    return [*hooks, *(step["run"] for step in steps if "run" in step)]


def test_ci_runs_what_a_developer_runs() -> None:
    assert ".ci/run" in commands()
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111


@pytest.mark.parametrize("command", commands())
def test_what_is_run_is_there(command: str) -> None:
    words = command.split()
    if words[0] == "make":
        assert set(re.sub(r"\S+=(\$\{\{.*?\}\}|\S+)", "", command).split()[1:]) <= make_targets()
    files = [word for word in words if "/" in word and not word.startswith(".venv/")]
    assert [word for word in files if not (ROOT / word).exists()] == []


def test_ci_tests_every_python_that_the_package_names() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = [each.rpartition(" ")[2] for each in project["classifiers"] if re.search(r":: 3\.\d+$", each)]
    assert read(WORKFLOW)["jobs"]["python"]["strategy"]["matrix"]["python"] == named


def test_ci_may_read_and_no_more() -> None:
    assert read(WORKFLOW)["permissions"] == {"contents": "read"}


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_every_form_is_one(form: Path) -> None:
    said = read(form)
    assert {"name", "description", "body"} <= set(said)
    assert {part["type"] for part in said["body"]} <= INPUTS
    ids = [part["id"] for part in said["body"] if part["type"] != "markdown"]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("folder", [".github", "deploy", ".ci"])
def test_no_file_names_where_packages_come_from(folder: str) -> None:
    """Each environment has a different index or mirror."""
    texts = {path: path.read_text(encoding="utf-8") for path in (ROOT / folder).rglob("*") if path.is_file()}
    addresses = {found for text in texts.values() for found in re.findall(r"https?://([\w.-]+)", text)}
    assert addresses <= {"agents.example", "127.0.0.1", "turnwire", "node-a", "node-b"}
