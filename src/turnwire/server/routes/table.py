"""All routes of the daemon, gathered from the files beside this one."""

from __future__ import annotations

from turnwire.server.endpoint import Endpoint
from turnwire.server.routes import (
    capabilities,
    clients,
    configuration,
    control,
    events,
    health,
    permissions,
    prompts,
    queue,
    sessions,
    status,
    tokens,
    transcripts,
    turns,
)

ENDPOINTS: tuple[Endpoint, ...] = (
    *health.ENDPOINTS,
    *capabilities.ENDPOINTS,
    *tokens.ENDPOINTS,
    *sessions.ENDPOINTS,
    *clients.ENDPOINTS,
    *prompts.ENDPOINTS,
    *events.ENDPOINTS,
    *turns.ENDPOINTS,
    *queue.ENDPOINTS,
    *control.ENDPOINTS,
    *permissions.ENDPOINTS,
    *configuration.ENDPOINTS,
    *status.ENDPOINTS,
    *transcripts.ENDPOINTS,
)
