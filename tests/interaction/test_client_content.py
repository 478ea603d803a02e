"""Malformed content from a program: refused before it is a turn, whether the agent is its own or a daemon's."""

from __future__ import annotations

import pytest
from tests.support.clients import Connected

from turnwire.errors import ContentRefused
from turnwire_testing import Profile

pytestmark = pytest.mark.anyio


async def test_a_program_hears_at_once_that_its_content_is_malformed(
    connected: Connected, profile: Profile
) -> None:
    async with connected(profile) as seat:
        await seat.session.prompt("say 1 first")
        for block in ({"type": "text"}, {"type": "text", "text": 5}, {"type": "resource_link", "uri": "a"}):
            with pytest.raises(ContentRefused, match="malformed"):
                await seat.session.prompt([block])
        assert len((await seat.session.view()).turns) == 1
        assert (await seat.session.prompt("say 1 last")).text == "last"
