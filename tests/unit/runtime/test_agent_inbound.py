"""What an agent says in one go is told to its session as if it had been said piece by piece."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import anyio.lowlevel
import pytest
from msgspec import Raw
from msgspec.json import encode

from turnwire.core.inputs import AgentPieces, AgentUpdate, AnyInput
from turnwire.core.repeats import Repeats
from turnwire.core.view import View
from turnwire.ids import AgentSessionId, SessionId
from turnwire.limits import Limits
from turnwire.runtime.agent_inbound import AgentInbound
from turnwire.runtime.client_requests import ClientRequests
from turnwire.runtime.session import Place
from turnwire.testing import ManualClock

pytestmark = pytest.mark.anyio

KIND = "agent_message_chunk"
UPDATES = [
    Raw(b'{"sessionUpdate":"%b","content":{"type":"text","text":"%d"}}' % (KIND.encode(), number))
    for number in range(20)
]


def _ignored(told: object) -> None: ...


def _nothing() -> None: ...


class Heard(AgentInbound):
    """A session's inbound half, and all that it told."""

    def __init__(self, arrange: Callable[[AgentInbound], None]) -> None:
        self.told: list[bytes] = []
        requests = ClientRequests(anyio.create_task_group(), Limits(), own=False)
        super().__init__(
            SessionId("s1"),
            requests,
            ManualClock(),
            put=self._take,
            room=anyio.lowlevel.checkpoint,
            ready=_nothing,
            lost=_ignored,
        )
        self.agent_session_id = AgentSessionId("a1")
        arrange(self)

    def _take(self, happened: AnyInput | Place) -> None:
        match happened:
            case AgentPieces():
                assert happened.kind == KIND
                self.told += map(bytes, happened.updates)
            case AgentUpdate():
                self.told.append(bytes(happened.update))
            case _:
                self.told.append(type(happened).__name__.encode())

    def everything(self) -> tuple[object, ...]:
        replayed = None if self.replay is None else encode(self.replay.transcript.items)
        return self.told, [bytes(each.update) for each in self.news], self.frames.received, replayed


def open_there(inbound: AgentInbound) -> None: ...


def over(inbound: AgentInbound) -> None:
    inbound.is_over = True


def being_loaded(inbound: AgentInbound) -> None:
    inbound.agent_session_id, inbound.how, inbound.replay = None, "load", View()


def being_resumed(inbound: AgentInbound) -> None:
    inbound.agent_session_id, inbound.how = None, "resume"


def repeating(inbound: AgentInbound) -> None:
    inbound.how, inbound.repeats = "resume", Repeats(View())


@pytest.mark.parametrize("arrange", [open_there, over, being_loaded, being_resumed, repeating])
async def test_pieces_together_are_told_kept_or_folded_aside_as_they_are_alone(
    arrange: Callable[[AgentInbound], None],
) -> None:
    together, alone = Heard(arrange), Heard(arrange)
    together.said(KIND, UPDATES)
    for each in UPDATES:
        alone.updated(each)
    assert together.everything() == alone.everything()
    assert bool(together.told) is (arrange in {open_there, repeating})
