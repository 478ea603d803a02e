"""A small agent of ACP v1 that keeps every rule, written on bytes alone: the one from which each mutant departs.

Knows nothing of turnwire. `feed` takes what arrives and `write` gets its output, so that it runs in a test
without a process; as a program it speaks over stdin and stdout.
"""
# It takes JSON of which nothing is known, as a program without any library does.
# pyright: basic

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

PAGE = 2
MODES = ("ask", "code")
LEVELS = ("low", "high")
BLOCKS = {
    "text": ("text",),
    "resource_link": ("uri", "name"),
    "image": ("data", "mimeType"),
    "audio": ("data", "mimeType"),
    "resource": ("resource",),
}


class Refused(Exception):
    """A request is answered with an error."""

    def __init__(self, code: int, message: str = "refused") -> None:
        super().__init__(message)
        self.code = code


class Session:
    def __init__(self, identity: Any, cwd: str) -> None:
        self.id = identity
        self.cwd = cwd
        self.directories: list[str] = []
        self.history: list[dict[str, Any]] = []
        self.turn: Turn | None = None
        self.waiting: list[Turn] = []
        self.background: list[str] = []
        self.is_ready = False
        self.mode = MODES[0]
        self.level = LEVELS[0]


class Turn:
    def __init__(self, request: Any, session: Session, words: str) -> None:
        self.request = request
        self.session = session
        self.words = words
        self.question: int | None = None
        self.call = ""


class Home:
    """State that outlives a connection."""

    def __init__(self) -> None:
        self.sessions: dict[Any, Session] = {}
        self.deleted: set[Any] = set()
        self.counted = 0
        self.connections: list[RawAgent] = []


