"""A small agent of ACP v1 that uses a language model. It finds the model as its user would configure it.

Knows nothing of turnwire. The address is in `OPENAI_BASE_URL`, or in the settings that OpenCode has in its
home. It leaves a note in its home and in its temporary folder, as agents do.
"""
# It takes JSON of which nothing is known, as a program without any library does.
# pyright: basic

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import urllib.request
from pathlib import Path
from typing import Any

TOOL = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}
SETTINGS = Path.home() / ".config" / "opencode" / "opencode.json"
CHOICES = [{"optionId": each, "name": each, "kind": each} for each in ("allow_once", "reject_once")]
WRITING = threading.Lock()


def send(message: dict[str, Any]) -> None:
    with WRITING:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def model() -> tuple[str, str]:
    """The address of the model, and the key."""
    if "OPENAI_BASE_URL" in os.environ:
        return os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
    options = json.loads(SETTINGS.read_text())["provider"]["fake"]["options"]
    return options["baseURL"], options["apiKey"]


class Turn:
    """One turn; the model is asked in a thread, so that a cancel is received meanwhile."""

    def __init__(self, request: Any, session: str, text: str) -> None:
        self.request = request
        self.session = session
        self.messages: list[dict[str, Any]] = [{"role": "user", "content": text}]
        self.call: dict[str, Any] = {}
        self.ending = threading.Lock()
        self.has_ended = False
        self.ask()

    def ask(self) -> None:
        threading.Thread(target=self.think, daemon=True).start()

    def think(self) -> None:
        url, key = model()
        body = {"model": "any", "stream": True, "messages": self.messages, "tools": [TOOL]}
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        asked = urllib.request.Request(f"{url}/chat/completions", json.dumps(body).encode(), headers)
        call = {"id": "", "name": "", "arguments": ""}
        with urllib.request.urlopen(asked) as answer:
            for line in answer:
                if line.startswith(b"data: {"):
                    self.hear(json.loads(line[6:]), call)
        if not call["id"]:
            self.end("end_turn")
            return
        function = {"name": call["name"], "arguments": call["arguments"]}
        called = [{"id": call["id"], "type": "function", "function": function}]
        self.messages.append({"role": "assistant", "content": None, "tool_calls": called})
        self.may_it(call)

    def hear(self, chunk: dict[str, Any], call: dict[str, str]) -> None:
        for choice in chunk.get("choices", []):
            delta = choice.get("delta", {})
            if delta.get("content"):
                content = {"type": "text", "text": delta["content"]}
                self.tell({"sessionUpdate": "agent_message_chunk", "content": content})
            for each in delta.get("tool_calls") or []:
                call["id"] = each.get("id") or call["id"]
                for name in ("name", "arguments"):
                    call[name] += each.get("function", {}).get(name) or ""

    def may_it(self, call: dict[str, str]) -> None:
        self.call = {"toolCallId": call["id"], "title": call["arguments"], "kind": "execute"}
        self.tell({"sessionUpdate": "tool_call", **self.call, "status": "pending"})
        params = {"sessionId": self.session, "toolCall": self.call, "options": CHOICES}
        send({"id": f"ask-{self.request}", "method": "session/request_permission", "params": params})

    def answered(self, result: dict[str, Any]) -> None:
        if self.has_ended:
            return
        may = result.get("outcome", {}).get("optionId") == "allow_once"
        update = {"sessionUpdate": "tool_call_update", "toolCallId": self.call["toolCallId"]}
        self.tell({**update, "status": "completed" if may else "failed"})
        self.messages.append({"role": "tool", "tool_call_id": self.call["toolCallId"], "content": str(may)})
        self.ask()

    def tell(self, update: dict[str, Any]) -> None:
        with self.ending:
            if not self.has_ended:
                send({"method": "session/update", "params": {"sessionId": self.session, "update": update}})

    def end(self, reason: str) -> None:
        with self.ending:
            if not self.has_ended:
                self.has_ended = True
                send({"id": self.request, "result": {"stopReason": reason}})


def main() -> None:
    (Path.home() / "notes").write_text(json.dumps(dict(os.environ)))
    tempfile.mkstemp()
    turns: dict[str, Turn] = {}
    for line in sys.stdin:
        message = json.loads(line)
        method, params = message.get("method"), message.get("params") or {}
        if method == "initialize":
            info = {"name": "model-agent", "version": "1"}
            send({"id": message["id"], "result": {"protocolVersion": 1, "agentInfo": info, "authMethods": []}})
        elif method == "session/new":
            send({"id": message["id"], "result": {"sessionId": "session-1"}})
        elif method == "session/prompt":
            text = "".join(each.get("text", "") for each in params["prompt"])
            turns[f"ask-{message['id']}"] = Turn(message["id"], params["sessionId"], text)
        elif method == "session/cancel":
            for turn in turns.values():
                turn.end("cancelled")
        elif method is None and message.get("id") in turns:
            turns[message["id"]].answered(message.get("result") or {})
        elif "id" in message:
            send({"id": message["id"], "error": {"code": -32601, "message": "no such method"}})


if __name__ == "__main__":
    main()
