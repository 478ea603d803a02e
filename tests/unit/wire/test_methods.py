"""The method table: what it says about methods that differ between versions, and that it holds together."""

from __future__ import annotations

import pytest

from turnwire.wire.methods import METHODS, Kind, Method, Side, Stability, find_method, is_extension


@pytest.mark.parametrize(
    ("name", "version", "side", "kind", "session_scoped", "gate", "stability"),
    [
        ("session/prompt", 1, "agent", "request", True, "", "stable"),
        ("session/prompt", 2, "agent", "request", True, "capabilities.session", "stable"),
        ("session/load", 1, "agent", "request", True, "agentCapabilities.loadSession", "stable"),
        ("session/update", 1, "client", "notification", True, "", "stable"),
        ("terminal/create", 1, "client", "request", True, "clientCapabilities.terminal", "stable"),
        ("terminal/cancel", 2, "agent", "request", True, "", "stable"),
        ("session/ready", 2, "agent", "notification", True, "capabilities.session.ready", "draft"),
        ("session/fork", 1, "agent", "request", True, "agentCapabilities.sessionCapabilities.fork", "unstable"),
        ("mcp/message", 2, "both", "either", False, "capabilities.session.mcp.acp", "unstable"),
        ("$/cancel_request", 1, "both", "notification", False, "", "stable"),
    ],
)
def test_a_method_is_found_with_its_row(
    name: str, version: int, side: str, kind: str, session_scoped: bool, gate: str, stability: str
) -> None:
    assert find_method(name, version) == Method(
        name, version, Side(side), Kind(kind), session_scoped, gate, Stability(stability)
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
    assert len(METHODS) == len({(row.name, row.version) for row in METHODS.values()}) == 79


def test_a_gate_is_advertised_by_the_side_that_handles_the_method() -> None:
    for method in METHODS.values():
        if method.version == 1 and method.gate.startswith(("agentCapabilities", "clientCapabilities")):
            expected = "clientCapabilities" if method.side is Side.CLIENT else "agentCapabilities"
            assert method.gate.startswith(expected), method


def test_a_name_with_an_underscore_is_an_extension() -> None:
    assert is_extension("_session/steering")
    assert not is_extension("session/prompt")
    assert not is_extension("$/cancel_request")
