"""What happened: the durable, ordered log of each session."""

from turnwire.log.base import EventLog, Position, SessionHead, Snapshot, Stored
from turnwire.log.memory import MemoryEventLog
from turnwire.log.sqlite import LogStatistics, SqliteEventLog
from turnwire.log.sqlite_wal import Durability

__all__ = [
    "Durability",
    "EventLog",
    "LogStatistics",
    "MemoryEventLog",
    "Position",
    "SessionHead",
    "Snapshot",
    "SqliteEventLog",
    "Stored",
]
