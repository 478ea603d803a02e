"""The same messages in ACP v1 and in ACP v2.

The agent's output becomes updates and params as JSON values. `V2Shapes` overrides only the differences between the
two versions.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, TypeAlias, cast

from turnwire.ids import RequestId

Json: TypeAlias = dict[str, Any]

PERMISSION_KINDS = ("allow_once", "allow_always", "reject_once", "reject_always")
"""The kinds of permission options; an option with another id gets the first kind."""
MODES = ("ask", "code")
MODELS = ("small", "large")
CHOICES = {"mode": MODES, "model": MODELS}
"""The configuration options of every session and their values; the first one is the default."""


def member(value: Any, *path: str) -> Any:
    """Return the value at a path inside a JSON value, or None where the path does not exist."""
    for key in path:
        if not isinstance(value, dict):
            return None
        value = cast("Json", value).get(key)
    return value


def text_block(text: str) -> Json:
    return {"type": "text", "text": text}


class V1Shapes:
    """Shapes of ACP v1."""

    version = 1
    config_key = "id"

    def chunk(self, kind: str, text: str, message_id: str) -> Json:
        return {"sessionUpdate": f"{kind}_chunk", "content": text_block(text), "messageId": message_id}

    def user_message(self, blocks: Sequence[Any], message_id: str) -> list[Json]:
        return [
            {"sessionUpdate": "user_message_chunk", "content": block, "messageId": message_id} for block in blocks
        ]

    def plan(self, entries: Sequence[str]) -> Json:
        return {"sessionUpdate": "plan", "entries": _plan_entries(entries)}

    def tool_call(self, tool_call_id: str, kind: str, title: str) -> Json:
        """The first sight of a tool call, pending."""
        return {"sessionUpdate": "tool_call"} | _tool(tool_call_id, kind, title)

    def tool_status(self, tool_call_id: str, status: str, text: str | None = None) -> Json:
        update: Json = {"sessionUpdate": "tool_call_update", "toolCallId": tool_call_id, "status": status}
        if text is not None:
            update["content"] = [{"type": "content", "content": text_block(text)}]
        return update

    def permission(self, session_id: str, tool_call_id: str, options: Sequence[str]) -> Json:
        return {
            "sessionId": session_id,
            "toolCall": {"toolCallId": tool_call_id, "title": tool_call_id},
            "options": _permission_options(options),
        }

    def commands(self, names: Sequence[str]) -> list[Json]:
        return [{"name": name, "description": f"the command {name}"} for name in names]

    def mode_changed(self, config: dict[str, str]) -> Json:
        return {"sessionUpdate": "current_mode_update", "currentModeId": config["mode"]}

    def config_options(self, config: dict[str, str]) -> list[Json]:
        return [
            {
                self.config_key: option,
                "name": option.title(),
                "category": option,
                "type": "select",
                "currentValue": config[option],
                "options": [{"value": value, "name": value.title()} for value in values],
            }
            for option, values in CHOICES.items()
        ]

    def session_state(self, config: dict[str, str]) -> Json:
        """Return the session state in the answers to new, load, resume and fork."""
        modes = [{"id": mode, "name": mode.title()} for mode in MODES]
        return {
            "modes": {"currentModeId": config["mode"], "availableModes": modes},
            "configOptions": self.config_options(config),
        }

    def turn_complete(self, request_id: RequestId, stop_reason: str | None) -> Json:
        update: Json = {"sessionUpdate": "turn_complete", "promptRequestId": request_id}
        return update if stop_reason is None else update | {"stopReason": stop_reason}


class V2Shapes(V1Shapes):
    """Shapes of ACP v2 where they differ."""

    version = 2
    config_key = "configId"

    def user_message(self, blocks: Sequence[Any], message_id: str) -> list[Json]:
        return [{"sessionUpdate": "user_message", "messageId": message_id, "content": list(blocks)}]

    def plan(self, entries: Sequence[str]) -> Json:
        plan = {"type": "items", "planId": "main", "entries": _plan_entries(entries)}
        return {"sessionUpdate": "plan_update", "plan": plan}

    def tool_call(self, tool_call_id: str, kind: str, title: str) -> Json:
        return {"sessionUpdate": "tool_call_update"} | _tool(tool_call_id, kind, title)

    def permission(self, session_id: str, tool_call_id: str, options: Sequence[str]) -> Json:
        return {
            "sessionId": session_id,
            "title": f"May {tool_call_id} run?",
            "subject": {"type": "tool_call", "toolCall": {"toolCallId": tool_call_id, "title": tool_call_id}},
            "options": _permission_options(options),
        }

    def commands(self, names: Sequence[str]) -> list[Json]:
        return [{"type": "command", **command} for command in super().commands(names)]

    def mode_changed(self, config: dict[str, str]) -> Json:
        return {"sessionUpdate": "config_option_update", "configOptions": self.config_options(config)}

    def session_state(self, config: dict[str, str]) -> Json:
        return {"configOptions": self.config_options(config), "availableCommands": []}

    def state(self, state: str, stop_reason: str | None = None, error: Json | None = None) -> Json:
        update: Json = {"sessionUpdate": "state_update", "state": state}
        if stop_reason is not None:
            update["stopReason"] = stop_reason
        if error is not None:
            update["error"] = error
        return update

    def terminal(self, terminal_id: str, command: str, cwd: str, output: bytes) -> list[Json]:
        """The life of a terminal of the agent's own."""
        return [
            {"sessionUpdate": "terminal_update", "terminalId": terminal_id, "command": command, "cwd": cwd},
            {
                "sessionUpdate": "terminal_output_chunk",
                "terminalId": terminal_id,
                "data": base64.b64encode(output).decode("ascii"),
            },
            {"sessionUpdate": "terminal_update", "terminalId": terminal_id, "exitStatus": {"exitCode": 0}},
        ]


def _plan_entries(entries: Sequence[str]) -> list[Json]:
    return [
        {"content": entry, "priority": "medium", "status": "pending" if place else "in_progress"}
        for place, entry in enumerate(entries)
    ]


def _tool(tool_call_id: str, kind: str, title: str) -> Json:
    return {"toolCallId": tool_call_id, "title": title, "kind": kind, "status": "pending"}


def _permission_options(options: Sequence[str]) -> list[Json]:
    return [
        {
            "optionId": option,
            "name": option.replace("_", " "),
            "kind": option if option in PERMISSION_KINDS else PERMISSION_KINDS[0],
        }
        for option in options
    ]
