"""A raw ACP v1 agent that loses its mode with its process, as most do; written from the text of ACP alone.

Every request that it gets is a line in the file that it is started with. While a file `refuse` is next to that, it
rejects all settings; while there is a file `deaf`, it accepts every setting of an option and changes nothing.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

HEARD = Path(sys.argv[1])
SETTINGS: dict[str, Any] = {"mode": "auto", "effort": "low"}


def send(**message: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def is_told(name: str) -> bool:
    return HEARD.with_name(name).exists()


def offers() -> dict[str, Any]:
    modes = [{"id": each, "name": each} for each in ("auto", "read-only")]
    values = [{"value": each, "name": each} for each in ("low", "high")]
    option = {
        "id": "effort",
        "name": "Effort",
        "type": "select",
        "currentValue": SETTINGS["effort"],
        "options": values,
    }
    return {"modes": {"currentModeId": SETTINGS["mode"], "availableModes": modes}, "configOptions": [option]}


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    if method.startswith("session/set_") and is_told("refuse"):
        raise ValueError("not now")
    match method:
        case "initialize":
            capabilities: dict[str, Any] = {"sessionCapabilities": {"resume": {}}}
            return {"protocolVersion": 1, "agentCapabilities": capabilities, "authMethods": []}
        case "session/new":
            return {"sessionId": "the-one", **offers()}
        case "session/resume":
            return offers()
        case "session/set_mode":
            SETTINGS["mode"] = params["modeId"]
            return {}
        case "session/set_config_option":
            if not is_told("deaf"):
                SETTINGS["effort"] = params["value"]
            return {"configOptions": offers()["configOptions"]}
        case "session/prompt":
            if params["prompt"][0]["text"] == "die":
                os._exit(7)
            text = {"type": "text", "text": f"{SETTINGS['mode']} {SETTINGS['effort']}"}
            update = {"sessionUpdate": "agent_message_chunk", "content": text}
            send(method="session/update", params={"sessionId": "the-one", "update": update})
            return {"stopReason": "end_turn"}
        case _:
            raise KeyError(method)


for line in sys.stdin:
    request = json.loads(line)
    with HEARD.open("a") as heard:
        heard.write(request["method"] + "\n")
    if "id" not in request:
        continue
    try:
        send(id=request["id"], result=answer(request["method"], request.get("params") or {}))
    except (KeyError, ValueError) as error:
        send(id=request["id"], error={"code": -32602, "message": str(error)})
