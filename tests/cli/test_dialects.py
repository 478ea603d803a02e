"""`turnwire dialects`: the list of differences lost between the versions."""

from __future__ import annotations

from pathlib import Path

from tests.cli.rig import run

from turnwire.projections.translate.losses import LOSSES


def test_every_loss_is_listed_with_what_comes_instead(tmp_path: Path) -> None:
    shown = run("dialects", home=tmp_path)

    assert shown.code == 0
    assert [line.split("\t") for line in shown.out.splitlines()] == [
        [loss.direction, loss.code, loss.what, loss.instead] for loss in LOSSES
    ]


def test_programs_get_one_object_for_each(tmp_path: Path) -> None:
    listed = run("dialects", "--json", home=tmp_path).lines

    assert [each["code"] for each in listed] == [loss.code for loss in LOSSES]
    assert set(listed[0]) == {"code", "direction", "what", "instead"}
