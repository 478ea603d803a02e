"""`cancel`, `queue`, `answer`, `settle` and `explain`: doing something about a turn."""

from __future__ import annotations

from tests.cli.rig import Served

from turnwire.cli.turns import Agent, Explanation, Queue, findings

WHOLE_ID = f"s_{0:020x}"
"""A complete id is not looked up, so the command's own error comes first."""


def test_cancel_stops_the_turn_that_runs_and_is_harmless_otherwise(daemon: Served) -> None:
    session = daemon.session()
    prompt = daemon.prompt(session, "never")
    daemon.until(session, "prompt_sent")
    shown = daemon.run("cancel", session)
    assert (shown.code, "cancelling" in shown.err) == (0, True)
    daemon.until(session, "turn_complete")

    assert daemon.turn(session, prompt)["stopReason"] == "cancelled"
    shown = daemon.run("cancel", session, prompt)
    assert (shown.code, shown.err) == (0, "turnwire: it had already ended\n")
    shown = daemon.run("cancel", session)
    assert (shown.code, shown.err) == (0, "turnwire: no turn runs\n")
    assert daemon.run("cancel", session, "p_nowhere").code == 66
    assert daemon.run("cancel", "nowhere").code == 66


def test_cancel_takes_a_prompt_that_waits_out_of_the_queue(daemon: Served) -> None:
    session = daemon.session()
    running, waiting = daemon.prompt(session, "never"), daemon.prompt(session, "later")
    shown = daemon.run("cancel", session, waiting)

    assert (shown.code, "removed from the queue" in shown.err) == (0, True)
    assert daemon.turn(session, waiting)["stopReason"] == "cancelled"
    assert daemon.turn(session, running)["state"] == "running"
    daemon.run("cancel", session)


def test_the_queue_is_listed_edited_moved_removed_held_and_released(daemon: Served) -> None:
    session = daemon.session()
    running = daemon.prompt(session, "never")
    one, two, three = (daemon.prompt(session, f"say 1 {each}") for each in "abc")

    def queue(*words: str) -> list[list[str]]:
        shown = daemon.run("queue", session, *words)
        assert shown.code == 0, shown.err
        return [[row.split("\t")[1], row.split("\t")[4]] for row in shown.out.splitlines()]

    assert queue() == [[one, "say 1 a"], [two, "say 1 b"], [three, "say 1 c"]]
    assert queue("edit", three, "say", "1", "new") == [[one, "say 1 a"], [two, "say 1 b"], [three, "say 1 new"]]
    assert [each[0] for each in queue("move", three, "1")] == [three, one, two]
    assert [each[0] for each in queue("remove", one)] == [three, two]
    queue("hold")
    assert daemon.run("queue", session, "--json").lines[0]["held"] is True
    daemon.run("cancel", session, running)
    daemon.until(session, "turn_complete")
    assert "turnwire queue" in daemon.run("explain", session).out
    assert queue("list") != []
    queue("release")
    daemon.until(session, "pending_prompt_started")
    assert daemon.turn(session, one)["stopReason"] == "cancelled"
    shown = daemon.run("queue", session, "edit", running, "too late")
    assert shown.code == 66


def test_an_action_of_the_queue_says_what_it_lacks(daemon: Served) -> None:
    assert "PROMPT PLACE" in daemon.run("queue", WHOLE_ID, "move", "p1").err
    assert daemon.run("queue", WHOLE_ID, "move", "p1", "0").code == 2
    assert daemon.run("queue", WHOLE_ID, "hold", "x").code == 2
    assert daemon.run("queue", WHOLE_ID, "edit", "p1", " ", "").code == 2
    assert daemon.run("attach", WHOLE_ID, "--prompt", "").code == 2
    assert daemon.run("queue", WHOLE_ID, "dance").code == 2


def test_a_question_is_listed_explained_and_answered_once(daemon: Served) -> None:
    session = daemon.session()
    prompt = daemon.prompt(session, "ask t1 allow_once,reject_once")
    daemon.until(session, "permission_request")
    request, asked, command = daemon.run("answer", session).out.strip().split("\t")
    assert asked == "t1"
    explained = daemon.run("explain", session)
    assert explained.code == 0
    assert explained.out.splitlines()[1:3] == ["1. the agent waits for an answer: t1", f"   next: {command}"]
    assert "last from the agent: " in explained.out

    assert daemon.run("answer", session, request, "nonsense").code == 65
    assert daemon.run("answer", session, request, "reject").code == 0
    daemon.until(session, "turn_complete")
    assert daemon.turn(session, prompt)["resultText"] == "selected reject_once"
    assert daemon.run("answer", session, request, "allow_once").code == 66
    assert "nothing is asked" in daemon.run("answer", session).err


