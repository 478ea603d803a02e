"""The event stream of one session: the events after a cursor, then new ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from turnwire.errors import TurnwireError
from turnwire.ids import SessionId
from turnwire.log.base import Position
from turnwire.projections.envelope import stream_frame
from turnwire.server.endpoint import Call
from turnwire.server.open_answer import OpenAnswer
from turnwire.server.readers.cursors import Lost
from turnwire.server.readers.event_stream import RETRY, EventStream
from turnwire.server.readers.fanout import Fanout, Reader, SharedPage


class SessionStream(EventStream):
    """The events of one session, with `replay_complete` after those that were stored when the client connected.

    Implements `fanout.Sink` and `metrics.OpenStream`.
    """

    __slots__ = ("_client_id", "_reader", "_replay_to", "_replayed")

    def __init__(
        self, call: Call, answer: OpenAnswer, fanout: Fanout, after: Position, *, replay_to: int | None
    ) -> None:
        """`replay_to`: the offset at which the replay is complete; None if the client has no cursor."""
        super().__init__(call, answer)
        self._client_id = call.client_id
        self._reader = Reader(fanout, self, after)
        self._replay_to = replay_to
        self._replayed = 0

    def begin(self, opening: Sequence[bytes]) -> None:
        """Write the frames before the first event, and follow the session."""
        reader = self._reader
        self.daemon.clients.stream_opened(self.session_id, self.who, self._client_id)
        # An id alone is no event, but a client that is disconnected before the first event resumes with it.
        marker = self._replay_end(reader.offset)
        self.daemon.metrics.subscribers.add(self)
        reader.enter()
        self.open(b"".join([RETRY, *opening, b"id: %d\n\n" % reader.offset, *marker]))

    @property
    def session_id(self) -> SessionId:
        return self._reader.fanout.session_id

    @property
    def offset(self) -> int:
        return self._reader.offset

    def on_room(self) -> None:
        self._reader.has_room()

    def on_end(self) -> None:
        self._reader.leave()
        self.daemon.metrics.subscribers.discard(self)
        self.daemon.clients.stream_ended(self.session_id, self.who, self._client_id)

    def await_room(self, reader: Reader) -> None:
        self.wait_for_room()

    def write_page(self, reader: Reader, page: SharedPage) -> int:
        if self._replay_to is None:
            self.write(b"", page.chunked)
            return len(page.chunked)
        place = max(len(page.frames) - max(page.offset - self._replay_to, 0), 0)
        self._replayed += place
        frames = b"".join([*page.frames[:place], *self._replay_end(page.offset), *page.frames[place:]])
        self.write(frames)
        return len(frames)

    def write_lost(self, reader: Reader, lost: Lost, after: Position) -> None:
        self.write(b"".join([lost.frame(self.session_id), *self._replay_end(after.offset)]))

    def reader_ended(self, reader: Reader, error: TurnwireError | None) -> None:
        self.end()

    def _replay_end(self, reached: int) -> list[bytes]:
        """Return `replay_complete` if the reader has now reached the log's head at the time of connecting."""
        last = self._replay_to
        if last is None or reached < last:
            return []
        self._replay_to = None
        data: dict[str, Any] = {"sessionId": self.session_id, "replayedCount": self._replayed}
        if self._replayed:
            data["lastReplayedEventId"] = last
        return [stream_frame("replay_complete", data)]
