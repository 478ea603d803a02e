"""The settings of a daemon: one declaration each, from which its flag, its variable and its TOML key follow.

Takes values that are of the right kind; gives a checked `Settings`. A combination that makes no sense is refused
(`ConfigError`) with the reason. Never reads the environment or a file: `turnwire.server.settings.sources` does.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_type_hints

from turnwire.core.policy import Rule, read_rules
from turnwire.errors import ConfigError
from turnwire.ids import UNNAMED
from turnwire.limits import Bound, catalogue
from turnwire.log.address import is_database
from turnwire.server.access.origins import check_bind, check_cluster_bind, cluster_address
from turnwire.server.settings import agents as named_agents
from turnwire.server.settings import kinds
from turnwire.server.settings.agents import AgentEntry, hosted_entries
from turnwire.server.settings.kinds import Kind
from turnwire.server.settings.webhooks import WebhookEntry, webhook_tables

PREFIX = "TURNWIRE_"
"""What the names of our variables begin with."""
LIMIT = "limits."
"""What the names of limits begin with, so that they are a table in TOML."""


class About(NamedTuple):
    """What is declared of a setting beside its type and its default."""

    kind: Kind
    words: str
    is_secret: bool = False
    only_toml: bool = False


@dataclass(frozen=True, kw_only=True)
class Listening:
    """Where and how it listens."""

    host: Annotated[str, About(kinds.text("a host name or an address"), "the address to listen on")] = "127.0.0.1"
    port: Annotated[
        int, About(kinds.number(0, 65535, is_whole=True), "the port to listen on; 0 is any free one")
    ] = 4170
    tls_cert: Annotated[Path | None, About(kinds.path("a file"), "the certificate chain, as PEM")] = None
    tls_key: Annotated[Path | None, About(kinds.path("a file"), "the key of the certificate, as PEM")] = None
    http2: Annotated[
        bool, About(kinds.switch(), "speak HTTP/2 beside HTTP/1.1 in the clear; over TLS it is always offered")
    ] = False


@dataclass(frozen=True, kw_only=True)
class Access:
    """Who may come in, and how far."""

    token: Annotated[
        str | None,
        About(kinds.text(), "the owner's token; without one, the first start makes one", is_secret=True),
    ] = field(default=None, repr=False)
    no_auth: Annotated[bool, About(kinds.switch(), "ask for no credential; only on a loopback address")] = False
    allow_origin: Annotated[tuple[str, ...], About(kinds.origins(), "other web origins whose pages may call")] = ()
    allow_host: Annotated[
        tuple[str, ...], About(kinds.hosts(), "other names by which clients reach the daemon")
    ] = ()
    trusted_proxy: Annotated[
        tuple[str, ...],
        About(kinds.networks(), "proxies that say for whom they ask, by Forwarded or X-Forwarded-For"),
    ] = ()
    cwd: Annotated[
        tuple[Path, ...],
        About(kinds.paths("folders"), "folders in which sessions may work; by default where the daemon starts"),
    ] = ()


@dataclass(frozen=True, kw_only=True)
class Storing:
    """What is kept, and where."""

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
            "where events are kept: sqlite, a file in the data folder; the address of a PostgreSQL database;"
            " memory, which forgets all at the end",
        ),
    ] = field(default="sqlite", repr=False)
    durability: Annotated[
        Literal["full", "normal", "memory"],
        About(kinds.choice("full", "normal", "memory"), "what a commit survives"),
    ] = "normal"


@dataclass(frozen=True, kw_only=True)
class Nodes:
    """Several daemons that share a log."""

    node: Annotated[str | None, About(kinds.text(), "the name of this node; by default that of its machine")] = None
    place: Annotated[
        str | None,
        About(kinds.text(), "what nodes with the same files and agents have in common; by default the node's name"),
    ] = None
    cluster_listen: Annotated[
        str | None,
        About(kinds.text("HOST:PORT"), "share the log with other nodes, and listen there for them"),
    ] = None
    cluster_url: Annotated[
        str | None,
        About(kinds.text("http://HOST:PORT"), "where other nodes reach this one, if not at cluster_listen"),
    ] = None
    cluster_plain: Annotated[
        bool,
        About(
            kinds.switch(), "listen for other nodes without TLS also where others could reach it: a private network"
        ),
    ] = False


@dataclass(frozen=True, kw_only=True)
class ForAgents:
    """The agent, and what is done for it."""

    agent: Annotated[
        tuple[str, ...], About(kinds.command(), "the agent's command; without one, the built-in agent")
    ] = ()
    agents: Annotated[
        tuple[AgentEntry, ...],
        About(named_agents.agents(), "further agents, by name; the first is the default one if there is no other"),
    ] = ()
    default_agent: Annotated[
        str | None, About(kinds.text("the name of an agent"), "the agent of sessions that name none")
    ] = None
    agent_url: Annotated[
        str | None,
        About(kinds.agent_url(), "the address of an agent that runs elsewhere, instead of a command"),
    ] = None
    agent_import: Annotated[
        str | None,
        About(kinds.importable(), "an agent written with turnwire.agent, run inside the daemon"),
    ] = None
    agent_token: Annotated[
        str | None, About(kinds.text(), "the token that is sent to agent_url", is_secret=True)
    ] = field(default=None, repr=False)
    agent_process: Annotated[
        Literal["shared", "session"],
        About(kinds.choice("shared", "session"), "one agent process for all sessions, or one for each"),
    ] = "shared"
    agent_protocol: Annotated[
        int, About(kinds.number(1, 2, is_whole=True), "the newest version of ACP that the agent is asked for")
    ] = 2
    agent_env: Annotated[
        tuple[str, ...],
        About(kinds.variables(), "variables of the daemon's environment that the agent gets too, by name"),
    ] = ()
    agent_env_set: Annotated[
        tuple[str, ...],
        About(kinds.assignments(), "variables that the agent gets besides", only_toml=True, is_secret=True),
    ] = field(default=(), repr=False)
    """NAME=VALUE each."""
    agent_env_all: Annotated[
        bool, About(kinds.switch(), "give the agent the daemon's whole environment, but for TURNWIRE_…")
    ] = False
    services: Annotated[bool, About(kinds.switch(), "serve files and terminals to agents when no client does")] = (
        True
    )
    permission: Annotated[
        tuple[Rule, ...],
        About(
            kinds.tables("tables, each below a [[permission]]", read_rules),
            "what is answered to permission requests without asking",
            only_toml=True,
        ),
    ] = ()


@dataclass(frozen=True, kw_only=True)
class ForClients:
    """What is offered to clients, and told to operators."""

    rest: Annotated[bool, About(kinds.switch(), "serve REST and SSE")] = True
    acp: Annotated[bool, About(kinds.switch(), "serve ACP at /acp")] = True
    protocol: Annotated[
        int, About(kinds.number(1, 2, is_whole=True), "the newest version of ACP that clients are offered")
    ] = 2
    turn_complete: Annotated[
        Literal["auto", "always", "asked", "off"],
        About(
            kinds.choice("auto", "always", "asked", "off"),
            "which v1 clients get the turn_complete update: all but those known to lack it, all, who asks, none",
        ),
    ] = "auto"
    when_busy: Annotated[
        Literal["queue", "reject"],
        About(
            kinds.choice("queue", "reject"),
            "what becomes of a prompt that does not say itself, while a turn runs: it waits, or is refused",
        ),
    ] = "queue"
    after_restart: Annotated[
        Literal["run", "hold"],
        About(
            kinds.choice("run", "hold"),
            "what becomes of prompts that a restart finds waiting: they run, or wait until somebody releases them",
        ),
    ] = "run"
    ready_timeout: Annotated[
        float,
        About(
            kinds.patience(),
            "how long what nobody asked for waits for a client's session/ready; 0 neither offers it nor waits",
        ),
    ] = 2.0
    page: Annotated[bool, About(kinds.switch(), "serve the page; it needs REST")] = True
    blocking: Annotated[
        bool, About(kinds.switch(), "let replies wait for the end of the turn, for those who prefer that")
    ] = True
    webhooks: Annotated[
        tuple[WebhookEntry, ...],
        About(webhook_tables(), "who is told elsewhere how turns end and what waits for an answer", only_toml=True),
    ] = ()
    log_format: Annotated[
        Literal["text", "json"], About(kinds.choice("text", "json"), "how log lines are written")
    ] = "text"
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        About(kinds.choice("debug", "info", "warning", "error"), "the least log line that is written"),
    ] = "info"


@dataclass(frozen=True, kw_only=True)
class Settings(Listening, Access, Storing, Nodes, ForAgents, ForClients):
    """Everything that `turnwire serve` takes, but for the limits. A name is the same everywhere."""

    def hosted(self) -> tuple[AgentEntry, ...]:
        """The agents, the default one first."""
        unnamed = AgentEntry(
            name=UNNAMED,
            command=self.agent,
            url=self.agent_url,
            token=self.agent_token,
            imported=self.agent_import,
            process=self.agent_process,
            protocol=self.agent_protocol,
            env=self.agent_env,
            env_set=self.agent_env_set,
            env_all=self.agent_env_all,
        )
        return hosted_entries(unnamed, self.agents, self.default_agent)


class Setting(NamedTuple):
    """One row of the table."""

    name: str
    """The TOML key and the field of `Settings`."""
    kind: Kind
    default: object
    about: str
    flag: str | None
    """None if the command line has no flag for it."""
    env: str | None
    is_secret: bool

    @property
    def flag_value(self) -> bool | None:
        """What a switch becomes when its flag is there; none if the flag takes a value."""
        return not self.default if self.kind.is_switch else None


def _row(name: str, default: object, given: About) -> Setting:
    # A switch that is on can only be turned off.
    dashed = ("no-" if given.kind.is_switch and default is True else "") + name.replace("_", "-")
    is_flag = not given.only_toml and name != "agent"
    # One agent for each flag.
    flag = "--agent" if name == "agents" else f"--{dashed}"
    return Setting(
        name,
        given.kind,
        default,
        given.words,
        flag=flag if is_flag else None,
        env=None if given.only_toml else PREFIX + name.upper(),
        is_secret=given.is_secret,
    )


def _rows(group: type[Any]) -> list[Setting]:
    declared = get_type_hints(group, include_extras=True)
    return [_row(each.name, each.default, declared[each.name].__metadata__[0]) for each in fields(group)]


SETTINGS: tuple[Setting, ...] = tuple(
    row for group in (Listening, Access, Storing, Nodes, ForAgents, ForClients) for row in _rows(group)
)
"""Every setting. The agent's command has no flag: it is what stands after `--`."""


