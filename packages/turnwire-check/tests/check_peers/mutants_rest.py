"""Servers that break one rule of REST each, and the case that must say so.

Each departs from `RawServer` in one method.
"""
# It takes JSON of which nothing is known, as a program without any library does.
# pyright: basic

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from check_peers.raw_server import EPOCH, Body, RawServer, Refusal, Turn

MUTANTS_REST: dict[str, type[RawServer]] = {}
"""The server that breaks the rule of a case, by the id of the case."""

Was = Callable[..., Any]


def breaks(case: str, method: str) -> Callable[[Callable[..., Any]], None]:
    """A mutant that differs by one method. The function gets the server, the method that was, and its arguments."""

    def register(instead: Callable[..., Any]) -> None:
        was = getattr(RawServer, method)

        def changed(self: RawServer, *args: Any, **kwargs: Any) -> Any:
            return instead(self, lambda *given, **more: was(self, *given, **more), *args, **kwargs)

        assert case not in MUTANTS_REST, case
        MUTANTS_REST[case] = type(f"Mutant_{case}", (RawServer,), {method: changed})

    return register


def refusing(status: int, code: str = "refused") -> Callable[..., Any]:
    def instead(*args: Any) -> Any:
        raise Refusal(status, code)

    return instead


def always(value: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: value


def answering(status: int) -> Callable[..., Any]:
    return lambda *args: Body(status, {})


def without(name: str) -> Callable[..., Any]:
    return lambda self, was, *args: {key: value for key, value in was(*args).items() if key != name}


def plus(**members: Any) -> Callable[..., Any]:
    return lambda self, was, *args: {**was(*args), **members}


# -- getting in -------------------------------------------------------------------------------------------------

breaks("rest.access.health", "health")(lambda self, was: self.reply(200, {"status": "fine"}))
breaks("rest.access.capabilities", "capabilities")(plus(features={"session_close": True}))


@breaks("rest.access.stranger", "let_in")
def status_is_public(self: RawServer, was: Was, call: Any, path: str) -> None:
    if "Authorization" in call.headers or not path.endswith("/status"):
        was(call, path)


@breaks("rest.access.wrong-token", "let_in")
def any_token_will_do(self: RawServer, was: Was, call: Any, path: str) -> None:
    if "Authorization" not in call.headers:
        was(call, path)


@breaks("rest.access.no-leak", "let_in")
def looks_before_it_asks(self: RawServer, was: Was, call: Any, path: str) -> None:
    if path.startswith("/session/") and path.split("/")[2] not in self.sessions:
        self.unknown(None)
    was(call, path)


@breaks("rest.access.challenge", "let_in")
def says_nothing_of_how(self: RawServer, was: Was, call: Any, path: str) -> None:
    try:
        was(call, path)
    except Refusal as refusal:
        raise Refusal(refusal.status, refusal.code) from None


# -- sessions ---------------------------------------------------------------------------------------------------

breaks("rest.session.created", "create")(without("clientId"))
breaks("rest.session.unique", "session_id")(always("s"))
breaks("rest.session.status", "is_busy")(always("no"))
breaks("rest.session.busy", "is_busy")(always(False))
breaks("rest.session.load", "load")(without("liveJournal"))
breaks("rest.session.resume", "client_id")(always("c"))

# -- refusals ---------------------------------------------------------------------------------------------------

breaks("rest.refusal.no-json", "no_json")(refusing(422, "unprocessable"))
breaks("rest.refusal.media-type", "media_is_json")(always(True))
breaks("rest.refusal.parameters", "media_is_json")(lambda self, was, media: media == "application/json")
breaks("rest.refusal.too-large", "measure")(always(None))


@breaks("rest.refusal.no-blocks", "check_blocks")
def empty_is_well(self: RawServer, was: Was, session: Any, blocks: Any) -> None:
    if blocks != []:
        was(session, blocks)


@breaks("rest.refusal.no-list", "prompt")
def text_is_well(self: RawServer, was: Was, session: Any, call: Any) -> Any:
    body = self.read(call)
    if isinstance(body.get("prompt"), str):
        raw = json.dumps({"prompt": [{"type": "text", "text": body["prompt"]}]}).encode()
        call = call._replace(body=raw)
    return was(session, call)


@breaks("rest.refusal.block", "check_blocks")
def hollow_is_well(self: RawServer, was: Was, session: Any, blocks: Any) -> None:
    if not isinstance(blocks, list) or blocks[-1:] != [{"type": "text"}]:
        was(session, blocks)


def unknown_as(part: str, status: int, code: str = "session_not_found") -> Callable[..., Any]:
    def instead(self: RawServer, was: Was, asked: str | None) -> Any:
        if asked == part:
            raise Refusal(status, code)
        return was(asked)

    return instead


breaks("rest.refusal.unknown-prompted", "unknown")(unknown_as("prompt", 422))
breaks("rest.refusal.unknown-streamed", "unknown")(unknown_as("events", 400))
breaks("rest.refusal.unknown-cancelled", "unknown")(unknown_as("cancel", 409))
breaks("rest.refusal.code", "unknown")(unknown_as("prompt", 404, "not_found"))
breaks("rest.refusal.unknown-client", "check_client")(always(None))
breaks("rest.refusal.no-route", "no_route")(refusing(400))
breaks("rest.refusal.method", "wrong_method")(refusing(405))
breaks("rest.refusal.media", "problem_media")(always("application/json"))
breaks("rest.refusal.words", "problem")(without("error"))
breaks("rest.refusal.members", "problem")(without("status"))


@breaks("rest.refusal.nothing-started", "check_blocks")
def tells_first(self: RawServer, was: Was, session: Any, blocks: Any) -> None:
    self.emit(session, "prompt_accepted", {}, f"early-{len(session.log)}")
    was(session, blocks)


# -- the end of a session ---------------------------------------------------------------------------------------

breaks("rest.close.answered", "closed")(lambda self, was: self.reply(200, {}))
breaks("rest.close.told", "tell_closed")(always(None))
breaks("rest.close.ends", "end_readers")(always(None))
breaks("rest.close.twice", "closed_again")(answering(500))
breaks("rest.close.prompted", "check_open")(always(None))
breaks("rest.close.turn", "end_all")(always(None))

# -- prompts ----------------------------------------------------------------------------------------------------

breaks("rest.prompt.accepted", "accepted")(
    lambda self, was, turn, stands: self.reply(200, self.receipt(turn, stands))
)
breaks("rest.prompt.receipt", "receipt")(without("eventEpoch"))
breaks("rest.prompt.at-once", "accepted")(
    lambda self, was, turn, stands: None if turn.state == "running" else was(turn, stands)
)
breaks("rest.prompt.unique", "prompt_id")(always("p"))
breaks("rest.prompt.position", "receipt")(plus(lastEventId=0))


@breaks("rest.prompt.echo", "open_turn")
def speaks_first(self: RawServer, was: Was, session: Any, turn: Any) -> None:
    self.say(session, turn, "so be it")
    self.echo(session, turn)


@breaks("rest.prompt.key", "repeated")
def takes_it_again(self: RawServer, was: Was, session: Any, key: str) -> Any:
    blocks, _, _ = session.keys.pop(key)
    return self.take(session, Turn(self.prompt_id(), blocks[0]["text"]), None, 0)


@breaks("rest.prompt.key-once", "repeated")
def runs_it_again(self: RawServer, was: Was, session: Any, key: str) -> Any:
    self.begin(session, session.turns[session.keys[key][1]])
    return was(session, key)


breaks("rest.prompt.key-other", "key_of_another")(lambda self, was, session, key: self.repeated(session, key))

# -- the end of a turn ------------------------------------------------------------------------------------------


@breaks("rest.turn.ends", "ended")
def first_turn_has_no_end(self: RawServer, was: Was, session: Any, turn: Any, reason: str) -> None:
    if len(session.turns) > 1 or turn.text != "hello":
        was(session, turn, reason)


@breaks("rest.turn.once", "ended")
def ends_twice(self: RawServer, was: Was, session: Any, turn: Any, reason: str) -> None:
    was(session, turn, reason)
    if turn.text == "hello":
        was(session, turn, reason)


@breaks("rest.turn.last", "ended")
def speaks_on(self: RawServer, was: Was, session: Any, turn: Any, reason: str) -> None:
    was(session, turn, reason)
    if turn.text == "hello" and reason == "end_turn":
        self.say(session, turn, "one more thing")


@breaks("rest.turn.named", "emit")
def end_without_name(self: RawServer, was: Was, session: Any, kind: str, data: Any, prompt: Any = None) -> None:
    if kind == "turn_complete":
        data = {"stopReason": data["stopReason"]}
    was(session, kind, data, prompt)


breaks("rest.turn.reason", "reason")(always("done"))
breaks("rest.turn.failed", "fail")(lambda self, was, session, turn: self.end(session, turn, "end_turn"))


@breaks("rest.turn.after-failure", "take")
def broken_for_good(self: RawServer, was: Was, session: Any, turn: Any, when_busy: Any, stands: int) -> Any:
    if any(each.state == "error" for each in session.turns.values()):
        raise Refusal(503, "agent_gone")
    return was(session, turn, when_busy, stands)


breaks("rest.turn.updates", "params")(
    lambda self, was, session, update: {"sessionId": "the-agents", "update": update}
)


@breaks("rest.turn.marked", "emit")
def words_of_nobody(self: RawServer, was: Was, session: Any, kind: str, data: Any, prompt: Any = None) -> None:
    is_word = kind == "session_update" and data["update"]["sessionUpdate"] == "agent_message_chunk"
    was(session, kind, data, None if is_word else prompt)


breaks("rest.turn.looked-up", "turn_of")(plus(state="done"))

# -- a prompt while a turn runs ---------------------------------------------------------------------------------


@breaks("rest.busy.taken", "take")
def too_busy(self: RawServer, was: Was, session: Any, turn: Any, when_busy: Any, stands: int) -> Any:
    if session.running is not None and when_busy is None:
        raise Refusal(503, "too_busy")
    return was(session, turn, when_busy, stands)


@breaks("rest.busy.waits", "cancelled")
def begins_early(self: RawServer, was: Was, session: Any, turn: Any) -> Any:
    for each in session.queue:
        self.echo(session, each)
    return was(session, turn)


breaks("rest.busy.ends", "go_on")(always(None))
breaks("rest.busy.rejected", "is_rejected")(always(False))
breaks("rest.busy.listed", "pending")(lambda self, was, session: was(session)[:1])


@breaks("rest.busy.removed", "remove")
def gone_without_a_word(self: RawServer, was: Was, session: Any, prompt: str) -> bool:
    session.queue.remove(session.turns[prompt])
    return True


@breaks("rest.busy.many", "ended")
def loses_count(self: RawServer, was: Was, session: Any, turn: Any, reason: str) -> None:
    if len(session.turns) < 5:
        was(session, turn, reason)


# -- cancels ----------------------------------------------------------------------------------------------------


@breaks("rest.cancel.answered", "cancelled")
def cancelled_with_200(self: RawServer, was: Was, session: Any, turn: Any) -> Any:
    was(session, turn)
    return self.reply(200, {})


breaks("rest.cancel.ends", "cancelled")(answering(204))


@breaks("rest.cancel.reason", "cancelled")
def cancelled_as_error(self: RawServer, was: Was, session: Any, turn: Any) -> Any:
    if turn.request is not None:
        return was(session, turn)
    self.fail(session, turn)
    return Body(204, {})


@breaks("rest.cancel.once", "cancelled_idle")
def ends_again(self: RawServer, was: Was, session: Any) -> Any:
    for turn in session.turns.values():
        if turn.state == "cancelled":
            self.ended(session, turn, "cancelled")
    return was(session)


@breaks("rest.cancel.goes-on", "take")
def cancelled_for_good(self: RawServer, was: Was, session: Any, turn: Any, when_busy: Any, stands: int) -> Any:
    if any(each.state == "cancelled" for each in session.turns.values()):
        raise Refusal(503, "agent_gone")
    return was(session, turn, when_busy, stands)


breaks("rest.cancel.idle", "cancelled_idle")(answering(409))


@breaks("rest.cancel.idle-nothing", "reason")
def cancels_the_next(self: RawServer, was: Was) -> str:
    return "cancelled" if getattr(self, "was_cancelled", False) else was()


def _remembers(self: RawServer, session: Any) -> Body:
    self.was_cancelled = True  # type: ignore[attr-defined]
    return Body(204, {})


MUTANTS_REST["rest.cancel.idle-nothing"].cancelled_idle = _remembers  # type: ignore[method-assign]


@breaks("rest.cancel.other", "cancelled")
def cancels_all(self: RawServer, was: Was, session: Any, turn: Any) -> Any:
    for each in self.sessions.values():
        if each is not session and each.running is not None:
            self.end(each, each.running, "cancelled")
    return was(session, turn)


# -- permission requests ----------------------------------------------------------------------------------------

breaks("rest.permission.asked", "question")(without("toolCall"))


@breaks("rest.permission.answered", "permitted")
def permitted_with_204(self: RawServer, was: Was, session: Any, turn: Any) -> Body:
    was(session, turn)
    return Body(204, {})


breaks("rest.permission.told", "resolution")(without("outcome"))
breaks("rest.permission.goes-on", "permitted")(lambda self, was, session, turn: self.reply(200, {}))
breaks("rest.permission.unknown", "no_such_request")(lambda self, was: self.reply(200, {}))
breaks("rest.permission.option", "no_such_option")(lambda self, was, session, turn: self.permitted(session, turn))
breaks("rest.permission.malformed", "malformed")(lambda self, was, session, turn: self.reply(200, {}))


@breaks("rest.permission.second", "permitted_again")
def thanks_again(self: RawServer, was: Was, session: Any, request: str) -> Any:
    return self.reply(200, {}) if session.resolved[request] == "answer" else was(session, request)


@breaks("rest.permission.resolved-once", "permitted_again")
def tells_again(self: RawServer, was: Was, session: Any, request: str) -> Any:
    self.emit(session, "permission_resolved", self.resolution(request, {"outcome": "cancelled"}))
    return was(session, request)


breaks("rest.permission.status", "is_waiting")(always(False))


@breaks("rest.permission.cancelled", "cancelled")
def asked_and_ended(self: RawServer, was: Was, session: Any, turn: Any) -> Any:
    if turn.request is None:
        return was(session, turn)
    self.resolve(session, turn.request, {"outcome": "cancelled"}, turn.id, by="cancel")
    self.end(session, turn, "end_turn")
    return Body(204, {})


# -- the form of a stream ---------------------------------------------------------------------------------------

breaks("rest.stream.type", "stream_headers")(plus(**{"content-type": "text/plain"}))
breaks("rest.stream.no-cache", "stream_headers")(without("cache-control"))
breaks("rest.stream.no-buffer", "stream_headers")(without("x-accel-buffering"))
breaks("rest.stream.plain", "stream_headers")(plus(**{"content-encoding": "gzip"}))
breaks("rest.stream.epoch", "stream_headers")(plus(**{"turnwire-epoch": f"{EPOCH}-2"}))
breaks("rest.stream.at-once", "opened")(lambda self, was, session, reader, cursor: None)


@breaks("rest.stream.head", "handle")
def silent_after_head(self: RawServer, was: Was, call: Any) -> Any:
    found = None if getattr(self, "is_stuck", False) else was(call)
    self.is_stuck = call.method == "HEAD"  # type: ignore[attr-defined]
    return found


breaks("rest.stream.lines", "event_line")(lambda self, was, event: f"{was(event)}\nname: {event['type']}")
breaks("rest.stream.envelope", "envelope")(plus(v=2))
breaks("rest.stream.one-line", "data_lines")(lambda self, was, event: was(event).replace(", ", ",\ndata: ", 1))
breaks("rest.stream.event-line", "event_line")(always("event: message"))
breaks("rest.stream.id-line", "id_line")(lambda self, was, event: f"id: {event['id']}-{EPOCH}")
breaks("rest.stream.separators", "text_of")(lambda self, was, event: was(event).replace("\\u2028", " "))
breaks("rest.stream.ascii", "text_of")(lambda self, was, event: json.dumps(event, ensure_ascii=False))
breaks("rest.stream.heartbeat", "idle")(always(None))


@breaks("rest.stream.news", "begin_live")
def tells_all(self: RawServer, was: Was, session: Any, reader: Body) -> None:
    reader.received += b"".join(map(self.frame, session.log))


@breaks("rest.stream.apart", "readers_of")
def tells_everybody(self: RawServer, was: Was, session: Any, event: Any) -> list[Body]:
    return [reader for each in self.sessions.values() for reader in each.readers]


# -- ids, and coming back ---------------------------------------------------------------------------------------


def ended_before(session: Any, cursor: int) -> bool:
    return any(each["type"] == "turn_complete" and each["id"] <= cursor for each in session.log)


breaks("rest.replay.ids", "next_id")(lambda self, was, session: session.newest + 2 if session.log else 1)
breaks("rest.replay.whole", "behind")(
    lambda self, was, session, cursor: was(session, cursor)[1 if cursor == 0 else 0 :]
)


@breaks("rest.replay.middle", "behind")
def once_more(self: RawServer, was: Was, session: Any, cursor: int) -> list[Any]:
    return was(session, cursor - (ended_before(session, cursor) and cursor < session.newest))


breaks("rest.replay.same", "behind")(
    lambda self, was, session, cursor: [{**each, "_meta": {}} for each in was(session, cursor)]
)
breaks("rest.replay.newest", "behind")(
    lambda self, was, session, cursor: was(session, cursor - (cursor == session.newest))
)
breaks("rest.replay.complete", "replay_end")(plus(id=9))
breaks("rest.replay.count", "replay_end")(
    lambda self, was, data: was({**data, "replayedCount": data["replayedCount"] + 1})
)


@breaks("rest.replay.receipt", "behind")
def begins_too_late(self: RawServer, was: Was, session: Any, cursor: int) -> list[Any]:
    found = was(session, cursor)
    return found[1:] if cursor and cursor in session.positions else found


breaks("rest.replay.query", "queried")(always(None))


@breaks("rest.replay.cut", "behind")
def loses_one(self: RawServer, was: Was, session: Any, cursor: int) -> list[Any]:
    found = was(session, cursor)
    is_inside = cursor - 1 > min(session.positions, default=cursor) and not ended_before(session, cursor)
    return found[1:] if is_inside else found


@breaks("rest.replay.left", "left_session")
def nobody_listens(self: RawServer, was: Was, session: Any) -> None:
    if not session.readers and session.running is not None:
        self.end(session, session.running, "cancelled")


breaks("rest.replay.ahead", "is_lost")(
    lambda self, was, session, cursor, call: cursor == 1 and was(session, cursor, call)
)
breaks("rest.replay.other-epoch", "is_lost")(lambda self, was, session, cursor, call: cursor > session.newest)
breaks("rest.replay.resync", "resynced")(
    lambda self, was, session, cursor: [was(session, cursor)[0], *self.told([])]
)
breaks("rest.replay.garbled", "no_cursor")(always(None))

# -- several readers --------------------------------------------------------------------------------------------


@breaks("rest.readers.same", "readers_of")
def first_two_only(self: RawServer, was: Was, session: Any, event: Any) -> list[Body]:
    is_echo = event["type"] == "session_update" and event["data"]["update"]["sessionUpdate"] == "user_message_chunk"
    return session.readers[:2] if is_echo else session.readers


@breaks("rest.readers.late", "behind")
def old_turns_only(self: RawServer, was: Was, session: Any, cursor: int) -> list[Any]:
    running = session.running.id if session.running is not None and cursor == 0 else ""
    return [each for each in was(session, cursor) if each.get("promptId") != running]


breaks("rest.readers.leaving", "left_session")(lambda self, was, session: session.readers.clear())

# -- several clients --------------------------------------------------------------------------------------------

breaks("rest.clients.prompted", "originator")(
    lambda self, was, session, prompt: dict.fromkeys(was(session, prompt), "c0")
)


@breaks("rest.clients.cancel", "check_canceller")
def by_its_own_client(self: RawServer, was: Was, turn: Any, client: str | None) -> None:
    if client is not None and client != turn.client:
        raise Refusal(403, "forbidden")
