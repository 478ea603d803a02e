"""`turnwire stdio --daemon URL`: an editor carried to a daemon, over a way that is lost and found again."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from anyio.from_thread import start_blocking_portal
from tests.cli.editor import V1, V2, Editor, editor, update
from tests.cli.rig import Served, run, served
from tests.interop.programs import Cable, cable

NOBODY = "http://127.0.0.1:9"


class Wire:
    """The connection between the editor and the daemon, which a test can cut."""

    def __init__(self, laid: Cable, call: Callable[[Callable[[], None]], None]) -> None:
        self._cable = laid
        self._call = call
        self.url = laid.url

    def cut(self) -> None:
        """Block all traffic until `mend`."""
        self._cable.lead_to(NOBODY)
        self._call(self._cable.cut)

    def mend(self, daemon: Served) -> None:
        """New connections go to this daemon."""
        self._cable.lead_to(daemon.url)


@contextmanager
def wired(daemon: Served) -> Generator[Wire]:
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(cable()) as laid:
        wire = Wire(laid, portal.call)
        wire.mend(daemon)
        yield wire


def to_daemon(daemon: Served, *words: str, url: str | None = None) -> tuple[str, ...]:
    return ("--daemon", url or daemon.url, "--data", str(daemon.data), *words)


def lines_of_ends(opened: Editor) -> list[str]:
    return [each["stopReason"] for each in opened.updates("turn_complete")]


@pytest.mark.parametrize("version", [1, 2])
def test_an_editor_uses_the_agent_of_a_daemon_as_if_it_were_its_own(daemon: Served, version: int) -> None:
    with editor(daemon.home, *to_daemon(daemon)) as opened:
        session = opened.open(daemon.home, V1 if version == 1 else V2)
        assert opened.ended(opened.prompt(session, "hello"), version) == "end_turn"
        asking = opened.prompt(session, "ask edit allow_once,reject_once")
        question = opened.until(lambda each: each.get("method") == "session/request_permission")
        chosen = question["params"]["options"][0]["optionId"]
        opened.send(id=question["id"], result={"outcome": {"outcome": "selected", "optionId": chosen}})
        assert opened.ended(asking, version) == "end_turn"
        assert not [each for each in opened.heard if "_meta" in each.get("params", {})], "no number is left in"
        assert opened.leave() == 0
    listed = daemon.ask("GET", f"/session/{session}")
    assert listed["sessionId"] == session


def test_a_new_session_is_the_given_one_and_its_id_comes_before_its_history(daemon: Served) -> None:
    session = daemon.session()
    prompt = daemon.prompt(session, "say 1 'from before'")
    daemon.until(session, "turn_complete")
    with editor(daemon.home, *to_daemon(daemon, "--session", session)) as opened:
        assert opened.open(daemon.home) == session
        assert not opened.updates("agent_message_chunk"), "nothing of a session whose id is not told"
        opened.said("from before")
        assert [each["content"]["text"] for each in opened.updates("user_message_chunk")] == ["say 1 'from before'"]
        assert opened.ended(opened.prompt(session, "say 1 now")) == "end_turn"
        assert opened.text() == "from beforenow"
    assert daemon.turn(session, prompt)["state"] == "completed"


@pytest.mark.guarantee("G8")
def test_what_the_editor_says_while_the_way_is_lost_is_heard_when_it_is_back(daemon: Served) -> None:
    with wired(daemon) as wire, editor(daemon.home, *to_daemon(daemon, url=wire.url)) as opened:
        session = opened.open(daemon.home)
        asking = opened.prompt(session, "ask edit allow_once,reject_once")
        question = opened.until(lambda each: each.get("method") == "session/request_permission")
        wire.cut()
        chosen = question["params"]["options"][0]["optionId"]
        opened.send(id=question["id"], result={"outcome": {"outcome": "selected", "optionId": chosen}})
        wire.mend(daemon)
        assert opened.ended(asking) == "end_turn"
        assert opened.text().endswith(f"selected {chosen}")


@pytest.mark.guarantee("G7")
def test_a_daemon_that_was_restarted_goes_on_and_nothing_open_is_left_hanging(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with ExitStack() as stack:
        first = stack.enter_context(served(tmp_path))
        wire = stack.enter_context(wired(first))
        with editor(tmp_path, *to_daemon(first, url=wire.url)) as opened:
            session = opened.open(tmp_path)
            prompt = opened.prompt(session, f"say 1 begun\ngate {gate}\nsay 1 ended")
            opened.said("begun")
            wire.cut()
            gate.touch()
            first.until(session, "turn_complete")
            assert first.stop() == 0
            with served(tmp_path) as second:
                wire.mend(second)
                assert opened.ended(prompt) == "end_turn", "asked again, it is the same prompt"
                assert lines_of_ends(opened) == ["end_turn"]
                assert opened.text() == "begunended", "events go on behind the last one that came"
                assert opened.ended(opened.prompt(session, "say 1 more")) == "end_turn"
                assert opened.text() == "begunendedmore"
                assert opened.leave() == 0


def test_a_question_of_a_forgotten_connection_is_withdrawn_and_its_answer_is_for_nobody(tmp_path: Path) -> None:
    flags = ("--limit", "connection_grace_s=0.05")
    with ExitStack() as stack:
        daemon = stack.enter_context(served(tmp_path, *flags))
        wire = stack.enter_context(wired(daemon))
        with editor(tmp_path, *to_daemon(daemon, url=wire.url)) as opened:
            session = opened.open(tmp_path)
            opened.prompt(session, "ask edit allow_once,reject_once")
            old = opened.until(lambda each: each.get("method") == "session/request_permission")
            wire.cut()
            daemon.until(session, "client_detached")
            wire.mend(daemon)
            gone = opened.until(lambda each: each.get("method") == "$/cancel_request")
            assert gone["params"]["requestId"] == old["id"]
            new = opened.until(lambda each: each.get("method") == "session/request_permission")
            assert new["id"] != old["id"]
            options = [each["optionId"] for each in new["params"]["options"]]
            for question, option in ((old, options[0]), (new, options[1])):
                opened.send(id=question["id"], result={"outcome": {"outcome": "selected", "optionId": option}})
            opened.until(lambda each: f"selected {options[1]}" in update(each).get("content", {}).get("text", ""))


def test_a_daemon_that_is_not_there_is_told_of(tmp_path: Path) -> None:
    shown = run("stdio", "--daemon", "http://127.0.0.1:9", "--limit", "request_retry_s=0", home=tmp_path)

    assert (shown.code, shown.out) == (69, "")
    assert "ws://127.0.0.1:9/acp" in shown.err


@pytest.mark.guarantee("G13")
def test_a_token_that_is_not_taken_is_told_of_and_not_shown(daemon: Served) -> None:
    shown = run("stdio", "--daemon", daemon.url, home=daemon.home, TURNWIRE_TOKEN="tw_a-wrong-one-0123456789")

    assert (shown.code, shown.out) == (77, "")
    assert "0123456789" not in shown.err


def test_an_address_without_acp_is_reported(daemon: Served) -> None:
    shown = daemon.run("stdio", "--daemon", f"{daemon.url}/elsewhere")

    assert (shown.code, shown.out) == (76, "")
    assert "serves ACP" in shown.err
