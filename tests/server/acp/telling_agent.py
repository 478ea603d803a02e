"""An agent on stdin and stdout that reports the requests it gets, and performs some rare actions.

The first update of each session it opens is the request that opened it, as text. A prompt's text is a command:

    news           a vendor notification about no session
    elicit ID      a request on a page, and a notice of its end once it is answered
    read PATH      the text of a file that its client reads for it
    burst N …      N chunks of text, then each of the methods that follow, then `last`, all in one write: a request,
                   or a notification if it is `_note…` or the end of an elicitation; `!` at its end: of no session
    die            exit without output

`_telling/burst` does the same for the session that it names as `of`, outside of a turn. Its one argument is its
capability: `directories` or nothing.
"""

from __future__ import annotations

import json
import sys
from typing import Any

Json = dict[str, Any]


def send(**members: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **members}) + "\n")
    sys.stdout.flush()


def piece(session_id: str, text: str) -> Json:
    update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
    return {"method": "session/update", "params": {"sessionId": session_id, "update": update}}


def say(session_id: str, text: str) -> None:
    send(**piece(session_id, text))


def burst(session_id: str, count: int, methods: list[str]) -> None:
    """Send everything in one write; then wait for the answers and send them as text."""
    frames = [piece(session_id, str(number)) for number in range(count)]
    asked: list[str] = []
    wanted = {"path": "/x", "content": "x", "command": "x", "terminalId": "t"}
    page = {"mode": "url", "url": "https://example.test/", "message": "Open it", "elicitationId": "e-1"}
    for method in methods:
        params = wanted | (page if "elicit" in method else {})
        if not method.endswith("!"):
            params["sessionId"] = session_id
        frame: Json = {"method": method.rstrip("!"), "params": params}
        if not method.startswith(("_note", "elicitation/complete")):
            asked.append(f"burst-{len(asked)}")
            frame["id"] = asked[-1]
        frames.append(frame)
    frames.append(piece(session_id, "last"))
    sys.stdout.write("".join(json.dumps({"jsonrpc": "2.0", **each}) + "\n" for each in frames))
    sys.stdout.flush()
    while asked:
        message = json.loads(sys.stdin.readline())
        if "method" not in message and message["id"] in asked:
            asked.remove(message["id"])
            say(session_id, json.dumps(message.get("result") or message["error"]["code"]))


def ask(method: str, params: Json) -> Json:
    """Send a request to the client and wait; return its result."""
    send(id="q", method=method, params=params)
    for line in sys.stdin:
        message = json.loads(line)
        if message.get("id") == "q" and "method" not in message:
            return message.get("result") or {"refused": message["error"]["message"]}
    sys.exit(0)


def do(session_id: str, words: list[str]) -> None:
    """Execute a prompt."""
    match words:
        case ["news"]:
            send(method="_telling/news", params={"from": session_id})
        case ["elicit", elicitation_id]:
            page = {
                "mode": "url",
                "url": "https://example.test/",
                "message": "Open it",
                "elicitationId": elicitation_id,
            }
            ask("elicitation/create", {"sessionId": session_id, **page})
            send(method="elicitation/complete", params={"elicitationId": elicitation_id})
        case ["read", path]:
            result = ask("fs/read_text_file", {"sessionId": session_id, "path": path})
            say(session_id, result.get("content", "refused"))
        case ["burst", count, *methods]:
            burst(session_id, int(count), methods)
        case ["die"]:
            sys.exit(1)
        case _:
            say(session_id, " ".join(words))


def main(offers: list[str]) -> None:
    session: Json = {"resume": {}, "fork": {}, **({"additionalDirectories": {}} if "directories" in offers else {})}
    count = 0
    for line in sys.stdin:
        message = json.loads(line)
        method, params = message.get("method"), message.get("params", {})
        if method == "initialize":
            send(
                id=message["id"],
                result={"protocolVersion": 1, "agentCapabilities": {"sessionCapabilities": session}},
            )
        elif method in {"session/new", "session/fork", "session/resume"}:
            count += 1
            named = params["sessionId"] if method == "session/resume" else f"told-{count}"
            send(id=message["id"], result={"sessionId": named})
            say(named, json.dumps({"method": method, **params}))
        elif method == "session/prompt":
            do(params["sessionId"], params["prompt"][0]["text"].split())
            say(params["sessionId"], json.dumps({"prompted": params.get("_meta")}))
            send(id=message["id"], result={"stopReason": "end_turn"})
        elif method == "_telling/burst":
            burst(params["of"], params["count"], params["methods"])
        elif "id" in message and method is not None:
            send(id=message["id"], error={"code": -32601, "message": "no"})


if __name__ == "__main__":
    main(sys.argv[1:])
