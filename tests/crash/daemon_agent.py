"""The agent of the daemon's kill test: starts fast, and keeps its own record of every prompt that it got.

Run as `python -I -S daemon_agent.py RECORD LIFE`. A prompt is `TAG WHAT …`; the tag goes into the record before
anything else happens, so the record says what an agent was asked whatever becomes of the daemon. What it does:

    quick        one chunk, then the end
    flood N      N chunks at once, then the end
    ask WORD     a permission request, the end once it is answered; the word is for whoever sees the question
    hold WORD    nothing: only a cancel or a death ends it

It has a grandchild in a session of its own that holds its pipes, and stays when its input ends: what a careless
agent leaves behind. Uses the standard library only, and knows every session that it is asked to resume.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

LONGEST_S = 600
"""A process that nobody ends goes by itself after this time."""

Json = dict[str, Any]


class Agent:
    """One process, for one session or for all."""

    def __init__(self, record: str, life: int) -> None:
        self._record = os.open(record, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._life = life
        self._asked = 0
        self._open: dict[str, Any] = {}
        """Session → the prompt request that waits there."""
        self._questions: dict[str, str] = {}
        """Our request → its session."""

    def take(self, frame: Json) -> None:
        method, params = frame.get("method"), frame.get("params", {})
        match method:
            case "initialize":
                capabilities: Json = {"sessionCapabilities": {"resume": {}}}
                self._answer(frame, {"protocolVersion": 1, "agentCapabilities": capabilities})
            case "session/new":
                self._answer(frame, {"sessionId": f"agent-{os.getpid()}-{frame['id']}"})
            case "session/prompt":
                self._prompt(frame, params["sessionId"], params["prompt"][0]["text"].split())
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

    def _prompt(self, frame: Json, session: str, words: list[str]) -> None:
        tag, what, *rest = words
        line = json.dumps({"tag": tag, "life": self._life}) + "\n"
        # One write: a line is there whole or not at all.
        os.write(self._record, line.encode())
        self._open[session] = frame["id"]
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
        self._send(
            *(
                {
                    "method": "session/update",
                    "params": {
                        "sessionId": session,
                        "update": {
                            "sessionUpdate": "agent_message_chunk",
                            "content": {"type": "text", "text": text},
                        },
                    },
                }
                for text in texts
            )
        )

    def _ask(self, session: str, tag: str, word: str) -> None:
        self._asked += 1
        question = f"question-{self._asked}"
        self._questions[question] = session
        options = [{"optionId": each, "name": each, "kind": f"{each}_once"} for each in ("allow", "reject")]
        params = {"sessionId": session, "toolCall": {"toolCallId": tag, "title": word}, "options": options}
        self._send({"id": question, "method": "session/request_permission", "params": params})

    def _end(self, session: str, stop_reason: str) -> None:
        request_id = self._open.pop(session, None)
        if request_id is not None:
            self._send({"id": request_id, "result": {"stopReason": stop_reason}})

    def _answer(self, frame: Json, result: Json) -> None:
        self._send({"id": frame["id"], "result": result})

    def _send(self, *frames: Json) -> None:
        sys.stdout.write("".join(json.dumps({"jsonrpc": "2.0", **frame}) + "\n" for frame in frames))
        sys.stdout.flush()


def leave_grandchild() -> None:
    if not os.fork():
        os.setsid()
        signal.alarm(LONGEST_S)
        signal.pause()
        os._exit(0)


def main() -> None:
    leave_grandchild()
    agent = Agent(sys.argv[1], int(sys.argv[2]))
    for line in sys.stdin:
        agent.take(json.loads(line))
    signal.alarm(LONGEST_S)
    signal.pause()


if __name__ == "__main__":
    main()
