"""Child sessions of an agent: received over REST and `/acp`, queried, cancelled, and restored after a kill."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import httpx
import pytest
from tests.cli.rig import Served, served
from websockets.sync.client import ClientConnection, connect

from turnwire_testing.patience import WAIT_S

Json: TypeAlias = dict[str, Any]

PROGRAM = (sys.executable, str(Path(__file__).with_name("child_agent.py")))
INFO = {"name": "editor", "version": "1"}
V1: Json = {"protocolVersion": 1, "clientCapabilities": {}, "clientInfo": INFO}
V1_CHILDREN: Json = {**V1, "clientCapabilities": {"subagents": {}}}
V2: Json = {"protocolVersion": 2, "capabilities": {}, "info": INFO}


class Socket:
    """A raw client of `/acp`."""

    def __init__(self, socket: ClientConnection, hello: Json) -> None:
        self._socket = socket
        self.heard: list[Json] = []
        self._last_id = 0
        self.call("initialize", **hello)

    def begin(self, method: str, **params: Any) -> int:
        self._last_id += 1
        self.send(id=self._last_id, method=method, params=params)
        return self._last_id

    def send(self, **message: Any) -> None:
        self._socket.send(json.dumps({"jsonrpc": "2.0", **message}))

    def until(self, found: Callable[[Json], bool]) -> Json:
        while True:
            message: Json = json.loads(self._socket.recv(timeout=WAIT_S))
            self.heard.append(message)
            if found(message):
                return message

    def answer(self, request_id: int) -> Json:
        return self.until(lambda each: each.get("id") == request_id and "method" not in each)

    def call(self, method: str, **params: Any) -> Any:
        answer = self.answer(self.begin(method, **params))
        assert "result" in answer, answer
        return answer["result"]

    def load(self, session: str, cwd: Path) -> None:
        """Load the session with its history."""
        self.heard.clear()
        params: Json = {"sessionId": session, "cwd": str(cwd), "mcpServers": []}
        method = "session/load" if self.is_v1 else "session/resume"
        if not self.is_v1:
            params["replayFrom"] = {"type": "start"}
        self.call(method, **params)
        self.send(method="session/ready", params={"sessionId": session})

    is_v1 = False

    def asked(self) -> Json:
        """Wait for a request to the client and return it."""
        return self.until(lambda each: each.get("method") == "session/request_permission")

    def ended(self) -> None:
        """Wait for the end of the turn."""
        if self.is_v1:
            self.until(lambda each: update(each).get("sessionUpdate") == "turn_complete")
        else:
            self.until(lambda each: update(each).get("state") == "idle" and "." not in each["params"]["sessionId"])

    def updates(self) -> list[tuple[str, Json]]:
        return [(each["params"]["sessionId"], update(each)) for each in self.heard if update(each)]


def update(message: Json) -> Json:
    return message.get("params", {}).get("update", {}) if message.get("method") == "session/update" else {}


@contextmanager
def socket(daemon: Served, hello: Json) -> Generator[Socket]:
    token = (daemon.data / "cli-token").read_text().strip()
    headers = {"Authorization": f"Bearer {token}"}
    with connect(daemon.url.replace("http", "ws") + "/acp", additional_headers=headers) as connection:
        client = Socket(connection, hello)
        client.is_v1 = hello["protocolVersion"] == 1
        yield client


class Place:
    """A daemon with that agent, and a session."""

    def __init__(self, daemon: Served, heard: Path, session: str) -> None:
        self.daemon = daemon
        self.session = session
        self._heard = heard

    def ask(self, method: str, path: str, body: object = None) -> Any:
        return self.daemon.ask(method, f"/session/{self.session}{path}", body)

    def events(self, shape: str = "2") -> list[Json]:
        path = f"{self.daemon.url}/session/{self.session}/export?acp={shape}"
        lines = httpx.get(path, headers=self.daemon.headers, timeout=WAIT_S).text.splitlines()
        return [json.loads(line) for line in lines]

    def waits(self) -> Json:
        """The permission request that is open, once there is one."""
        self.daemon.until(self.session, "permission_request")
        return self.ask("GET", "/permissions")["permissions"][0]

    def says(self, request: str, option: str) -> None:
        outcome = {"outcome": {"outcome": "selected", "optionId": option}}
        self.ask("POST", f"/permissions/{request}", outcome)

    def children(self) -> dict[str, Json]:
        return {each["id"]: each for each in self.ask("GET", "/children")["children"]}

    def texts(self, child: str) -> list[str]:
        items = self.ask("GET", f"/children/{child}/transcript")["items"]
        return ["".join(b["text"] for b in each["content"]) for each in items if each["item"] == "message"]

    def heard(self) -> list[str]:
        return self._heard.read_text().splitlines()

    def strays(self) -> Json:
        return self.ask("GET", "/explain").get("agent", {}).get("strays", {})


@contextmanager
def place(home: Path, session: str | None = None) -> Generator[Place]:
    with served(home, "--", *PROGRAM, str(home / "heard")) as daemon:
        yield Place(daemon, home / "heard", session or daemon.session())


def test_children_are_heard_listed_asked_about_and_kept_over_rest(tmp_path: Path) -> None:
    with place(tmp_path) as at:
        prompt = at.daemon.prompt(at.session, "two")
        asked = at.waits()
        first, deep, second = (f"{at.session}.{number}" for number in (1, 2, 3))
        assert (asked["child"], asked["promptId"]) == (first, prompt)
        assert at.ask("GET", "/status")["runningChildren"] == [first, second]
        known = at.children()
        assert list(known) == [first, deep, second]
        assert [(each["title"], each["parentId"], each["state"]) for each in known.values()] == [
            ("search", at.session, "running"),
            ("read", first, "idle"),
            ("test", at.session, "running"),
        ]
        assert [known[each]["permissions"] for each in known] == [[asked["requestId"]], [], []]
        assert [known[each]["cancellable"] for each in known] == [False, False, True]
        assert [known[each]["workspaceCwd"] for each in known] == [str(tmp_path), "/tmp", str(tmp_path)]
        at.says(asked["requestId"], "yes")
        at.daemon.until(at.session, "turn_complete")
        assert [at.texts(each) for each in known] == [["found something and yes"], ["read it"], ["testing"]]
        assert {each["state"] for each in at.children().values()} == {"idle"}
        turn = at.daemon.turn(at.session, prompt)
        assert (turn["stopReason"], turn["resultText"]) == ("end_turn", "I ask two others. Both are done.")
        items = at.ask("GET", "/transcript")["items"]
        assert [each["item"] for each in items if each["item"] != "unknown"] == [
            *("message", "message", "child", "child"),
        ]
        assert at.strays() == {}


@pytest.mark.parametrize("hello", [V1, V1_CHILDREN, V2], ids=["v1", "v1 with children", "v2"])
def test_a_permission_in_a_child_is_answered_over_acp(tmp_path: Path, hello: Json) -> None:
    with place(tmp_path) as at, socket(at.daemon, hello) as client:
        client.load(at.session, tmp_path)
        at.daemon.prompt(at.session, "two")
        asked = client.asked()
        knows = hello is not V1
        assert asked["params"]["sessionId"] == (f"{at.session}.1" if knows else at.session)
        outcome = {"outcome": {"outcome": "selected", "optionId": "yes"}}
        client.send(id=asked["id"], result=outcome)
        client.ended()
        live = client.updates()
        assert at.texts(f"{at.session}.1") == ["found something and yes"]
        with socket(at.daemon, hello) as other:
            other.load(at.session, tmp_path)
            replayed = [each for each in other.updates() if each[1]["sessionUpdate"] != "turn_complete"]
        assert _conversation(replayed) == _conversation(live)
        assert at.strays() == {}


def _conversation(updates: list[tuple[str, Json]]) -> list[tuple[str, Json]]:
    """Return the conversation without frames that only report the current state, or that only connected clients
    receive.
    """
    passing = {"turn_complete", "available_commands_update", "session_info_update", "config_option_update"}
    return [
        (session, {name: value for name, value in each.items() if name != "_meta" or "waitsFor" not in str(value)})
        for session, each in updates
        if each["sessionUpdate"] not in passing and ("." in session or each["sessionUpdate"] != "state_update")
    ]


def test_children_die_with_the_daemon_and_come_back_with_their_session(tmp_path: Path) -> None:
    with place(tmp_path) as at:
        session, prompt = at.session, at.daemon.prompt(at.session, "two")
        request = at.waits()["requestId"]
        before = at.events("agent")
        at.daemon.process.kill()
        at.daemon.process.wait()
    with place(tmp_path, session) as at:
        at.daemon.until(session, "turn_error")
        events = at.events("agent")
        assert events[: len(before)] == before
        ends = [each["data"]["end"] for each in events if each["type"] == "permission_resolved"]
        assert ends == ["withdrawn"]
        refused = httpx.post(
            f"{at.daemon.url}/session/{session}/permissions/{request}",
            json={"outcome": {"outcome": "selected", "optionId": "yes"}},
            headers=at.daemon.headers,
            timeout=WAIT_S,
        )
        assert refused.json()["won"] is False
        assert at.daemon.turn(session, prompt)["error"]["code"] == "daemon_restarted"
        assert [each["state"] for each in at.children().values()] == ["unknown", "idle", "unknown"]
        assert "runningChildren" not in at.ask("GET", "/status")
        with socket(at.daemon, V2) as client:
            client.load(session, tmp_path)
            gone = [each for _, each in client.updates() if "state" in each and each["state"] is None]
            assert {each["sessionId"] for each in gone} == {f"{session}.1", f"{session}.3"}
        again = at.daemon.prompt(session, "old")
        at.daemon.until(session, "turn_complete")
        assert at.daemon.turn(session, again)["stopReason"] == "end_turn"
        assert at.texts(f"{session}.1") == ["found something", "back again"]
        assert "session/resume root 1" in at.heard()
        assert at.strays() == {}


def test_what_a_child_does_not_take_is_refused_clearly(tmp_path: Path) -> None:
    with place(tmp_path) as at, socket(at.daemon, V2) as client:
        client.load(at.session, tmp_path)
        at.daemon.prompt(at.session, "two")
        client.asked()
        child = f"{at.session}.1"
        wanted: dict[str, Json] = {
            "session/prompt": {"prompt": [{"type": "text", "text": "hi"}]},
            "session/resume": {"cwd": str(tmp_path), "mcpServers": []},
        }
        for method, params in wanted.items():
            answer = client.answer(client.begin(method, sessionId=child, **params))
            assert answer["error"]["code"] == -32602
            assert "child session" in answer["error"]["message"]
        for path, status, code in (
            (f"/session/{at.session}/children/{child}/cancel", 409, "child_restricted"),
            (f"/session/{at.session}/children/nobody/cancel", 404, "not_found"),
        ):
            refused = httpx.post(
                at.daemon.url + path,
                headers=at.daemon.headers,
                timeout=WAIT_S,
            )
            assert (refused.status_code, refused.json()["code"]) == (status, code)


def test_what_an_agent_nests_by_tool_call_reaches_everybody(tmp_path: Path) -> None:
    nesting = (sys.executable, str(Path(__file__).with_name("nesting_agent.py")))
    with served(tmp_path, "--", *nesting) as daemon:
        at = Place(daemon, tmp_path / "heard", daemon.session())
        with socket(daemon, V1) as old, socket(daemon, V2) as new:
            old.load(at.session, tmp_path)
            new.load(at.session, tmp_path)
            prompt = daemon.prompt(at.session, "go")
            old.ended()
            new.ended()
        rest = [(at.session, each["data"]["update"]) for each in at.events("1") if "update" in each["data"]]
        for told in (old.updates(), new.updates(), rest):
            inner = [each for _, each in told if "parentToolUseId" in json.dumps(each.get("_meta", {}))]
            assert [each.get("toolCallId") or each["content"]["text"] for each in inner] == [
                "inside",
                "read",
                "read",
            ]
            words = [each["content"]["text"] for _, each in told if each["sessionUpdate"] == "agent_message_chunk"]
            assert words == ["I look. ", "inside", "Found."]
        assert daemon.turn(at.session, prompt)["resultText"] == "Found."
        assert at.strays() == {}
