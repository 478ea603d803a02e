"""Every case about clients is turned red by the client that breaks its rule, and by no other; a sound one: none."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from check_peers.mutants_client import CLIENT_MUTANTS, Bare
from check_peers.raw_client import Left, RawTestClient, RawTestClientV2
from turnwire.errors import ConfigError
from turnwire_check.case import Case
from turnwire_check.catalogue import CLIENT_CASES
from turnwire_check.client_run import play, scene_of
from turnwire_check.client_verdict import ClientVerdict, keep_verdict, of_line, written
from turnwire_check.run import Bounds, Outcome
from turnwire_check.tape import Tape

pytestmark = pytest.mark.anyio
BOUNDS = Bounds(patience_s=5.0, silence_s=5.0, has_drafts=True)
"""Never waited for."""


class MemoryClient:
    """A client as a function of bytes: its output is complete when `send` returns."""

    def __init__(self, client: type[RawTestClient], cwd: Path, scene: str) -> None:
        self.tape = Tape(clock=lambda: 0.0)
        self._client = client(self._take, str(cwd), scene)

    def _take(self, line: bytes) -> None:
        self.tape.add(line.removesuffix(b"\n"), is_ours=False)

    async def send(self, raw: bytes) -> None:
        if not self.tape.ended:
            self._do(lambda: self._client.feed(raw))

    async def more(self, length: int) -> bool:
        if len(self.tape.frames) <= length and not self.tape.ended:
            self._do(self._client.idle)
        return len(self.tape.frames) > length

    async def hang_up(self) -> None:
        self._do(self._client.gone)

    def _do(self, work: object) -> None:
        assert callable(work)
        try:
            work()
        except Left:
            self.tape.end("it closed the connection")


async def judged(
    client: type[RawTestClient], cwd: Path, cases: list[Case] | None = None, bounds: Bounds = BOUNDS
) -> list[Outcome]:
    """Judge these cases, or all of the version that this client speaks."""
    found: list[ClientVerdict] = []
    for case in cases or [each for each in CLIENT_CASES.values() if each.version == client.version]:
        await play(case, MemoryClient(client, cwd, scene_of(case)), bounds, found.append)
    return [each.outcome for each in found]


def failed(outcomes: list[Outcome]) -> list[str]:
    return [each.case.id for each in outcomes if each.verdict == "failed"]


@pytest.mark.parametrize("client", [RawTestClient, RawTestClientV2, Bare])
async def test_a_sound_client_passes_every_case(client: type[RawTestClient], tmp_path: Path) -> None:
    outcomes = await judged(client, tmp_path)
    assert failed(outcomes) == []
    reasons = {each.case.id: each.words for each in outcomes if each.verdict == "not_scored"}
    assert all("it offers" in each or "does not claim" in each for each in reasons.values()), reasons
    assert bool(reasons) is (client.version == 1)


def test_every_case_has_a_mutant_and_every_mutant_a_case() -> None:
    assert sorted(set(CLIENT_CASES) ^ set(CLIENT_MUTANTS)) == []


async def test_each_broken_client_is_caught_by_the_case_that_names_its_rule(tmp_path: Path) -> None:
    missed = [
        case
        for case, client in CLIENT_MUTANTS.items()
        if failed(await judged(client, tmp_path, [CLIENT_CASES[case]])) != [case]
    ]
    assert missed == []


@pytest.mark.full("every broken client plays every case")
@pytest.mark.parametrize("case", CLIENT_MUTANTS)
async def test_a_broken_client_is_caught_by_the_case_that_names_its_rule_and_by_no_other(
    case: str, tmp_path: Path
) -> None:
    outcomes = await judged(CLIENT_MUTANTS[case], tmp_path)
    assert failed(outcomes) == [case]
    [caught] = [each for each in outcomes if each.verdict == "failed"]
    assert caught.words
    assert all(0 <= each < len(caught.frames) for each in caught.proof)


class OnlyVersion2(RawTestClientV2):
    def takes(self, result: dict[str, Any]) -> bool:
        return result["protocolVersion"] == 2


class CancelsForms(Bare):
    def request(self, message: dict[str, Any]) -> None:
        if message.get("method") == "elicitation/create":
            self.answer(message["id"], {"action": "cancel"})
        else:
            super().request(message)


@pytest.mark.parametrize("client", [OnlyVersion2, CancelsForms])
async def test_an_unusual_but_sound_client_breaks_no_rule_of_version_1(
    client: type[RawTestClient], tmp_path: Path
) -> None:
    cases = [each for each in CLIENT_CASES.values() if each.version == 1]
    assert failed(await judged(client, tmp_path, cases)) == []


async def test_a_client_without_the_drafts_is_not_judged_by_them(tmp_path: Path) -> None:
    released = CLIENT_MUTANTS["client.ready.new"]
    outcomes = await judged(released, tmp_path, bounds=Bounds(patience_s=5.0, silence_s=5.0))
    assert failed(outcomes) == []
    assert {each.verdict for each in outcomes if each.case.severity == "draft"} == {"not_scored"}


async def test_a_verdict_comes_back_as_it_was_written(tmp_path: Path) -> None:
    case = CLIENT_CASES["client.wire.utf-8"]
    [found] = await judged(CLIENT_MUTANTS[case.id], tmp_path, [case])
    again = of_line(written(ClientVerdict("me 1", found)), CLIENT_CASES)
    assert again is not None
    assert (again.client, again.outcome.case, again.outcome.words) == ("me 1", case, found.words)
    assert [each.raw for each in again.outcome.frames] == [each.raw for each in found.frames]
    assert any(b"\xff" in each.raw for each in again.outcome.frames)


def test_a_pipe_that_nobody_reads_does_not_hold_the_agent(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    verdict = ClientVerdict("", Outcome(CLIENT_CASES["client.new.cwd"], "passed"))
    with pytest.raises(ConfigError, match="cannot be written"):
        keep_verdict(tmp_path / "pipe", verdict)