def test_the_only_question_need_not_be_named(daemon: Served) -> None:
    session = daemon.session()
    prompt = daemon.prompt(session, "ask t1 allow_once,reject_once")
    daemon.until(session, "permission_request")
    assert "t1" in daemon.run("answer", session).out
    refused = daemon.run("answer", session, "nonsense")
    assert (refused.code, "allow_once" in refused.err) == (65, True)
    assert daemon.run("answer", session, "allow_once").code == 0
    daemon.until(session, "turn_complete")
    assert daemon.turn(session, prompt)["resultText"] == "selected allow_once"
    assert daemon.run("answer", session, "allow_once").code == 66


def test_a_question_that_takes_a_free_answer_is_answered_with_a_form(daemon: Served) -> None:
    session = daemon.session()
    prompt = daemon.prompt(session, "elicit what is your name")
    daemon.until(session, "permission_request")
    listed, field = daemon.run("answer", session).out.splitlines()
    request, asked, command = listed.split("\t")
    assert (asked, field) == ("what is your name", "  answer: text, required")
    assert command.endswith(f"{request} --field answer=…")
    assert daemon.run("answer", session, request, "--form", "{").code == 2
    assert daemon.run("answer", session, request, "--form", '{"action": "decline"}').code == 0
    daemon.until(session, "turn_complete")
    assert daemon.turn(session, prompt)["state"] == "completed"


def test_a_stuck_turn_is_explained_and_settled(daemon: Served) -> None:
    session = daemon.session()
    assert "nothing is stuck" in daemon.run("explain", session).out
    prompt = daemon.prompt(session, "tool-open t1\nnever")
    daemon.until(session, "prompt_sent")
    daemon.until(session, "session_update")
    explained = daemon.run("explain", session)
    assert f"turn: {prompt}" in explained.out
    assert f"turnwire cancel {session} {prompt}" in explained.out
    assert daemon.run("explain", session, "--json").lines[0]["promptId"] == prompt

    assert daemon.run("settle", session, prompt).code == 0
    assert daemon.turn(session, prompt)["state"] in ("completed", "cancelled")
    assert daemon.run("settle", session, "p_nowhere").code == 66


def test_explain_puts_the_likeliest_cause_first() -> None:
    agent = Agent(connected=True, open_requests=1)
    held = Queue([{"promptId": "p2"}], True, "hold")
    silent = Explanation(
        "running", suspected_complete=True, reasons=["nothing has happened"], prompt_id="p1", agent=agent
    )
    found = findings("s1", silent, [], held)
    assert [each.next for each in found] == ["turnwire queue s1 release", "turnwire settle s1 p1"]

    gone = Explanation("running", prompt_id="p1")
    assert [each.next for each in findings("s1", gone, [], Queue([]))] == ["turnwire doctor"]
    slow = Explanation("running", prompt_id="p1", agent=agent)
    assert [each.next for each in findings("s1", slow, [], Queue([]))] == ["turnwire cancel s1 p1"]
    fine = Explanation("running", prompt_id="p1", agent=Agent(connected=True))
    assert [each.next for each in findings("s1", fine, [], Queue([]))] == ["turnwire attach s1"]
    leaving = Explanation("cancelling", prompt_id="p1", agent=agent)
    assert [each.next for each in findings("s1", leaving, [], Queue([]))] == ["turnwire settle s1 p1"]


def test_explain_names_a_full_disk_and_does_not_advise_to_settle() -> None:
    known = Explanation(state="running", prompt_id="p", suspected_complete=True, reasons=["idle"], log="log_full")
    [found] = findings("s", known, [], Queue([]))
    assert found.words == "the daemon cannot store events: its disk is full"
    assert found.next is not None
    assert found.next.startswith("make room")


def test_without_a_session_the_last_one_is_meant(daemon: Served) -> None:
    daemon.said(daemon.session(), "say 1 hello")
    for words in ("cancel", "queue", "settle", "explain", "answer", "share", "archive"):
        shown = daemon.run(words)
        assert shown.code == 0, shown.err
