"""A reader that begins with the fold of another gets the same frames as one that folds the log itself."""

from __future__ import annotations

import pytest
from tests.support.acp import DIALECTS, Json, acp_daemon, connected

from turnwire.projections.encoder.encoder import Dialect
from turnwire.server.acp.frame_writer import WORTH, Fold
from turnwire_testing import Profile

pytestmark = pytest.mark.anyio

DIALECT = {
    "v1": Dialect(version=1, boolean_options=False),
    "lifecycle": Dialect(version=1, lifecycle=True, boolean_options=False),
    "v2": Dialect(version=2),
}
LONG = WORTH + 100


@pytest.mark.parametrize("profile", ["v1", "v2"])
@pytest.mark.parametrize("dialect", ["v1", "lifecycle", "v2"])
async def test_every_client_that_resumes_is_told_the_same(profile: Profile, dialect: str) -> None:
    async with acp_daemon(profile) as place, connected(place, DIALECTS[dialect]) as first:
        session_id = await first.new()
        await first.prompt(session_id, f"flood {LONG}\nplan one; two\nask t1 yes,no\nsay 1 after")
        await first.until(lambda each: each.get("method") == "session/request_permission")
        heard: list[list[Json]] = []
        for _ in range(3):
            async with connected(place, DIALECTS[dialect]) as client:
                await client.open("session/resume", session_id)
                await client.until(lambda each: each.get("method") == "session/request_permission")
                heard.append([_plain(each) for each in client.frames])
        assert heard[0] == heard[1] == heard[2]
        session = await place.daemon.node.session(session_id)
        kept = Fold.begin(session, DIALECT[dialect], 0, session.head)
        is_alike = profile == ("v2" if dialect == "v2" else "v1")
        assert (kept.offset >= LONG) == is_alike, "a fold that translates is not kept"


def _plain(frame: Json) -> Json:
    """Return a frame without the member that differs between clients: the log's position."""
    result: Json = frame.get("result", {})
    return {**frame, "result": {**result, "_meta": None}}
