"""The official ACP clients, unchanged, with two nodes and an nginx that sends each request to the next one."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.interop.official_clients import CLIENTS_OF_ACP, OfficialClient
from tests.interop.peers import scripted
from tests.interop.test_acp_clients import EARLY, check, url_of
from tests.postgres.test_two_nodes import two_nodes
from tests.support.daemons import Running
from tests.support.nginx import PASSED_ON, Nginx, nginx_before
from tests.support.postgres import PostgresServer

pytestmark = pytest.mark.anyio


class Balanced(NamedTuple):
    nodes: tuple[Running, Running]
    nginx: Nginx


@pytest.fixture(scope="module")
async def balanced(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Balanced]:
    """Two nodes, and nginx before them without affinity."""
    folder: Path = tmp_path_factory.mktemp("nodes")
    agent = scripted("--profile", "v1", *EARLY)
    async with (
        two_nodes(postgres, folder, agent=agent) as nodes,
        nginx_before([each.url for each in nodes], folder / "nginx", PASSED_ON) as nginx,
    ):
        yield Balanced(nodes, nginx)


@pytest.mark.guarantee("G6", "G11")
@pytest.mark.parametrize("transport", ["http", "websocket"])
@pytest.mark.parametrize("client", CLIENTS_OF_ACP, ids=lambda each: each.name)
async def test_an_official_client_notices_nothing_of_two_nodes_and_a_balancer_without_affinity(
    client: OfficialClient, transport: str, balanced: Balanced
) -> None:
    node = balanced.nodes[0]
    url = url_of(node, transport).replace(
        node.url.removeprefix("http://"), balanced.nginx.url.removeprefix("http://")
    )
    check(await client.tour(transport, node.daemon.roots[0], url=url, token=node.token), transport)
    # Of a tour's two connections one is on each node at least.
    assert set(balanced.nginx.served) == {each.url.removeprefix("http://") for each in balanced.nodes}
