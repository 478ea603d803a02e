"""The text that a person sees for each kind of event."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec import Raw

from turnwire.cli.screen import TextScreen
from turnwire.ids import PermissionId, PromptId, SessionId
from turnwire.session import events as ev

PROMPT = PromptId("p1")


def update(kind: str, **members: Any) -> ev.SessionUpdated:
    body = Raw(msgspec.json.encode({"sessionUpdate": kind, **members}))
    return ev.SessionUpdated(at=0, kind=kind, update=body, prompt_id=PROMPT)


def chunk(text: str, message_id: str | None = None) -> ev.SessionUpdated:
    return update("agent_message_chunk", content={"type": "text", "text": text}, messageId=message_id)


def shown(capsys: pytest.CaptureFixture[str], *events: ev.AnyEvent, whole: bool = False) -> tuple[str, list[str]]:
    screen = TextScreen(whole=whole, session_id=SessionId("s1") if whole else None)
    for offset, event in enumerate(events, 1):
        screen.show(offset, event)
    screen.pause()
    seen = capsys.readouterr()
    return seen.out, seen.err.splitlines()


def test_a_tool_call_is_one_line_when_it_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    out, lines = shown(
        capsys,
        update("tool_call", toolCallId="t1", title="Read  the\nfile", status="pending"),
        update("tool_call_update", toolCallId="t1", status="in_progress"),
        update("tool_call_update", toolCallId="t1", status="failed"),
        update("tool_call_update", toolCallId="t2", status="completed"),
    )

    assert (out, lines) == ("", ["✗ Read the file", "✓ t2"])


def test_a_plan_is_shown_when_it_changes(capsys: pytest.CaptureFixture[str]) -> None:
    first = [{"content": "look", "status": "in_progress"}, {"content": "write", "status": "pending"}]
    second = [{"content": "look", "status": "completed"}, {"content": "write", "status": "completed"}]
    _, lines = shown(
        capsys,
        update("plan", entries=first),
        update("plan", entries=first),
        update("plan_update", plan={"entries": second}),
    )

    assert lines == ["plan 0/2: look", "plan 2/2: done"]


def test_a_whole_message_is_said_unless_its_pieces_were(capsys: pytest.CaptureFixture[str]) -> None:
    text = [{"type": "text", "text": "whole"}]
    out, _ = shown(capsys, update("agent_message", messageId="m1", content=text))
    assert out == "whole\n"

    out, _ = shown(
        capsys, chunk("who", "m1"), chunk("le", "m1"), update("agent_message", messageId="m1", content=text)
    )
    assert out == "whole\n"


def test_lines_do_not_break_into_words(capsys: pytest.CaptureFixture[str]) -> None:
    out, lines = shown(capsys, chunk("so"), update("tool_call", toolCallId="t", status="completed"), chunk("on"))

    assert (out, lines) == ("so\non\n", ["✓ t"])


@pytest.mark.parametrize(
    "kind", ["agent_message_chunk", "tool_call", "plan", "plan_update", "agent_message", "new_kind"]
)
def test_an_update_that_lacks_what_its_kind_needs_is_passed_over(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shown(capsys, update(kind), chunk("on")) == ("on\n", [])


def test_who_looks_on_sees_prompts_and_ends(capsys: pytest.CaptureFixture[str]) -> None:
    from turnwire.ids import MessageId

    content = Raw(b'[{"type":"text","text":"hello"}]')
    out, lines = shown(
        capsys,
        ev.UserMessage(at=0, prompt_id=PROMPT, message_id=MessageId("m"), content=content, author="ann"),
        chunk("hi"),
        ev.TurnCompleted(at=0, prompt_id=PROMPT, stop_reason="end_turn", ending=ev.Ending.RESPONSE),
        ev.AgentExited(at=0, reason="agent_exited", message="the agent is gone"),
        ev.CancelEscalated(at=0, prompt_id=PROMPT, rung=ev.CancelRung.TERMINATE),
        ev.TurnFailed(at=0, prompt_id=PROMPT, code="agent_exited", message="it went"),
        whole=True,
    )

    assert out == "hi\n"
    assert lines == [
        "ann> hello",
        "turn ended: end_turn",
        "the agent is gone (agent_exited)",
        "the agent does not stop; next rung: terminate",
        "turn failed (agent_exited): it went",
    ]


@pytest.mark.parametrize(
    ("end", "answer", "said"),
    [
        (ev.PermissionEnd.ANSWERED, b'{"outcome":{"outcome":"selected","optionId":"no"}}', "ann answered no"),
        (ev.PermissionEnd.ANSWERED, b'{"action":"decline"}', "ann answered"),
        (ev.PermissionEnd.ANSWERED, b"7", "ann answered"),
        (ev.PermissionEnd.CANCELLED, b"{}", "closed without an answer (cancelled)"),
    ],
)
def test_who_looks_on_sees_questions_and_what_became_of_them(
    end: ev.PermissionEnd, answer: bytes, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    params = Raw(b'{"toolCall":{"title":"Delete\\u001b[2J it"},"options":[{"optionId":"no"},{"optionId":"yes"}]}')
    asked = ev.PermissionRequested(
        at=0,
        request_id=PermissionId("q1"),
        agent_request_id=1,
        method="session/request_permission",
        params=params,
        options=("no", "yes"),
        prompt_id=PROMPT,
    )
    resolved = ev.PermissionResolved(
        at=0, request_id=PermissionId("q1"), end=end, answer=Raw(answer), author="ann", prompt_id=PROMPT
    )

    assert shown(capsys, asked, resolved, whole=True)[1] == [
        "turnwire: the agent asks: Delete[2J it; it waits for an answer",
        "  next: turnwire answer s1 q1 no|yes",
        f"permission request q1: {said}",
    ]
    assert shown(capsys, asked, resolved) == ("", [])
