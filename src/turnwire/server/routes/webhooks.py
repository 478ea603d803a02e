"""The status of this daemon's webhooks, to find out why a receiver gets no deliveries.

Only the origin of an address is shown, and nothing of a secret. Only the operator's file configures webhooks.
"""

from __future__ import annotations

from msgspec import Struct

from turnwire.server.access.tokens import Role
from turnwire.server.endpoint import Call, Endpoint, Reply
from turnwire.server.webhooks import Webhook, WebhookState


class WebhookStatus(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A receiver."""

    name: str
    origin: str
    """Its address without path."""
    events: list[str]
    state: WebhookState
    last_status: int | None = None
    """Status of its answer to the last attempt; absent if it did not answer or there was no attempt."""
    delivered: int
    """Count since the daemon started, like the next two."""
    failed: int
    retried: int
    sessions_behind: int
    lag_seconds: float
    """Seconds that the session with the oldest undelivered event has been waiting."""


class WebhookStatusList(Struct, frozen=True, kw_only=True):
    """All receivers, named as in the settings."""

    webhooks: list[WebhookStatus]


async def list_all(call: Call) -> Reply:
    return Reply(WebhookStatusList(webhooks=[_status(each) for each in call.daemon.webhooks.hooks]))


def _status(hook: Webhook) -> WebhookStatus:
    return WebhookStatus(
        name=hook.entry.name,
        origin=hook.entry.origin,
        events=list(hook.entry.events),
        state=hook.state,
        last_status=hook.last_status,
        delivered=hook.delivered,
        failed=hook.failed,
        retried=hook.retried,
        sessions_behind=hook.behind,
        lag_seconds=round(hook.lag_s, 3),
    )


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        method="GET",
        path="/webhooks",
        act=list_all,
        summary="How each webhook is doing",
        role=Role.OWNER,
        gives=WebhookStatusList,
        tag="daemon",
    ),
)
"""The route of webhooks."""
