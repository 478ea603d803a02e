"""Content that is accepted before its agent is known: the end of its turn reports that it was never sent."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import UNSET
from tests.server.seats import answer, seated
from tests.support.driving import of

from turnwire.session import events as ev

pytestmark = pytest.mark.anyio


async def test_content_that_no_agent_was_sent_ends_as_refused_content_and_not_as_the_agent_s_error(
    tmp_path: Path,
) -> None:
    async with seated(tmp_path / "d", log="memory") as seat:
        answer(
            await seat.client.post(seat.path("prompt"), json={"prompt": [{"type": "text", "text": "exit 0"}]}), 202
        )
        await seat.until(ev.TurnFailed)
        accepted = await seat.post("prompt", {"prompt": [{"type": "hologram"}]}, 202)
        end = await seat.end(accepted["promptId"])
        assert isinstance(end, ev.TurnFailed)
        assert (end.code, end.agent_error) == ("content_refused", UNSET)
        assert "does not take hologram" in end.message
        assert accepted["promptId"] not in [each.prompt_id for each in of(await seat.events(), ev.PromptSent)]
