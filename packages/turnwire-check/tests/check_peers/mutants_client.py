"""Clients that break one rule each, and the case that must say so. Each departs from the sound one in one place."""
# It takes JSON of which nothing is known, as a program without any library does.
# pyright: basic

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any, ClassVar

from check_peers.raw_client import KINDS, Left, RawTestClient, RawTestClientV2, main

CLIENT_MUTANTS: dict[str, type[RawTestClient]] = {}
"""The client that breaks the rule of a case, by the id of the case."""


class Bare(RawTestClient):
    """Offers nothing."""

    capabilities: ClassVar[dict[str, Any]] = {}


def changed(case: str, name: str, instead: Callable[..., Any], base: type[RawTestClient] = RawTestClient) -> None:
    """A mutant that differs by one method. `instead` gets the client, the method that was, and its arguments."""
    assert case not in CLIENT_MUTANTS, case
    was = getattr(base, name)

    def method(self: RawTestClient, *args: Any) -> Any:
        return instead(self, lambda *given: was(self, *given), *args)

    CLIENT_MUTANTS[f"client.{case}"] = type(f"Mutant_{case}", (base,), {name: method})


def without(name: str) -> Callable[..., Any]:
    return lambda client, was, *args: {key: value for key, value in was(*args).items() if key != name}


def plus(**members: Any) -> Callable[..., Any]:
    return lambda client, was, *args: {**was(*args), **members}


def always(value: Any) -> Callable[..., Any]:
    return lambda client, was, *args: value


def leaves(condition: Callable[..., Any]) -> Callable[..., Any]:
    """It closes the connection over this."""

    def instead(client: RawTestClient, was: Callable[..., Any], *args: Any) -> Any:
        if condition(client, *args):
            raise Left
        return was(*args)

    return instead


def mute(condition: Callable[..., Any]) -> Callable[..., Any]:
    """It stays, and does nothing any more."""

    def instead(client: RawTestClient, was: Callable[..., Any], *args: Any) -> Any:
        if condition(client, *args):
            client.line = lambda line: None  # pyright: ignore[reportAttributeAccessIssue]
            client.asked["never"] = lambda answer: None
            return None
        return was(*args)

    return instead


def also(more: Callable[[RawTestClient], Any]) -> Callable[..., Any]:
    def instead(client: RawTestClient, was: Callable[..., Any], *args: Any) -> Any:
        more(client)
        return was(*args)

    return instead


# -- the handshake --------------------------------------------------------------------------------------

changed("init.first", "start", also(lambda client: client.send({"method": "_example.org/hi"})))
changed("init.once", "open", also(lambda client: client.ask("initialize", client.hello(), lambda answer: None)))
changed("init.version", "hello", plus(protocolVersion="1"))
changed(
    "init.capabilities", "hello", plus(clientCapabilities={**RawTestClient.capabilities, "auth": {"terminal": 1}})
)
changed("init.client-name", "hello", without("clientInfo"))


def hasty(client: RawTestClient, was: Callable[..., Any]) -> None:
    was()
    client.ask("_example.org/ping", {}, lambda answer: None)


changed("init.waits", "start", hasty)
changed("init.unknown-version", "takes", lambda client, was, result: was(result) or client.spoken == 65535)
changed("init.old-version", "takes", lambda client, was, result: was(result) or client.spoken == 0)


def undeterred(client: RawTestClient, was: Callable[..., Any], answer: dict[str, Any]) -> None:
    was({"result": {"protocolVersion": 1}} if "error" in answer else answer)


changed("init.refused", "initialized", undeterred)
changed("init.no-capabilities", "takes", leaves(lambda client, result: len(result) == 1))
changed("init.nulls", "takes", leaves(lambda client, result: result.get("agentInfo", 1) is None))
changed("init.unknown-capabilities", "takes", leaves(lambda client, result: "telepathy" in json.dumps(result)))
changed("init.unclaimed", "prompt", also(lambda client: client.ask("session/list", {}, lambda answer: None)))
changed("auth.offered", "login", always({"methodId": "password"}))

# -- its output -----------------------------------------------------------------------------------------

changed("wire.only-messages", "open", also(lambda client: client.emit(b"opening a session")))
changed("wire.utf-8", "open", also(lambda client: client.emit(b'{"jsonrpc":"2.0","method":"\xff"}')))


def unmarked(client: RawTestClient, was: Callable[..., Any], message: dict[str, Any]) -> None:
    if message.get("method") == "session/prompt":
        client.emit(json.dumps(message).encode())
    else:
        was(message)


