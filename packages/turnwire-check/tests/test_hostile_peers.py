"""The judge survives whatever a peer says: every case has a verdict, and none is an error of the judge itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from check_peers.hostile import Hostility
from check_peers.memory import BOUNDS, PROMPTS, memory_opener
from check_peers.mutants_client import Bare
from check_peers.raw_agent import RawAgent
from check_peers.raw_agent_v2 import RawAgentV2
from check_peers.raw_client import Left, RawTestClient, RawTestClientV2
from check_peers.raw_http_server import RawHttpServer
from check_peers.raw_http_server import server_opener as http_server_opener
from check_peers.raw_server import CREDENTIAL, RawServer, server_opener
from check_peers.raw_server import PROMPTS as REST_PROMPTS
from test_client_mutants import judged as judged_client
from turnwire_check.acp_http import AcpSubject, judge_http
from turnwire_check.case import Case
from turnwire_check.catalogue import CASES, CLIENT_CASES, HTTP_CASES, REST_CASES
from turnwire_check.raw_client import RawClient, Subject
from turnwire_check.report import Tally, as_badge, as_html, as_json, as_junit
from turnwire_check.rest_client import judge_rest, probe_rest
from turnwire_check.run import Outcome, judge, probe, run_each

pytestmark = pytest.mark.anyio
SEEDS = (0, *(pytest.param(seed, marks=pytest.mark.full("more seeds")) for seed in range(1, 4)))
SHARES = (0.02, 0.1, 0.4)
"""The share of wrong members: with few of them a case gets far, with many it stumbles at once."""


def survive(work: Callable[[], None], *ends: type[BaseException]) -> None:
    """A hostile peer may receive its own output and fail on it; then it disconnects."""
    try:
        work()
    except ends:
        raise
    except Exception:  # noqa: BLE001 - whatever it is, it is the end of this peer
        raise ends[0] from None


def no_errors_of_the_judge(outcomes: list[Outcome], peer: str = "") -> None:
    assert {each.case.id: each.words for each in outcomes if each.is_fault} == {}
    tally = Tally(outcomes, peer, ())
    for form in (as_json, as_junit, as_html, as_badge):
        form(tally).encode()


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("agent", [RawAgent, RawAgentV2])
async def test_a_hostile_agent_does_not_bring_the_judge_down(
    agent: type[RawAgent], seed: int, share: float, tmp_path: Path
) -> None:
    hostility = Hostility(seed, share)

    class Hostile(agent):
        def emit(self, line: bytes) -> None:
            super().emit(hostility.line(line))

        def feed(self, piece: bytes) -> None:
            survive(lambda: super(Hostile, self).feed(piece), SystemExit)

    version = 2 if issubclass(agent, RawAgentV2) else 1
    cases = [case for case in CASES.values() if case.version == version]
    told = await probe(memory_opener(Hostile), str(tmp_path), given=PROMPTS, bounds=BOUNDS)
    # What a sound one offers, so that most cases are tried; and what this one gave.
    sound = await probe(memory_opener(agent), str(tmp_path), given=PROMPTS, bounds=BOUNDS)
    outcomes: list[Outcome] = []
    for subject in (replace(sound, given_up={}), told):
        for carrier in ("stdio", "websocket"):
            known = replace(subject, carrier=carrier)
            outcomes += await run_each(cases, lambda case, known=known: judge(case, memory_opener(Hostile), known))
    no_errors_of_the_judge(outcomes, told.name)


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("client", [RawTestClient, RawTestClientV2, Bare])
async def test_a_hostile_client_does_not_bring_the_judge_down(
    client: type[RawTestClient], seed: int, share: float, tmp_path: Path
) -> None:
    hostility = Hostility(seed, share)

    class Hostile(client):
        def emit(self, line: bytes) -> None:
            super().emit(hostility.line(line))

        def feed(self, piece: bytes) -> None:
            survive(lambda: super(Hostile, self).feed(piece), Left)

        def idle(self) -> None:
            survive(super().idle, Left)

    no_errors_of_the_judge(await judged_client(Hostile, tmp_path))


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("seed", SEEDS)
async def test_a_hostile_rest_server_does_not_bring_the_judge_down(seed: int, share: float) -> None:
    hostility = Hostility(seed, share)

    class Hostile(RawServer):
        def reply(self, status: int, value: Any = None, media: str = "application/json") -> Any:
            return super().reply(status, hostility.changed(value, 1), media)

        def text_of(self, event: dict[str, Any]) -> str:
            return super().text_of(hostility.changed(event, 1))

    subject = await probe_rest(server_opener(RawServer), CREDENTIAL, given=REST_PROMPTS, bounds=BOUNDS)
    await probe_rest(server_opener(Hostile), CREDENTIAL, given=REST_PROMPTS, bounds=BOUNDS)
    opener = server_opener(Hostile)
    no_errors_of_the_judge(
        await run_each(list(REST_CASES.values()), lambda case: judge_rest(case, opener, subject))
    )


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("seed", SEEDS)
async def test_a_hostile_acp_server_over_http_does_not_bring_the_judge_down(
    seed: int, share: float, tmp_path: Path
) -> None:
    hostility = Hostility(seed, share)

    class Hostile(RawHttpServer):
        def written(self, message: Any) -> bytes:
            return hostility.line(super().written(message))

    subject = AcpSubject(
        patience_s=5.0, silence_s=5.0, folder=str(tmp_path), prompts={"plain": "hello", "wait": "wait"}
    )
    opener = http_server_opener(Hostile)
    no_errors_of_the_judge(
        await run_each(list(HTTP_CASES.values()), lambda case: judge_http(case, opener, subject))
    )


async def test_an_error_of_the_judge_is_told_as_its_own_and_loses_no_other_case(tmp_path: Path) -> None:
    async def stumbles(client: RawClient) -> None:
        await client.initialize()
        raise KeyError("a secret of the peer")

    async def breaks_the_connection(case: Case) -> Outcome:
        raise ExceptionGroup("tasks", [ValueError("a secret of the peer")])

    opener = memory_opener(RawAgent)
    subject = Subject(offers={1: {}}, prompts=PROMPTS, folder=str(tmp_path))
    sound = CASES["v1.turn.once"]
    odd = replace(sound, id="v1.turn.odd", judge=stumbles)
    [first, second] = await run_each([odd, sound], lambda case: judge(case, opener, subject))
    [third] = await run_each([sound], breaks_the_connection)
    assert (first.verdict, first.is_fault, second.verdict) == ("not_scored", True, "passed")
    assert "KeyError at test_hostile_peers.py:" in first.words
    assert "ValueError at test_hostile_peers.py:" in third.words
    assert [each.method for each in first.frames if each.is_ours] == ["initialize"]
    tally = Tally([first, second, third], "", ())
    assert (tally.faults, tally.unscored) == ([first, third], [])
    assert "2 errors of the judge" in tally.in_words()
    assert "secret" not in as_json(tally) + as_html(tally) + as_junit(tally)
    assert ElementTree.fromstring(as_junit(tally)).get("errors") == "2"


async def test_the_name_of_a_peer_harms_no_report(tmp_path: Path) -> None:
    class Named(RawAgent):
        def send(self, message: dict[str, Any]) -> None:
            self.emit(
                json.dumps({"jsonrpc": "2.0", **message}).replace("raw-agent", r"a\ud800b\u0001\ufffec").encode()
            )

    subject = await probe(memory_opener(Named), str(tmp_path), given=PROMPTS, bounds=BOUNDS)
    assert subject.name == "a\ufffdb\ufffd\ufffdc 1"
    outcomes = await run_each([CASES["v1.turn.once"]], lambda case: judge(case, memory_opener(Named), subject))
    no_errors_of_the_judge(outcomes, subject.name)
    assert ElementTree.fromstring(as_junit(Tally(outcomes, subject.name, ()))).get("name") == (
        "turnwire check a\ufffdb\ufffd\ufffdc 1"
    )


async def test_a_client_whose_content_has_a_type_that_is_no_text_fails_for_that(tmp_path: Path) -> None:
    class OddType(RawTestClient):
        def words(self) -> dict[str, Any]:
            return {"sessionId": self.session, "prompt": [{"type": [], "text": "hello"}]}

    [found] = await judged_client(OddType, tmp_path, [CLIENT_CASES["client.prompt.content"]])
    assert (found.verdict, found.is_fault) == ("failed", False)


async def test_an_id_that_is_no_utf_8_comes_back_to_the_agent_as_it_was(tmp_path: Path) -> None:
    class OddIds(RawAgent):
        heard = b""

        def new_id(self) -> str:
            return "session-\ud800"

        def send(self, message: dict[str, Any]) -> None:
            self.emit(json.dumps({"jsonrpc": "2.0", **message}).encode())

        def feed(self, piece: bytes) -> None:
            OddIds.heard += piece
            super().feed(piece)

    subject = await probe(memory_opener(OddIds), str(tmp_path), given=PROMPTS, bounds=BOUNDS)
    [found] = await run_each([CASES["v1.turn.once"]], lambda case: judge(case, memory_opener(OddIds), subject))
    assert (found.verdict, found.words) == ("passed", "")
    assert b'"sessionId":"session-\\ud800"' in OddIds.heard
