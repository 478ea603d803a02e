"""Official clients with an official agent that is adapted, unchanged: in every version that the client speaks."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.agent.official import official_python
from tests.interop.official_clients import CLIENTS_OF_ACP, OFFICIAL_PROMPTS, OfficialClient, check_tour

pytestmark = [pytest.mark.anyio, pytest.mark.full("needs the official SDKs")]

PROGRAM = Path(__file__).parent / "adapted_words.py"


@pytest.mark.parametrize("client", CLIENTS_OF_ACP, ids=lambda each: each.name)
async def test_an_official_client_works_with_an_adapted_agent(client: OfficialClient, tmp_path: Path) -> None:
    (tmp_path / "sessions").mkdir()
    command = [*official_python("py-v1"), str(PROGRAM), str(tmp_path / "sessions")]
    check_tour(await client.tour("stdio", tmp_path, OFFICIAL_PROMPTS, command=command))
