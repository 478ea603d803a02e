"""Every numeric bound of turnwire: its default, unit, range and reason, in one place.

Never clamps: a value outside its range refuses to start (`ConfigError`), because a silently corrected limit is a
limit nobody knows.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from turnwire.errors import ConfigError

KiB = 1024
MiB = 1024 * KiB
GiB = 1024 * MiB

# Four bounds are part of the fold over the log, so they are not settings: two runtimes with different
# values would read two different states from one log.

IDEMPOTENCY_KEYS = 1024
"""Keys per session. A retry comes within minutes; the newest thousand outlives that by far."""

REMEMBERED_ANSWERS = 64
"""Resolved permission requests per session that still tell a late answer who won."""

REMEMBERED_TOOLS = 256
"""Tool calls per turn by which later output is known as late; finished ones are forgotten first."""


REMEMBERED_CHILDREN = 256
"""Child sessions per agent session that are known by the agent's ids; those that do nothing are forgotten first."""


REMEMBERED_CLIENTS = 256
"""Client ids per session that are still known, newest kept: a page that is reloaded gets a new one each time."""


class Bound(NamedTuple):
    """What a limit may be, and why it is what it is."""

    unit: str
    at_least: float
    at_most: float
    why: str


def _bound(default: float, unit: str, at_least: float, at_most: float, why: str) -> Any:
    return field(default=default, metadata={"bound": Bound(unit, at_least, at_most, why)})


