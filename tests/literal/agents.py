"""Raw agents, one for each published text, controlled by a test through `relay_agent.py`.

An `AgentText` defines such an agent's messages: its answer to `initialize`, and the beginning and end of its turns.
Nothing here knows turnwire. The first steps of a connection are answered as in the text; everything else waits for
the test.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from threading import Lock, Thread
from typing import Any

from tests.literal.heard import START_S, Fits, Frame, Heard, about, answers, member

RELAY = Path(__file__).with_name("relay_agent.py")


@dataclass(frozen=True)
class AgentText:
    """The messages of one text."""

    name: str
    version: int
    initialized: Frame
    """The result of `initialize`."""
    state_word: str = ""
    """The update that reports the state, where the text has one; it then ends the turn."""
    reason_word: str = "stopReason"
    answers_with_id: bool = False
    """True if the answer to a prompt names the inserted message."""
    has_marker: bool = False

    @property
    def is_accepting(self) -> bool:
        """True if a prompt is answered when it is accepted, not at the end of the turn."""
        return bool(self.state_word)


V1_CAPABILITIES: Frame = {"loadSession": True, "promptCapabilities": {"image": False}}
V1_RESULT: Frame = {"protocolVersion": 1, "agentCapabilities": V1_CAPABILITIES, "authMethods": []}
V2_RESULT: Frame = {
    "protocolVersion": 2,
    "info": {"name": "raw", "version": "1"},
    "capabilities": {"session": {}},
    "authMethods": [],
}


def v1_result(**session_capabilities: Any) -> Frame:
    return V1_RESULT | {"agentCapabilities": V1_CAPABILITIES | {"sessionCapabilities": session_capabilities}}


PLAIN = AgentText("plain", 1, V1_RESULT)
"""004, and the agent of the daemon of 002: the v1 prompt turn and nothing more."""
MARKER = AgentText("marker", 1, v1_result(turnComplete={}), has_marker=True)
"""000: the end of a turn is also an update."""
LIFECYCLE_RESULT: Frame = {"protocolVersion": 2, "capabilities": {"session": {}}, "authMethods": []}
LIFECYCLE = AgentText("lifecycle", 2, LIFECYCLE_RESULT, state_word="state_change", reason_word="stop_reason")
"""003 as the proposal spells it: `{}`, `state_change`, `stop_reason`. The text does not mention `info`, so it has
none.
"""
LIFECYCLE_V1 = replace(LIFECYCLE, name="lifecycle-v1", version=1, initialized=v1_result(lifecycle={}))
"""003 as an experiment on version 1."""
PUBLISHED = AgentText("published", 2, V2_RESULT, state_word="state_update", answers_with_id=True)
"""The successor of 003: published v2."""

READY_PLACES: dict[str, Frame] = {
    "capabilities.session": V1_RESULT | {"capabilities": {"session": {"ready": True}}},
    "agentCapabilities.session": V1_RESULT | {"agentCapabilities": V1_CAPABILITIES | {"session": {"ready": {}}}},
    "agentCapabilities.sessionCapabilities": v1_result(ready=True),
    "agentCapabilities.sessionCapabilities as an object": v1_result(ready={}),
    "capabilities.session of v2": V2_RESULT | {"capabilities": {"session": {"ready": True}}},
}
"""001: positions in which an agent may announce that it waits for `session/ready`."""


def text_block(text: str) -> Frame:
    return {"type": "text", "text": text}


class RawAgent:
    """One agent process."""

    def __init__(self, link: socket.socket, pid: int) -> None:
        self.pid = pid
        self.heard = Heard()
        self._link = link
        self._writing = Lock()
        self._ids = count(1)

    def send(self, *frames: Frame) -> None:
        """Send these frames in one batch."""
        burst = b"".join(json.dumps({"jsonrpc": "2.0", **frame}).encode() + b"\n" for frame in frames)
        with self._writing, suppress(OSError):
            self._link.sendall(burst)

    def answer(self, request: Frame, result: Any) -> None:
        self.send({"id": request["id"], "result": result})

    def refuse(self, request: Frame, code: int, message: str) -> None:
        self.send({"id": request["id"], "error": {"code": code, "message": message}})

    def ask(self, method: str, params: Frame) -> int:
        """Send a request; return its id."""
        request = self.request(method, params)
        self.send(request)
        number: int = request["id"]
        return number

    def request(self, method: str, params: Frame) -> Frame:
        """Return a request with a unique id."""
        return {"id": next(self._ids), "method": method, "params": params}

    def told(self, request_id: int) -> Frame:
        """Return the answer to a request of ours."""
        return self.heard.until(answers(request_id), what=f"answer to the agent's request {request_id}")

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        with suppress(OSError):
            self._link.shutdown(socket.SHUT_RDWR)


class AgentSession:
    """One session at a raw agent, in the form of its text."""

    def __init__(self, agent: RawAgent, text: AgentText, session_id: str) -> None:
        self.agent = agent
        self.text = text
        self.id = session_id
        self._taken: list[Frame] = []

    def asked(self, method: str = "session/prompt", words: str | None = None) -> Frame:
        """Return the next message with this method about this session that the test has not read yet."""

        def fits(frame: Frame) -> bool:
            is_ours = frame.get("method") == method and about(frame) == self.id
            is_meant = words is None or prompt_text(frame) == words
            return is_ours and is_meant and not any(frame is each for each in self._taken)

        found = self.agent.heard.until(fits, what=f"{method} at the agent")
        self._taken.append(found)
        return found

    def prompts(self) -> list[str]:
        """The text of every prompt that came so far."""
        return [
            prompt_text(frame)
            for frame in self.agent.heard.all()
            if frame.get("method") == "session/prompt" and frame["params"]["sessionId"] == self.id
        ]

    def say(self, *updates: Frame) -> None:
        self.agent.send(*(self.update(each) for each in updates))

    def update(self, update: Frame) -> Frame:
        return {"method": "session/update", "params": {"sessionId": self.id, "update": update}}

    def chunk(self, text: str, message_id: str = "a-1") -> Frame:
        """Send a chunk of the agent's answer."""
        update: Frame = {"sessionUpdate": "agent_message_chunk", "content": text_block(text)}
        return update | {"messageId": message_id} if self.text.version == 2 else update

    def user_message(self, prompt: Frame, message_id: str) -> Frame:
        content = prompt["params"]["prompt"]
        return {"sessionUpdate": "user_message", "messageId": message_id, "content": content}

    def state(self, state: str, reason: str | None = None, **more: Any) -> Frame:
        ended = {} if reason is None else {self.text.reason_word: reason}
        return {"sessionUpdate": self.text.state_word, "state": state, **ended, **more}

    def accept(self, prompt: Frame, message_id: str) -> Frame:
        """Send the response that the prompt was accepted into the conversation."""
        result = {"messageId": message_id} if self.text.answers_with_id else {}
        return {"id": prompt["id"], "result": result}

    def begin(self, prompt: Frame, message_id: str = "u-1") -> None:
        """Accept the prompt and begin to work, where the text has messages for that."""
        if self.text.is_accepting:
            self.agent.send(
                self.update(self.user_message(prompt, message_id)),
                self.accept(prompt, message_id),
                self.update(self.state("running")),
            )

    def end(self, prompt: Frame, reason: str = "end_turn", usage: Frame | None = None) -> None:
        """End the turn of this prompt as the text has it."""
        more = {} if usage is None else {"usage": usage}
        if self.text.is_accepting:
            self.say(self.state("idle", reason, **more))
            return
        if self.text.has_marker:
            self.say(self.marker(prompt, reason))
        self.agent.answer(prompt, {"stopReason": reason, **more})

    def marker(self, prompt: Frame, reason: str) -> Frame:
        return {"sessionUpdate": "turn_complete", "promptRequestId": prompt["id"], "stopReason": reason}

    def request_permission(self, call_id: str = "call-1", title: str = "Delete it") -> int:
        """Send a permission request for a tool; return its id."""
        options = [
            {"optionId": "yes", "name": "Yes", "kind": "allow_once"},
            {"optionId": "no", "name": "No", "kind": "reject_once"},
        ]
        call = {"toolCallId": call_id, "title": title, "kind": "delete", "status": "pending"}
        asked: Frame = {"sessionId": self.id, "options": options}
        if self.text.version == 2:
            asked |= {"title": title, "subject": {"type": "tool_call", "toolCall": call}}
        else:
            asked |= {"toolCall": call}
        return self.agent.ask("session/request_permission", asked)