changed("rpc.version-member", "send", unmarked)
changed("rpc.ids", "count", lambda client, was: (was(), client.counted + 0.5)[1])
changed("rpc.unique-ids", "count", lambda client, was: (was(), "c")[1])


def both(client: RawTestClient, was: Callable[..., Any], request: Any, method: str) -> None:
    client.send({"id": request, "result": {}, "error": {"code": -32601, "message": "unknown"}})


def wordless(client: RawTestClient, was: Callable[..., Any], request: Any, method: str) -> None:
    client.send({"id": request, "error": {"code": -32601}})


changed("rpc.one-outcome", "unknown", both)
changed("rpc.error-shape", "unknown", wordless)


class SaysItTwice(RawTestClient):
    """Answers a permission request again when something else is asked."""

    again: tuple[Any, Any] | None = None

    def permission(self, request: Any, params: dict[str, Any]) -> None:
        super().permission(request, params)
        self.again = request, params

    def unknown(self, request: Any, method: str) -> None:
        if self.again is not None:
            super().permission(*self.again)
        self.again = None
        super().unknown(request, method)

    def taken_back(self, params: dict[str, Any]) -> None:
        self.again = None


CLIENT_MUTANTS["client.rpc.one-answer"] = SaysItTwice
changed("rpc.notification", "unknown_notification", also(lambda client: client.refuse(None, -32601)))


