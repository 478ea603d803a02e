"""Sizes and timeouts that several parts share, and those that a program or a test may set.

A number that only one module needs is a constant of that module. Operators set some of these as `limits.NAME`; see
`turnwire.server.settings.declared`.
"""

from __future__ import annotations

from dataclasses import dataclass

from turnwire.errors import ConfigError

KiB = 1024
MiB = 1024 * KiB
GiB = 1024 * MiB

# These are part of the fold over the log: two runtimes with different values would read two different states from
# one log. So they can never be set.

IDEMPOTENCY_KEYS = 1024
"""Idempotency keys per session. A retry comes within minutes; the newest thousand outlive that by far."""

REMEMBERED_ANSWERS = 64
"""Resolved permission requests per session, so that the sender of a late answer can be shown the first one."""

REMEMBERED_TOOLS = 256
"""Tool calls per turn, by which later output is recognised as late; finished ones are evicted first."""

REMEMBERED_CHILDREN = 256
"""Child sessions per agent session; idle ones are evicted first."""

REMEMBERED_CLIENTS = 256
"""Client ids per session, the newest: a page that is reloaded gets a new one each time."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Sizes and timeouts of one runtime. `Limits(queue_length=4)` changes one."""

    # wire
    frame_bytes: int = 64 * MiB
    """Longest frame. One prompt with large images fits; a runaway agent cannot fill memory."""

    # session
    queue_length: int = 64
    """Queued prompts per session. A person cannot oversee more, and a loop that submits blindly is stopped
    early."""
    queue_bytes: int = 64 * MiB
    """Bytes of the queued prompts of one session, which stay in memory. One prompt of any size may always wait."""
    all_queue_bytes: int = 256 * MiB
    """Bytes of the queued prompts of all sessions of a node: memory is a small multiple of it."""
    cancel_grace_s: float = 10.0
    """Time for an agent to end a cancelled turn. Agents finish a model call or a tool first; measured agents need <
    2 s."""
    cancel_rung_s: float = 5.0
    """Time for each stronger measure after that before the next one."""

    # runtime
    agent_inputs: int = 4096
    """Inputs of the agent per session: two full pipe buffers of small updates. Beyond it the agent's pipe waits."""
    client_inputs: int = 256
    """Inputs of clients per session. Counted separately, so that a flooding agent cannot block a cancel."""
    batch_inputs: int = 1024
    """Inputs per commit. Larger batches gain nothing and delay the first event."""
    ring_events: int = 4096
    """Events per session in the ring: a reader with a lag of a few seconds reads memory, not disk."""
    ring_bytes: int = 8 * MiB
    """Bytes per session in the ring: large tool outputs must not multiply by the number of events."""
    page_events: int = 1024
    """Events per read of the log; bounds the memory of a reader with a large lag."""
    page_bytes: int = 256 * KiB
    """Bytes per read of the log: all that a stalled reader holds, or one event if that is larger."""
    snapshot_events: int = 10_000
    """Events between snapshots. Folding this many needs well under a second, so a session opens fast."""
    idle_unload_s: float = 300.0
    """A session that is not used for this long is unloaded; the log brings it back."""
    log_retry_s: float = 0.5
    """Pause before a full or locked log is tried again; input of the agent waits meanwhile."""

    # agent processes
    link_buffer_bytes: int = 16 * MiB
    """Bytes buffered each way per link. A batch of large tool outputs fits; a peer that never reads costs no
    more."""
    launch_s: float = 10.0
    """Time for a program to start: milliseconds, but more on a loaded machine or a cold network disk."""
    initialize_s: float = 60.0
    """Time for an agent to answer `initialize`. Package runners download the agent first: up to a minute."""
    initialize_text_s: float = 10.0
    """Time that an agent gets after it printed text that is not ACP. Some greet first; others are another
    program."""
    initialize_silent_s: float = 3.0
    """A start that lasts longer than this is reported to the waiting clients."""
    stop_eof_s: float = 2.0
    """Time for an agent to exit when its input ends. Most need < 0.5 s to save their state."""
    stop_term_s: float = 2.0
    """Time for an agent to exit after SIGTERM, before it is killed."""
    stop_kill_s: float = 1.0
    """Time for the kernel to end the process tree after SIGKILL."""
    breaker_failures: int = 2
    """Failures in a row before starts are delayed. One crash is bad luck and a second may be; a third is a loop."""
    breaker_first_s: float = 1.0
    """First delay of a restart loop; it doubles with every further failure."""
    breaker_most_s: float = 60.0
    """Longest delay: after fixing the agent, a user should not wait longer for the next start."""
    agent_young_s: float = 10.0
    """An agent that exits within this time of its start counts as failed to start."""
    agent_idle_s: float = 1800.0
    """An agent process that is not used for this long is stopped: agents use hundreds of megabytes."""
    replay_quiet_s: float = 0.25
    """Over HTTP a history and the response that ends it come on two connections; the response waits this long."""
    loaded_sessions: int = 10_000
    """Sessions in memory. Each costs some kilobytes; idle ones are unloaded."""
    agent_processes: int = 64
    """Agent processes at the same time: with one per session, this many fit into one machine."""
    suspect_after_s: float = 30.0
    """Silence after a finished answer that is shown as a suspicion. It never ends a turn."""

    # client services
    file_bytes: int = 16 * MiB
    """Largest file that is read for an agent. A larger one fills its context and is better read in parts."""
    terminals: int = 64
    """Terminals per session. Each is a process tree; an agent that never releases any is stopped here."""

    # log
    append_queue: int = 4096
    """Appends that wait: one per session. More means that the disk has stalled, and callers must know."""
    busy_timeout_s: float = 5.0
    """Time that another process, such as a backup, may hold the log's file."""
    database_s: float = 5.0
    """Time for a statement of PostgreSQL. A database that has not answered by then is away."""
    checkpoint_bytes: int = 4 * MiB
    """Bytes of the write-ahead log after which it is copied into the file; copying takes some milliseconds."""

    # several nodes on one log
    beat_s: float = 1.0
    """Interval of a node's heartbeat: one small update of its row in the log."""
    lease_s: float = 8.0
    """A node without a heartbeat for this long is gone."""
    self_s: float = 5.5
    """A node that cannot write its heartbeat for this long stops its agents, within the rest of `lease_s`."""
    outage_s: float = 300.0
    """Nodes that all lose the log continue for this long. A managed database fails over in less."""

    # server
    body_bytes: int = 32 * MiB
    """Longest HTTP body. A prompt with several images fits."""
    short_body_s: float = 10.0
    """Time for a body of a few kilobytes, also over slow lines."""
    credential_body_bytes: int = 256 * MiB
    """Bytes of unfinished bodies per credential: eight of the longest."""
    stranger_bytes: int = 16 * MiB
    """Bytes of heads, and as many of bodies, that all connections without a credential hold together; then the
    oldest is closed."""
    header_bytes: int = 32 * KiB
    """Longest head of a request. Cookies and trace headers fit many times."""
    heartbeat_s: float = 15.0
    """Interval of heartbeats in a stream. Proxies cut a silent one after 60 s, some after 30 s."""
    write_timeout_s: float = 60.0
    """A reader that accepts nothing for this long is disconnected; its cursor brings it back without loss."""
    hold_s: float = 60.0
    """Time that agents wait for the next daemon after a crash; a supervisor starts it within seconds. With 0 they
    end with their daemon."""
    drain_s: float = 30.0
    """Time for running turns at shutdown before they are ended. Supervisors wait 90 s."""
    editor_idle_s: float = 10.0
    """A daemon that `turnwire stdio` started ends when it has had no client and no turn for this long. It survives
    the reload of an editor's window."""
    editor_turn_s: float = 3600.0
    """Such a daemon without a client ends a turn in which nothing has happened for this long."""
    opening_s: float = 10.0
    """Time that a request for a new session waits for its agent, so that an error is reported. A slow agent
    continues opening.
    """
    blocking_s: float = 600.0
    """Longest `Prefer: wait`; 0 forbids blocking replies."""
    request_rate: float = 1000.0
    """Requests per second and credential: far above any person or page; stops a loop."""
    failed_logins: int = 20
    """Wrong credentials per minute and address."""
    acp_connections: int = 4096
    """ACP connections. Each costs a few kilobytes."""
    credential_acp_connections: int = 512
    """ACP connections per credential: an editor opens one per window."""
    connection_grace_s: float = 300.0
    """Time for an ACP client that lost its last stream to come back to the same connection."""

    # client
    remembered_turns: int = 64
    """Ended turns per session that an SDK client can still await by their request id, the newest."""
    kept_events: int = 10_000
    """Events per session of an SDK client without a log; older ones are dropped, except for turns that the program
    holds."""
    request_retry_s: float = 10.0
    """Time for which an SDK client repeats a request. A daemon that restarts is back by then."""
    reconnect_s: float = 300.0
    """Time for which an SDK client reopens a stream after its last byte: longer than an upgrade of the daemon."""

    def check_leases(self) -> None:
        """Raise `ConfigError` if a node could act after others have declared it gone."""
        for less, more in (("beat_s", "self_s"), ("self_s", "lease_s"), ("lease_s", "outage_s")):
            if getattr(self, less) >= getattr(self, more):
                raise ConfigError(f"limit {less} must be less than {more}; the defaults are 1, 5.5, 8 and 300 s")
