"""The agent of the kill tests and fault runs: starts fast, and records its prompts itself.

Run as `python -I -S recording_agent.py RECORD NAME [marks] [clings] [v2]`. The record has a line for each prompt.
It is written before any other action, so it lists an agent's prompts whatever becomes of the daemon: the machine's
steady clock in nanoseconds, the process, the name, `prompt`, the agent's name for the session, and the prompt's
tag. A prompt is `TAG WHAT …`:

    quick        one chunk, then the end
    flood N      N chunks at once, then the end
    work MS      a chunk every 20 ms for that long, then the end
    ask WORD     a permission request, the end once it is answered; the word is part of the question
    hold WORD    nothing: only a cancel or a death ends it

`marks`: every 20 ms there is a line `work` for each session that it works for, so that two agents at once are
detected. `clings`: it has a grandchild in a separate session that holds its pipes, and stays when its input ends:
the leak of a careless agent.

`v2`: it speaks version 2 of ACP, in which a state ends the turn. Otherwise it speaks version 1.

Uses the standard library only, and knows every session that it is asked to resume.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from typing import Any

BEAT_S = 0.02
LONGEST_S = 600
"""Time after which a process that was not ended exits by itself."""

Json = dict[str, Any]


class Work:
    """One open prompt."""

    def __init__(self, request_id: Any, tag: str, until: float | None) -> None:
        self.request_id = request_id
        self.tag = tag
        self.until = until
        """Time at which it ends by itself."""
        self.told = 0


class Agent:
    """One process, for one session or for all."""

    def __init__(self, record: str, name: str, *, marks: bool, v2: bool = False) -> None:
        self._is_v2 = v2
        self._record = os.open(record, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._name = name
        self._marks = marks
        self._asked = 0
        self._open: dict[str, Work] = {}
        self._questions: dict[str, str] = {}
        """Our request → its session."""

    def run(self) -> None:
        """Until the input ends."""
        buffer = b""
        while True:
            ready = select.select([0], [], [], self._beat_s)[0]
            if ready:
                read = os.read(0, 65_536)
                if not read:
                    return
                *lines, buffer = (buffer + read).split(b"\n")
                for line in lines:
                    self._take(json.loads(line))
            self._work()

    @property
    def _beat_s(self) -> float | None:
        """Return the interval of unsolicited work, or None if there is none."""
        is_due = any(self._marks or each.until is not None for each in self._open.values())
        return BEAT_S if is_due else None

    def _work(self) -> None:
        now = time.monotonic()
        for session, work in list(self._open.items()):
            if self._marks:
                self._note("work", session, work.tag)
            if work.until is None:
                continue
            self._say(session, f"{work.tag} {work.told}")
            work.told += 1
            if now >= work.until:
                self._end(session, "end_turn")

    def _note(self, what: str, session: str, tag: str) -> None:
        line = f"{time.monotonic_ns()} {os.getpid()} {self._name} {what} {session} {tag}\n"
        # One write: a line is there whole or not at all.
        os.write(self._record, line.encode())

    def _take(self, frame: Json) -> None:
        method, params = frame.get("method"), frame.get("params", {})
        match method:
            case "initialize":
                if self._is_v2:
                    info: Json = {"info": {"name": "recording", "version": "1"}, "authMethods": []}
                    self._answer(frame, {"protocolVersion": 2, "capabilities": {"session": {}}, **info})
                    return
                capabilities: Json = {"sessionCapabilities": {"resume": {}}}
                self._answer(frame, {"protocolVersion": 1, "agentCapabilities": capabilities})
            case "session/new":
                self._answer(frame, {"sessionId": f"agent-{os.getpid()}-{frame['id']}"})
            case "session/prompt":
                self._prompt(frame, params["sessionId"], params["prompt"])
            case "session/cancel":
                self._end(params["sessionId"], "cancelled")
            case None:
                session = self._questions.pop(frame["id"], "")
                selected = frame.get("result", {}).get("outcome", {}).get("outcome") == "selected"
                self._end(session, "end_turn" if selected else "cancelled")
            case _ if "id" in frame:
                self._answer(frame, {})
            case _:
                pass

    def _prompt(self, frame: Json, session: str, content: list[Json]) -> None:
        tag, what, *rest = content[0]["text"].split()
        self._note("prompt", session, tag)
        until = time.monotonic() + int(rest[0]) / 1000 if what == "work" else None
        self._open[session] = Work(frame["id"], tag, until)
        if self._is_v2:
            message: Json = {"sessionUpdate": "user_message", "messageId": f"u-{tag}", "content": content}
            self._update(session, message)
            self._answer(frame, {"messageId": f"u-{tag}"})
            self._update(session, {"sessionUpdate": "state_update", "state": "running"})
        match what:
            case "flood":
                self._say(session, *(f"{tag} {number}" for number in range(int(rest[0]))))
            case "ask":
                self._ask(session, tag, rest[0])
            case "quick":
                self._say(session, tag)
            case _:
                pass
        if what in {"flood", "quick"}:
            self._end(session, "end_turn")

    def _say(self, session: str, *texts: str) -> None:
        more = {"messageId": f"a-{self._open[session].tag}"} if self._is_v2 else {}
        self._update(
            session,
            *(
                {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": each}, **more}
                for each in texts
            ),
        )

    def _update(self, session: str, *updates: Json) -> None:
        params = ({"sessionId": session, "update": update} for update in updates)
        self._send(*({"method": "session/update", "params": each} for each in params))

    def _ask(self, session: str, tag: str, word: str) -> None:
        self._asked += 1
        question = f"question-{self._asked}"
        self._questions[question] = session
        options = [{"optionId": each, "name": each, "kind": f"{each}_once"} for each in ("allow", "reject")]
        params = {"sessionId": session, "toolCall": {"toolCallId": tag, "title": word}, "options": options}
        self._send({"id": question, "method": "session/request_permission", "params": params})

    def _end(self, session: str, stop_reason: str) -> None:
        work = self._open.pop(session, None)
        if work is None:
            return
        if self._is_v2:
            self._update(session, {"sessionUpdate": "state_update", "state": "idle", "stopReason": stop_reason})
        else:
            self._send({"id": work.request_id, "result": {"stopReason": stop_reason}})

    def _answer(self, frame: Json, result: Json) -> None:
        self._send({"id": frame["id"], "result": result})

    def _send(self, *frames: Json) -> None:
        lines = "".join(json.dumps({"jsonrpc": "2.0", **frame}) + "\n" for frame in frames).encode()
        while lines:
            lines = lines[os.write(1, lines) :]


def leave_grandchild() -> None:
    if not os.fork():
        os.setsid()
        signal.alarm(LONGEST_S)
        signal.pause()
        os._exit(0)


def main(record: str, name: str, *habits: str) -> None:
    if "clings" in habits:
        leave_grandchild()
    Agent(record, name, marks="marks" in habits, v2="v2" in habits).run()
    if "clings" in habits:
        signal.alarm(LONGEST_S)
        signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
