"""The entry point `turnwire.agents: model`, through which `turnwire` finds this agent."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from turnwire_agent.library_model import choose_model


def check(models: Sequence[str], url: str | None) -> None:
    """Check that these models can be used. Raises `ConfigError`."""
    for each in models:
        choose_model(each, url=url)


def run(
    models: Sequence[str],
    *,
    url: str | None,
    data: Path | None,
    mode: str,
    rules: str | None,
    allows_fetch: bool,
    max_requests: int,
    max_tokens: int | None,
) -> None:
    """Serve the client that started this process, until it disconnects. Raises `ConfigError`."""
    from turnwire_agent.agent import AgentSettings, ModelAgent
    from turnwire_agent.work import Bounds

    settings = AgentSettings(
        data=data,
        rules=rules,
        allows_fetch=allows_fetch,
        bounds=Bounds(max_requests=max_requests, max_tokens=max_tokens),
        mode=mode,
    )
    ModelAgent([choose_model(each, url=url) for each in models], settings).run()
