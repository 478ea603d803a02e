"""Agents that are sound and unusual, and agents whose fault shows only in some places.

`SOUND` must not be accused of anything. `BROKEN` names the cases that each must be caught by.
"""
# It takes JSON of which nothing is known, as a program without any library does.
# pyright: basic

from __future__ import annotations

from typing import Any

from check_peers.mutants import WithoutStates
from check_peers.raw_agent import RawAgent, Refused, Session, Turn


class CommandsAfterTheMarker(RawAgent):
    def mark(self, turn: Turn, reason: str | None) -> None:
        super().mark(turn, reason)
        self.tell(turn.session, {"sessionUpdate": "session_info_update", "title": "A title"}, kept=False)
        self.tell(turn.session, {"sessionUpdate": "available_commands_update", "availableCommands": []}, kept=False)


class ThoughtAndAnswerShareAnId(RawAgent):
    def say(self, turn: Turn, *pieces: str) -> None:
        identity = self.message_id()
        thought = {**self.piece("hm", identity), "sessionUpdate": "agent_thought_chunk"}
        self.tell(turn.session, thought)
        for each in pieces:
            self.tell(turn.session, self.piece(each, identity))


class HistoryWithoutLastLineBreak(RawAgent):
    def play_plain(self, turn: Turn) -> None:
        self.say(turn, "You said: ", turn.words, ".\n")
        self.finish(turn)

    def replay(self, session: Session) -> None:
        for update in list(session.history):
            words = update.get("content", {}).get("text") if isinstance(update.get("content"), dict) else None
            told = {**update, "content": {"type": "text", "text": words.rstrip("\n")}} if words else update
            self.tell(session, told, kept=False)


SOUND: tuple[type[RawAgent], ...] = (
    CommandsAfterTheMarker,
    ThoughtAndAnswerShareAnId,
    HistoryWithoutLastLineBreak,
)


class NeverLists(RawAgent):
    def listed(self, params: dict[str, Any]) -> Any:
        return None


class NoList(RawAgent):
    def listed(self, params: dict[str, Any]) -> Any:
        raise Refused(-32601)


class LastChunkComesLate(WithoutStates):
    """Under its own session id, when the next message has come."""

    late: Turn | None = None

    def play_plain(self, turn: Turn) -> None:
        super().play_plain(turn)
        self.late = turn

    def receive(self, message: dict[str, Any]) -> None:
        if self.late is not None and message.get("method") != "session/load":
            self.tell(self.late.session, self.piece("!", "late"), kept=False)
        self.late = None
        super().receive(message)


class SecondTurnIsAnsweredTwice(WithoutStates):
    turns = 0

    def finish(self, turn: Turn, reason: str = "end_turn") -> None:
        super().finish(turn, reason)
        self.turns += 1
        if self.turns == 2 and turn.words == "hello" and reason == "end_turn":
            self.answer(turn.request, {"stopReason": reason})


class LogsWhenItLoads(RawAgent):
    def load(self, params: dict[str, Any]) -> dict[str, Any]:
        self.emit(b"INFO loading")
        return super().load(params)


class OwnMemberInAnUpdate(RawAgent):
    def usage(self) -> dict[str, Any]:
        return {**super().usage(), "costUsd": 1}


BROKEN: dict[type[RawAgent], set[str]] = {
    NeverLists: {"v1.rpc.claimed"},
    NoList: {"v1.rpc.claimed"},
    LastChunkComesLate: {"v1.turn.nothing-after"},
    SecondTurnIsAnsweredTwice: {"v1.turn.once"},
    LogsWhenItLoads: {"v1.wire.only-messages"},
    OwnMemberInAnUpdate: {"v1.update.no-members-of-its-own"},
}
