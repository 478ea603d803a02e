"""A server that speaks REST and shares no code with turnwire: a function of requests, in memory and without time.

It keeps every rule of the suite. Each rule that a mutant may break is a separate method. Its output is
complete when `open` returns.
"""
# It takes JSON of which nothing is known, as a program without any library does.
# pyright: basic

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs

from turnwire_check.case import Scene
from turnwire_check.http_exchange import HttpBody, HttpCall, HttpPeer, Opener

CREDENTIAL = {"Authorization": "Bearer let-me-in"}
PROMPTS: dict[Scene, str] = {"plain": "hello", "wait": "wait", "ask": "ask", "fail": "fail"}
EPOCH = "e1"
FEATURES = [
    *("require_auth", "session_load", "session_resume", "session_close", "client_identity"),
    *("idempotency_key", "prompt_queue", "prompt_status"),
]
LARGEST_FIELDS = 65536


class Refusal(Exception):
    """Told as a problem."""

    def __init__(self, status: int, code: str, **headers: str) -> None:
        super().__init__(code)
        self.status, self.code, self.headers = status, code, headers


class Body:
    """An answer, or a stream."""

    def __init__(self, status: int, headers: dict[str, str], received: bytes = b"", server: Any = None) -> None:
        self.status = status
        self.headers: Mapping[str, str] = headers
        self.received = bytearray(received)
        self.is_whole = self.is_over = server is None
        self._server: RawServer | None = server

    async def more(self, length: int, within_s: float) -> bool:
        if len(self.received) <= length and within_s >= 15 and not self.is_over and self._server is not None:
            self._server.idle(self)
        return len(self.received) > length

    async def cut(self) -> None:
        if not self.is_over and self._server is not None:
            self._server.left(self)
        self.is_over = True

    def end(self) -> None:
        self.is_whole = self.is_over = True


class Turn:
    def __init__(self, id: str, text: str) -> None:
        self.id = id
        self.text = text
        self.state = "queued"
        self.request: str | None = None
        self.client: str | None = None


class Session:
    def __init__(self, id: str) -> None:
        self.id = id
        self.log: list[dict[str, Any]] = []
        self.readers: list[Body] = []
        self.running: Turn | None = None
        self.queue: list[Turn] = []
        self.turns: dict[str, Turn] = {}
        self.keys: dict[str, tuple[Any, str, int]] = {}
        self.resolved: dict[str, str] = {}
        self.positions: list[int] = []
        self.is_closed = False

    @property
    def newest(self) -> int:
        return self.log[-1]["id"] if self.log else 0


