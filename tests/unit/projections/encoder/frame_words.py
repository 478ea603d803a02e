"""A session's events as frames, in a word or two each.

A log becomes the frames for a client of a dialect.
"""

from __future__ import annotations

from typing import Any

import msgspec
from tests.unit.session import driving as d

from turnwire.ids import SessionId
from turnwire.projections.encoder import Answer, Ask, Fail, Outgoing, SessionEncoder, Tell, TellBlocked, Withdraw
from turnwire.projections.encoder.encoder import Dialect
from turnwire.session import events as ev
from turnwire.session import inputs as i

PLAIN = Dialect(version=1)
MARKED = Dialect(version=1, turn_complete=True)
LIFECYCLE = Dialect(version=1, lifecycle=True)
V2 = Dialect(version=2)
DIALECTS = {"plain": PLAIN, "marked": MARKED, "lifecycle": LIFECYCLE, "v2": V2}


def seen(dialect: Dialect, log: list[ev.AnyEvent], *, own: tuple[str, ...] = ("p1",)) -> list[Outgoing]:
    encoder = SessionEncoder(dialect, SessionId("s1"))
    return [out for event in log for out in encoder.take(event, own=getattr(event, "prompt_id", None) in own)]


def words(outgoing: list[Outgoing]) -> list[str]:
    """Each frame in a word or two."""
    return [_word(each) for each in outgoing]


def _word(each: Outgoing) -> str:
    match each:
        case Tell(update) | TellBlocked(update):
            told = msgspec.json.decode(update)
            state = told.get("state")
            return told["sessionUpdate"] + (f" {state}" if state else "")
        case Answer(prompt_id):
            return f"answer {prompt_id}"
        case Fail(prompt_id):
            return f"fail {prompt_id}"
        case Ask(request_id):
            return f"ask {request_id}"
        case Withdraw(request_id):
            return f"withdraw {request_id}"


def told(outgoing: list[Outgoing], kind: str) -> list[dict[str, Any]]:
    updates = (msgspec.json.decode(each.update) for each in outgoing if isinstance(each, Tell | TellBlocked))
    return [each for each in updates if each["sessionUpdate"] == kind]


def answer(outgoing: list[Outgoing]) -> dict[str, Any]:
    [found] = [each for each in outgoing if isinstance(each, Answer)]
    return msgspec.json.decode(found.result)


def error(outgoing: list[Outgoing]) -> dict[str, Any]:
    [found] = [each for each in outgoing if isinstance(each, Fail)]
    return msgspec.json.decode(found.error)


def one_turn(end: ev.TurnEnd = ev.TurnEnd.RESPONSE, *last: i.AnyInput) -> list[ev.AnyEvent]:
    session = d.Session(end)
    session.take(d.prompt("p1", request_id=2))
    if end is ev.TurnEnd.IDLE:
        session.take(d.said("user_message", messageId="u1"), d.answered("p1", None, message_id="u1"))
    session.take(d.said("agent_message_chunk", content={"type": "text", "text": "hi"}, messageId="m1"))
    session.take(*(last or (d.answered("p1"),)))
    return session.log


V2_INPUTS = (
    d.answered("p1", None, message_id="u1"),
    d.said("state_update", state="running"),
    d.said("state_update", state="idle", stopReason="end_turn"),
)
