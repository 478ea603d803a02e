"""turnwire as real processes between a raw client and a raw agent, on every transport.

A stage is one connected client and the agent at the other end. Daemons and clients on pipes need a second to start,
so they are shared by all tests with the same requirements; each test has a separate session.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from tests.literal.agents import AgentListener, AgentSession, AgentText, text_block
from tests.literal.clients import EventReader, RawClient, RestClient
from tests.literal.heard import Frame
from tests.literal.links import HttpLink, HttpOrigin, Link, SocketLink, StdioLink
from tests.patience import SOON_S

TURNWIRE = str(Path(sys.executable).with_name("turnwire"))
TOKEN = "literal-owner-token-0123456789"
TRANSPORTS = ("http", "websocket", "stdio", "relay")
SERVED = ("http", "websocket", "relay")
"""The transports of a daemon, where others can look on."""


def environment(folder: Path) -> dict[str, str]:
    """Return an environment without variables of the user who runs the tests."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TURNWIRE_")}
    kept.pop("XDG_RUNTIME_DIR", None)
    folders = {"XDG_CONFIG_HOME": str(folder), "XDG_STATE_HOME": str(folder)}
    # An agent ends with a daemon that is killed.
    return kept | folders | {"TURNWIRE_LIMITS_HOLD_S": "0"}


def end_editor_daemons(folder: Path) -> None:
    """Kill the daemons that `turnwire stdio` started here; each would end by itself some seconds later."""
    for record in (folder / "turnwire" / "run").glob("*.json"):
        if "editors" in json.loads(record.read_bytes() or b"{}"):
            with suppress(ProcessLookupError):
                os.kill(int(record.stem), signal.SIGKILL)


def start(arguments: Sequence[str], folder: Path) -> subprocess.Popen[bytes]:
    """Start a command with pipes; its standard error is a file in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "stderr.txt").open("ab") as log:
        return subprocess.Popen(
            list(arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd=folder,
            env=environment(folder),
        )


class Daemon:
    """`turnwire serve` as a process."""

    def __init__(self, folder: Path, work: Path, agent: Sequence[str], flags: Sequence[str], port: int = 0) -> None:
        self.folder = folder
        self._again = (folder, work, agent, flags)
        where = ["--port", str(port), "--json", "--data", str(folder / "data"), "--cwd", str(work)]
        self.process = start([TURNWIRE, "serve", *where, "--token", TOKEN, *flags, "--", *agent], folder)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.kill()
            raise AssertionError(f"the daemon did not start: {(folder / 'stderr.txt').read_text()[-2000:]}")
        self.url: str = json.loads(line)["url"]

    def again(self) -> Daemon:
        """Another daemon on the same data and the same port."""
        folder, work, agent, flags = self._again
        return Daemon(folder, work, agent, flags, int(self.url.rpartition(":")[2]))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(SOON_S)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()

    def socket(self) -> SocketLink:
        return SocketLink(self.url, TOKEN)


class Served:
    """A daemon and its agent; both end with the context."""

    def __init__(self, daemon: Daemon, agents: AgentListener) -> None:
        self.daemon = daemon
        self.agents = agents

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *_: object) -> None:
        self.daemon.kill()
        self.agents.close()

    def restart(self) -> None:
        """SIGKILL, and a new daemon on the same data."""
        self.daemon.kill()
        self.daemon = self.daemon.again()


class Talk:
    """One session, seen from its client and from its agent."""

    def __init__(self, client: RawClient, session_id: str, cwd: Path, agents: AgentListener) -> None:
        self.client = client
        self.id = session_id
        self.cwd = cwd
        self.agents = agents

    @cached_property
    def agent(self) -> AgentSession:
        return self.agents.session(self.cwd)

    def prompt(self, text: str, request_id: int | str | None = None) -> int | str:
        """Send a prompt without waiting; return the id of the request."""
        params = {"sessionId": self.id, "prompt": [text_block(text)]}
        return self.client.request("session/prompt", params, request_id)

    def cancel(self) -> None:
        self.client.notify("session/cancel", {"sessionId": self.id})

    def updates(self) -> list[Frame]:
        return self.client.updates(self.id)

    def update(self, kind: str, **members: Any) -> Frame:
        return self.client.update(self.id, kind, **members)


class RestTalk:
    """One session, seen from a client of the daemon's routes and from its agent."""

    def __init__(self, rest: RestClient, created: Frame, cwd: Path, agents: AgentListener) -> None:
        self.rest = rest
        self.created = created
        self.id: str = created["sessionId"]
        self.cwd = cwd
        self._agents = agents

    @cached_property
    def agent(self) -> AgentSession:
        return self._agents.session(self.cwd)

    def prompt(self, text: str, **more: Any) -> str:
        return self.rest.prompt(self.id, text, **more)

    def events(self, after: int | None = 0, query: str = "") -> EventReader:
        return self.rest.events(self.id, after, query)

    def turn(self, prompt_id: str) -> Frame:
        """The record of a turn."""
        return self.rest.get(f"/session/{self.id}/turns/{prompt_id}")


