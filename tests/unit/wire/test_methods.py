"""The method table: its entries for methods that differ between versions, and its consistency."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from turnwire.agent.methods import NOTIFICATIONS as SDK_NOTIFICATIONS
from turnwire.agent.methods import REQUESTS as SDK_REQUESTS
from turnwire.server.acp.methods import NOTIFICATIONS as SERVER_NOTIFICATIONS
from turnwire.server.acp.methods import ROWS as SERVER_REQUESTS
from turnwire.wire.methods import (
    CANCEL_REQUEST,
    INITIALIZE,
    METHODS,
    SESSION_PROMPT,
    Kind,
    Method,
    Part,
    Side,
    Stability,
    find_method,
    is_extension,
    served_by,
)
from turnwire_testing.scripted.agent import NOTIFICATIONS as SCRIPTED_NOTIFICATIONS
from turnwire_testing.scripted.agent import REQUESTS as SCRIPTED_REQUESTS

AGENTS = Part.SERVER | Part.SDK | Part.SCRIPTED


@pytest.mark.parametrize(
    ("name", "version", "side", "kind", "session_scoped", "gate", "stability", "served_by"),
    [
        ("session/prompt", 1, "agent", "request", True, "", "stable", AGENTS),
        ("session/prompt", 2, "agent", "request", True, "capabilities.session", "stable", AGENTS),
        ("session/load", 1, "agent", "request", True, "agentCapabilities.loadSession", "stable", AGENTS),
        ("session/update", 1, "client", "notification", True, "", "stable", Part.NODE),
        ("terminal/create", 1, "client", "request", True, "clientCapabilities.terminal", "stable", Part.NODE),
        ("terminal/cancel", 2, "agent", "request", True, "", "stable", Part.SERVER),
        ("session/ready", 2, "agent", "notification", True, "capabilities.session.ready", "draft", AGENTS),
        (
            "session/fork",
            1,
            "agent",
            "request",
            True,
            "agentCapabilities.sessionCapabilities.fork",
            "unstable",
            AGENTS,
        ),
        ("mcp/message", 2, "both", "either", False, "capabilities.session.mcp.acp", "unstable", Part(0)),
        ("$/cancel_request", 1, "both", "notification", False, "", "stable", AGENTS | Part.NODE),
    ],
)
def test_a_method_is_found_with_its_row(
    name: str, version: int, side: str, kind: str, session_scoped: bool, gate: str, stability: str, served_by: Part
) -> None:
    assert find_method(name, version) == Method(
        name, version, Side(side), Kind(kind), session_scoped, gate, Stability(stability), served_by
    )


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("session/load", 2),
        ("session/set_mode", 2),
        ("fs/read_text_file", 2),
        ("terminal/create", 2),
        ("authenticate", 2),
        ("auth/login", 1),
        ("tool_call/cancel", 1),
        ("session/prompt", 3),
        ("no/such", 1),
    ],
)
def test_a_method_of_another_version_is_not_found(name: str, version: int) -> None:
    assert find_method(name, version) is None


@pytest.mark.parametrize("name", ["session/ready", "_session/ready"])
@pytest.mark.parametrize("version", [1, 2])
def test_ready_is_a_notification_under_both_its_names(name: str, version: int) -> None:
    method = find_method(name, version)
    assert method is not None
    assert method.kind is Kind.NOTIFICATION


def test_no_method_is_listed_twice() -> None:
    assert len(METHODS) == len({(row.name, row.version) for row in METHODS.values()}) == 82


def test_a_gate_is_advertised_by_the_side_that_handles_the_method() -> None:
    for method in METHODS.values():
        if method.version == 1 and method.gate.startswith(("agentCapabilities", "clientCapabilities")):
            expected = "clientCapabilities" if method.side is Side.CLIENT else "agentCapabilities"
            assert method.gate.startswith(expected), method


def test_a_name_with_an_underscore_is_an_extension() -> None:
    assert is_extension("_session/steering")
    assert not is_extension("session/prompt")
    assert not is_extension("$/cancel_request")


@pytest.mark.parametrize(
    ("part", "kind", "handlers", "beside"),
    [
        # A connection handles the methods outside of its table itself: these change its handling of all others.
        (Part.SERVER, Kind.REQUEST, SERVER_REQUESTS, {INITIALIZE}),
        (Part.SERVER, Kind.NOTIFICATION, SERVER_NOTIFICATIONS, set[str]()),
        (Part.SDK, Kind.REQUEST, SDK_REQUESTS, {INITIALIZE, SESSION_PROMPT}),
        (Part.SDK, Kind.NOTIFICATION, SDK_NOTIFICATIONS, {CANCEL_REQUEST}),
        (Part.SCRIPTED, Kind.REQUEST, SCRIPTED_REQUESTS, set[str]()),
        (Part.SCRIPTED, Kind.NOTIFICATION, SCRIPTED_NOTIFICATIONS, set[str]()),
    ],
)
def test_a_part_has_a_handler_for_each_method_that_the_table_gives_it_and_for_no_other(
    part: Part, kind: Kind, handlers: Mapping[str, object], beside: set[str]
) -> None:
    assert set(handlers) - {"_echo"} | beside == served_by(part, kind)
    assert not set(handlers) & beside


def test_every_method_that_somebody_serves_is_on_the_side_where_they_are() -> None:
    for method in METHODS.values():
        sides = {Side.CLIENT} if method.served_by == Part.NODE else {Side.AGENT, Side.BOTH}
        assert not method.served_by or method.side in sides, method
