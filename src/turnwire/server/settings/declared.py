"""The settings of a daemon: one declaration each, from which its flag, its variable and its TOML key follow.

Values of the right kind become a checked `Settings`. A combination that makes no sense raises `ConfigError` with
the reason. This module never reads the environment or a file: `turnwire.server.settings.sources` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_type_hints

from turnwire.errors import ConfigError
from turnwire.ids import UNNAMED
from turnwire.limits import GiB, KiB, Limits
from turnwire.log.address import is_database
from turnwire.server.access.origins import check_bind, check_cluster_bind, cluster_address
from turnwire.server.settings import agents as named_agents
from turnwire.server.settings import kinds
from turnwire.server.settings.agents import AgentEntry
from turnwire.server.settings.kinds import Kind
from turnwire.server.settings.webhooks import WebhookEntry, webhook_tables
from turnwire.session.policy import Rule, read_rules

PREFIX = "TURNWIRE_"
"""Prefix of turnwire's variables."""
LIMIT = "limits."
"""Prefix of the names of limits, which makes them a table in TOML."""


class About(NamedTuple):
    """The declaration of a setting, apart from its type and its default."""

    kind: Kind
    words: str
    is_secret: bool = False
    only_toml: bool = False


@dataclass(frozen=True, kw_only=True)
class Listening:
    """Listeners and addresses."""

    host: Annotated[str, About(kinds.text("a host name or an address"), "the address to listen on")] = "127.0.0.1"
    port: Annotated[
        int, About(kinds.number(0, 65535, is_whole=True), "the port to listen on; 0 is any free one")
    ] = 4170
    tls_cert: Annotated[Path | None, About(kinds.path("a file"), "the certificate chain, as PEM")] = None
    tls_key: Annotated[Path | None, About(kinds.path("a file"), "the key of the certificate, as PEM")] = None


@dataclass(frozen=True, kw_only=True)
class Access:
    """Authentication and authorization."""

    token: Annotated[
        str | None,
        About(kinds.text(), "the owner's token; without one, the first start creates it", is_secret=True),
    ] = field(default=None, repr=False)
    no_auth: Annotated[bool, About(kinds.switch(), "require no credential; only on a loopback address")] = False
    allow_origin: Annotated[
        tuple[str, ...], About(kinds.origins(), "further web origins whose pages may connect")
    ] = ()
    allow_host: Annotated[tuple[str, ...], About(kinds.hosts(), "further host names of the daemon")] = ()
    trusted_proxy: Annotated[
        tuple[str, ...],
        About(kinds.networks(), "proxies whose Forwarded or X-Forwarded-For header is trusted"),
    ] = ()
    cwd: Annotated[
        tuple[Path, ...],
        About(kinds.paths("folders"), "folders that sessions may use; by default the current one"),
    ] = ()


@dataclass(frozen=True, kw_only=True)
class Storing:
    """Storage."""

    data: Annotated[
        Path | None,
        About(
            kinds.path("a folder"),
            "the folder of the log and the tokens; by default turnwire in the user's state folder",
        ),
    ] = None
    log: Annotated[
        str,
        About(
            kinds.log_place(),
            "where events are stored: sqlite (a file in the data folder), a PostgreSQL database, or memory",
        ),
    ] = field(default="sqlite", repr=False)
    durability: Annotated[
        Literal["full", "normal"],
        About(
            kinds.choice("full", "normal"),
            "sync every commit to the disk, or only those that must survive a power cut",
        ),
    ] = "normal"


@dataclass(frozen=True, kw_only=True)
class Nodes:
    """Several daemons that share a log."""

    node: Annotated[str | None, About(kinds.text(), "the name of this node; by default that of its machine")] = None
    place: Annotated[
        str | None,
        About(kinds.text(), "a name shared by nodes with the same files and agents; by default the node's name"),
    ] = None
    cluster_listen: Annotated[
        str | None,
        About(kinds.text("HOST:PORT"), "the address on which to listen for other nodes of the log"),
    ] = None
    cluster_url: Annotated[
        str | None,
        About(kinds.text("http://HOST:PORT"), "the address of this node for the others, if not cluster_listen"),
    ] = None
    cluster_key: Annotated[
        str | None,
        About(
            kinds.text(),
            "the secret shared by all nodes, 32 characters or more",
            is_secret=True,
        ),
    ] = None
    cluster_plain: Annotated[
        bool,
        About(kinds.switch(), "allow other nodes to connect without TLS: for a private network"),
    ] = False


