"""What is multiplied with what: transports, dialects of clients, and agents.

Takes which of them a test is about; gives its parameters. `exclusions.py` says why the rest is not there.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import product
from typing import Literal, NamedTuple, TypeAlias, get_args

import pytest

from turnwire.testing.agent import PROFILES, Profile

Transport: TypeAlias = Literal["stdio", "http1", "http2", "websocket"]
Dialect: TypeAlias = Literal["v1", "v1plus", "v2"]

TRANSPORTS: tuple[Transport, ...] = get_args(Transport)
DIALECTS: tuple[Dialect, ...] = get_args(Dialect)
AGENTS: tuple[Profile, ...] = PROFILES
NUMBERS = tuple(f"R{number}" for number in (*range(1, 57), *range(70, 75)))

SERVED: tuple[Transport, ...] = ("http1", "http2", "websocket")
"""Those of a daemon. It has REST beside them, and takes any number of clients."""
ASKING: tuple[Dialect, ...] = ("v1plus", "v2")
"""Those whose clients say nothing of the drafts, and do what the drafts say: they send `session/ready`."""
OF_V1: tuple[Dialect, ...] = ("v1", "v1plus")
PLAIN: tuple[Profile, ...] = ("v1", "v2")
"""One agent of each version, for what does not depend on drafts that the agent speaks itself."""


class Pair(NamedTuple):
    """A client and an agent, and what lies between the client and us."""

    transport: Transport
    dialect: Dialect
    agent: Profile

    def __str__(self) -> str:
        return f"{self.transport}-{self.dialect}-with-{self.agent}"

    @property
    def version(self) -> int:
        """What the client speaks."""
        return 2 if self.dialect == "v2" else 1


PAIRS = tuple(Pair(*each) for each in product(TRANSPORTS, DIALECTS, AGENTS))


def fan(
    *,
    transports: Collection[Transport] = TRANSPORTS,
    dialects: Collection[Dialect] = DIALECTS,
    agents: Collection[Profile] = PLAIN,
) -> pytest.MarkDecorator:
    """Run a test once for each pair of these."""
    pairs = [
        each for each in PAIRS if each.transport in transports and each.dialect in dialects and each.agent in agents
    ]
    return pytest.mark.parametrize("pair", pairs, ids=str)
