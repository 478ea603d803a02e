"""What every official client must have seen after its tour with an agent that understands `agents/words.md`.

Takes the two connections of a tour over a pipe; fails where they are not as they should be.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.interop.schema_check import check_frames
from tests.interop.touring import Connection


def check_tour(connections: Sequence[Connection]) -> None:
    """A turn with a permission and one that is cancelled; then in a new process all of it again and one more."""
    first, second = connections
    assert first.answers("initialize")[0]["protocolVersion"] == first.version
    opening, _ = first.split(first.place("session/new"))
    assert not opening.updates(), "the answer to session/new comes before everything of that session"
    assert len([each for each in first.received if each.get("method") == "session/request_permission"]) == 1
    assert first.stop_reasons() == ["end_turn", "cancelled"]
    assert first.said() == "editedwaiting"
    at = second.place("session/load" if second.version == 1 else "session/resume")
    history, more = second.split(at)
    assert history.said() == "editedwaiting"
    assert more.said() == "You said: hello again."
    assert second.stop_reasons()[-1] == "end_turn"
    if first.version == 1:
        turn, _ = first.split(first.place("session/prompt"))
        assert turn.received[-1]["method"] == "_turnwire/turn_complete", (
            "the answer stands behind the mark of its end"
        )
    for each in connections:
        assert each.handled == len(each.updates()), "the SDK has taken every update"
        seen = check_frames(each.version, each.frames).seen
        assert {"initialize answered", "session/update", "session/prompt answered"} <= seen