def renamed(rule: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda client, was, request, method: was(rule(request), method)


changed("rpc.id-text", "unknown", renamed(lambda id: "onetwo" if id == "one two" else id))
changed("rpc.id-digits", "unknown", renamed(lambda id: int(id) if isinstance(id, str) and id.isdigit() else id))
changed("rpc.id-zero", "unknown", renamed(lambda id: id or None))
changed("rpc.id-number", "unknown", renamed(lambda id: str(id) if isinstance(id, int) and id > 70000 else id))
changed(
    "rpc.shared-id", "request", lambda client, was, message: None if message["id"] in client.asked else was(message)
)


def unknown_as(prefix: str, code: int | None) -> Callable[..., Any]:
    def instead(client: RawTestClient, was: Callable[..., Any], request: Any, method: str) -> None:
        if not method.startswith(prefix):
            was(request, method)
        elif code is not None:
            client.refuse(request, code)

    return instead


changed("rpc.unknown-method", "unknown", unknown_as("session/", -32603))
changed("own.answered", "unknown", unknown_as("_example.org", None))
changed("own.unknown-request", "unknown", unknown_as("_example.org", -32603))
changed("own.members", "words", plus(mood="good"))

# -- its input ------------------------------------------------------------------------------------------


def in_one_piece(client: RawTestClient, was: Callable[..., Any], piece: bytes) -> None:
    client.rest = b""
    was(piece)


changed("wire.split", "feed", in_one_piece)
changed("wire.joined", "feed", lambda client, was, piece: was(b"".join(piece.partition(b"\n")[:2])))
changed("wire.large", "line", leaves(lambda client, line: len(line) > 1_000_000))
changed("wire.blank", "line", leaves(lambda client, line: not line.strip()))
changed("wire.no-json", "line", leaves(lambda client, line: line.startswith(b"Loading")))
changed("wire.no-utf-8", "line", leaves(lambda client, line: b"\xff" in line))
changed("wire.batch", "line", leaves(lambda client, line: line.startswith(b"[")))


def kind(update: dict[str, Any]) -> str:
    return update["sessionUpdate"]


TOLD: dict[str, Callable[..., Any]] = {
    "update.every-kind": lambda client, params, update: "EUR" in json.dumps(update),
    "update.every-content": lambda client, params, update: "audio/wav" in json.dumps(update),
    "update.diff": lambda client, params, update: '"diff"' in json.dumps(update),
    "update.nulls": lambda client, params, update: update.get("locations", 1) is None,
    "update.empty": lambda client, params, update: update.get("entries") == [],
    "update.meta": lambda client, params, update: "_meta" in update,
    "update.params-meta": lambda client, params, update: "_meta" in params,
    "update.unknown-kind": lambda client, params, update: kind(update) not in KINDS,
    "update.unknown-members": lambda client, params, update: "colour" in update,
    "update.unseen-call": lambda client, params, update: (
        kind(update) == "tool_call_update" and update["toolCallId"] not in client.calls
    ),
    "update.unknown-session": lambda client, params, update: (
        client.session and params["sessionId"] != client.session
    ),
    "new.updates-behind": lambda client, params, update: client.session and update.get("availableCommands"),
    "new.updates-before": lambda client, params, update: client.session is None,
    "cancel.updates-after": lambda client, params, update: client.has_cancelled,
}
for _case, _condition in TOLD.items():
    changed(_case, "told", (mute if _case.startswith("new.") else leaves)(_condition))
changed("update.unknown-notification", "unknown_notification", leaves(lambda client, method: method[0] == "$"))
changed("update.stray-answer", "stray", leaves(lambda client, message: True))

# -- sessions, prompts and turns ------------------------------------------------------------------------

HTTP = {"type": "http", "name": "far", "url": "https://example.org/mcp", "headers": []}
changed("new.cwd", "place", plus(cwd="."))
changed("new.mcp-servers", "place", without("mcpServers"))
changed("new.mcp-shape", "place", plus(mcpServers=[{"name": "files", "command": "/bin/files"}]))
changed("new.mcp-transport", "place", plus(mcpServers=[HTTP]))
changed("new.directories", "place", plus(additionalDirectories=["/tmp"]))
changed("new.directories-absolute", "directories", always(["tmp"]))


class Impatient(RawTestClient):
    """Sends its prompt when the session takes too long."""

    def idle(self) -> None:
        if self.counted == 2 and self.asked:
            self.session = "session-1"
            self.prompt()
        else:
            super().idle()

    def opened(self, answer: dict[str, Any]) -> None:
        if self.counted == 2:
            super().opened(answer)


CLIENT_MUTANTS["client.new.prompt-waits"] = Impatient


def shortened(client: RawTestClient, was: Callable[..., Any]) -> dict[str, Any]:
    return {**was(), "sessionId": client.session.split(" ")[0]}


changed("new.id", "words", shortened)
changed("new.unknown-option", "opened", mute(lambda client, answer: "slider" in json.dumps(answer)))
changed("new.meta", "opened", mute(lambda client, answer: "mood" in json.dumps(answer)))
PIXEL = {"type": "image", "mimeType": "image/png", "data": "iVBORw0KGgo="}
changed("prompt.content", "words", plus(prompt=[{"type": "text", "text": "look"}, PIXEL]))
changed("prompt.blocks", "words", plus(prompt=[{"type": "text"}]))


def eager(client: RawTestClient, was: Callable[..., Any]) -> None:
    if client.runs and client.scene == "again" and client.prompts:
        client.prompt()
    else:
        was()


changed("prompt.one-at-a-time", "idle", eager)


def refusing(client: RawTestClient, was: Callable[..., Any], request: Any, params: dict[str, Any]) -> None:
    client.refuse(request, -32603)


changed("permission.result", "permission", refusing)
changed("permission.outcome", "outcome", always({"outcome": "allow"}))
changed("permission.offered", "outcome", always({"outcome": "selected", "optionId": "made up"}))
changed(
    "permission.two",
    "permission",
    lambda client, was, request, params: None if "call-2" in json.dumps(params) else was(request, params),
)
changed(
    "permission.taken-back",
    "taken_back",
    lambda client, was, params: client.refuse(params["requestId"], -32800),
)


def as_request(client: RawTestClient, was: Callable[..., Any]) -> None:
    client.has_cancelled = True
    client.ask("session/cancel", {"sessionId": client.session}, lambda answer: None)
    client.dismiss()


def elsewhere(client: RawTestClient, was: Callable[..., Any]) -> None:
    was_there, client.session = client.session, "another"
    was()
    client.session = was_there


changed("cancel.notification", "cancel", as_request)
changed("cancel.session", "cancel", elsewhere)
changed("cancel.permissions", "dismiss", always(None))
changed(
    "cancel.late-permission",
    "permission",
    lambda client, was, request, params: None if client.has_cancelled else was(request, params),
)


def reason(name: str) -> Callable[..., Any]:
    return lambda client, answer: answer.get("result", {}).get("stopReason") == name


changed("turn.error", "ended", mute(lambda client, answer: "error" in answer))
changed("turn.refusal", "ended", mute(reason("refusal")))
changed("turn.max-tokens", "ended", mute(reason("max_tokens")))
changed("turn.max-turn-requests", "ended", mute(reason("max_turn_requests")))
changed("turn.late-updates", "told", mute(lambda client, params, update: "one more thing" in json.dumps(update)))
changed("turn.agent-gone", "gone", always(None))

# -- drafts ---------------------------------------------------------------------------------------------


def unless(condition: Callable[..., Any]) -> Callable[..., Any]:
    """It does nothing about this."""
    return lambda client, was, *args: None if condition(client, *args) else was(*args)


def announces(scene: str) -> Callable[..., Any]:
    """It is ready before the session is open."""
    is_it = "load".__eq__ if scene == "load" else "load".__ne__
    return also(
        lambda client: client.send_ready("session-1") if client.waits_for_ready and is_it(client.scene) else None
    )


changed(
    "ready.new",
    "ready",
    unless(lambda client, by: by == "session/new" and client.claims.get("sessionCapabilities")),
)
changed("ready.load", "ready", unless(lambda client, by: by == "session/load"))
changed("ready.offer", "is_offered_ready", lambda client, was, result: was({}))
changed("ready.early", "open", announces("visit"))
changed("ready.load-early", "open", announces("load"))
changed(
    "ready.notification",
    "send_ready",
    lambda client, was, session: client.ask("session/ready", {"sessionId": session}, lambda answer: None),
)


def ready_for_all(client: RawTestClient, was: Callable[..., Any], session: Any) -> None:
    was("another")
    was(session)


changed("ready.unknown", "send_ready", ready_for_all)
changed(
    "turn-complete.accepted", "marked", mute(lambda client, update: client.is_current(update["promptRequestId"]))
)
changed("turn-complete.once", "prompted", leaves(lambda client, answer: not client.is_current(answer["id"])))


def is_of_older_turn(client: RawTestClient, update: dict[str, Any]) -> bool:
    return update["promptRequestId"].startswith("c") and not client.is_current(update["promptRequestId"])


changed("turn-complete.once-reversed", "marked", leaves(is_of_older_turn))


def ends_by_any(client: RawTestClient, was: Callable[..., Any], update: dict[str, Any]) -> None:
    was(update if update["promptRequestId"].startswith("c") else {**update, "promptRequestId": client.turn})


changed("turn-complete.other", "marked", ends_by_any)

# -- its offers -----------------------------------------------------------------------------------------


def read_as(content: Callable[[dict[str, Any], str], str]) -> Callable[..., Any]:
    return lambda client, was, params: {"content": content(params, was(params)["content"])}


def missing_as_empty(client: RawTestClient, was: Callable[..., Any], params: dict[str, Any]) -> dict[str, Any]:
    return was(params) if os.path.exists(params["path"]) or params["path"][0] != "/" else {"content": ""}


def anywhere(client: RawTestClient, was: Callable[..., Any], params: dict[str, Any]) -> dict[str, Any]:
    return was({**params, "path": os.path.join(client.cwd, params["path"])})


def writes_if(is_there: bool) -> Callable[..., Any]:
    return lambda client, was, params: was(params) if os.path.exists(params["path"]) is is_there else {}


changed("fs.read", "read", read_as(lambda params, content: content if "line" in params else content.upper()))
changed(
    "fs.lines", "part", lambda client, was, lines, params: was(lines, {**params, "line": params.get("line", 0) + 1})
)
changed("fs.missing", "read", missing_as_empty)
changed("fs.relative", "read", anywhere)
changed("fs.write", "write_file", writes_if(False))
changed("fs.write-new", "write_file", writes_if(True))
changed("fs.read-unclaimed", "offers", lambda client, was, method: method == "fs/read_text_file", Bare)
changed("fs.write-unclaimed", "offers", lambda client, was, method: method == "fs/write_text_file", Bare)
changed("terminal.unclaimed", "offers", lambda client, was, method: method == "terminal/create", Bare)
changed("elicit.unclaimed", "offers", lambda client, was, method: method == "elicitation/create", Bare)


def gives(rule: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[..., Any]:
    return lambda client, was, *args: rule(was(*args))


def ran(**members: Any) -> Callable[..., Any]:
    """It runs a command as if these were not given."""
    return lambda client, was, script, params: was(script, {**params, **members})


changed(
    "terminal.output", "output", gives(lambda found: {**found, "output": found["output"].replace("hello", "hell")})
)
changed("terminal.created", "create", gives(lambda found: {"terminalId": 1}))
changed("terminal.exit", "exit", plus(exitCode=0))
changed(
    "terminal.running",
    "output",
    gives(lambda found: {**found, "exitStatus": found["exitStatus"] or {"exitCode": None}}),
)
changed("terminal.ended", "output", plus(exitStatus=None))
changed("terminal.kill", "kill", lambda client, was, params: client.release(params))
changed("terminal.release", "release", always({}))
changed("terminal.limit", "cut", lambda client, was, whole, limit: whole[:limit].decode(errors="ignore"))
changed("terminal.characters", "cut", lambda client, was, whole, limit: whole[-limit:].decode(errors="replace"))
changed("terminal.place", "run", ran(cwd="/"))
changed("terminal.environment", "run", ran(env=[]))
changed("elicit.action", "form", always({"action": "submit"}))
changed("elicit.content", "filled", lambda client, was, field: 99 if field["type"] == "integer" else was(field))
changed("elicit.complete", "hear", leaves(lambda client, method, params: method == "elicitation/complete"))

# -- v2 -------------------------------------------------------------------------------------------------


def changed_v2(case: str, name: str, instead: Callable[..., Any]) -> None:
    changed(f"v2.{case}", name, instead, RawTestClientV2)


changed_v2("info", "hello", without("info"))
changed_v2("older-agent", "place", lambda client, was: {"cwd": client.cwd})


def at_any_price(client: RawTestClient, was: Callable[..., Any], answer: dict[str, Any]) -> None:
    was({"result": {"protocolVersion": 2}} if "error" in answer else answer)


changed_v2("no-common-version", "initialized", at_any_price)
changed_v2("ready", "ready", always(None))
changed_v2("prompt", "words", plus(prompt=[]))
changed_v2("no-login", "open", also(lambda client: client.ask("auth/login", {}, lambda answer: None)))
changed_v2("own-request", "unknown", unknown_as("_example.org", None))


def placing(**members: Any) -> Callable[..., Any]:
    """In v2 a session is opened with these."""
    return lambda client, was: {**was(), **members} if client.spoken == 2 else was()


changed_v2("cwd", "place", placing(cwd="."))
changed_v2("mcp-transport", "place", placing(mcpServers=[{"type": "http", "name": "x", "url": "http://x/"}]))
changed_v2("directories", "place", placing(additionalDirectories=["/tmp"]))


def over(condition: Callable[[dict[str, Any]], Any]) -> Callable[..., Any]:
    """It leaves over such an update."""
    return leaves(lambda client, params, update: condition(update))


changed_v2("pieces", "told", over(lambda update: kind(update) == "tool_call_content_chunk"))
changed_v2("output", "told", over(lambda update: kind(update) == "terminal_output_chunk"))
changed_v2("one-name", "told", over(lambda update: update.get("terminalId") == "same"))
changed_v2("no-patch", "told", over(lambda update: '"diff"' in json.dumps(update) and "patch" not in update))
changed_v2("unknown-option", "told", over(lambda update: kind(update) == "config_option_update"))
changed_v2("notice", "told", over(lambda update: kind(update) == "notice"))
changed_v2("answer-no-end", "prompted", leaves(lambda client, answer: client.spoken == 2))
changed_v2("unknown-state", "state", leaves(lambda client, update: update["state"] == "_resting"))
changed_v2("early-state", "told", mute(lambda client, params, update: client.session is None))
changed_v2("unknown-update", "told", leaves(lambda client, params, update: kind(update) not in KINDS))
changed_v2("clears", "told", leaves(lambda client, params, update: update.get("content", 1) is None))
changed_v2("background", "told", leaves(lambda client, params, update: "background" in update))
changed_v2("permission", "outcome", always({"outcome": "selected", "optionId": "made up"}))
changed_v2("taken-back", "taken_back", always(None))
changed_v2("error", "ended", mute(lambda client, update: update.get("stopReason") == "error"))


# -- child sessions -------------------------------------------------------------------------------------


def of_child(client: RawTestClient, request: Any, params: dict[str, Any]) -> bool:
    return params["sessionId"] != client.session


for part, base in (("child.updates", RawTestClient), ("v2.child", RawTestClientV2)):
    changed(part, "told", leaves(lambda client, params, update: kind(update) == "subagent_update"), base)
for part, base in (("child.permission", RawTestClient), ("v2.child-permission", RawTestClientV2)):
    changed(
        part,
        "permission",
        lambda client, was, request, params: None if of_child(client, request, params) else was(request, params),
        base,
    )

if __name__ == "__main__":
    main(CLIENT_MUTANTS[sys.argv[1]], *sys.argv[2:])