@dataclass(frozen=True, kw_only=True)
class ForAgents:
    """Agents and the services for them."""

    agent: Annotated[
        tuple[str, ...], About(kinds.command(), "the agent's command; without one, the built-in agent")
    ] = ()
    agents: Annotated[
        tuple[AgentEntry, ...],
        About(
            named_agents.agents(),
            "agents by name: NAME of a known agent, or NAME=COMMAND, NAME=URL or NAME=MODULE:OBJECT",
        ),
    ] = ()
    default_agent: Annotated[
        str | None, About(kinds.text("the name of an agent"), "the agent of sessions that name none")
    ] = None
    services: Annotated[bool, About(kinds.switch(), "serve files and terminals to agents when no client does")] = (
        True
    )
    permission: Annotated[
        tuple[Rule, ...],
        About(
            kinds.tables("tables, each below a [[permission]]", read_rules),
            "rules that answer permission requests",
            only_toml=True,
        ),
    ] = ()


@dataclass(frozen=True, kw_only=True)
class ForClients:
    """Services for clients and operators."""

    protocol: Annotated[
        int, About(kinds.number(1, 2, is_whole=True), "the newest ACP version offered to clients")
    ] = 2
    turn_complete: Annotated[
        Literal["auto", "always", "asked", "off"],
        About(
            kinds.choice("auto", "always", "asked", "off"),
            "which v1 clients get the turn_complete update: all but known exceptions, all, those that ask, or none",
        ),
    ] = "auto"
    when_busy: Annotated[
        Literal["queue", "reject"],
        About(
            kinds.choice("queue", "reject"),
            "what happens to a prompt sent during a turn, unless it says otherwise",
        ),
    ] = "queue"
    after_restart: Annotated[
        Literal["run", "hold"],
        About(
            kinds.choice("run", "hold"),
            "what happens to queued prompts after a restart: run, or wait for a release",
        ),
    ] = "run"
    ready_timeout: Annotated[
        float,
        About(
            kinds.patience(),
            "seconds that unsolicited updates wait for session/ready; 0 turns it off",
        ),
    ] = 2.0
    page: Annotated[bool, About(kinds.switch(), "serve the page; it needs REST")] = True
    blocking: Annotated[bool, About(kinds.switch(), "allow replies that wait for the end of the turn")] = True
    webhooks: Annotated[
        tuple[WebhookEntry, ...],
        About(webhook_tables(), "URLs that are notified of ended turns and open requests", only_toml=True),
    ] = ()
    log_format: Annotated[
        Literal["text", "json"], About(kinds.choice("text", "json"), "the format of log lines")
    ] = "text"
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        About(kinds.choice("debug", "info", "warning", "error"), "minimum log level"),
    ] = "info"


@dataclass(frozen=True, kw_only=True)
class Settings(Listening, Access, Storing, Nodes, ForAgents, ForClients):
    """All settings of `turnwire serve`, except the limits. A name is the same everywhere."""

    def hosted(self) -> tuple[AgentEntry, ...]:
        """Return the agents, the default first: `default_agent`, else the command after `--`, else the first."""
        has_unnamed = self.agent or not self.agents
        unnamed = [AgentEntry(name=UNNAMED, command=self.agent)] if has_unnamed else []
        entries = [*unnamed, *self.agents]
        first = next((each for each in entries if each.name == self.default_agent), entries[0])
        return (first, *(each for each in entries if each.name != first.name))


class Setting(NamedTuple):
    """One row of the table."""

    name: str
    """The TOML key and the field of `Settings`."""
    kind: Kind
    default: object
    about: str
    flag: str | None
    """`None` if the command line has no flag for it."""
    env: str | None
    is_secret: bool
    group: str
    """The heading in the help of commands."""

    @property
    def flag_value(self) -> bool | None:
        """The value of a switch whose flag is present; `None` if the flag has a value."""
        return not self.default if self.kind.is_switch else None


def _row(group: str, name: str, default: object, given: About) -> Setting:
    # A switch that is on can only be turned off.
    dashed = ("no-" if given.kind.is_switch and default is True else "") + name.replace("_", "-")
    is_flag = not given.only_toml and name != "agent"
    # Each flag names one agent.
    flag = "--agent" if name == "agents" else f"--{dashed}"
    return Setting(
        name,
        given.kind,
        default,
        given.words,
        flag=flag if is_flag else None,
        env=None if given.only_toml else PREFIX + name.upper(),
        is_secret=given.is_secret,
        group=group,
    )


GROUPS: Mapping[str, type[Any]] = {
    "Address": Listening,
    "Access": Access,
    "Storage": Storing,
    "Agents": ForAgents,
    "Clients": ForClients,
    "Cluster": Nodes,
}


def _rows(heading: str, group: type[Any]) -> list[Setting]:
    declared = get_type_hints(group, include_extras=True)
    return [_row(heading, each.name, each.default, declared[each.name].__metadata__[0]) for each in fields(group)]


