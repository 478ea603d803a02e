"""Terminals in the `_meta` of v1 tool calls, as Zed, Claude and Codex have them, in both directions."""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Any

from tests.unit.projections.translate.speaking import raw, say

from turnwire.projections.translate.handshake import read_client
from turnwire.projections.translate.updates import UpdatesV1ToV2, UpdatesV2ToV1
from turnwire.projections.view import View
from turnwire.session import events as ev

SHOWN = [{"type": "terminal", "terminalId": "x1"}]
BEGINS: dict[str, Any] = {
    "toolCallId": "t1",
    "title": "ls",
    "rawInput": {"command": "ls"},
    "content": SHOWN,
    "_meta": {"terminal_info": {"terminal_id": "x1", "cwd": "/w"}, "codex": 1},
}
OUTPUT: dict[str, Any] = {"toolCallId": "t1", "_meta": {"terminal_output": {"terminal_id": "x1", "data": "one\n"}}}
DELTA: dict[str, Any] = {
    "toolCallId": "t1",
    "_meta": {"terminal_output_delta": {"terminal_id": "x1", "data": "tö"}},
}
ENDS: dict[str, Any] = {
    "toolCallId": "t1",
    "status": "completed",
    "_meta": {"terminal_exit": {"terminal_id": "x1", "exit_code": 1, "signal": None}},
}


def encoded(output: bytes) -> str:
    return b64encode(output).decode()


def test_a_v1_agents_terminal_is_a_terminal_for_a_v2_client() -> None:
    agent = UpdatesV1ToV2()
    terminal, call = say(agent, "tool_call", **BEGINS)
    assert terminal == {"sessionUpdate": "terminal_update", "terminalId": "x1", "command": "ls", "cwd": "/w"}
    assert (call["content"], call["_meta"]) == (SHOWN, {"codex": 1})
    chunks = [say(agent, "tool_call_update", **each)[0] for each in (OUTPUT, DELTA)]
    assert {each["sessionUpdate"] for each in chunks} == {"terminal_output_chunk"}
    assert b"".join(b64decode(each["data"]) for each in chunks).decode() == "one\ntö"
    ended, call = say(agent, "tool_call_update", **ENDS)
    assert ended["exitStatus"] == {"exitCode": 1, "signal": None}
    assert (call["status"], "_meta" in call) == ("completed", False)
    assert not agent.losses


def test_a_v1_agents_terminal_is_in_the_view() -> None:
    view = View()
    for kind, fields in (("tool_call", BEGINS), *(("tool_call_update", each) for each in (OUTPUT, DELTA, ENDS))):
        view.apply(ev.SessionUpdated(at=1, kind=kind, update=raw({"sessionUpdate": kind, **fields})))
    terminal = view.terminals["x1"]
    assert (terminal.command, terminal.cwd, bytes(terminal.output).decode()) == ("ls", "/w", "one\ntö")


def test_malformed_terminal_members_are_ignored() -> None:
    agent = UpdatesV1ToV2()
    odd = {"terminal_info": 1, "terminal_output": {"data": "x"}, "terminal_exit": {"terminal_id": 5}}
    [told] = say(agent, "tool_call", toolCallId="t1", title="x", _meta=odd)
    assert told["toolCallId"] == "t1"


def test_a_v2_agents_terminal_is_shown_by_a_v1_client_that_asked_for_it() -> None:
    agent = UpdatesV2ToV1(terminals=True)
    assert say(agent, "terminal_update", terminalId="x1", command="ls", cwd="/w") == []
    assert say(agent, "terminal_output_chunk", terminalId="x1", data=encoded(b"a")) == []
    call, before = say(agent, "tool_call_update", toolCallId="t1", title="ls", content=SHOWN, _meta={"k": 1})
    assert (call["sessionUpdate"], call["content"]) == ("tool_call", SHOWN)
    assert call["_meta"] == {"k": 1, "terminal_info": {"terminal_id": "x1", "cwd": "/w"}}
    assert before["_meta"] == {"terminal_output": {"terminal_id": "x1", "data": "a"}}
    assert say(agent, "terminal_output_chunk", terminalId="x1", data=encoded("ü".encode()[:1])) == []
    [rest] = say(agent, "terminal_output_chunk", terminalId="x1", data=encoded("ü".encode()[1:]))
    assert (rest["toolCallId"], rest["_meta"]["terminal_output"]["data"]) == ("t1", "ü")
    [ended] = say(agent, "terminal_update", terminalId="x1", exitStatus={"exitCode": 3})
    assert ended["_meta"] == {"terminal_exit": {"terminal_id": "x1", "exit_code": 3, "signal": None}}
    assert say(agent, "terminal_update", terminalId="x1", exitStatus={"exitCode": 3}) == []


def test_a_snapshot_that_replaces_the_output_resets_the_clients_terminal() -> None:
    agent = UpdatesV2ToV1(terminals=True)
    say(agent, "tool_call_update", toolCallId="t1", title="ls", content=SHOWN)
    say(agent, "terminal_output_chunk", terminalId="x1", data=encoded(b"one"))
    [more] = say(agent, "terminal_update", terminalId="x1", output={"data": encoded(b"one two")})
    assert more["_meta"]["terminal_output"]["data"] == " two"
    [other] = say(agent, "terminal_update", terminalId="x1", output={"data": encoded(b"2")})
    assert other["_meta"]["terminal_output"]["data"] == "\x1bc2"


def test_a_client_asks_for_terminals_in_its_meta() -> None:
    def asks(meta: object) -> bool:
        offered = {"protocolVersion": 1, "clientCapabilities": {"_meta": meta}}
        return read_client(raw(offered)).terminals

    assert asks({"terminal_output": True})
    assert not asks({"terminal_output": False})
    assert not asks({})
