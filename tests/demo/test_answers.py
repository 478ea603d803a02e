"""The offline agent: its commands, its tools, and its answer to any other prompt."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support.talk import Talk

from turnwire.client.client import connect
from turnwire.demo.agent import demo_agent
from turnwire.demo.speech import DELTA_CHARACTERS, deltas
from turnwire.demo.tools import MOST_ENTRIES
from turnwire_testing.patience import WAIT_S

pytestmark = pytest.mark.anyio


@pytest.fixture
async def talk(tmp_path: Path) -> AsyncGenerator[Talk]:
    async with connect(demo_agent().source()) as client:
        with anyio.fail_after(WAIT_S):
            session = await client.new_session(tmp_path)
        yield Talk(client, session, ())


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ("hello", "built into turnwire"),
        ("Who are you?", "Agent Client Protocol"),
        ("what is this project?", "durable"),
        ("help", "`read FILE`"),
        ("how do I configure a model?", "pip install 'turnwire[agent]'"),
        ("explain quantum physics", "Try `What is in this folder?`, `read README.md` or `/demo`."),
        ("/help", "`/mode`"),
        ("/model", "TURNWIRE_AGENT_MODEL"),
    ],
)
async def test_known_sentences_have_fixed_answers(talk: Talk, prompt: str, said: str) -> None:
    assert said in (await talk.turn(prompt)).text


async def test_files_are_listed_without_hidden_ones_and_links(talk: Talk, tmp_path: Path) -> None:
    (tmp_path / "src" / "deep" / "deeper").mkdir(parents=True)
    (tmp_path / "src" / "deep" / "deeper" / "unseen.py").touch()
    (tmp_path / "src" / "a.py").touch()
    (tmp_path / ".hidden").touch()
    (tmp_path / "link").symlink_to("/")
    told = await talk.turn("list files")
    assert "```\nsrc/\n```" in told.text
    assert "a.py" in (await talk.turn("List the files in src.")).text


async def test_a_large_folder_is_cut(talk: Talk, tmp_path: Path) -> None:
    for number in range(MOST_ENTRIES + 1):
        (tmp_path / f"{number:04}").touch()
    told = await talk.turn("ls")
    assert "There is more" in str(told.updates)
    assert f"{MOST_ENTRIES - 1:04}" in str(told.updates)
    assert f"{MOST_ENTRIES:04}" not in str(told.updates)


async def test_a_file_is_shown_and_cannot_break_out_of_its_fence(talk: Talk, tmp_path: Path) -> None:
    lines = ["```", *(f"line {number}" for number in range(100))]
    (tmp_path / "a b.txt").write_text("\n".join(lines))
    text = (await talk.turn("read 'a b.txt'")).text
    assert "line 58\n" in text
    assert "line 59" not in text
    assert "41 more lines" in text
    assert text.count("````\n") == 2


@pytest.mark.parametrize("prompt", ["read nowhere.txt", "read /etc/hostname", "list files in /", "search x in /"])
async def test_what_is_missing_or_outside_of_the_folder_fails(talk: Talk, prompt: str) -> None:
    told = await talk.turn(prompt)
    assert "That did not work" in told.text
    assert told.statuses()[-1] == ("1", "failed")


async def test_words_are_found_in_text_files(talk: Talk, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text("first\nhas one.end here\n")
    (tmp_path / "docs" / "b.bin").write_bytes(b"\xff one.end")
    assert "docs/a.md:2: has one.end here" in (await talk.turn("search one.end")).text
    assert "(nothing)" in (await talk.turn("find one-end in docs")).text


async def test_closed_folders_are_not_searched(talk: Talk, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / ".turnwire-data").touch()
    (tmp_path / "data" / "secret.txt").write_text("a treasure")
    assert "secret.txt" not in (await talk.turn("search treasure")).text


@pytest.mark.parametrize(("answer", "is_run"), [("allow_once", True), ("reject_once", False)])
async def test_a_command_runs_only_if_it_is_allowed(talk: Talk, tmp_path: Path, answer: str, is_run: bool) -> None:
    talk.answers = [answer]
    text = (await talk.turn("run touch made && echo done.")).text
    assert (tmp_path / "made").exists() is is_run
    assert ("Exit code 0." in text, "That did not work" in text) == (is_run, not is_run)


async def test_a_command_allowed_for_the_session_is_not_asked_about_again(talk: Talk) -> None:
    talk.answers = ["allow_always", "reject_once"]
    for prompt in ("run echo hi", "run echo hi", "run echo ho"):
        await talk.turn(prompt)
    assert len(talk.asked) == 2


async def test_a_command_that_fails_shows_its_exit_code_and_fails_its_tool_call(talk: Talk) -> None:
    talk.answers = ["allow_once"]
    told = await talk.turn("run exit 3")
    assert "Exit code 3." in told.text
    assert told.statuses()[-1] == ("1", "failed")


async def test_in_plan_mode_nothing_is_run(talk: Talk) -> None:
    await talk.turn("/mode plan")
    assert "In plan mode" in (await talk.turn("run ls")).text
    assert not talk.asked


async def test_the_mode_is_shown_changed_and_rejected(talk: Talk) -> None:
    assert "The mode is `ask`" in (await talk.turn("/mode")).text
    await talk.turn("/mode accept_edits")
    assert "The mode is `accept_edits`" in (await talk.turn("/mode")).text
    assert "there are: ask, accept_edits, plan" in await talk.failure("/mode turbo")


async def test_attachments_are_named(talk: Talk) -> None:
    prompt: list[dict[str, Any]] = [
        {"type": "text", "text": "what is it"},
        {"type": "image", "mimeType": "image/png", "data": "AAAA"},
        {"type": "resource_link", "uri": "file:///plan.md", "name": "plan.md"},
    ]
    told = await talk.turn(prompt)
    assert "a picture (image/png), file:///plan.md" in told.text


async def test_an_unknown_prompt_gets_two_lines(talk: Talk) -> None:
    assert len((await talk.turn("explain quantum physics")).text.splitlines()) == 2


@pytest.mark.parametrize(
    "prompt",
    [
        *("What is in this folder?", "what's in the current directory", "What files are there?", "What is here?"),
        *("ls", "show me the files in this repository", "what files are in sub?"),
    ],
)
async def test_questions_about_a_folder_list_it_by_a_tool_call(talk: Talk, tmp_path: Path, prompt: str) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "notes.txt").touch()
    told = await talk.turn(prompt)
    assert ("notes.txt" if "sub" in prompt else "sub/") in told.text
    assert told.statuses()


async def test_question_about_the_project_reads_its_readme(talk: Talk, tmp_path: Path) -> None:
    assert "no README.md" in (await talk.turn("What does this project do?")).text
    (tmp_path / "README.md").write_text("It counts sheep.\n")
    assert "It counts sheep." in (await talk.turn("What does this project do?")).text


async def test_a_session_is_named_after_its_first_prompt(talk: Talk) -> None:
    first, second = await talk.turn("list files\nin this folder"), await talk.turn("help")
    assert [each["title"] for each in first.kinds("session_info_update")] == ["list files"]
    assert not second.kinds("session_info_update")


async def test_sessions_come_back_with_their_mode(tmp_path: Path) -> None:
    data = tmp_path / "agent"
    for mode in ("plan", "ask"):
        async with connect(demo_agent(data, mode).source()) as client:
            with anyio.fail_after(WAIT_S):
                talk = Talk(client, await client.new_session(tmp_path), ())
            assert f"The mode is `{mode}`" in (await talk.turn("/mode")).text
    assert len(list(data.iterdir())) >= 2


def test_deltas_are_small_and_make_up_the_text() -> None:
    text = "one two three four five six seven eight nine ten\n\n" * 4
    parts = deltas(text)
    assert "".join(parts) == text
    assert len(parts) > 4
    assert max(map(len, parts)) <= DELTA_CHARACTERS + 20