@dataclass(frozen=True, kw_only=True)
class Limits:
    """All bounds of one runtime. `Limits(queue_length=4)` changes one and checks all."""

    # wire
    frame_bytes: int = _bound(
        64 * MiB,
        "bytes",
        64 * KiB,
        GiB,
        "one prompt with large images fits; a runaway agent cannot fill memory",
    )
    sse_event_bytes: int = _bound(
        64 * MiB, "bytes", 64 * KiB, GiB, "one event carries one frame, so it has the size of one frame"
    )
    # session
    queue_length: int = _bound(
        64, "prompts", 1, 10_000, "a person cannot oversee more; a loop that submits blindly is stopped early"
    )
    context_chars: int = _bound(
        100_000,
        "characters",
        1000,
        10_000_000,
        "what an agent is told of a conversation it takes over; a model's token is about four characters",
    )
    cancel_grace_s: float = _bound(
        10.0,
        "seconds",
        0.05,
        3600,
        "agents finish a model call or a tool before they answer; measured agents need under 2 s",
    )
    cancel_rung_s: float = _bound(
        5.0, "seconds", 0.05, 3600, "time for each harder rung of the cancel ladder before the next one"
    )
    answer_s: float = _bound(
        1.0,
        "seconds",
        0.0,
        60,
        "an agent that has marked the end of a turn answers at once, and only the answer says what was used",
    )
    # runtime
    agent_inputs: int = _bound(
        4096,
        "inputs",
        16,
        1_000_000,
        "two full pipe buffers of small updates; beyond it the agent's pipe waits, not our memory",
    )
    client_inputs: int = _bound(
        256,
        "inputs",
        4,
        100_000,
        "clients have room of their own, so a flooding agent cannot keep a cancel out",
    )
    batch_inputs: int = _bound(
        1024,
        "inputs",
        1,
        100_000,
        "one commit's worth; larger batches gain nothing and delay the first event",
    )
    ring_events: int = _bound(
        4096,
        "events per session",
        16,
        1_000_000,
        "a reader a few seconds behind still reads memory, not disk",
    )
    ring_bytes: int = _bound(
        8 * MiB,
        "bytes per session",
        64 * KiB,
        GiB,
        "large tool outputs must not multiply by the number of events kept",
    )
    page_events: int = _bound(
        1024, "events", 16, 100_000, "one read of the log; bounds what a reader far behind holds in memory"
    )
    page_bytes: int = _bound(
        256 * KiB,
        "bytes",
        16 * KiB,
        GiB,
        "all that a stalled reader holds: one page, or one event if that is larger",
    )
    view_bytes: int = _bound(
        64 * MiB,
        "bytes",
        64 * KiB,
        GiB,
        "the transcripts that were read last stay in memory, so that the next page of one costs no fold",
    )
    snapshot_events: int = _bound(
        10_000,
        "events",
        100,
        10_000_000,
        "folding this many takes well under a second, so a session opens fast",
    )
    idle_unload_s: float = _bound(
        300.0,
        "seconds",
        0.05,
        86_400,
        "a session nobody touches for minutes costs no memory; the log brings it back",
    )
    log_retry_s: float = _bound(
        0.5,
        "seconds",
        0.01,
        60,
        "how soon a full or locked log is tried again; what the agent said waits meanwhile",
    )
    # agent processes
    link_buffer_bytes: int = _bound(
        16 * MiB,
        "bytes each way",
        64 * KiB,
        GiB,
        "a burst of large tool outputs fits; a peer that never reads, or never stops, costs no more than this",
    )
    stderr_tail_bytes: int = _bound(
        16 * KiB,
        "bytes",
        KiB,
        MiB,
        "the last stack trace of a dead agent fits; it is stored with the turn it ended",
    )
    launch_s: float = _bound(
        10.0,
        "seconds",
        0.05,
        600,
        "a program starts in milliseconds; a loaded machine or a cold network disk needs more",
    )
    initialize_s: float = _bound(
        60.0,
        "seconds",
        0.05,
        3600,
        "package runners download the agent before its first word; that takes up to a minute",
    )
    initialize_text_s: float = _bound(
        10.0,
        "seconds",
        0.05,
        3600,
        "some agents greet before they speak ACP; who greets and says no more is another program",
    )
    initialize_silent_s: float = _bound(
        3.0,
        "seconds",
        0.05,
        3600,
        "most agents answer sooner; whoever waits longer wants to know for what",
    )
    stop_eof_s: float = _bound(
        2.0,
        "seconds",
        0.0,
        600,
        "a polite agent saves its state and leaves when its input ends; most need under 0.5 s",
    )
    stop_term_s: float = _bound(
        2.0, "seconds", 0.0, 600, "what a signal handler needs to close files before the agent is killed"
    )
    stop_kill_s: float = _bound(
        1.0, "seconds", 0.05, 60, "nothing refuses to be killed; this is time for the kernel to bury the tree"
    )
    exit_drain_s: float = _bound(
        0.5, "seconds", 0.01, 60, "the last lines of stderr and the rest of the tree, before an exit is told anyway"
    )
    breaker_failures: int = _bound(
        2, "failures in a row", 0, 100, "one crash is bad luck and a second may be; a third is a loop"
    )
    breaker_first_s: float = _bound(
        1.0, "seconds", 0.01, 600, "the first wait of a restart loop; it doubles with every further failure"
    )
    breaker_most_s: float = _bound(
        60.0, "seconds", 0.1, 86_400, "somebody who mends the agent should not wait longer than this to see it"
    )
    agent_young_s: float = _bound(
        10.0, "seconds", 0.0, 3600, "an agent that dies within this time of its start counts as failed to start"
    )
    agent_idle_s: float = _bound(
        1800.0,
        "seconds",
        0.1,
        604_800,
        "agents hold hundreds of megabytes; one that nobody used for this long is let go",
    )
    replay_quiet_s: float = _bound(
        0.25,
        "seconds",
        0.0,
        60,
        "over HTTP a history and the word that it is complete come on two connections; the word waits this long",
    )
    unlisted_work_s: float = _bound(
        3600.0,
        "seconds",
        0.0,
        604_800,
        "a tool call that outlives its turn keeps its agent this long after the agent's last word about it; a build"
        " or a test run says something by then, and an agent that forgot to end it is let go some day",
    )
    loaded_sessions: int = _bound(
        10_000, "sessions", 1, 1_000_000, "each costs some kilobytes while it is open; idle ones are put away"
    )
    agent_processes: int = _bound(
        64, "processes", 1, 10_000, "with a process per session, this many fit into the memory of one machine"
    )
    suspect_after_s: float = _bound(
        30.0,
        "seconds",
        0.1,
        86_400,
        "silence after a finished answer is shown as a suspicion; it never ends a turn",
    )
    # client services
    file_bytes: int = _bound(
        16 * MiB,
        "bytes",
        KiB,
        GiB,
        "source files and most logs fit; a larger one fills the agent's context and is better read in parts",
    )
    file_threads: int = _bound(
        4,
        "files at a time per session",
        1,
        64,
        "one disk is busy with four; an agent cannot take every thread we have",
    )
    terminals: int = _bound(
        64,
        "terminals per session",
        1,
        1000,
        "each is a process tree; an agent that never releases any is stopped here",
    )
    terminal_output_bytes: int = _bound(
        MiB, "bytes per terminal", KiB, 256 * MiB, "more than an agent reads back; the beginning is dropped first"
    )
    # log
    append_queue: int = _bound(
        4096,
        "appends",
        16,
        1_000_000,
        "one per session in flight; more means the disk has stalled and callers must hear it",
    )
    busy_timeout_s: float = _bound(
        5.0, "seconds", 0.0, 60, "another process may hold the file for a moment, for example a backup"
    )
    database_s: float = _bound(
        5.0,
        "seconds",
        0.1,
        600,
        "a statement takes milliseconds; a database that has not answered by then is away, and is asked again",
    )
    checkpoint_bytes: int = _bound(
        16 * MiB,
        "bytes",
        256 * KiB,
        GiB,
        "the write-ahead log is folded back when it is this long; reads slow down beyond it",
    )
    # several nodes on one log
    beat_s: float = _bound(
        1.0, "seconds", 0.05, 60, "how often a node shows that it lives: one small update of its row in the log"
    )
    lease_s: float = _bound(
        8.0,
        "seconds",
        0.2,
        3600,
        "a node that did not beat for this long is gone; then a client's repeated request meets the next owner",
    )
    self_s: float = _bound(
        5.5,
        "seconds",
        0.1,
        3600,
        "a node that cannot beat for this long stops its agents; what `lease_s` has more is the time that takes",
    )
    outage_s: float = _bound(
        300.0,
        "seconds",
        1.0,
        86_400,
        "nodes that all miss the log go on for this long; a managed database fails over in less",
    )
    # server
    body_bytes: int = _bound(
        32 * MiB, "bytes", KiB, GiB, "a prompt with several images fits; more is better given by reference"
    )
    body_s: float = _bound(
        300.0,
        "seconds",
        0.05,
        86_400,
        "the largest body over a slow line; one that is held back is dropped then, with its memory",
    )
    fields_body_bytes: int = _bound(
        64 * KiB, "bytes", KiB, GiB, "where a body is some names and numbers; no prompt, file or message is in it"
    )
    public_body_bytes: int = _bound(
        4 * KiB, "bytes", 64, MiB, "strangers send one code; whatever is longer is none"
    )
    short_body_s: float = _bound(
        10.0, "seconds", 0.05, 3600, "a few kilobytes come with their head or right behind it, also over slow lines"
    )
    credential_body_bytes: int = _bound(
        256 * MiB,
        "bytes per credential",
        KiB,
        64 * GiB,
        "eight of the largest bodies on their way in at a time; a guest cannot fill memory by holding them back",
    )
    stranger_bytes: int = _bound(
        16 * MiB,
        "bytes of heads, and as many of bodies",
        64 * KiB,
        64 * GiB,
        "what all without a credential hold together; beyond it the oldest is dropped, and honest ones are new",
    )
    header_bytes: int = _bound(
        32 * KiB, "bytes", KiB, MiB, "cookies and trace headers fit many times; more is an attack or a mistake"
    )
    heartbeat_s: float = _bound(
        15.0, "seconds", 0.05, 3600, "proxies cut a silent stream at 60 s and some at 30 s; clients see a dead peer"
    )
    write_timeout_s: float = _bound(
        60.0,
        "seconds",
        0.05,
        86_400,
        "a reader that takes nothing for this long is let go; its cursor brings it back without loss",
    )
    drain_s: float = _bound(
        30.0,
        "seconds",
        0.0,
        86_400,
        "what running turns get at shutdown before they are ended; supervisors wait 90 s",
    )
    opening_s: float = _bound(
        10.0,
        "seconds",
        0.0,
        600,
        "a new session waits this long for its agent, so that a refusal is heard; a slow one goes on opening",
    )
    blocking_s: float = _bound(
        600.0, "seconds", 0.0, 86_400, "the longest `Prefer: wait`; 0 forbids blocking replies altogether"
    )
    request_rate: float = _bound(
        1000.0, "requests per second and credential", 0.1, 1_000_000, "far above any person or page; stops a loop"
    )
    failed_logins: int = _bound(
        20,
        "wrong credentials per minute and address",
        1,
        100_000,
        "guessing a token is hopeless, and then slow too",
    )
    acp_connections: int = _bound(
        4096,
        "connections",
        1,
        1_000_000,
        "each keeps a few kilobytes; a client that never ends its own is stopped here",
    )
    credential_acp_connections: int = _bound(
        512,
        "connections per credential",
        1,
        1_000_000,
        "an editor opens one for each window; a guest cannot use up those of all others",
    )
    held_frames: int = _bound(
        1024,
        "frames per stream",
        64,
        1_000_000,
        "answers that wait for an ACP client to open its stream; one that asks and never reads is let go",
    )
    connection_grace_s: float = _bound(
        300.0,
        "seconds",
        0.0,
        86_400,
        "an ACP client that lost its last stream comes back to the same connection; as long as clients reconnect",
    )
    # client
    remembered_turns: int = _bound(
        64,
        "turns per session",
        1,
        100_000,
        "ended turns that can still be awaited by their request id; newest first",
    )
    kept_events: int = _bound(
        10_000,
        "events per session",
        16,
        10_000_000,
        "an SDK client without a log of its own forgets older events, but for turns that the program holds",
    )
    request_retry_s: float = _bound(
        10.0,
        "seconds",
        0.0,
        3600,
        "a daemon that restarts is back by then; a person who waits at a terminal wants to hear of it",
    )
    reconnect_s: float = _bound(
        300.0,
        "seconds",
        0.0,
        604_800,
        "an event stream is reopened for this long after its last byte; longer than an upgrade of the daemon",
    )

    def __post_init__(self) -> None:
        for each in fields(self):
            check(each.name, getattr(self, each.name), each.metadata["bound"], whole=each.type == "int")

    def check_leases(self) -> None:
        """For a node that is one of several. Raises `ConfigError` if it could act after it was declared gone."""
        for less, more in (("beat_s", "self_s"), ("self_s", "lease_s"), ("lease_s", "outage_s")):
            if getattr(self, less) >= getattr(self, more):
                raise ConfigError(f"limit {less} must be less than {more}; the defaults are 1, 5.5, 8 and 300 s")


def check(name: str, value: object, bound: Bound, *, whole: bool = False) -> None:
    """Refuse a value that is no number or outside its range, with the range and the reason."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int if whole else int | float)
        or not bound.at_least <= value <= bound.at_most
    ):
        raise ConfigError(
            f"limit {name!r} is {value!r}; give a number from {bound.at_least:g} to {bound.at_most:g} {bound.unit}"
            f" ({bound.why})",
            limit=name,
        )


def catalogue() -> dict[str, tuple[float, Bound]]:
    """Every limit with its default and its bound, for documentation and configuration."""
    return {each.name: (each.default, each.metadata["bound"]) for each in fields(Limits)}  # pyright: ignore[reportReturnType]
