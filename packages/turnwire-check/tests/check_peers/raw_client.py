"""A small client of ACP that keeps every rule, written on bytes alone: the one from which each mutant departs.

Knows nothing of turnwire. `feed` takes what the agent says and `write` gets what the client says, so that it runs
in a test without a process; `idle` is its user, who acts when nothing else happens. As a program it takes a scene
and the command of the agent that it starts.
"""
# It takes JSON of which nothing is known, as a program without any library does.
# pyright: basic

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any, ClassVar

KINDS = {
    *("user_message_chunk", "agent_message_chunk", "agent_thought_chunk", "tool_call", "tool_call_update", "plan"),
    *("available_commands_update", "current_mode_update", "config_option_update", "session_info_update"),
    *("usage_update", "state_update", "user_message", "agent_message", "terminal_update", "subagent_update"),
    *("tool_call_content_chunk", "terminal_output_chunk", "notice", "turn_complete"),
}
OFFERED = {
    "fs": {"readTextFile": True, "writeTextFile": True},
    "terminal": True,
    "auth": {"terminal": False},
    "elicitation": {"form": {}},
    "subagents": {},
}


class Left(Exception):
    """The client has closed the connection."""


class Refused(Exception):
    """A request is answered with an error."""

    def __init__(self, code: int, message: str = "refused") -> None:
        super().__init__(message)
        self.code = code