class Stage(NamedTuple):
    """A connected client and the agent at the other end; the daemon in between, if there is one."""

    client: RawClient
    agents: AgentListener
    house: House
    served: Served | None

    @property
    def daemon(self) -> Daemon:
        assert self.served is not None, "nobody else can look on here"
        return self.served.daemon

    def open(self) -> Talk:
        """Open a new session, in a new folder."""
        cwd = self.house.folder()
        return Talk(self.client, self.client.new_session(cwd), cwd, self.agents)

    def join(self, talk: Talk, client: Frame) -> Talk:
        """Let another client join the session over a separate connection, receive its history, and become ready."""
        other = self.house.connect(self.daemon.socket(), client)
        opened: Frame = {"sessionId": talk.id, "cwd": str(talk.cwd), "mcpServers": []}
        if client["protocolVersion"] == 2:
            other.call("session/resume", opened | {"replayFrom": {"type": "start"}})
        else:
            other.call("session/load", opened)
        other.notify("session/ready", {"sessionId": talk.id})
        return Talk(other, talk.id, talk.cwd, self.agents)

    def rest(self) -> RestClient:
        return self.house.rest(self.daemon)


class House:
    """All running processes, by their purpose."""

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()
        self._numbers = count(1)
        self._daemons: dict[object, Served] = {}
        self._pipes: dict[object, Stage] = {}
        self._own: dict[object, RawClient] = {}
        self._closing: list[Callable[[], None]] = []
        self._hosting = ExitStack()
        """Kills the daemons that `turnwire stdio` started."""
        self.work = self._root / "work"
        self.work.mkdir()

    def folder(self) -> Path:
        """Create a folder in which a session may work."""
        found = self.work / f"w{next(self._numbers)}"
        found.mkdir()
        return found

    def place(self) -> Path:
        """Create a folder for a process."""
        return self._root / f"p{next(self._numbers)}"

    def served(self, agent: AgentText, *flags: str) -> Served:
        """Return a daemon for this agent, shared by tests with the same requirements."""
        key = (agent.name, flags)
        if key not in self._daemons:
            self._daemons[key] = self.serve(agent, *flags)
        return self._daemons[key]

    def serve(self, agent: AgentText, *flags: str) -> Served:
        """Start a daemon that is not shared; the test may kill it."""
        agents = AgentListener(agent)
        with ExitStack() as undoing:
            undoing.callback(agents.close)
            daemon = Daemon(self.place(), self.work, agents.command, flags)
            undoing.pop_all()
        return Served(daemon, agents)

    def stage(self, transport: str, client: Frame, agent: AgentText, *flags: str, is_fresh: bool = False) -> Stage:
        """This client on this transport in front of this agent; on pipes shared, unless it has to be fresh."""
        if transport in ("http", "websocket"):
            served = self.served(agent, *flags)
            return Stage(self.connect(wire(transport, served.daemon), client), served.agents, self, served)
        key = (transport, json.dumps(client), agent.name, flags)
        if is_fresh or key not in self._pipes or self._pipes[key].client.heard.is_over:
            found = self._piped(transport, client, agent, flags)
            if is_fresh:
                self._closing.append(found.client.link.close)
                return found
            self._pipes[key] = found
        return self._pipes[key]

    def _piped(self, transport: str, client: Frame, agent: AgentText, flags: tuple[str, ...]) -> Stage:
        place = self.place()
        if transport == "relay":
            served = self.served(agent, *flags)
            agents = served.agents
            command = relaying(place, served)
        else:
            served = None
            agents = AgentListener(agent)
            command = self._host(place, agents, flags)
        with ExitStack() as undoing:
            if served is None:
                undoing.callback(agents.close)
            raw = introduced(StdioLink(start(command, place)), client)
            undoing.pop_all()
        return Stage(raw, agents, self, served)

    def rest_talk(self, agent: AgentText, *flags: str, served: Served | None = None) -> RestTalk:
        """Open a session over REST, at the shared daemon unless another is named."""
        found = served or self.served(agent, *flags)
        rest = self.rest(found.daemon)
        cwd = self.folder()
        return RestTalk(rest, rest.new_session(cwd), cwd, found.agents)

    def piped(self, name: str, command: Sequence[str], client: Frame, *, is_fresh: bool = False) -> RawClient:
        """Connect a client to an agent of turnwire's own; shared, unless it has to be fresh."""
        key = (name, json.dumps(client))
        if is_fresh or key not in self._own or self._own[key].heard.is_over:
            link = StdioLink(start(command, self.place()))
            if is_fresh:
                return self.connect(link, client)
            self._own[key] = introduced(link, client)
        return self._own[key]

    def relayed(self, served: Served, client: Frame) -> RawClient:
        """Connect a client through a separate relay."""
        place = self.place()
        return self.connect(StdioLink(start(relaying(place, served), place)), client)

    def hosted(self, agents: AgentListener) -> RawClient:
        """Connect a client to a separate `turnwire stdio`, which ends with its agent at the end of the test."""
        place = self.place()
        link = StdioLink(start(self._host(place, agents), place))
        self._closing += [agents.close, link.close]
        return RawClient(link)

    def _host(self, place: Path, agents: AgentListener, flags: Sequence[str] = ()) -> list[str]:
        self._hosting.callback(end_editor_daemons, place)
        return [TURNWIRE, "stdio", "--data", str(place), *flags, "--", *agents.command]

    def connect(self, link: Link, client: Frame) -> RawClient:
        """Connect a client that disconnects at the end of the test."""
        raw = introduced(link, client)
        self._closing.append(link.close)
        return raw

    def rest(self, daemon: Daemon) -> RestClient:
        found = RestClient(daemon.url, TOKEN)
        self._closing.append(found.close)
        return found

    def end_test(self) -> None:
        while self._closing:
            self._closing.pop()()

    def close(self) -> None:
        self.end_test()
        for stage in self._pipes.values():
            with suppress(OSError):
                stage.client.link.close()
            stage.agents.close()
        for raw in self._own.values():
            raw.link.close()
        for served in self._daemons.values():
            with served:
                pass
        self._hosting.close()


def introduced(link: Link, client: Frame) -> RawClient:
    """Initialize a client; a link on which that fails is closed."""
    with ExitStack() as undoing:
        undoing.callback(link.close)
        raw = RawClient(link)
        raw.initialize(client)
        undoing.pop_all()
    return raw


def relaying(place: Path, served: Served) -> list[str]:
    place.mkdir()
    (place / "token").touch(mode=0o600)
    (place / "token").write_text(TOKEN)
    return [TURNWIRE, "stdio", "--daemon", served.daemon.url, "--token-file", str(place / "token")]


def wire(transport: str, daemon: Daemon) -> Link:
    return HttpLink(HttpOrigin(daemon.url), TOKEN) if transport == "http" else daemon.socket()
