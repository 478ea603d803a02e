"""The daemon's capabilities for clients that adapt to them. The answer depends on the caller only.

Features have the names that clients of this contract know. Features that only this daemon has use its names.
"""

from __future__ import annotations

from pathlib import PurePath

from msgspec import Struct

from turnwire import __version__
from turnwire.ids import UNNAMED, SessionId
from turnwire.server.access.tokens import Role
from turnwire.server.daemon.creation import workspace_id
from turnwire.server.endpoint import Call, Endpoint, Reply
from turnwire.server.settings.declared import Settings

KNOWN_FEATURES = (
    "health",
    "capabilities",
    "session_create",
    "session_id_override",
    "session_scope_override",
    "session_load",
    "session_resume",
    "session_list",
    "session_prompt",
    "non_blocking_prompt",
    "session_cancel",
    "session_events",
    "session_close",
    "session_metadata",
    "session_set_model",
    "session_approval_mode_control",
    "session_permission_vote",
    "permission_vote",
    "client_identity",
    "client_heartbeat",
    "typed_event_schema",
)
"""Features named as the daemon that defined this contract names them."""

OWN_FEATURES = (
    "durable_events",
    "idempotency_key",
    "multiplexed_events",
    "prompt_queue",
    "prompt_status",
    "steer",
    "settle",
    "session_fork",
    "session_export",
    "session_archive",
    "session_search",
    "session_explain",
    "client_services",
    "agents",
    "agent_auth",
    "tokens",
    "session_share",
)
"""Features that only this daemon has."""


class ProtocolVersions(Struct, frozen=True):
    current: str
    supported: list[str]


class Policy(Struct, frozen=True, rename="camel"):
    permission: str
    when_busy: str
    """The default treatment of a prompt that arrives while a turn runs."""


class CapabilityLimits(Struct, frozen=True, kw_only=True, rename="camel"):
    max_pending_prompts_per_session: int
    max_sessions_per_workspace: int
    max_total_sessions: int
    session_restore_timeout_ms: int
    max_body_bytes: int


class WorkspaceEntry(Struct, frozen=True, kw_only=True):
    """A directory in which sessions may work."""

    id: str
    cwd: str
    primary: bool
    trusted: bool


class DefaultAgent(Struct, frozen=True, rename="camel", omit_defaults=True):
    """The agent of sessions that name none. `GET /agents` lists all agents."""

    name: str
    """The name in the operator's configuration; the program of an agent without a name."""
    agent_name: str | None = None
    """The name that the agent reports, once it has run."""


class Caller(Struct, frozen=True, rename="camel", omit_defaults=True):
    """The caller's rights by its credential, so that a page offers nothing that would be rejected."""

    name: str
    role: Role
    session_id: SessionId | None = None
    """The only session that the credential is valid for."""


class Capabilities(Struct, frozen=True, kw_only=True, rename="camel"):
    v: int
    mode: str
    version: str
    features: list[str]
    workspace_cwd: str
    workspaces: list[WorkspaceEntry]
    model_services: list[str]
    protocol_versions: ProtocolVersions
    transports: list[str]
    policy: Policy
    limits: CapabilityLimits
    agent: DefaultAgent
    caller: Caller


async def show(call: Call) -> Reply:
    daemon = call.daemon
    profile = daemon.node.agents.named(None).profile
    settings, limits = daemon.settings, daemon.limits
    roots = [str(each.absolute()) for each in daemon.roots]
    features = [*KNOWN_FEATURES, *OWN_FEATURES]
    if not settings.no_auth:
        features.append("require_auth")
    if daemon.search.is_on:
        features.append("session_text_search")
    if settings.blocking and limits.blocking_s:
        features.append("blocking_prompt")
    return Reply(
        Capabilities(
            v=1,
            mode="native",
            version=__version__,
            features=features,
            workspace_cwd=roots[0],
            workspaces=[
                WorkspaceEntry(id=workspace_id(each), cwd=each, primary=not place, trusted=True)
                for place, each in enumerate(roots)
            ],
            model_services=[],
            protocol_versions=ProtocolVersions("v1", ["v1"]),
            transports=["rest", "sse"],
            policy=Policy("first-responder", settings.when_busy),
            limits=CapabilityLimits(
                max_pending_prompts_per_session=limits.queue_length,
                max_sessions_per_workspace=limits.loaded_sessions,
                max_total_sessions=limits.loaded_sessions,
                session_restore_timeout_ms=round(limits.opening_s * 1000),
                max_body_bytes=limits.body_bytes,
            ),
            agent=DefaultAgent(_default_agent(settings), None if profile is None else profile.name),
            caller=Caller(call.who.name, call.who.role, call.who.session_id),
        )
    )


def _default_agent(settings: Settings) -> str:
    """Return the agent's name, or its program if it has no name."""
    entry = settings.hosted()[0]
    if entry.name != UNNAMED:
        return entry.name
    return PurePath(entry.command[0]).name if entry.command else "scripted"


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        method="GET",
        path="/capabilities",
        act=show,
        summary="What this daemon can do",
        role=Role.OBSERVER,
        gives=Capabilities,
        narrows=True,
        tag="daemon",
    ),
)
"""The route of capabilities."""
