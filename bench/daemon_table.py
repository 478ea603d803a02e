"""What was measured, as one table: a row for each quantity, a column for each daemon, and how ours compares.

Takes numbers as they come, several for the same place; keeps the best one. A row that ends with `/s` is better when
it is more, any other when it is less. A measurement that could not be made leaves a word instead.
"""

from __future__ import annotations

from collections.abc import Mapping

Found = Mapping[str, float | str]
"""Rows by name."""
WIDTH = 50
COLUMN = 20


def is_rate(row: str) -> bool:
    return row.endswith("/s")


class Table:
    """All that was measured in one run."""

    def __init__(self, columns: list[str], *, but: str) -> None:
        """The first column is ours. It is compared with all others `but` one, which is ours, too."""
        self._columns = columns
        self._compared = [each for each in columns[1:] if each != but]
        self._cells: dict[str, dict[str, float | str]] = {}

    def take(self, column: str, found: Found) -> None:
        for row, value in found.items():
            cells = self._cells.setdefault(row, {})
            cells[column] = _better(row, cells.get(column), value)

    def show(self) -> None:
        ours = self._columns[0]
        head = "".join(f"{column:>{COLUMN}}" for column in self._columns)
        print(f"{'':{WIDTH}}{head}{'':4}{ours} is better than")
        for row, cells in self._cells.items():
            values = "".join(f"{shown(row, cells.get(column)):>{COLUMN}}" for column in self._columns)
            ratios = [_ratio(row, cells.get(ours), cells.get(column), column) for column in self._compared]
            print(f"{row:{WIDTH}}{values}{'':4}{', '.join(each for each in ratios if each)}")


def _better(row: str, kept: float | str | None, value: float | str) -> float | str:
    if kept is None or isinstance(kept, str):
        return value
    if isinstance(value, str):
        return kept
    return max(kept, value) if is_rate(row) else min(kept, value)


def shown(row: str, value: float | str | None) -> str:
    """A value as the table has it."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if is_rate(row) or value >= 100 else f"{value:.2f}"


def _ratio(row: str, ours: float | str | None, theirs: float | str | None, name: str) -> str:
    if not isinstance(ours, float) or not isinstance(theirs, float) or not ours or not theirs:
        return ""
    times = ours / theirs if is_rate(row) else theirs / ours
    return f"{name.split()[0]} {times:.2g} x"
