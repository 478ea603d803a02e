"""A raw agent of ACP v1 or v2 that plays scenes; written from the text of ACP alone.

Its first argument is the version. A prompt is the JSON of a scene: a list of steps, executed one after the other.
`{"update": {…}}` is sent as an update, `{"ask": {…}}` as a permission request and `{"elicit": {…}}` as a form, with
the session's id; their answer is sent as text before the next step. `{"wait": "cancel"}` waits for a cancel;
`{"end": …}` ends the turn there, so that later steps are late.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

V2 = sys.argv[1] == "2"
COUNT = {"asked": 0, "said": 0, "opened": 0}
STATE = {"session": ""}
"""The session whose turn it is."""


def send(**message: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def update(**members: Any) -> None:
    send(method="session/update", params={"sessionId": STATE["session"], "update": members})


def say(text: str) -> None:
    COUNT["said"] += 1
    update(
        sessionUpdate="agent_message_chunk",
        messageId=f"m{COUNT['said']}",
        content={"type": "text", "text": text},
    )


def heard() -> dict[str, Any]:
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    return json.loads(line)


def request(method: str, params: dict[str, Any]) -> None:
    COUNT["asked"] += 1
    name = f"ask-{COUNT['asked']}"
    send(id=name, method=method, params={"sessionId": STATE["session"], **params})
    while (answer := heard()).get("id") != name or "method" in answer:
        pass
    say("answered " + json.dumps(answer.get("result", answer.get("error")), sort_keys=True))


def end(asked: Any, reason: str) -> None:
    if V2:
        update(sessionUpdate="state_update", state="idle", stopReason=reason)
    else:
        send(id=asked, result={"stopReason": reason})


def play(asked: Any, prompt: list[dict[str, Any]]) -> None:
    if V2:
        COUNT["said"] += 1
        send(id=asked, result={"messageId": f"u{COUNT['said']}"})
        update(sessionUpdate="user_message", messageId=f"u{COUNT['said']}", content=prompt)
        update(sessionUpdate="state_update", state="running")
    reason, has_ended = "end_turn", False
    for step in json.loads(prompt[-1]["text"]):
        if "update" in step:
            update(**step["update"])
        elif "ask" in step:
            request("session/request_permission", step["ask"])
        elif "elicit" in step:
            request("elicitation/create", step["elicit"])
        elif "wait" in step:
            while heard().get("method") != "session/cancel":
                pass
            reason = "cancelled"
        else:
            end(asked, reason)
            has_ended = True
    if not has_ended:
        end(asked, reason)


WELCOME: dict[str, Any] = (
    {"protocolVersion": 2, "info": {"name": "scene", "version": "1"}, "capabilities": {"session": {}}}
    if V2
    else {"protocolVersion": 1, "agentCapabilities": {}, "authMethods": []}
)

while True:
    message = heard()
    method = message.get("method")
    if method == "initialize":
        send(id=message["id"], result=WELCOME)
    elif method == "session/new":
        COUNT["opened"] += 1
        send(id=message["id"], result={"sessionId": f"scene-{os.getpid()}-{COUNT['opened']}"})
    elif method == "session/prompt":
        STATE["session"] = message["params"]["sessionId"]
        play(message["id"], message["params"]["prompt"])
    elif "id" in message and method is not None:
        send(id=message["id"], result={})
