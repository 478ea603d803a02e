"""Messages of `turnwire prompt` about a permission request while its turn continues and ends."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, cast

import anyio
import pytest
from msgspec import Raw

from turnwire.cli.permissions import Asker
from turnwire.cli.prompt import PromptedTurn
from turnwire.cli.screen import JsonLines
from turnwire.client.port import Accepted, DaemonSession, EventPage, NewPrompt
from turnwire.ids import PermissionId, PromptId, SessionId
from turnwire.session import events as ev

pytestmark = pytest.mark.anyio

TURN = PromptId("p1")
ASKED = ev.PermissionRequested(
    at=1,
    request_id=PermissionId("r1"),
    agent_request_id=1,
    method="session/request_permission",
    params=Raw(b"{}"),
    options=("allow", "reject"),
    prompt_id=TURN,
)
ANSWERED = ev.PermissionResolved(
    at=2, request_id=PermissionId("r1"), end=ev.PermissionEnd.ANSWERED, answer=Raw(b"{}"), prompt_id=TURN
)
ENDED = ev.TurnCompleted(at=3, prompt_id=TURN, stop_reason="end_turn", ending=ev.Ending.RESPONSE)


class SessionOfTwoPages:
    """A daemon's session in which another user's answer and the end of the turn arrive together."""

    session_id = SessionId("s1")

    def __init__(self, asker: WaitingAsker) -> None:
        self._asker = asker

    async def prompt(self, new_prompt: NewPrompt) -> Accepted:
        return Accepted(TURN, 0)

    async def follow(self, after: int) -> AsyncGenerator[EventPage]:
        yield EventPage(1, [ASKED])
        await self._asker.asked.wait()
        yield EventPage(3, [ANSWERED, ENDED])


class WaitingAsker:
    """A user who reads a request, and never answers."""

    def __init__(self) -> None:
        self.asked = anyio.Event()

    def stop_line(self) -> None:
        pass

    async def ask(self, permission: Any) -> None:
        self.asked.set()
        await anyio.sleep_forever()


async def test_a_request_that_is_answered_elsewhere_is_said_to_be_closed_though_the_turn_ends_with_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asker = WaitingAsker()
    session = cast("DaemonSession", SessionOfTwoPages(asker))
    turn = PromptedTurn(session, JsonLines(session.session_id), cast("Asker", asker))

    end = await turn.run(NewPrompt(Raw(b"[]")))

    assert end.terminal == ENDED
    assert "the permission request is closed" in capsys.readouterr().err