def _limit_row(name: str, default: float, bound: Bound) -> Setting:
    is_whole = isinstance(default, int)
    kind = kinds.number(bound.at_least, bound.at_most, is_whole=is_whole, unit=bound.unit, why=bound.why)
    return Setting(
        LIMIT + name,
        kind,
        default,
        f"{bound.unit}: {bound.why}",
        flag=f"--limit {name}=",
        env=f"{PREFIX}LIMITS_{name.upper()}",
        is_secret=False,
    )


LIMITS: tuple[Setting, ...] = tuple(_limit_row(name, *row) for name, row in catalogue().items())
"""Every limit, as a setting: `limits.queue_length`. The command line has one flag for all: `--limit name=value`."""


def check_together(settings: Settings, given: frozenset[str]) -> None:
    """Refuse settings that make no sense together. `given` names those that are not defaults.

    Raises:
        ConfigError: with the reason and what to do.
    """
    # Whether a token was made at an earlier start is not a setting; the daemon asks again when it knows.
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
            not settings.rest and not settings.acp,
            "with neither REST nor ACP nothing is served; leave one of them on",
        ),
        (
            sum(map(bool, (settings.agent, settings.agent_url, settings.agent_import))) > 1,
            "an agent is either a command, an address or an import; give one of agent, agent_url, agent_import",
        ),
        (
            settings.default_agent is not None
            and settings.default_agent not in {each.name for each in settings.hosted()},
            f"default_agent is {settings.default_agent}, and there is no such agent; name one of"
            f" {', '.join(each.name for each in settings.hosted())}",
        ),
        (
            settings.agent_token is not None and settings.agent_url is None,
            "agent_token is for an agent at an address; give agent_url, or leave agent_token out",
        ),
        (
            not settings.rest and settings.page and "page" in given,
            "the page needs REST; leave REST on, or turn the page off",
        ),
        (in_memory and "data" in given, "a log in memory uses no folder; leave data out, or set log to sqlite"),
        (
            in_memory and "durability" in given,
            "a log in memory has no durability; leave durability out, or set log to sqlite",
        ),
        (
            is_database(settings.log) and settings.durability == "memory",
            "a log in PostgreSQL is durable with every append; leave durability out, or set it to full",
        ),
        (
            settings.cluster_listen is not None and not is_database(settings.log),
            "only a log in PostgreSQL can be shared by nodes; give its address, or leave cluster_listen out",
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
