"""The webhooks of this daemon: how each is doing, for whoever wonders why a receiver hears nothing.

Of an address only the origin is shown, and of a secret nothing. What they are is set by the operator's file alone.
"""

from __future__ import annotations

from msgspec import Struct

from turnwire.server.access.identity import Role
from turnwire.server.endpoint import Call, Endpoint, Reply
from turnwire.server.webhooks import Standing, Webhook


class WebhookStatus(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A receiver."""

    name: str
    origin: str
    """Its address without the path."""
    events: list[str]
    state: Standing
    last_status: int | None = None
    """What it answered to the last attempt; none if it did not answer, or none was made."""
    delivered: int
    """Since the daemon started, as the next two."""
    failed: int
    retried: int
    sessions_behind: int
    lag_seconds: float
    """How long the session that waits longest has been waiting."""


class WebhookStatusList(Struct, frozen=True, kw_only=True):
    """All receivers, as the settings name them."""

    webhooks: list[WebhookStatus]


async def list_all(call: Call) -> Reply:
    return Reply(WebhookStatusList(webhooks=[_status(each) for each in call.daemon.webhooks.hooks]))


def _status(hook: Webhook) -> WebhookStatus:
    return WebhookStatus(
        name=hook.entry.name,
        origin=hook.entry.origin,
        events=list(hook.entry.events),
        state=hook.standing,
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
