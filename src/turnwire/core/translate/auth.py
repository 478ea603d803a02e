"""Ways to log in at an agent: by `id` in v1, by `methodId` and with a type in v2.

Takes an agent's list; gives it for a client of the other version, without those that the client cannot do.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from msgspec import Raw

from turnwire.core.dialect import AgentProfile
from turnwire.core.translate.members import as_object, child, entries, is_offered, members, raw, text_of


def auth_methods(
    methods: Raw, agent_version: int, client_version: int, *, terminal: bool, losses: Counter[str] | None = None
) -> list[Raw]:
    """The methods. `terminal`: the client can run the agent's program to log in there."""
    counted = Counter[str]() if losses is None else losses
    found = (members(each) for each in entries(methods))
    usable = [each for each in found if terminal or text_of(each, "type") != "terminal"]
    if agent_version == client_version:
        return [raw(each) for each in usable]
    translated = (_to_v2(each) if client_version == 2 else _to_v1(each, counted) for each in usable)
    return [raw(each) for each in translated if each is not None]


def is_terminal(methods: Raw, method_id: str) -> bool:
    """Whether this way to log in is a program that the client runs itself, and so no request to the agent."""
    found = (members(each) for each in entries(methods))
    return any(
        text_of(each, "type") == "terminal" and method_id in (text_of(each, "id"), text_of(each, "methodId"))
        for each in found
    )


def has_login(agent: AgentProfile) -> bool:
    """On v2 there are requests for logging in and out only where there is a way to log in."""
    return agent.version == 1 or bool(entries(agent.auth_methods))


def can_log_out(agent: AgentProfile) -> bool:
    """On v2, logging out belongs to every agent that has a way to log in; on v1 it is offered by itself."""
    if agent.version == 2:
        return has_login(agent)
    return is_offered(child(as_object(agent.capabilities), "auth"), "logout")


def _to_v2(method: dict[str, Raw]) -> dict[str, Any]:
    named: dict[str, Any] = {("methodId" if name == "id" else name): value for name, value in method.items()}
    if text_of(method, "type") != "terminal":
        return {**named, "type": "agent"}
    env = members(method.get("env"))
    return {**named, "env": [{"name": name, "value": value} for name, value in env.items()]}


def _to_v1(method: dict[str, Raw], losses: Counter[str]) -> dict[str, Any] | None:
    kind = text_of(method, "type")
    named: dict[str, Any] = {
        ("id" if name == "methodId" else name): value for name, value in method.items() if name != "type"
    }
    if kind == "terminal":
        env = [members(each) for each in entries(method.get("env"))]
        pairs = {text_of(each, "name") or "": each["value"] for each in env if "value" in each}
        return {**named, "type": kind, "env": pairs}
    if kind == "agent":
        return named
    losses["auth_method"] += 1
    return None
