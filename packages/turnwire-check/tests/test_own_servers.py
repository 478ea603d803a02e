"""turnwire's daemon keeps every rule that applies at `/acp`, over WebSocket and over Streamable HTTP."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.daemons import SCRIPTED, running_daemon

from turnwire.errors import LinkBroken
from turnwire_check.case import Carrier, Scene
from turnwire_check.catalogue import CASES
from turnwire_check.provocation import RECIPES
from turnwire_check.remote import url_opener
from turnwire_check.run import Bounds, probe, run

pytestmark = pytest.mark.anyio

BOUNDS = Bounds()
"""The defaults of `turnwire check`."""
JOBS = 16
"""Cases at once. Most of their time is silence."""
PROMPTS: dict[Scene, str] = {
    # What this client does not offer waits there for another one that does, for as long as that takes.
    scene: words
    for scene, words in RECIPES["turnwire-scripted-agent"].items()
    if scene not in ("read", "terminal", "elicit")
}


@pytest.mark.parametrize(
    ("scheme", "carrier"),
    [("ws", "websocket"), pytest.param("http", "http", marks=pytest.mark.full("takes most of a minute"))],
)
async def test_the_daemon_keeps_every_rule_that_applies(scheme: str, carrier: Carrier, tmp_path: Path) -> None:
    cases = [each for each in CASES.values() if carrier in each.carriers]
    (tmp_path / "work").mkdir()
    async with running_daemon(tmp_path / "data") as running:
        opener = url_opener(f"{running.url.replace('http', scheme, 1)}/acp", running.headers)
        subject = await probe(opener, str(tmp_path / "work"), carrier=carrier, given=PROMPTS, bounds=BOUNDS)
        outcomes = await run(cases, opener, subject, jobs=JOBS)
    found = {each.case.id: each.words for each in outcomes if each.verdict in ("failed", "unanswered")}
    # A `should`: our daemon sends the marker to every client that does not refuse it.
    assert found.keys() <= {"v1.turn-complete.asked-for"}, found
    assert len([each for each in outcomes if each.verdict == "passed"]) > len(cases) * 0.8


LISTED = '"type":"terminal","terminalId":"bg"'
BACKGROUND = "\n".join(
    (
        'update {"sessionUpdate":"terminal_update","terminalId":"bg","command":"sleep"}',
        'update {"sessionUpdate":"state_update","state":"running","background":[{LISTED}]}',
        'update {"sessionUpdate":"terminal_update","terminalId":"bg","exitStatus":{"exitCode":0}}',
        'update {"sessionUpdate":"state_update","state":"running","background":[]}',
    )
).replace("LISTED", LISTED)
NEWER = ("v1.child", "v2.child", "v2.background")
"""Cases that need a v2 agent of the daemon."""


async def test_what_an_agent_of_v2_does_beside_its_turns_is_told_by_the_rules(tmp_path: Path) -> None:
    cases = [each for each in CASES.values() if each.id.startswith(tuple(f"{part}." for part in NEWER))]
    (tmp_path / "work").mkdir()
    async with running_daemon(tmp_path / "data", agent=(*SCRIPTED, "--profile", "v2")) as running:
        opener = url_opener(f"{running.url.replace('http', 'ws', 1)}/acp", running.headers)
        given: dict[Scene, str] = {**PROMPTS, "background": BACKGROUND}
        subject = await probe(opener, str(tmp_path / "work"), carrier="websocket", given=given, bounds=BOUNDS)
        outcomes = await run(cases, opener, subject, jobs=JOBS)
    assert {each.case.id: each.words for each in outcomes if each.verdict != "passed"} == {}


async def test_who_is_not_let_in_is_told_so(tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "data") as running:
        with pytest.raises(LinkBroken, match="look at the address and the headers"):
            await probe(url_opener(f"{running.url.replace('http', 'ws', 1)}/acp", {}), str(tmp_path))
        with pytest.raises(LinkBroken, match=r"it answered HTTP 401; give a credential"):
            await probe(url_opener(f"{running.url}/acp", {}), str(tmp_path), carrier="http", bounds=BOUNDS)
