"""`turnwire prompt --when-busy steer`: a prompt that goes into a running turn is followed there."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path

import pytest
from tests.cli.rig import SCRIPTED, Served, finish, lines_of, served


@pytest.fixture(scope="module")
def steerable(tmp_path_factory: pytest.TempPathFactory) -> Generator[Served]:
    with served(tmp_path_factory.mktemp("home"), "--", *SCRIPTED, "--steering") as daemon:
        yield daemon


def test_the_turn_it_went_into_is_followed_with_its_open_question_to_its_end(steerable: Served) -> None:
    session = steerable.session()
    host = steerable.prompt(session, "ask t1 allow_once,reject_once\nsay 1 done\nstop max_tokens")
    steerable.until(session, "permission_request")
    with steerable.begun("prompt", "-s", session, "--when-busy", "steer", "rather this") as process:
        lines = lines_of(process)
        assert (
            next(line for line in lines if "took it into the turn" in line)
            .rstrip()
            .endswith(f"{host}; following that")
        )
        command = next(line for line in lines if "next: turnwire answer" in line)
        words = command.split("next: turnwire ")[1].split()
        assert steerable.run(*words[:-1], "allow_once").code == 0
        shown = finish(process)

    assert shown.code == 10
    assert "done" in shown.out
    assert "the turn ended: max_tokens" in shown.out


def test_as_json_the_result_has_the_words_of_that_turn(steerable: Served, tmp_path: Path) -> None:
    session, gate = steerable.session(), tmp_path / "gate"
    steerable.prompt(session, f"gate {gate}\nsay 1 done")
    steerable.until(session, "prompt_sent")
    with steerable.begun("prompt", "-s", session, "--when-busy", "steer", "--json", "rather this") as process:
        assert any("prompt_injected" in line for line in lines_of(process))
        gate.write_text("")
        shown = finish(process)

    assert shown.code == 0
    result = json.loads(shown.out.splitlines()[-1])
    assert (result["type"], result["stopReason"]) == ("result", "end_turn")
    assert result["text"].endswith("done")


def test_an_agent_that_cannot_be_steered_is_told_of_and_the_prompt_gets_its_own_turn(tmp_path: Path) -> None:
    with served(tmp_path) as daemon:
        session, gate = daemon.session(), tmp_path / "gate"
        daemon.prompt(session, f"gate {gate}\nsay 1 first")
        daemon.until(session, "prompt_sent")
        with daemon.begun("prompt", "-s", session, "--when-busy", "steer", "say 1 second") as process:
            told = next(line for line in lines_of(process) if "not in the turn that runs" in line)
            assert "the agent takes nothing in while it works" in told
            gate.write_text("")
            shown = finish(process)
        assert shown.code == 0
        assert "second" in shown.out
        assert "first" not in shown.out
