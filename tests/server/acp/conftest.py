"""Validates every frame of a connection of these tests against the published schema of its version.

It observes the interface between the engine and the transports. A test whose agent sends frames that no schema has
is marked with `odd_frames` and the reason. Without the schemas (`make peers`) nothing is validated.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from typing import Any
from weakref import WeakKeyDictionary

import msgspec
import pytest
from tests.interop.schema_check import SCHEMAS, Json, SchemaCheck

from turnwire.ids import SessionId
from turnwire.log.base import Position
from turnwire.server.acp.connection import AcpConnection, FramePage
from turnwire.server.acp.subscription import QueueReader


class _Watch:
    """The sent frames of one test's connections."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self._asked: WeakKeyDictionary[AcpConnection, list[Json]] = WeakKeyDictionary()
        self._versions: WeakKeyDictionary[AcpConnection, int] = WeakKeyDictionary()
        self._lifecycle: WeakKeyDictionary[AcpConnection, bool] = WeakKeyDictionary()

    def sent(self, connection: AcpConnection, frame: bytes) -> None:
        try:
            message = msgspec.json.decode(frame, type=dict[str, Any])
        except msgspec.DecodeError:
            return
        if message.get("method") == "initialize":
            self._lifecycle[connection] = '"lifecycle"' in frame.decode()
        if "id" in message and isinstance(message.get("method"), str):
            self._asked.setdefault(connection, []).append(message)

    def received(self, connection: AcpConnection, frame: bytes) -> None:
        if not frame:
            return
        message: Json = msgspec.json.decode(frame)
        agreed: Json | None = message.get("result")
        if agreed is not None and isinstance(agreed.get("protocolVersion"), int):
            self._versions[connection] = agreed["protocolVersion"]
        version, lifecycle = self._versions.get(connection, 1), self._lifecycle.get(connection, False)
        check = SchemaCheck(version, lifecycle=lifecycle and version == 1)
        if "method" not in message:
            # Any number of readers get the same answer, each once.
            for asked in self._asked.get(connection, ()):
                check.sent(asked)
        check.received(message)
        self.problems += check.problems


def watched(monkeypatch: pytest.MonkeyPatch) -> _Watch:
    """Watch all connections from now on."""
    watch = _Watch()
    receive, initialize = AcpConnection.receive, AcpConnection.initialize
    take, session_frames = AcpConnection.take, AcpConnection.session_frames

    async def received(self: AcpConnection, frame: bytes) -> None:
        watch.sent(self, frame)
        await receive(self, frame)

    async def initialized(self: AcpConnection, frame: bytes) -> bytes:
        watch.sent(self, frame)
        answer = await initialize(self, frame)
        watch.received(self, answer)
        return answer

    def taken(self: AcpConnection, reader: QueueReader) -> list[bytes] | None:
        page = take(self, reader)
        for frame in page or ():
            watch.received(self, frame)
        return page

    async def told_of_session(
        self: AcpConnection, session_id: SessionId, after: Position | None
    ) -> AsyncGenerator[FramePage]:
        async for page in session_frames(self, session_id, after):
            for frame in page.frames:
                watch.received(self, frame)
            yield page

    names: dict[str, Any] = {
        "receive": received,
        "initialize": initialized,
        "take": taken,
        "session_frames": told_of_session,
    }
    for name, function in names.items():
        monkeypatch.setattr(AcpConnection, name, function)
    return watch


@pytest.fixture(autouse=True)
def every_frame_is_one_of_acp(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    if request.node.get_closest_marker("odd_frames") or not SCHEMAS.exists():
        yield
        return
    watch = watched(monkeypatch)
    yield
    assert not watch.problems, "\n".join(watch.problems[:5])
