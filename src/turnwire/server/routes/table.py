"""All routes of the daemon, gathered from the files of this package, and the route of the OpenAPI document."""

from __future__ import annotations

from functools import cache
from typing import Any

from turnwire.server.endpoint import Call, Endpoint, Reply
from turnwire.server.routes import (
    agents,
    background,
    capabilities,
    children,
    clients,
    configuration,
    document,
    events,
    health,
    page,
    permissions,
    prompts,
    queue,
    sessions,
    status,
    tokens,
    transcripts,
    turns,
    webhooks,
)
from turnwire.server.routes.document import openapi


async def _show_document(call: Call) -> Reply:
    return Reply(_document())


@cache
def _document() -> dict[str, Any]:
    return openapi(ENDPOINTS)


ENDPOINTS: tuple[Endpoint, ...] = (
    *health.ENDPOINTS,
    Endpoint(
        method="GET",
        path="/openapi.json",
        act=_show_document,
        summary="This document",
        role=None,
        gives=dict,
        tag="daemon",
    ),
    *capabilities.ENDPOINTS,
    *agents.ENDPOINTS,
    *tokens.ENDPOINTS,
    *webhooks.ENDPOINTS,
    *sessions.ENDPOINTS,
    *clients.ENDPOINTS,
    *prompts.ENDPOINTS,
    *events.ENDPOINTS,
    *turns.ENDPOINTS,
    *queue.ENDPOINTS,
    *background.ENDPOINTS,
    *permissions.ENDPOINTS,
    *children.ENDPOINTS,
    *configuration.ENDPOINTS,
    *status.ENDPOINTS,
    *transcripts.ENDPOINTS,
    *document.ENDPOINTS,
    *page.ENDPOINTS,
)