class RawServer:
    """The server. Each case gets a new one."""

    def __init__(self) -> None:
        self.sessions: dict[str, Session] = {}
        self.count = 0

    # -- requests -------------------------------------------------------------------------------------------

    async def open(self, call: HttpCall, within_s: float) -> HttpBody | None:
        try:
            return self.handle(call)
        except Refusal as refusal:
            return self.refused(refusal)

    def handle(self, call: HttpCall) -> Body | None:
        path, _, query = call.path.partition("?")
        if path == "/health":
            return self.health()
        self.let_in(call, path)
        if path == "/capabilities":
            return self.reply(200, self.capabilities())
        if path == "/session":
            return self.reply(200, self.create())
        found = re.fullmatch(r"/session/([^/]+)(?:/([a-z-]+))?(?:/([^/]+))?", path)
        if found is None:
            return self.no_route()
        name, part, rest = found.groups()
        session = self.sessions.get(name) or self.unknown(part)
        return self.of_session(call, session, part, rest, query)

    def of_session(self, call: HttpCall, session: Session, part: str | None, rest: str | None, query: str) -> Any:
        routes: dict[tuple[str, str | None], Callable[[], Body | None]] = {
            ("DELETE", None): lambda: self.close(session),
            ("GET", "status"): lambda: self.reply(200, self.status(session)),
            ("POST", "load"): lambda: self.reply(200, self.load(session)),
            ("POST", "resume"): lambda: self.reply(200, {"sessionId": session.id, "clientId": self.client_id()}),
            ("POST", "prompt"): lambda: self.prompt(session, call),
            ("POST", "cancel"): lambda: self.cancel(session, call),
            ("GET", "events"): lambda: self.events(session, call, query),
            ("HEAD", "events"): lambda: self.head_of_stream(),
            ("GET", "turns"): lambda: self.reply(200, self.turn_of(session, rest or "")),
            ("GET", "pending-prompts"): lambda: self.reply(200, {"pendingPrompts": self.pending(session)}),
            ("DELETE", "pending-prompts"): lambda: self.reply(200, {"removed": self.remove(session, rest or "")}),
            ("POST", "permission"): lambda: self.permit(session, rest or "", call),
        }
        return routes.get((call.method, part), self.wrong_method)()

    def reply(self, status: int, value: Any = None, media: str = "application/json") -> Body:
        return Body(status, {"content-type": media}, b"" if value is None else json.dumps(value).encode())

    def refused(self, refusal: Refusal) -> Body:
        found = self.reply(refusal.status, self.problem(refusal), self.problem_media())
        more = {name.lower().replace("_", "-"): value for name, value in refusal.headers.items()}
        found.headers = {**found.headers, **more}
        return found

    def problem(self, refusal: Refusal) -> dict[str, Any]:
        title = refusal.code.replace("_", " ")
        about = {"type": f"urn:problem:{refusal.code}", "title": title, "status": refusal.status}
        return {"error": title, "code": refusal.code, **about}

    def problem_media(self) -> str:
        return "application/problem+json"

    def let_in(self, call: HttpCall, path: str) -> None:
        if call.headers.get("Authorization") != CREDENTIAL["Authorization"]:
            raise Refusal(401, "unauthenticated", WWW_Authenticate="Bearer")

    def no_route(self) -> Any:
        raise Refusal(404, "not_found")

    def wrong_method(self) -> Any:
        raise Refusal(405, "method_not_allowed", Allow="POST")

    def unknown(self, part: str | None) -> Any:
        raise Refusal(404, "session_not_found")

    def media_is_json(self, media: str) -> bool:
        return media.partition(";")[0].strip().lower() == "application/json"

    def read(self, call: HttpCall, largest: int | None = None) -> Any:
        if call.body is None:
            return {}
        if not self.media_is_json(call.headers.get("Content-Type", "")):
            raise Refusal(415, "unsupported_media_type")
        self.measure(len(call.body), largest)
        try:
            return json.loads(call.body)
        except ValueError:
            return self.no_json()

    def measure(self, size: int, largest: int | None) -> None:
        if largest is not None and size > largest:
            raise Refusal(413, "too_large")

    def no_json(self) -> Any:
        raise Refusal(400, "bad_request")

    # -- sessions -------------------------------------------------------------------------------------------

    def health(self) -> Body:
        return self.reply(200, {"status": "ok"})

    def capabilities(self) -> dict[str, Any]:
        return {"v": 1, "mode": "raw-server", "version": "1", "features": FEATURES}

    def number(self) -> int:
        self.count += 1
        return self.count

    def client_id(self) -> str:
        return f"c{self.number()}"

    def session_id(self) -> str:
        return f"s{self.number()}"

    def create(self) -> dict[str, Any]:
        session = Session(self.session_id())
        session = self.sessions.setdefault(session.id, session)
        self.emit(session, "session_created", {})
        return {"sessionId": session.id, "clientId": self.client_id(), "attached": False}

    def is_busy(self, session: Session) -> Any:
        return session.running is not None

    def is_waiting(self, session: Session) -> bool:
        return session.running is not None and session.running.request is not None

    def status(self, session: Session) -> dict[str, Any]:
        return {"hasActivePrompt": self.is_busy(session), "isWaitingForPermission": self.is_waiting(session)}

    def load(self, session: Session) -> dict[str, Any]:
        lists: dict[str, Any] = {"compactedReplay": [], "liveJournal": []}
        return {"sessionId": session.id, "clientId": self.client_id(), "lastEventId": session.newest, **lists}

    def close(self, session: Session) -> Body:
        if not session.is_closed:
            self.end_all(session)
            self.tell_closed(session)
            session.is_closed = True
            self.end_readers(session)
            return self.closed()
        return self.closed_again()

    def end_all(self, session: Session) -> None:
        for turn in session.queue:
            self.ended(session, turn, "cancelled")
        session.queue = []
        if session.running is not None:
            self.end(session, session.running, "cancelled")

    def tell_closed(self, session: Session) -> None:
        self.emit(session, "session_closed", {"reason": "closed"})

    def end_readers(self, session: Session) -> None:
        for each in session.readers:
            each.end()
        session.readers = []

    def closed(self) -> Body:
        return Body(204, {})

    def closed_again(self) -> Body:
        return Body(204, {})

    # -- turns ----------------------------------------------------------------------------------------------

    def check_open(self, session: Session) -> None:
        if session.is_closed:
            raise Refusal(410, "session_closed")

    def check_client(self, call: HttpCall) -> None:
        if call.headers.get("Turnwire-Client-Id", "c1").startswith("c") is False:
            raise Refusal(400, "invalid_client_id")

    def check_blocks(self, session: Session, blocks: Any) -> None:
        if not isinstance(blocks, list) or not all(isinstance(each, dict) for each in blocks):
            raise Refusal(400, "bad_request")
        if not blocks:
            raise Refusal(400, "bad_request")
        if not all(isinstance(each.get("text"), str) for each in blocks if each.get("type") == "text"):
            raise Refusal(400, "content_refused")

    def prompt_id(self) -> str:
        return f"p{self.number()}"

    def prompt(self, session: Session, call: HttpCall) -> Body | None:
        body = self.read(call)
        self.check_open(session)
        self.check_client(call)
        blocks = body.get("prompt")
        self.check_blocks(session, blocks)
        key = call.headers.get("Idempotency-Key")
        if key in session.keys:
            known = session.keys[key][0] == blocks
            return self.repeated(session, key) if known else self.key_of_another(session, key)
        stands = session.newest
        turn = Turn(self.prompt_id(), "".join(each.get("text", "") for each in blocks) if blocks else "")
        turn.client = call.headers.get("Turnwire-Client-Id")
        if key is not None:
            session.keys[key] = (blocks, turn.id, stands)
        return self.take(session, turn, body.get("whenBusy"), stands)

    def take(self, session: Session, turn: Turn, when_busy: Any, stands: int) -> Body | None:
        session.positions.append(stands)
        if session.running is None:
            session.turns[turn.id] = turn
            self.begin(session, turn)
        else:
            if self.is_rejected(when_busy):
                raise Refusal(409, "busy")
            session.turns[turn.id] = turn
            session.queue.append(turn)
            self.emit(session, "pending_prompt_added", {}, turn.id)
        return self.accepted(turn, stands)

    def is_rejected(self, when_busy: Any) -> bool:
        return when_busy == "reject"

    def repeated(self, session: Session, key: str) -> Body:
        _, prompt, stands = session.keys[key]
        return self.accepted(session.turns[prompt], stands)

    def key_of_another(self, session: Session, key: str) -> Body:
        raise Refusal(409, "idempotency_conflict")

    def accepted(self, turn: Turn, stands: int) -> Body:
        return self.reply(202, self.receipt(turn, stands))

    def receipt(self, turn: Turn, stands: int) -> dict[str, Any]:
        return {"promptId": turn.id, "lastEventId": stands, "eventEpoch": EPOCH}

    def begin(self, session: Session, turn: Turn) -> None:
        session.running = turn
        turn.state = "running"
        self.open_turn(session, turn)
        match turn.text.partition(" ")[0]:
            case "wait":
                pass
            case "ask":
                self.ask(session, turn)
            case "fail":
                self.fail(session, turn)
            case _:
                self.end(session, turn, self.reason())

    def open_turn(self, session: Session, turn: Turn) -> None:
        self.echo(session, turn)
        self.say(session, turn, "so be it")

    def echo(self, session: Session, turn: Turn) -> None:
        self.update(session, turn, "user_message_chunk", turn.text)

    def say(self, session: Session, turn: Turn, words: str) -> None:
        self.update(session, turn, "agent_message_chunk", words)

    def update(self, session: Session, turn: Turn, kind: str, words: str) -> None:
        update = {"sessionUpdate": kind, "content": {"type": "text", "text": words}}
        self.emit(session, "session_update", self.params(session, update), turn.id)

    def params(self, session: Session, update: dict[str, Any]) -> dict[str, Any]:
        return {"sessionId": session.id, "update": update}

    def reason(self) -> str:
        return "end_turn"

    def end(self, session: Session, turn: Turn, reason: str) -> None:
        turn.request = None
        session.running = None
        self.ended(session, turn, reason)
        self.go_on(session)

    def go_on(self, session: Session) -> None:
        if session.queue and session.running is None:
            self.begin(session, session.queue.pop(0))

    def ended(self, session: Session, turn: Turn, reason: str) -> None:
        turn.state = "cancelled" if reason == "cancelled" else "completed"
        self.emit(session, "turn_complete", {"stopReason": reason, "promptId": turn.id}, turn.id)

    def fail(self, session: Session, turn: Turn) -> None:
        session.running = None
        turn.state = "error"
        self.emit(session, "turn_error", {"message": "no luck", "promptId": turn.id}, turn.id)
        self.go_on(session)

    def turn_of(self, session: Session, prompt: str) -> dict[str, Any]:
        if prompt not in session.turns:
            raise Refusal(404, "prompt_not_found")
        return {"promptId": prompt, "state": session.turns[prompt].state}

    def pending(self, session: Session) -> list[dict[str, Any]]:
        found = [session.running] if session.running is not None else []
        return [{"promptId": each.id, "state": each.state} for each in (*found, *session.queue)]

    def remove(self, session: Session, prompt: str) -> bool:
        turn = session.turns[prompt]
        session.queue.remove(turn)
        self.ended(session, turn, "cancelled")
        return True

    def cancel(self, session: Session, call: HttpCall) -> Body:
        self.read(call, LARGEST_FIELDS)
        if session.running is None:
            return self.cancelled_idle(session)
        self.check_canceller(session.running, call.headers.get("Turnwire-Client-Id"))
        return self.cancelled(session, session.running)

    def check_canceller(self, turn: Turn, client: str | None) -> None:
        """Anybody may."""

    def cancelled_idle(self, session: Session) -> Body:
        return Body(204, {})

    def cancelled(self, session: Session, turn: Turn) -> Body:
        if turn.request is not None:
            self.resolve(session, turn.request, {"outcome": "cancelled"}, turn.id, by="cancel")
        self.end(session, turn, "cancelled")
        return Body(204, {})

    # -- permission requests --------------------------------------------------------------------------------

    def ask(self, session: Session, turn: Turn) -> None:
        turn.request = f"q{self.number()}"
        self.emit(session, "permission_request", self.question(turn.request), turn.id)

    def question(self, request: str) -> dict[str, Any]:
        options = [{"optionId": "yes", "name": "Yes", "kind": "allow_once"}]
        return {"requestId": request, "toolCall": {"toolCallId": "t1"}, "options": options}

    def permit(self, session: Session, request: str, call: HttpCall) -> Body:
        outcome = self.read(call).get("outcome")
        if request in session.resolved:
            return self.permitted_again(session, request)
        turn = session.running
        if turn is None or turn.request != request:
            return self.no_such_request()
        if not isinstance(outcome, dict) or not self.is_outcome(outcome):
            return self.malformed(session, turn)
        if outcome.get("optionId", "yes") != "yes":
            return self.no_such_option(session, turn)
        self.resolve(session, request, outcome, turn.id, by="answer")
        return self.permitted(session, turn)

    def is_outcome(self, outcome: dict[str, Any]) -> bool:
        kind = outcome.get("outcome")
        return kind == "cancelled" or (kind == "selected" and "optionId" in outcome)

    def resolve(self, session: Session, request: str, outcome: Any, prompt: str, by: str) -> None:
        session.resolved[request] = by
        self.emit(session, "permission_resolved", self.resolution(request, outcome), prompt)

    def resolution(self, request: str, outcome: Any) -> dict[str, Any]:
        return {"requestId": request, "outcome": outcome}

    def permitted(self, session: Session, turn: Turn) -> Body:
        self.say(session, turn, "done")
        self.end(session, turn, "end_turn")
        return self.reply(200, {})

    def permitted_again(self, session: Session, request: str) -> Body:
        raise Refusal(404, "permission_not_found")

    def no_such_request(self) -> Body:
        raise Refusal(404, "permission_not_found")

    def no_such_option(self, session: Session, turn: Turn) -> Body:
        raise Refusal(400, "invalid_option_id")

    def malformed(self, session: Session, turn: Turn) -> Body:
        raise Refusal(400, "bad_request")

    # -- events ---------------------------------------------------------------------------------------------

    def next_id(self, session: Session) -> int:
        return session.newest + 1

    def emit(self, session: Session, kind: str, data: dict[str, Any], prompt: str | None = None) -> None:
        event = {"id": self.next_id(session), **self.envelope(kind, {"sessionId": session.id, **data})}
        if prompt is not None:
            event["promptId"] = prompt
            event |= self.originator(session, prompt)
        event["_meta"] = {"serverTimestamp": 1}
        self.publish(session, event)

    def originator(self, session: Session, prompt: str) -> dict[str, Any]:
        client = session.turns[prompt].client if prompt in session.turns else None
        return {} if client is None else {"originatorClientId": client}

    def publish(self, session: Session, event: dict[str, Any]) -> None:
        session.log.append(event)
        for reader in self.readers_of(session, event):
            reader.received += self.frame(event)

    def readers_of(self, session: Session, event: dict[str, Any]) -> list[Body]:
        return session.readers

    def envelope(self, kind: str, data: dict[str, Any]) -> dict[str, Any]:
        return {"v": 1, "type": kind, "data": data}

    def frame(self, event: dict[str, Any]) -> bytes:
        lines = [self.event_line(event), self.data_lines(event)]
        if "id" in event:
            lines.insert(0, self.id_line(event))
        return "\n".join([*lines, "\n"]).encode()

    def id_line(self, event: dict[str, Any]) -> str:
        return f"id: {event['id']}"

    def event_line(self, event: dict[str, Any]) -> str:
        return f"event: {event['type']}"

    def data_lines(self, event: dict[str, Any]) -> str:
        return f"data: {self.text_of(event)}"

    def text_of(self, event: dict[str, Any]) -> str:
        return json.dumps(event)

    def stream_headers(self) -> dict[str, str]:
        said = {"cache-control": "no-cache", "x-accel-buffering": "no", "turnwire-epoch": EPOCH}
        return {"content-type": "text/event-stream", **said}

    def events(self, session: Session, call: HttpCall, query: str) -> Body | None:
        cursor = self.cursor(call, query)
        reader = Body(200, self.stream_headers(), b"retry: 3000\n\n", server=self)
        if cursor is None:
            self.begin_live(session, reader)
        else:
            reader.received += b"".join(map(self.frame, self.replay(session, cursor, call)))
        if session.is_closed:
            reader.end()
        else:
            session.readers.append(reader)
        return self.opened(session, reader, cursor)

    def opened(self, session: Session, reader: Body, cursor: int | None) -> Body | None:
        return reader

    def head_of_stream(self) -> Body:
        return Body(200, self.stream_headers())

    def begin_live(self, session: Session, reader: Body) -> None:
        pass

    def cursor(self, call: HttpCall, query: str) -> int | None:
        given = call.headers.get("Last-Event-ID") or self.queried(query)
        if given is None:
            return None
        return int(given) if given.isdecimal() else self.no_cursor()

    def queried(self, query: str) -> str | None:
        return parse_qs(query).get("after", [None])[0]

    def no_cursor(self) -> int | None:
        raise Refusal(400, "bad_request")

    def replay(self, session: Session, cursor: int, call: HttpCall) -> list[dict[str, Any]]:
        if self.is_lost(session, cursor, call):
            return self.resynced(session, cursor)
        return self.told(self.behind(session, cursor))

    def is_lost(self, session: Session, cursor: int, call: HttpCall) -> bool:
        return cursor > session.newest or call.headers.get("Turnwire-Epoch", EPOCH) != EPOCH

    def resynced(self, session: Session, cursor: int) -> list[dict[str, Any]]:
        data = {"reason": "epoch_reset", "lastDeliveredId": cursor, "earliestAvailableId": 1}
        return [self.envelope("state_resync_required", data), *self.told(session.log)]

    def behind(self, session: Session, cursor: int) -> list[dict[str, Any]]:
        return [each for each in session.log if each["id"] > cursor]

    def told(self, events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        data: dict[str, Any] = {"replayedCount": len(events)}
        if events:
            data["lastReplayedEventId"] = events[-1]["id"]
        return [*events, self.replay_end(data)]

    def replay_end(self, data: dict[str, Any]) -> dict[str, Any]:
        return self.envelope("replay_complete", data)

    def left(self, reader: Body) -> None:
        for session in self.sessions.values():
            if reader in session.readers:
                session.readers.remove(reader)
                self.left_session(session)

    def left_session(self, session: Session) -> None:
        pass

    def idle(self, reader: Body) -> None:
        """A quarter of a minute has passed."""
        reader.received += b": heartbeat\n\n"


def server_opener(server: type[RawServer]) -> Opener:
    @asynccontextmanager
    async def opened() -> AsyncGenerator[HttpPeer]:
        yield server()

    return opened
