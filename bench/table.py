"""The table of a measurement: a row for each quantity, a column for each target."""

from __future__ import annotations

from bench.phases import Found

WIDTH = 52
COLUMN = 22


def is_rate(row: str) -> bool:
    """Return True if more is better."""
    return row.endswith("/s")


def shown(row: str, value: float | str | None) -> str:
    if value is None or isinstance(value, str):
        return value or "-"
    return f"{value:,.0f}" if is_rate(row) or value >= 100 else f"{value:.2f}"


class Table:
    """All numbers of one run; of several for one cell the best counts."""

    def __init__(self) -> None:
        self._columns: list[str] = []
        self._cells: dict[str, dict[str, float | str]] = {}

    def add(self, column: str, found: Found) -> None:
        if column not in self._columns:
            self._columns.append(column)
        for row, value in found.items():
            cells = self._cells.setdefault(row, {})
            kept = cells.get(column)
            if isinstance(kept, float) and isinstance(value, float):
                value = max(kept, value) if is_rate(row) else min(kept, value)
            cells[column] = value if kept is None or isinstance(value, float) else kept

    def show(self) -> None:
        """Print it, with how many times better the first column is than each other."""
        ours, *others = self._columns
        print(f"{'':{WIDTH}}" + "".join(f"{each:>{COLUMN}}" for each in self._columns))
        for row, cells in self._cells.items():
            values = "".join(f"{shown(row, cells.get(column)):>{COLUMN}}" for column in self._columns)
            ratios: list[str] = []
            for column in others:
                our, their = cells.get(ours), cells.get(column)
                if isinstance(our, float) and isinstance(their, float) and our and their:
                    ratios.append(f"{(our / their if is_rate(row) else their / our):.2g} x {column.split()[0]}")
            print(f"{row:{WIDTH}}{values}    {', '.join(ratios)}".rstrip())
