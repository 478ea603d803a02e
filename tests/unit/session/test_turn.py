"""The turn's table, pair by pair: allowed steps lead to the stated state, all others are rejected."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from tests.unit.session.driving import SAMPLES

from turnwire.errors import LocalProtocolError
from turnwire.session.events import Event, PermissionRequested, PermissionResolved, SessionUpdated, TurnEvent
from turnwire.session.turn import ACTIVE, NEXT, TERMINAL, TurnState, step

ROOT = Path(__file__).resolve().parents[3]
KINDS: list[type[Event]] = [type(each) for each in SAMPLES]


@pytest.mark.parametrize("state", TurnState)
def test_every_pair_follows_the_table_or_is_refused(state: TurnState) -> None:
    for kind in KINDS:
        if kind in NEXT[state]:
            assert step(state, kind) is NEXT[state][kind]
            continue
        with pytest.raises(LocalProtocolError) as refusal:
            step(state, kind)
        assert refusal.value.context == {"state": state.value, "event": kind.__name__}


def test_the_table_has_a_row_for_every_state() -> None:
    assert set(NEXT) == set(TurnState)


def test_every_event_about_a_turn_is_legal_somewhere_and_no_other_event_is() -> None:
    may_name_a_turn = {PermissionRequested, PermissionResolved, SessionUpdated}
    about_turns = {kind for kind in KINDS if issubclass(kind, TurnEvent)} | may_name_a_turn
    assert {kind for row in NEXT.values() for kind in row} == about_turns


def test_an_ended_turn_takes_nothing() -> None:
    assert NEXT[TurnState.ENDED] == {}


def test_only_the_two_ends_lead_to_ended() -> None:
    ways = {kind for row in NEXT.values() for kind, after in row.items() if after is TurnState.ENDED}
    assert ways == TERMINAL


def test_every_begun_turn_can_end_in_one_step() -> None:
    unended = set(TurnState) - {TurnState.NEW, TurnState.ENDED}
    assert all(step(state, end) is TurnState.ENDED for state in unended for end in TERMINAL)


def test_nothing_leads_back_to_new_and_nothing_leaves_cancelling_but_an_end() -> None:
    assert TurnState.NEW not in {after for row in NEXT.values() for after in row.values()}
    assert set(NEXT[TurnState.CANCELLING].values()) == {TurnState.CANCELLING, TurnState.ENDED}


def test_a_joined_turn_never_becomes_active() -> None:
    assert not set(NEXT[TurnState.JOINED].values()) & ACTIVE


def drawing() -> ModuleType:
    """`scripts/draw_turn.py`, which is no package."""
    spec = importlib.util.spec_from_file_location("draw_turn", ROOT / "scripts" / "draw_turn.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_drawing_in_the_docs_is_fresh() -> None:
    assert drawing().main(["--check"]) == 0


def test_a_stale_drawing_is_refused_with_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = drawing()
    page = tmp_path / "turn.md"
    monkeypatch.setattr(module, "PAGE", page)
    assert module.main(["--check"]) == 1
    assert "make fix" in capsys.readouterr().err
    assert module.main([]) == 0
    page.write_text(page.read_text(encoding="utf-8") + "by hand\n", encoding="utf-8")
    assert module.main(["--check"]) == 1


def test_the_drawing_shows_every_row_of_the_table_and_every_invariant() -> None:
    page = (ROOT / "docs" / "turn.md").read_text(encoding="utf-8")
    for state, row in NEXT.items():
        for kind, after in row.items():
            assert f"| `{state.value}` | `{kind.__struct_config__.tag}` | `{after.value}` |" in page
    assert all(f"- **I{number}** " in page for number in range(1, 8))
    missing = [kind for kind in KINDS if f"`{kind.__struct_config__.tag}`" not in page]
    assert missing == []
