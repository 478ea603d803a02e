"""All cases, by their ids, in the order in which they are run and listed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from turnwire.errors import ConfigError
from turnwire_check.case import Case
from turnwire_check.cases import (
    children,
    client_drafts,
    client_handshake,
    client_offers,
    client_sessions,
    client_v2,
    client_wire,
    http_connections,
    rest_sessions,
    rest_streams,
    rest_turns,
    v1_cancel,
    v1_connections,
    v1_drafts,
    v1_initialize,
    v1_lifecycle,
    v1_sessions,
    v1_settings,
    v1_tools,
    v1_turns,
    v1_wire,
    v2_background,
    v2_connections,
    v2_lifecycle,
    v2_sessions,
    v2_settings,
)

PARTS = (
    *(v1_initialize.PART, v1_initialize.AUTH),
    *(v1_wire.PART, v1_wire.RPC, v1_wire.EXTENSION, v1_wire.PARAMS),
    *(v1_sessions.NEW, v1_sessions.LOAD, v1_sessions.RESUME),
    *(v1_sessions.LIST, v1_sessions.DELETE, v1_sessions.CLOSE),
    *(v1_turns.TURN, v1_turns.UPDATE, v1_turns.FAIL),
    *(v1_tools.TOOL, v1_tools.PERMISSION, v1_tools.FILES, v1_tools.TERMINAL, v1_tools.ELICIT),
    *(v1_cancel.CANCEL, v1_cancel.TAKE_BACK),
    *(v1_settings.MODE, v1_settings.OPTION),
    *(v1_connections.AGAIN, v1_connections.CLIENTS),
    *(v1_drafts.MARKER, v1_drafts.READY, v1_lifecycle.LIFECYCLE, children.V1),
    *(v2_lifecycle.INIT, v2_sessions.NEW, v2_lifecycle.PROMPT, v2_lifecycle.STATE, v2_lifecycle.UPDATE),
    *(v2_lifecycle.CANCEL, v2_lifecycle.FAIL, v2_sessions.RESUME, v2_sessions.CLOSE, v2_sessions.LIST),
    *(v2_sessions.PERMISSION, v2_background.BACKGROUND, v2_connections.AGAIN, v2_connections.CLIENTS, children.V2),
    *(v2_settings.AUTH, v2_settings.OPTION, v2_settings.OWN, v2_settings.WIRE),
    *(v1_wire.WIRE_V2, v1_wire.RPC_V2),
)

CLIENT_PARTS = (
    *(client_handshake.INIT, client_handshake.AUTH),
    *(client_wire.WIRE, client_wire.RPC, client_wire.OWN),
    *(client_sessions.NEW, client_sessions.PROMPT, client_sessions.TURN),
    *(client_wire.UPDATE, client_sessions.PERMISSION, client_sessions.CANCEL),
    *(client_offers.FILES, client_offers.TERMINAL, client_offers.ELICIT),
    *(client_drafts.SESSION_READY, client_drafts.TURN_COMPLETE, children.CLIENT),
    *(client_v2.V2, children.CLIENT_V2, client_drafts.V2_READY),
)

REST_PARTS = (
    *(rest_sessions.ACCESS, rest_sessions.SESSION, rest_sessions.REFUSAL, rest_sessions.CLOSE),
    *(rest_turns.PROMPT, rest_turns.TURN, rest_turns.BUSY, rest_turns.CANCEL, rest_turns.PERMISSION),
    *(rest_streams.STREAM, rest_streams.REPLAY, rest_streams.READERS, rest_turns.CLIENTS),
)

HTTP_PARTS = (
    *(http_connections.OPEN, http_connections.POST, http_connections.GET),
    *(http_connections.ROUTE, http_connections.DELETE),
)

CASES: dict[str, Case] = {case.id: case for part in PARTS for case in part.cases}
"""For agents, and servers that speak ACP."""
REST_CASES: dict[str, Case] = {case.id: case for part in REST_PARTS for case in part.cases}
"""For servers that speak REST."""
HTTP_CASES: dict[str, Case] = {case.id: case for part in HTTP_PARTS for case in part.cases}
"""Cases for servers that speak ACP over Streamable HTTP, in addition to those for their messages."""
CLIENT_CASES: dict[str, Case] = {case.id: case for part in CLIENT_PARTS for case in part.cases}
"""For clients."""
EVERY = {**CASES, **HTTP_CASES, **REST_CASES, **CLIENT_CASES}


def of_set(name: str) -> list[Case]:
    """The cases that belong under the name of a set as they are now."""
    prefix = {
        "acp-v1": "v1.",
        "acp-v2-draft": "v2.",
        "acp-http-draft": "http.",
        "acp-client": "client.",
        "rest": "rest.",
    }[name.partition("/")[0]]
    return [case for case in EVERY.values() if case.id.startswith(prefix)]


def named_cases(pool: Mapping[str, Case], names: Sequence[str]) -> list[Case]:
    """Return the cases with these ids, and those of the named parts; all if none is named. Raises `ConfigError`."""
    for name in names:
        if not any(belongs(each, name) for each in pool):
            raise ConfigError(f"there is no case {name!r}; `turnwire check --list` has them all")
    return [case for each, case in pool.items() if not names or any(belongs(each, name) for name in names)]


def belongs(case_id: str, name: str) -> bool:
    """Return True if a case has this name or belongs to the part of this name."""
    return case_id == name or case_id.startswith(f"{name}.")