def prompt_text(frame: Frame) -> str:
    """The text of a prompt as the agent got it."""
    blocks: list[Frame] = member(frame, "params", "prompt") or []
    return "".join(block.get("text", "") for block in blocks)


Reply = Callable[[RawAgent, Frame], None]


class AgentListener:
    """Listener for the agent processes of one turnwire; each connection is a process."""

    def __init__(self, text: AgentText) -> None:
        self.text = text
        self.lives: list[RawAgent] = []
        self.replies: dict[str, Reply] = {}
        """Answers that a test replaces, by method."""
        self._opened = Heard()
        self._sessions = count(1)
        self._socket = socket.create_server(("127.0.0.1", 0))
        Thread(target=self._accept, daemon=True).start()

    @property
    def command(self) -> list[str]:
        return [sys.executable, str(RELAY), str(self._socket.getsockname()[1])]

    def life(self, number: int) -> RawAgent:
        """The agent that called as the `number`th, from 0."""
        self._opened.several(
            lambda frame: frame["opened"] == "life", number + 1, what="agent process", within=START_S
        )
        return self.lives[number]

    def session(self, cwd: Path, occurrence: int = 0) -> AgentSession:
        """The session that the agent was asked to open in this folder."""

        def fits(frame: Frame) -> bool:
            return frame["opened"] == "session" and frame["cwd"] == str(cwd)

        what = f"session of the agent in {cwd}"
        found = self._opened.several(fits, occurrence + 1, what=what, within=START_S)[occurrence]
        return AgentSession(found["agent"], self.text, found["sessionId"])

    def returned(self, session_id: str, life: int) -> AgentSession:
        """Return the same session at a later process of the agent."""
        return AgentSession(self.life(life), self.text, session_id)

    def close(self) -> None:
        self._socket.close()
        for life in self.lives:
            life.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                link, _ = self._socket.accept()
                Thread(target=self._live, args=(link,), daemon=True).start()

    def _live(self, link: socket.socket) -> None:
        with link, link.makefile("rb") as lines, suppress(OSError, ValueError):
            agent = RawAgent(link, json.loads(next(lines, b'{"pid": 0}'))["pid"])
            self.lives.append(agent)
            self._opened.add({"opened": "life"})
            for line in lines:
                frame: Frame = json.loads(line)
                self._reply(agent, frame)
                agent.heard.add(frame)
            agent.heard.over()

    def _reply(self, agent: RawAgent, frame: Frame) -> None:
        """Answer the requests of the first steps; everything else is left to the test."""
        method = frame.get("method", "")
        if "id" not in frame or method in ("", "session/prompt", "_session/steering"):
            return
        reply = self.replies.get(method) or REPLIES.get(method)
        if reply is not None:
            reply(agent, frame)
        elif method == "initialize":
            self._introduce(agent, frame)
        elif method == "session/new":
            self.open(agent, frame, f"{self.text.name}-{next(self._sessions)}")
        else:
            agent.refuse(frame, -32601, f"no {method} here")

    def _introduce(self, agent: RawAgent, frame: Frame) -> None:
        if frame["params"]["protocolVersion"] < self.text.version:
            agent.refuse(frame, -32022, "version 2 only")
        else:
            agent.answer(frame, self.text.initialized)

    def open(self, agent: RawAgent, frame: Frame, session_id: str) -> None:
        """Answer `session/new` with this id."""
        agent.answer(frame, {"sessionId": session_id})
        self.opened(agent, frame, session_id)

    def opened(self, agent: RawAgent, frame: Frame, session_id: str) -> None:
        """Remember a session for the test."""
        cwd = frame["params"]["cwd"]
        self._opened.add({"opened": "session", "cwd": cwd, "sessionId": session_id, "agent": agent})


def _nothing(agent: RawAgent, frame: Frame) -> None:
    agent.answer(frame, {})


def _resumed(agent: RawAgent, frame: Frame) -> None:
    """The current state comes before the answer."""
    idle = {"sessionUpdate": "state_update", "state": "idle"}
    about = {"sessionId": frame["params"]["sessionId"], "update": idle}
    agent.send({"method": "session/update", "params": about}, {"id": frame["id"], "result": {}})


REPLIES: dict[str, Reply] = {
    "session/load": _nothing,
    "session/resume": _resumed,
    "session/close": _nothing,
    "authenticate": _nothing,
}


def of_method(method: str) -> Fits:
    return lambda frame: frame.get("method") == method
