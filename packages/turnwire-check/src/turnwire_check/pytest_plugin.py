"""The suite as a pytest plugin: each case is a test, or a test runs all cases by a fixture.

pytest loads it in every suite where turnwire is installed, so it imports nothing until it is used: by
`--turnwire-agent`, by `--turnwire-client`, or by the fixture `turnwire_check`.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import pytest

if TYPE_CHECKING:
    from turnwire_check.case import Case
    from turnwire_check.judged_command import JudgedCommand
    from turnwire_check.report import Tally


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("turnwire", "ACP conformance (turnwire check)")
    group.addoption("--turnwire-agent", metavar="COMMAND", help="judge this agent: each case is a test")
    group.addoption(
        "--turnwire-client", metavar="COMMAND", help="judge this client; it starts what {agent} stands for"
    )
    group.addoption("--turnwire-case", action="append", default=[], metavar="ID", help="only these cases, or parts")
    group.addoption(
        "--turnwire-provoke", action="append", default=[], metavar="SCENE=TEXT", help="as turnwire check"
    )
    group.addoption("--turnwire-patience", type=float, default=10.0, metavar="S", help="seconds for an answer")
    group.addoption("--turnwire-strict", action="store_true", help="rules that only should be kept count, too")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Append the cases after the tests of the suite; they can be selected with `-k`."""
    agent, client = config.option.turnwire_agent, config.option.turnwire_client
    for command, of_clients in ((agent, False), (client, True)):
        if command:
            from turnwire.errors import ConfigError

            try:
                items += _items(session, config, command, of_clients)
            except (ConfigError, ValueError) as error:
                raise pytest.UsageError(f"turnwire: {error}") from None


def _items(session: pytest.Session, config: pytest.Config, command: str, of_clients: bool) -> list[pytest.Item]:
    from turnwire_check.catalogue import CASES, CLIENT_CASES, named_cases
    from turnwire_check.judged_command import JudgedCommand

    given: list[str] = config.option.turnwire_provoke
    patience: float = config.option.turnwire_patience
    peer = JudgedCommand(shlex.split(command), of_clients=of_clients, provoke=given, patience_s=patience)
    config.add_cleanup(peer.close)
    strict: bool = config.option.turnwire_strict
    found = named_cases(CLIENT_CASES if of_clients else CASES, config.option.turnwire_case)
    make = cast("Callable[..., CaseItem]", CaseItem.from_parent)  # pyright: ignore[reportUnknownMemberType]
    return [make(session, name=each.id, case=each, judged=peer, strict=strict) for each in found]


class CaseItem(pytest.Item):
    """One case."""

    def __init__(self, *, case: Case, judged: JudgedCommand, strict: bool, **names: Any) -> None:
        super().__init__(**names)  # pyright: ignore[reportUnknownMemberType]
        self._case = case
        self._judged = judged
        self._strict = strict

    def runtest(self) -> None:
        from turnwire.errors import TurnwireError
        from turnwire_check.report import failure_lines, fault_lines

        try:
            outcome = self._judged.judged(self._case)
        except TurnwireError as error:
            pytest.fail(str(error), pytrace=False)
        if outcome.is_fault:
            pytest.fail("\n".join(fault_lines(outcome)), pytrace=False)
        if outcome.verdict == "not_scored":
            pytest.skip(f"not scored: {outcome.words}")
        if outcome.verdict == "unanswered":
            pytest.fail(f"not answered: {outcome.words}", pytrace=False)
        if outcome.verdict == "passed":
            return
        if self._case.severity == "should" and not self._strict:
            pytest.skip(f"should, and does not: {outcome.words}")
        pytest.fail("\n".join(failure_lines(outcome)), pytrace=False)

    def reportinfo(self) -> tuple[str, int | None, str]:
        return "turnwire check", None, f"{self._case.id}: {self._case.rule}"


@pytest.fixture(scope="session")
def turnwire_check() -> Callable[..., Tally]:
    """`turnwire_check("my-agent --flag", cases=["v1.turn"])` judges an agent, and with `client=True` a client."""
    from turnwire_check.catalogue import CASES, CLIENT_CASES, named_cases
    from turnwire_check.judged_command import JudgedCommand
    from turnwire_check.report import Tally

    def check(
        command: str | Sequence[str],
        *,
        cases: Sequence[str] = (),
        client: bool = False,
        provoke: Mapping[str, str] | None = None,
        patience_s: float = 10.0,
        strict: bool = False,
    ) -> Tally:
        words = shlex.split(command) if isinstance(command, str) else list(command)
        given = [f"{scene}={text}" for scene, text in (provoke or {}).items()]
        peer = JudgedCommand(words, of_clients=client, provoke=given, patience_s=patience_s)
        try:
            outcomes = [peer.judged(each) for each in named_cases(CLIENT_CASES if client else CASES, cases)]
            return Tally(outcomes, peer.peer, (), strict)
        finally:
            peer.close()

    return check
