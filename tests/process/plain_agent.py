"""An agent of a few lines that starts fast, stores its sessions in a folder, and has configurable faults.

Its only argument is one JSON object; each key is a behaviour:

    initialize   its answer, by the requested version: `result`, `error`, or `null` for silence; without an entry
                 it dies with the code 7
    capabilities its `agentCapabilities`, where `initialize` has none of its own
    refuse       methods that it answers with an error
    folder       its storage of sessions, and of the newest params in `opened.json`; without one it knows no session
                 of an earlier process
    repeats      replays `before` or `after` its answer: on a resume, although it should not, and likewise on a load
    adds         new text that it sends after such a replay
    retells      replays each user message in other words, and its context before the answer
    forgets      the number of newest entries that it omits when it replays
    counts       numbers its sessions from 1, also those of its next process
    dies_at      methods at which it dies with the code 7
    lingers      does not exit when its input ends

A prompt is answered with one chunk `heard TEXT`; `die` ends it with the code 7 and text on standard error, and to
`mute` it sends its chunk and never answers the request.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

HABITS: dict[str, Any] = json.loads(sys.argv[1])
FOLDER = HABITS.get("folder")


def send(frame: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **frame}) + "\n")
    sys.stdout.flush()


def die() -> None:
    sys.stderr.write("it was too much for me\n")
    sys.stderr.flush()
    os._exit(7)


def tell(session_id: str, kind: str, text: str) -> None:
    update = {"sessionUpdate": kind, "content": {"type": "text", "text": text}}
    send({"method": "session/update", "params": {"sessionId": session_id, "update": update}})


def memory(session_id: str) -> Path:
    return Path(FOLDER or "/nowhere") / session_id


def keep(session_id: str, kind: str, text: str) -> None:
    if FOLDER:
        with memory(session_id).open("a") as file:
            file.write(json.dumps([kind, text]) + "\n")


def initialize(request_id: Any, params: dict[str, Any]) -> None:
    version = str(params["protocolVersion"])
    answers: dict[str, Any] = HABITS.get("initialize", {"1": {}, "2": {}})
    if version not in answers:
        die()
    answer = answers[version]
    if answer is not None:
        usual = {"result": {"protocolVersion": 1, "agentCapabilities": HABITS.get("capabilities", {})}}
        send({"id": request_id, **(answer or usual)})


def reopen(request_id: Any, method: str, session_id: str) -> None:
    if not FOLDER or not memory(session_id).exists():
        send({"id": request_id, "error": {"code": -32002, "message": "there is no such session"}})
        return
    when = HABITS.get("repeats", "before" if method == "session/load" else None)
    if HABITS.get("retells"):
        tell(session_id, "user_message_chunk", "<context>today</context>")
    if when == "before":
        replay(session_id, method)
    send({"id": request_id, "result": {}})
    if when == "after":
        replay(session_id, method)


def replay(session_id: str, method: str) -> None:
    entries = [json.loads(line) for line in memory(session_id).read_text().splitlines()]
    for kind, text in entries[: len(entries) - int(HABITS.get("forgets", 0))]:
        is_told = kind == "user_message_chunk" and HABITS.get("retells")
        tell(session_id, kind, f"[[text]] {text}\n[screenshot]" if is_told else text)
    if method == "session/resume" and "adds" in HABITS:
        tell(session_id, "agent_thought_chunk", HABITS["adds"])


def prompt(request_id: Any, session_id: str, text: str) -> None:
    keep(session_id, "user_message_chunk", text)
    if text == "die":
        die()
    tell(session_id, "agent_message_chunk", f"heard {text}")
    keep(session_id, "agent_message_chunk", f"heard {text}")
    if text != "mute":
        send({"id": request_id, "result": {"stopReason": "end_turn"}})


COUNT = itertools.count(1)


def new(request_id: Any, params: dict[str, Any]) -> None:
    session_id = f"plain-{next(COUNT)}" if HABITS.get("counts") else f"plain-{os.getpid()}-{request_id}"
    if FOLDER:
        memory(session_id).touch()
        memory("opened.json").write_text(json.dumps(params))
    send({"id": request_id, "result": {"sessionId": session_id}})


def main() -> None:
    for line in sys.stdin:
        frame: dict[str, Any] = json.loads(line)
        params: dict[str, Any] = frame.get("params", {})
        method, request_id = frame.get("method"), frame.get("id")
        if method in HABITS.get("dies_at", []):
            die()
        elif method in HABITS.get("refuse", []):
            send({"id": request_id, "error": {"code": -32603, "message": f"not {method}"}})
        elif method == "initialize":
            initialize(request_id, params)
        elif method == "session/new":
            new(request_id, params)
        elif method in {"session/load", "session/resume"}:
            reopen(request_id, method, params["sessionId"])
        elif method == "session/prompt":
            prompt(request_id, params["sessionId"], params["prompt"][0]["text"])
    if HABITS.get("lingers"):
        signal.pause()


if __name__ == "__main__":
    main()
