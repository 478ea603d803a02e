"""What happened: the durable, ordered log of each session."""

from turnwire.log.base import EventLog, Position, SessionHead, Snapshot, Stored
from turnwire.log.durability import Durability
from turnwire.log.memory import MemoryEventLog
from turnwire.log.sqlite import LogStatistics, SqliteEventLog

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