class RawTestClient:
    """One connection."""

    version = 1
    capabilities: ClassVar[dict[str, Any]] = OFFERED

    def __init__(self, write: Callable[[bytes], None], cwd: str, scene: str = "visit") -> None:
        self.write = write
        self.cwd = cwd
        self.scene = scene
        self.rest = b""
        self.counted = 0
        self.asked: dict[Any, Callable[[dict[str, Any]], None]] = {}
        self.session: Any = None
        self.prompts = 2 if scene == "again" else 1
        self.runs = False
        self.turn: Any = None
        """The id of the newest prompt request."""
        self.has_heard = False
        self.has_cancelled = False
        self.held: list[Any] = []
        self.calls: set[str] = set()
        self.terminals: dict[str, dict[str, Any]] = {}
        self.spoken = self.version
        self.methods: dict[str, Callable[[dict[str, Any]], Any]] = {
            "fs/read_text_file": self.read,
            "fs/write_text_file": self.write_file,
            "terminal/create": self.create,
            "terminal/output": self.output,
            "terminal/wait_for_exit": self.exit,
            "terminal/kill": self.kill,
            "terminal/release": self.release,
            "elicitation/create": self.form,
        }

    # -- bytes ------------------------------------------------------------------------------------------

    def feed(self, piece: bytes) -> None:
        *lines, self.rest = (self.rest + piece).split(b"\n")
        for line in lines:
            self.line(line)

    def line(self, line: bytes) -> None:
        if not line.strip():
            return
        try:
            message = json.loads(line.decode())
        except ValueError:
            return
        if isinstance(message, dict):
            self.receive(message)

    def send(self, message: dict[str, Any]) -> None:
        self.emit(json.dumps({"jsonrpc": "2.0", **message}, ensure_ascii=False).encode())

    def emit(self, line: bytes) -> None:
        self.write(line + b"\n")

    def count(self) -> Any:
        self.counted += 1
        return f"c{self.counted}"

    def ask(self, method: str, params: dict[str, Any], then: Callable[[dict[str, Any]], None]) -> None:
        identity = self.count()
        self.asked[identity] = then
        self.send({"id": identity, "method": method, "params": params})

    # -- its own actions --------------------------------------------------------------------------------

    def idle(self) -> None:
        """Nothing comes: the user does what the scene says."""
        if not self.counted:
            self.start()
        elif (self.runs and self.scene == "stop" and self.has_heard and not self.has_cancelled) or (
            self.scene == "stop-asked" and self.held and not self.has_cancelled
        ):
            self.cancel()
        elif not self.asked and not self.runs:
            raise Left

    def start(self) -> None:
        self.ask("initialize", self.hello(), self.initialized)

    def hello(self) -> dict[str, Any]:
        name = {"name": "raw-client", "version": "1"}
        return {"protocolVersion": 1, "clientCapabilities": self.capabilities, "clientInfo": name}

    def initialized(self, answer: dict[str, Any]) -> None:
        if "error" in answer or not self.takes(answer["result"]):
            raise Left
        self.claims = answer["result"].get("agentCapabilities") or {}
        self.waits_for_ready = self.is_offered_ready(answer["result"])
        self.logins = answer["result"].get("authMethods") or []
        self.open()

    def takes(self, result: dict[str, Any]) -> bool:
        self.spoken = result["protocolVersion"]
        return self.spoken == 1

    def is_offered_ready(self, result: dict[str, Any]) -> bool:
        ours = (self.claims.get("sessionCapabilities") or {}).get("ready")
        v2 = ((result.get("capabilities") or {}).get("session") or {}).get("ready")
        return any(each is True or isinstance(each, dict) for each in (ours, v2))

    def open(self) -> None:
        if self.scene == "load" and self.claims.get("loadSession"):
            self.ask("session/load", {"sessionId": "session-1", **self.place()}, self.loaded)
        else:
            self.ask("session/new", self.place(), self.opened)

    def place(self) -> dict[str, Any]:
        server = {"name": "files", "command": "/bin/files", "args": [], "env": []}
        place: dict[str, Any] = {"cwd": self.cwd, "mcpServers": [server]}
        if (self.claims.get("sessionCapabilities") or {}).get("additionalDirectories") is not None:
            place["additionalDirectories"] = self.directories()
        return place

    def directories(self) -> list[str]:
        return ["/tmp"]

    def opened(self, answer: dict[str, Any]) -> None:
        if "error" in answer:
            if answer["error"]["code"] == -32000 and self.logins:
                self.ask("authenticate", self.login(), lambda answer: None)
            return
        self.session = answer["result"]["sessionId"]
        self.ready("session/new")
        self.prompt()

    def loaded(self, answer: dict[str, Any]) -> None:
        self.session = "session-1"
        self.ready("session/load")
        self.prompt()

    def ready(self, opened_by: str) -> None:
        if self.waits_for_ready:
            self.send_ready(self.session)

    def send_ready(self, session: Any) -> None:
        self.send({"method": "session/ready", "params": {"sessionId": session}})

    def login(self) -> dict[str, Any]:
        return {"methodId": self.logins[0]["id"]}

    def prompt(self) -> None:
        self.prompts -= 1
        self.runs = True
        self.ask("session/prompt", self.words(), self.prompted)
        self.turn = f"c{self.counted}"

    def words(self) -> dict[str, Any]:
        return {"sessionId": self.session, "prompt": [{"type": "text", "text": "hello"}]}

    def prompted(self, answer: dict[str, Any]) -> None:
        if self.is_current(answer["id"]):
            self.ended(answer)

    def marked(self, update: dict[str, Any]) -> None:
        if self.is_current(update["promptRequestId"]):
            self.ended({"result": update})

    def is_current(self, request: Any) -> bool:
        return self.runs and request == self.turn

    def ended(self, answer: dict[str, Any]) -> None:
        self.runs = False
        if self.prompts > 0:
            self.prompt()

    def cancel(self) -> None:
        self.has_cancelled = True
        self.send({"method": "session/cancel", "params": {"sessionId": self.session}})
        self.dismiss()

    def dismiss(self) -> None:
        for each in self.held:
            self.answer(each, {"outcome": {"outcome": "cancelled"}})
        self.held = []

    def gone(self) -> None:
        """The agent has ended its output."""
        raise Left

    # -- its input --------------------------------------------------------------------------------------

    def receive(self, message: dict[str, Any]) -> None:
        method = message.get("method")
        if method is None:
            self.answered(message)
        elif "id" in message:
            self.request(message)
        else:
            self.hear(method, message.get("params") or {})

    def answered(self, message: dict[str, Any]) -> None:
        then = self.asked.pop(message.get("id"), None)
        if then is None:
            self.stray(message)
        else:
            then(message)

    def stray(self, message: dict[str, Any]) -> None:
        """It does nothing."""

    def request(self, message: dict[str, Any]) -> None:
        method, params = message["method"], message.get("params") or {}
        if method == "session/request_permission":
            self.permission(message["id"], params)
        elif method in self.methods and self.offers(method):
            self.serve(message["id"], lambda: self.methods[method](params))
        else:
            self.unknown(message["id"], method)

    def offers(self, method: str) -> bool:
        files = self.capabilities.get("fs", {})
        if method == "fs/read_text_file":
            return files.get("readTextFile", False)
        if method == "fs/write_text_file":
            return files.get("writeTextFile", False)
        return method.partition("/")[0] in self.capabilities

    def serve(self, request: Any, work: Callable[[], Any]) -> None:
        try:
            self.answer(request, work())
        except Refused as refused:
            self.refuse(request, refused.code)

    def answer(self, request: Any, result: Any) -> None:
        self.send({"id": request, "result": result})

    def refuse(self, request: Any, code: int) -> None:
        self.send({"id": request, "error": {"code": code, "message": "refused"}})

    def unknown(self, request: Any, method: str) -> None:
        self.refuse(request, -32601)

    def hear(self, method: str, params: dict[str, Any]) -> None:
        if method == "session/update":
            self.told(params, params["update"])
        elif method == "$/cancel_request":
            self.taken_back(params)
        else:
            self.unknown_notification(method)

    def unknown_notification(self, method: str) -> None:
        """It does nothing."""

    def taken_back(self, params: dict[str, Any]) -> None:
        if params["requestId"] in self.held:
            self.held.remove(params["requestId"])
            self.answer(params["requestId"], {"outcome": {"outcome": "cancelled"}})

    def told(self, params: dict[str, Any], update: dict[str, Any]) -> None:
        if params["sessionId"] == self.session:
            self.has_heard = True
            if update["sessionUpdate"] == "tool_call":
                self.calls.add(update["toolCallId"])
            elif update["sessionUpdate"] == "turn_complete":
                self.marked(update)

    # -- its offers -------------------------------------------------------------------------------------

    def permission(self, request: Any, params: dict[str, Any]) -> None:
        if self.scene in ("stop-asked", "hold"):
            self.held.append(request)
        else:
            self.answer(request, {"outcome": self.outcome(params)})

    def outcome(self, params: dict[str, Any]) -> dict[str, Any]:
        return {"outcome": "selected", "optionId": params["options"][0]["optionId"]}

    def read(self, params: dict[str, Any]) -> dict[str, Any]:
        path = params["path"]
        if not os.path.isabs(path):
            raise Refused(-32602)
        if not os.path.exists(path):
            raise Refused(-32002)
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines(keepends=True)
        return {"content": "".join(self.part(lines, params))}

    def part(self, lines: list[str], params: dict[str, Any]) -> list[str]:
        start = params.get("line", 1) - 1
        return lines[start : start + params.get("limit", len(lines))]

    def write_file(self, params: dict[str, Any]) -> dict[str, Any]:
        with open(params["path"], "w", encoding="utf-8") as file:
            file.write(params["content"])
        return {}

    def create(self, params: dict[str, Any]) -> dict[str, Any]:
        identity = f"t{len(self.terminals)}"
        self.terminals[identity] = self.run(params["args"][-1] if params["args"] else "", params)
        return {"terminalId": identity}

    def run(self, script: str, params: dict[str, Any]) -> dict[str, Any]:
        """A command of the suite, without a process."""
        named = {each["name"]: each["value"] for each in params.get("env", [])}
        printed = {
            "printf hello": "hello",
            "printf 0123456789": "0123456789",
            "printf 'ééé'": "ééé",
            "pwd -P": f"{params.get('cwd', self.cwd)}\n",
            'printf %s "$JUDGE"': named.get("JUDGE", ""),
        }
        code = int(script.removeprefix("exit ")) if script.startswith("exit ") else 0
        status = None if script == "sleep 600" else {"exitCode": code, "signal": None}
        return {"output": printed.get(script, ""), "limit": params.get("outputByteLimit"), "status": status}

    def terminal(self, params: dict[str, Any]) -> dict[str, Any]:
        found = self.terminals.get(params["terminalId"])
        if found is None:
            raise Refused(-32002)
        return found

    def output(self, params: dict[str, Any]) -> dict[str, Any]:
        found = self.terminal(params)
        whole = found["output"].encode()
        is_cut = found["limit"] is not None and len(whole) > found["limit"]
        shown = self.cut(whole, found["limit"]) if is_cut else found["output"]
        return {"output": shown, "truncated": is_cut, "exitStatus": found["status"]}

    def cut(self, whole: bytes, limit: Any) -> str:
        return whole[-limit:].decode(errors="ignore")

    def exit(self, params: dict[str, Any]) -> dict[str, Any]:
        return self.terminal(params)["status"]

    def kill(self, params: dict[str, Any]) -> dict[str, Any]:
        self.terminal(params)["status"] = {"exitCode": None, "signal": "SIGKILL"}
        return {}

    def release(self, params: dict[str, Any]) -> dict[str, Any]:
        self.terminals.pop(params["terminalId"], None)
        return {}

    def form(self, params: dict[str, Any]) -> dict[str, Any]:
        fields = params["requestedSchema"]["properties"]
        return {"action": "accept", "content": {name: self.filled(each) for name, each in fields.items()}}

    def filled(self, field: dict[str, Any]) -> Any:
        if "enum" in field:
            return field["enum"][0]
        return {"string": "me", "integer": field.get("minimum", 1), "boolean": True}[field["type"]]


