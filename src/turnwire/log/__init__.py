"""The durable, ordered event log of each session."""

from turnwire.log.base import EventLog, Position, SessionHead, Snapshot, Stored
from turnwire.log.memory import MemoryEventLog
from turnwire.log.sqlite import SqliteEventLog
from turnwire.log.sqlite_writer import Durability

__all__ = [
    "Durability",
    "EventLog",
    "MemoryEventLog",
    "Position",
    "SessionHead",
    "Snapshot",
    "SqliteEventLog",
    "Stored",
]