SETTINGS: tuple[Setting, ...] = tuple(row for each in GROUPS.items() for row in _rows(*each))
"""Every setting. The agent's command has no flag: it follows `--`."""


class _Bound(NamedTuple):
    """The range of a limit, and its meaning."""

    at_least: float
    at_most: float
    about: str


_BOUNDS: Mapping[str, _Bound] = {
    "queue_length": _Bound(1, 10_000, "queued prompts of one session"),
    "frame_bytes": _Bound(64 * KiB, GiB, "bytes of one message of an agent or an ACP client"),
    "body_bytes": _Bound(KiB, GiB, "bytes of one HTTP body"),
    "request_rate": _Bound(0.1, 1_000_000, "requests per second and credential"),
    "heartbeat_s": _Bound(0.05, 3600, "seconds between heartbeats of a stream"),
    "hold_s": _Bound(0, 86_400, "seconds that agents wait for the next daemon after a crash"),
    "drain_s": _Bound(0, 86_400, "seconds for running turns at shutdown"),
    "initialize_s": _Bound(0.05, 3600, "seconds for an agent to start and answer"),
    "cancel_grace_s": _Bound(0.05, 3600, "seconds for an agent to end a cancelled turn"),
    "agent_idle_s": _Bound(0.1, 604_800, "seconds until an unused agent process is stopped"),
    "agent_processes": _Bound(1, 10_000, "agent processes at the same time"),
}
"""The limits that an operator can set. The others are for tests and programs that embed turnwire."""


def _limit_row(name: str, bound: _Bound) -> Setting:
    default: float = getattr(Limits(), name)
    return Setting(
        LIMIT + name,
        kinds.number(bound.at_least, bound.at_most, is_whole=isinstance(default, int)),
        default,
        bound.about,
        flag=f"--limit {name}=",
        env=f"{PREFIX}LIMITS_{name.upper()}",
        is_secret=False,
        group="Limits",
    )


LIMITS: tuple[Setting, ...] = tuple(_limit_row(name, bound) for name, bound in _BOUNDS.items())
"""Limits as settings: `limits.queue_length`. The command line has one flag for all: `--limit name=value`."""


def check_together(settings: Settings, given: frozenset[str]) -> None:
    """Reject settings that contradict each other. `given` names those that are not defaults.

    Raises:
        ConfigError: with the reason and what to do.
    """
    # A token of an earlier start is not a setting; the daemon checks again when it has read its credentials.
    check_bind(settings.host, has_token=True, no_auth=settings.no_auth)
    if settings.cluster_listen is not None:
        host, _ = cluster_address(settings.cluster_listen)
        check_cluster_bind(host, has_tls=settings.tls_cert is not None, plain=settings.cluster_plain)
    for is_wrong, reason in (*_listening(settings), *_rest(settings, given)):
        if is_wrong:
            raise ConfigError(reason)


def _listening(settings: Settings) -> list[tuple[bool, str]]:
    return [
        (
            (settings.tls_cert is None) != (settings.tls_key is None),
            "TLS needs both the certificate and its key; give tls_cert and tls_key",
        ),
        (settings.no_auth and settings.token is not None, "a token and no_auth exclude each other; choose one"),
    ]


def _rest(settings: Settings, given: frozenset[str]) -> list[tuple[bool, str]]:
    in_memory = settings.log == "memory"
    return [
        (
            settings.default_agent is not None
            and settings.default_agent not in {each.name for each in settings.hosted()},
            f"default_agent is {settings.default_agent}, and there is no such agent; name one of"
            f" {', '.join(each.name for each in settings.hosted())}",
        ),
        (in_memory and "data" in given, "a log in memory uses no folder; leave data out, or set log to sqlite"),
        (
            in_memory and "durability" in given,
            "a log in memory has no durability; leave durability out, or set log to sqlite",
        ),
        (
            settings.cluster_listen is not None and not is_database(settings.log),
            "only a log in PostgreSQL can be shared by nodes; give its address, or leave cluster_listen out",
        ),
        (
            (settings.cluster_listen is None) != (settings.cluster_key is None),
            "nodes need both an address and a key that all of them have; give cluster_listen and cluster_key"
            " (make one with `openssl rand -hex 32`)",
        ),
        (
            settings.cluster_url is not None and settings.cluster_listen is None,
            "cluster_url is for a node that listens for others; give cluster_listen, or leave cluster_url out",
        ),
        (
            settings.cwd == (Path("/"),) and "cwd" not in given,
            "the daemon was started in /, so sessions could work anywhere; name the folders with cwd",
        ),
    ]