class RawTestClientV2(RawTestClient):
    """The same for v2, and for v1 with an agent that has no more."""

    version = 2

    def hello(self) -> dict[str, Any]:
        return {"protocolVersion": 2, "capabilities": {}, "info": {"name": "raw-client", "version": "2"}}

    def takes(self, result: dict[str, Any]) -> bool:
        self.spoken = result["protocolVersion"]
        return self.spoken in (1, 2)

    def place(self) -> dict[str, Any]:
        return {"cwd": self.cwd, "mcpServers": []} if self.spoken == 1 else {"cwd": self.cwd}

    def prompted(self, answer: dict[str, Any]) -> None:
        if self.spoken == 1 or "error" in answer:
            self.ended(answer)

    def told(self, params: dict[str, Any], update: dict[str, Any]) -> None:
        super().told(params, update)
        if self.runs and update["sessionUpdate"] == "state_update":
            self.state(update)

    def state(self, update: dict[str, Any]) -> None:
        if update["state"] == "idle":
            self.ended(update)


def main(client: type[RawTestClient], scene: str, *agent: str) -> None:
    """Start the agent and speak with it. The user acts when the agent has said all it has to say for now."""
    with subprocess.Popen(agent, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        pipe = process.stdin

        def write(line: bytes) -> None:
            pipe.write(line)
            pipe.flush()

        mine = client(write, os.getcwd(), scene)
        try:
            mine.idle()
            while piece := os.read(process.stdout.fileno(), 65536):
                mine.feed(piece)
                if not mine.asked or mine.scene.startswith("stop"):
                    mine.idle()
            mine.gone()
        except (Left, BrokenPipeError):
            pipe.close()


if __name__ == "__main__":
    main(RawTestClient, *sys.argv[1:])