class RawAgent:
    """One connection."""

    def __init__(self, write: Callable[[bytes], None], home: Home | None = None) -> None:
        self.write = write
        self.rest = b""
        self.home = home or Home()
        self.home.connections.append(self)
        self.sessions: dict[Any, Session] = {}
        """Sessions that this client has opened, loaded or resumed."""
        self.offered: dict[str, Any] = {}
        self.asked: dict[int, Callable[[dict[str, Any]], None]] = {}
        self.requests = 0
        self.methods: dict[str, Callable[[dict[str, Any]], Any]] = {
            "initialize": self.initialize,
            "authenticate": self.authenticate,
            "session/new": self.new,
            "session/load": self.load,
            "session/resume": self.resume,
            "session/list": self.listed,
            "session/delete": self.delete,
            "session/close": self.close,
            "session/set_mode": self.set_mode,
            "session/set_config_option": self.set_option,
        }

    # -- bytes ------------------------------------------------------------------------------------------

    def feed(self, piece: bytes) -> None:
        *lines, self.rest = (self.rest + piece).split(b"\n")
        for line in lines:
            if line.strip():
                self.line(line)

    def line(self, line: bytes) -> None:
        try:
            message = json.loads(line)
        except ValueError:
            self.send({"id": None, "error": {"code": -32700, "message": "no JSON"}})
            return
        if isinstance(message, dict):
            self.receive(message)
        else:
            self.send({"id": None, "error": {"code": -32600, "message": "no message"}})

    def send(self, message: dict[str, Any]) -> None:
        self.emit(json.dumps({"jsonrpc": "2.0", **message}, ensure_ascii=False).encode())

    def emit(self, line: bytes) -> None:
        self.write(line + b"\n")

    def count(self) -> int:
        self.home.counted += 1
        return self.home.counted

    # -- messages ---------------------------------------------------------------------------------------

    def receive(self, message: dict[str, Any]) -> None:
        method, params = message.get("method"), message.get("params")
        if method is None:
            self.answered(message)
        elif "id" not in message:
            self.hear(method, params if isinstance(params, dict) else {})
        elif method == "session/prompt":
            self.serve(message["id"], lambda: self.prompt(message["id"], params))
        elif method in self.methods:
            self.serve(message["id"], lambda: self.methods[method](params if isinstance(params, dict) else {}))
        else:
            self.unknown(message["id"], method)

    def serve(self, request: Any, work: Callable[[], Any]) -> None:
        try:
            result = work()
        except Refused as refused:
            self.refuse(request, refused.code, str(refused))
        else:
            if result is not None:
                self.answer(request, result)

    def answer(self, request: Any, result: dict[str, Any]) -> None:
        self.send({"id": request, "result": result})

    def refuse(self, request: Any, code: int, message: str = "refused") -> None:
        self.send({"id": request, "error": {"code": code, "message": message}})

    def unknown(self, request: Any, method: str) -> None:
        self.refuse(request, -32601, "no such method")

    def hear(self, method: str, params: dict[str, Any]) -> None:
        if method == "session/cancel":
            self.cancel(params.get("sessionId"))
        elif method == "session/ready":
            self.ready(params.get("sessionId"))
        elif method == "$/cancel_request":
            self.take_back(params.get("requestId"))
        else:
            self.unheard(method)

    def unheard(self, method: str) -> None:
        """Nothing."""

    def answered(self, message: dict[str, Any]) -> None:
        later = self.asked.pop(message.get("id"), None)  # type: ignore[arg-type]
        if later is not None:
            later(message)

    def ask(self, method: str, params: dict[str, Any], later: Callable[[dict[str, Any]], None]) -> int:
        self.requests += 1
        number = self.requests
        self.asked[number] = later
        self.send({"id": number, "method": method, "params": params})
        return number

    def tell(self, session: Session, update: dict[str, Any], *, kept: bool = True) -> None:
        if kept:
            session.history.append(update)
        self.send({"method": "session/update", "params": {"sessionId": session.id, "update": update}})

    # -- the handshake ----------------------------------------------------------------------------------

    def initialize(self, params: dict[str, Any]) -> dict[str, Any]:
        offered = params.get("clientCapabilities")
        self.offered = offered if isinstance(offered, dict) else {}
        return {
            "protocolVersion": self.version(params.get("protocolVersion")),
            "agentCapabilities": self.capabilities(),
            "authMethods": self.logins(),
            "agentInfo": {"name": "raw-agent", "version": "1"},
        }

    def version(self, asked: Any) -> Any:
        return 1

    def capabilities(self) -> dict[str, Any]:
        markers = (
            "list",
            "delete",
            "resume",
            "close",
            "additionalDirectories",
            "turnComplete",
            "ready",
            "lifecycle",
        )
        return {
            "loadSession": True,
            "promptCapabilities": {"image": True, "audio": True, "embeddedContext": True},
            "mcpCapabilities": {"http": False, "sse": False},
            "sessionCapabilities": {each: {} for each in markers},
            **self.extras(),
        }

    def extras(self) -> dict[str, Any]:
        """Claims that it sends a custom method."""
        return {"_meta": {"example.org": {"counted": True}}}

    def logins(self) -> list[dict[str, Any]]:
        return [{"id": "key", "name": "With a key"}]

    def authenticate(self, params: dict[str, Any]) -> dict[str, Any]:
        if params.get("methodId") != "key":
            raise Refused(-32602)
        return {}

    # -- sessions ---------------------------------------------------------------------------------------

    def new(self, params: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(params.get("cwd"), str):
            raise Refused(-32602)
        self.check_directories(params.get("additionalDirectories"))
        self.check_servers(params.get("mcpServers"))
        session = Session(self.new_id(), self.directory(params["cwd"]))
        session.directories = params.get("additionalDirectories") or []
        self.sessions[session.id] = self.home.sessions[session.id] = session
        return {"sessionId": session.id, **self.settings(session)}

    def directory(self, cwd: str) -> str:
        return cwd

    def check_servers(self, servers: Any) -> None:
        """Each is taken."""

    def new_id(self) -> Any:
        return f"session-{self.count()}"

    def check_directories(self, directories: Any) -> None:
        if directories is None:
            return
        if not isinstance(directories, list):
            raise Refused(-32602)
        if not all(isinstance(each, str) and each.startswith("/") for each in directories):
            raise Refused(-32602)

    def settings(self, session: Session) -> dict[str, Any]:
        modes = [{"id": each, "name": each.title()} for each in MODES]
        return {
            "modes": {"currentModeId": session.mode, "availableModes": modes},
            "configOptions": self.options(session),
        }

    def options(self, session: Session) -> list[dict[str, Any]]:
        values = [{"value": each, "name": each.title()} for each in LEVELS]
        level = {"id": "level", "name": "Level", "type": "select", "currentValue": session.level, "options": values}
        mode = {
            "id": "mode",
            "name": "Mode",
            "category": "mode",
            "type": "select",
            "currentValue": session.mode,
            "options": [{"value": each, "name": each.title()} for each in MODES],
        }
        return [level, mode]

    def found(self, params: dict[str, Any]) -> Session:
        identity = params.get("sessionId")
        if not isinstance(identity, str):
            raise Refused(-32602)
        if identity not in self.sessions or identity in self.home.deleted:
            raise Refused(-32002, "no such session")
        return self.sessions[identity]

    def entered(self, params: dict[str, Any]) -> Session:
        """A session that this client comes back to, be it of another connection."""
        identity = params.get("sessionId")
        if identity in self.home.sessions and identity not in self.sessions:
            self.enter(self.home.sessions[identity])
        return self.found(params)

    def enter(self, session: Session) -> None:
        self.sessions[session.id] = session

    def load(self, params: dict[str, Any]) -> dict[str, Any]:
        session = self.entered(params)
        self.replay(session)
        return self.settings(session)

    def replay(self, session: Session) -> None:
        for update in list(session.history):
            self.tell(session, update, kept=False)

    def resume(self, params: dict[str, Any]) -> dict[str, Any]:
        session = self.entered(params)
        session.directories = self.directories_of(session, params)
        return self.settings(session)

    def directories_of(self, session: Session, params: dict[str, Any]) -> list[str]:
        return params.get("additionalDirectories") or []

    def left(self) -> None:
        """The connection has ended."""
        self.home.connections.remove(self)

    def listed(self, params: dict[str, Any]) -> dict[str, Any]:
        cursor = params.get("cursor")
        if cursor is not None and not isinstance(cursor, str):
            raise Refused(-32602)
        if cursor is not None and not cursor.isdigit():
            raise Refused(-32602)
        known = [each for each in self.stored() if each.id not in self.home.deleted]
        shown = [each for each in known if params.get("cwd") in (None, each.cwd)]
        start = int(cursor or 0)
        page = [self.row(each) for each in shown[start : start + PAGE]]
        following = {"nextCursor": str(start + PAGE)} if len(shown) > start + PAGE else {}
        return {"sessions": page, **following}

    def row(self, session: Session) -> dict[str, Any]:
        directories = {"additionalDirectories": session.directories} if session.directories else {}
        return {"sessionId": session.id, "cwd": session.cwd, **directories}

    def stored(self) -> list[Session]:
        return list(self.home.sessions.values())

    def delete(self, params: dict[str, Any]) -> dict[str, Any]:
        self.home.deleted.add(params.get("sessionId"))
        return {}

    def close(self, params: dict[str, Any]) -> dict[str, Any]:
        self.cancel(self.found(params).id)
        return {}

    def set_mode(self, params: dict[str, Any]) -> dict[str, Any]:
        session = self.found(params)
        if params.get("modeId") not in MODES:
            raise Refused(-32602)
        session.mode = params["modeId"]
        return {}

    def set_option(self, params: dict[str, Any]) -> dict[str, Any]:
        session = self.found(params)
        chosen, value = params.get("configId"), params.get("value")
        if chosen == "level" and value in LEVELS:
            session.level = value
        elif chosen == "mode" and value in MODES:
            session.mode = value
        else:
            raise Refused(-32602)
        return {"configOptions": self.options(session)}

    def ready(self, identity: Any) -> None:
        session = self.sessions.get(identity)
        if session is not None and not session.is_ready:
            session.is_ready = True
            commands = [{"name": "help", "description": "What there is."}]
            self.tell(
                session, {"sessionUpdate": "available_commands_update", "availableCommands": commands}, kept=False
            )

    # -- turns ------------------------------------------------------------------------------------------

    def prompt(self, request: Any, params: Any) -> None:
        if not isinstance(params, dict):
            raise Refused(-32602)
        blocks = params.get("prompt")
        if not isinstance(blocks, list) or not blocks:
            raise Refused(-32602)
        for each in blocks:
            self.check_block(each)
        session = self.found(params)
        self.ready(session.id)
        turn = Turn(request, session, "".join(each.get("text", "") for each in blocks if each["type"] == "text"))
        if session.turn is not None:
            session.waiting.append(turn)
        else:
            self.begin(turn)

    def check_block(self, block: Any) -> None:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind not in BLOCKS or any(name not in block for name in BLOCKS[kind]):
            raise Refused(-32602)

    def begin(self, turn: Turn) -> None:
        turn.session.turn = turn
        content = {"type": "text", "text": turn.words}
        said = {"sessionUpdate": "user_message_chunk", "messageId": f"message-{self.count()}", "content": content}
        turn.session.history.append(said)
        if self.tells_states():
            self.take(turn)
        play = getattr(self, f"play_{turn.words.split(' ', 1)[0]}", self.play_plain)
        play(turn)

    # -- the draft of the lifecycle, for clients that ask for it ----------------------------------------

    def tells_states(self) -> bool:
        asked = self.offered.get("session")
        return isinstance(asked, dict) and asked.get("lifecycle") is not None

    def take(self, turn: Turn) -> None:
        self.accepted(turn)
        self.tell(turn.session, self.user_message(turn), kept=False)
        self.change(turn.session, "running")

    def accepted(self, turn: Turn) -> None:
        self.answer(turn.request, {})

    def user_message(self, turn: Turn) -> dict[str, Any]:
        content = [{"type": "text", "text": turn.words}]
        return {"sessionUpdate": "user_message", "messageId": f"message-{self.count()}", "content": content}

    def change(self, session: Session, state: str, **members: Any) -> None:
        self.tell(session, {"sessionUpdate": "state_change", "state": state, **members}, kept=False)

    def settle(self, turn: Turn, reason: str, **members: Any) -> None:
        """The end of a turn."""
        self.change(turn.session, "idle", stop_reason=reason, **members)

    def say(self, turn: Turn, *pieces: str) -> None:
        identity = self.message_id()
        for each in pieces:
            self.tell(turn.session, self.piece(each, identity))

    def message_id(self) -> Any:
        return f"message-{self.count()}"

    def piece(self, words: str, identity: Any) -> dict[str, Any]:
        content = {"type": "text", "text": words}
        return {"sessionUpdate": "agent_message_chunk", "messageId": identity, "content": content}

    def play_plain(self, turn: Turn) -> None:
        self.say(turn, "You said: ", turn.words, ".")
        self.finish(turn)

    def play_wait(self, turn: Turn) -> None:
        self.say(turn, "waiting")

    def play_fail(self, turn: Turn) -> None:
        self.say(turn, "so far")
        self.fail(turn)

    def fail(self, turn: Turn) -> None:
        if self.tells_states():
            self.settle(turn, "error", error={"code": -32603, "message": "it failed"})
        else:
            self.mark(turn, None)
            self.refuse(turn.request, -32603, "it failed")
        self.over(turn)

    def play_plan(self, turn: Turn) -> None:
        for first, second in (("in_progress", "pending"), ("completed", "in_progress"), ("completed", "completed")):
            self.tell(turn.session, {"sessionUpdate": "plan", "entries": self.entries(first, second)})
        self.finish(turn)

    def entries(self, first: str, second: str) -> list[dict[str, Any]]:
        return [
            {"content": "look", "priority": "high", "status": first},
            {"content": "tell", "priority": "low", "status": second},
        ]

    def play_usage(self, turn: Turn) -> None:
        self.tell(turn.session, self.usage())
        self.send({"method": "_example.org/counted", "params": {}})
        self.finish(turn)

    def usage(self) -> dict[str, Any]:
        return {"sessionUpdate": "usage_update", "used": 5, "size": 1000}

    def play_tool(self, turn: Turn) -> None:
        self.call(turn)
        self.run(turn)
        self.finish(turn)

    def call(self, turn: Turn) -> None:
        turn.call = self.call_id()
        self.tell(turn.session, self.announcement(turn))

    def call_id(self) -> str:
        return f"call-{self.count()}"

    def announcement(self, turn: Turn) -> dict[str, Any]:
        call = {"sessionUpdate": "tool_call", "toolCallId": turn.call, "title": "Look", "kind": "read"}
        return {**call, "status": "pending", "locations": [{"path": "/tmp/notes.txt", "line": 1}]}

    def status(self, turn: Turn, status: str) -> None:
        update = {"sessionUpdate": "tool_call_update", "toolCallId": turn.call, "status": status}
        self.tell(turn.session, update)

    def run(self, turn: Turn) -> None:
        self.status(turn, "in_progress")
        self.status(turn, "completed")

    def play_ask(self, turn: Turn) -> None:
        self.call(turn)
        turn.question = self.ask(
            "session/request_permission", self.question(turn), lambda found: self.decide(turn, found)
        )
        if self.tells_states():
            self.change(turn.session, "requires_action")

    def question(self, turn: Turn) -> dict[str, Any]:
        options = [
            {"optionId": "yes", "name": "Do it", "kind": "allow_once"},
            {"optionId": "no", "name": "Leave it", "kind": "reject_once"},
        ]
        return {"sessionId": turn.session.id, "toolCall": {"toolCallId": turn.call}, "options": options}

    def decide(self, turn: Turn, found: dict[str, Any]) -> None:
        if turn.session.turn is not turn:
            return
        if self.tells_states():
            self.change(turn.session, "running")
        outcome = (found.get("result") or {}).get("outcome") or {}
        if self.allows(outcome, found):
            self.run(turn)
        else:
            self.status(turn, "failed")
        self.say(turn, "done")
        self.finish(turn)

    def allows(self, outcome: dict[str, Any], found: dict[str, Any]) -> bool:
        return outcome.get("outcome") == "selected" and outcome.get("optionId") == "yes"

    def play_read(self, turn: Turn) -> None:
        if self.may_read():
            self.ask("fs/read_text_file", self.wanted_file(turn), lambda found: self.finish(turn))
        else:
            self.finish(turn)

    def may_read(self) -> bool:
        return bool((self.offered.get("fs") or {}).get("readTextFile"))

    def wanted_file(self, turn: Turn) -> dict[str, Any]:
        return {"sessionId": turn.session.id, "path": "/tmp/notes.txt", "line": 1, "limit": 10}

    def play_terminal(self, turn: Turn) -> None:
        if not self.may_run():
            self.finish(turn)
            return
        named = {"sessionId": turn.session.id}
        self.ask("terminal/create", {**named, "command": "true"}, lambda found: self.release(turn, found))

    def may_run(self) -> bool:
        return bool(self.offered.get("terminal"))

    def release(self, turn: Turn, found: dict[str, Any]) -> None:
        self.show(turn, (found.get("result") or {}).get("terminalId"))
        named = {"sessionId": turn.session.id, "terminalId": (found.get("result") or {}).get("terminalId")}
        self.ask("terminal/release", named, lambda found: self.finish(turn))

    def show(self, turn: Turn, terminal: Any) -> None:
        """The terminal, in a tool call."""
        shown = [{"type": "terminal", "terminalId": terminal}]
        call = {"sessionUpdate": "tool_call", "toolCallId": self.call_id(), "title": "Run", "kind": "execute"}
        self.tell(turn.session, {**call, "status": "completed", "content": shown})

    def play_elicit(self, turn: Turn) -> None:
        if (self.offered.get("elicitation") or {}).get("url") is not None:
            self.ask("elicitation/create", self.address(turn), lambda found: self.elicited(turn, found))
        elif self.may_elicit():
            self.ask("elicitation/create", self.form(turn), lambda found: self.elicited(turn, found))
        else:
            self.finish(turn)

    def may_elicit(self) -> bool:
        return (self.offered.get("elicitation") or {}).get("form") is not None

    def form(self, turn: Turn) -> dict[str, Any]:
        schema = {"type": "object", "properties": {"name": {"type": "string"}}}
        named = {"sessionId": turn.session.id, "message": "Who are you?"}
        return {**named, "mode": "form", "requestedSchema": schema}

    def address(self, turn: Turn) -> dict[str, Any]:
        named = {"sessionId": turn.session.id, "message": "Log in there."}
        there = {"elicitationId": self.elicitation_id(), "url": "https://agent.example.org/"}
        return {**named, **there, "mode": "url"}

    def elicitation_id(self) -> str:
        return f"elicitation-{self.count()}"

    def elicited(self, turn: Turn, found: dict[str, Any]) -> None:
        self.finish(turn)

    def play_child(self, turn: Turn) -> None:
        if self.may_tell_of_children():
            child = Session(f"{turn.session.id}/child-{self.count()}", turn.session.cwd)
            self.announce(turn, child)
            self.tell(child, self.piece("from a child", self.message_id()), kept=False)
        self.say(turn, "done")
        self.finish(turn)

    def may_tell_of_children(self) -> bool:
        return self.offered.get("subagents") is not None

    def announce(self, turn: Turn, child: Session) -> None:
        self.tell(turn.session, self.announced(child), kept=False)

    def announced(self, child: Session) -> dict[str, Any]:
        return {"sessionUpdate": "subagent_update", "sessionId": child.id, "title": "Helper"}

    # -- ends -------------------------------------------------------------------------------------------

    def finish(self, turn: Turn, reason: str = "end_turn") -> None:
        if self.tells_states():
            self.settle(turn, reason)
        else:
            self.mark(turn, reason)
            self.answer(turn.request, {"stopReason": reason})
        self.over(turn)

    def mark(self, turn: Turn, reason: str | None) -> None:
        """The marker of the draft, for clients that ask for it."""
        if self.wants_marks():
            self.send_mark(turn, reason)

    def wants_marks(self) -> bool:
        asked = self.offered.get("session")
        return isinstance(asked, dict) and asked.get("turnComplete") is not None

    def send_mark(self, turn: Turn, reason: str | None) -> None:
        update = {"sessionUpdate": "turn_complete", "promptRequestId": turn.request}
        told = {} if reason is None else {"stopReason": reason}
        self.tell(turn.session, {**update, **told}, kept=False)

    def over(self, turn: Turn) -> None:
        turn.session.turn = None
        if turn.session.waiting:
            self.begin(turn.session.waiting.pop(0))

    def cancel(self, identity: Any) -> None:
        session = self.sessions.get(identity)
        if session is not None and session.turn is not None:
            self.stop(session.turn)

    def stop(self, turn: Turn) -> None:
        self.say(turn, "stopped")
        self.finish(turn, "cancelled")

    def take_back(self, request: Any) -> None:
        """May be ignored."""


def main(agent: type[RawAgent] = RawAgent) -> None:
    def write(line: bytes) -> None:
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()

    served = agent(write)
    while piece := os.read(0, 65536):
        served.feed(piece)


if __name__ == "__main__":
    main()
