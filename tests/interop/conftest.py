"""Fixtures over the official SDKs: one agent process serves all tests of a module, each with its own session."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest
from tests.interop.node_session import Host, Talk, host
from tests.interop.peers import OFFICIAL, Peer


@pytest.fixture(scope="module", params=OFFICIAL, ids=lambda peer: peer.name)
def peer(request: pytest.FixtureRequest) -> Peer:
    """Return one of the official SDKs."""
    return request.param


@pytest.fixture(scope="module")
async def peer_host(peer: Peer, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Host]:
    """Run a node with that SDK's agent."""
    async with host(peer.command(tmp_path_factory.mktemp(peer.name))) as opened:
        yield opened


@pytest.fixture
async def talk(peer_host: Host) -> Talk:
    """Open a new session with that agent."""
    return await peer_host.talk()
