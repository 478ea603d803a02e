"""The combinations of transport, client dialect and agent dialect that the tests of this folder run on.

A test runs on every pair of client and agent dialects. Its transports rotate along both, so that
three transports, three clients and three agents meet in nine combinations instead of 27:

    client \\ agent   v1          v1plus      v2
    v1               stdio       http        websocket
    v1plus           http        websocket   stdio
    v2               websocket   stdio       http
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias, get_args

import pytest

from turnwire_testing.agent import PROFILES, Profile

Transport: TypeAlias = Literal["stdio", "http", "websocket"]
Dialect: TypeAlias = Literal["v1", "v1plus", "v2"]

TRANSPORTS: tuple[Transport, ...] = get_args(Transport)
DIALECTS: tuple[Dialect, ...] = get_args(Dialect)
AGENTS: tuple[Profile, ...] = PROFILES

SERVED: tuple[Transport, ...] = ("http", "websocket")
"""Transports of a daemon, which also serves REST and any number of clients."""
ASKING: tuple[Dialect, ...] = ("v1plus", "v2")
"""Clients that send `session/ready`, as the drafts require."""
OF_V1: tuple[Dialect, ...] = ("v1", "v1plus")
PLAIN: tuple[Profile, ...] = ("v1", "v2")
"""One agent of each version, for rules that do not depend on the drafts that the agent implements."""


class Pair(NamedTuple):
    """A client and an agent, and the transport between the client and turnwire."""

    transport: Transport
    dialect: Dialect
    agent: Profile

    def __str__(self) -> str:
        return f"{self.transport}-{self.dialect}-with-{self.agent}"

    @property
    def version(self) -> int:
        """ACP version of the client."""
        return 2 if self.dialect == "v2" else 1


def pairs(transports: Sequence[Transport], dialects: Sequence[Dialect], agents: Sequence[Profile]) -> list[Pair]:
    """Return every combination of dialect and agent, each with one of the transports."""
    return [
        Pair(transports[(DIALECTS.index(dialect) + AGENTS.index(agent)) % len(transports)], dialect, agent)
        for dialect in dialects
        for agent in agents
    ]


def fan(
    *,
    transports: Sequence[Transport] = TRANSPORTS,
    dialects: Sequence[Dialect] = DIALECTS,
    agents: Sequence[Profile] = PLAIN,
) -> pytest.MarkDecorator:
    """Run a test on the covering combinations of these."""
    return pytest.mark.parametrize("pair", pairs(transports, dialects, agents), ids=str)
