"""Draw `docs/turn.md` from the turn's table and the invariants above it.

The input is `NEXT` and the docstring of `turnwire.session.turn`; the output is a diagram, the table, the invariants
and the list of stored events. `--check` writes nothing and fails when the page differs from the code. Every fact on
the page is in the code.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from turnwire.session import events, turn
from turnwire.session.events import Event, TerminalEvent, TurnEvent
from turnwire.session.turn import ACTIVE, NEXT, TERMINAL, TurnState

PAGE = Path(__file__).resolve().parents[1] / "docs" / "turn.md"
SOURCE = "src/turnwire/session/turn.py"

HEAD = f"""\
# The turn

Drawn by `scripts/draw_turn.py` from the table `NEXT` in `{SOURCE}`; edit that file, then run `make fix`.
The words are explained in [glossary.md](glossary.md).

A turn takes an event only if the table has it. Everything else is refused before it is stored, live and in
recovery alike.
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD, _diagram(), _table(), _invariants(), _catalogue()]
    return "\n".join(parts)


def _diagram() -> str:
    """Return the table as a state diagram. Events that do not change the state are in the table only."""
    lines = ["## Diagram", "", "```mermaid", "stateDiagram-v2"]
    for state, row in NEXT.items():
        ways: dict[TurnState, list[str]] = {}
        for kind, after in row.items():
            if after is not state:
                ways.setdefault(after, []).append(_type(kind))
        lines += [f"    {_node(state)} --> {after}: {', '.join(kinds)}" for after, kinds in ways.items()]
    lines += [f"    {state} --> [*]" for state, row in NEXT.items() if not row]
    active = ", ".join(f"`{state}`" for state in TurnState if state in ACTIVE)
    ends = " and ".join(f"`{_type(kind)}`" for kind in sorted(TERMINAL, key=_type))
    return "\n".join(
        [
            *lines,
            "```",
            "",
            f"Active are {active}: the agent works on the turn. The ends are {ends}.",
            "Events that leave a turn in its state are in the table only.",
            "",
        ]
    )


def _node(state: TurnState) -> str:
    return "[*]" if state is TurnState.NEW else state.value


def _table() -> str:
    rows = [
        f"| `{state}` | `{_type(kind)}` | `{after}` |" for state, row in NEXT.items() for kind, after in row.items()
    ]
    return "\n".join(["## Table", "", "| state | event | next state |", "| --- | --- | --- |", *rows, ""])


def _invariants() -> str:
    """The paragraphs `I1` to `In` of the docstring, one item each."""
    text = inspect.cleandoc(turn.__doc__ or "")
    found = re.findall(r"^ {4}(I\d+) +(.+(?:\n {8}.+)*)", text, flags=re.MULTILINE)
    items = [f"- **{number}** {' '.join(sentence.split())}" for number, sentence in found]
    return "\n".join(["## Invariants", "", *items, ""])


def _catalogue() -> str:
    """Every stored event by its type, and whether it is about a turn."""
    legal = {kind for row in NEXT.values() for kind in row}
    rows = [f"| `{_type(kind)}` | `{kind.__name__}` | {_about(kind, legal)} |" for kind in _kinds()]
    return "\n".join(["## Events", "", "| type | event | about |", "| --- | --- | --- |", *rows, ""])


def _about(kind: type[Event], legal: set[type[Event]]) -> str:
    if issubclass(kind, TurnEvent):
        return "a turn"
    return "the session, or a turn if it names one" if kind in legal else "the session"


def _kinds() -> Iterator[type[Event]]:
    """The event classes in the order in which they are written."""
    for each in vars(events).values():
        if isinstance(each, type) and issubclass(each, Event) and each not in (Event, TurnEvent, TerminalEvent):
            yield each


def _type(kind: type[Event]) -> str:
    return str(kind.__struct_config__.tag)


def main(arguments: list[str]) -> int:
    """Write the page, or with `--check` report whether it is current."""
    if arguments not in ([], ["--check"]):
        print(f"usage: {Path(__file__).name} [--check]", file=sys.stderr)
        return 64
    drawn = page()
    if not arguments:
        PAGE.write_text(drawn, encoding="utf-8")
        return 0
    if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == drawn:
        return 0
    print(f"{PAGE.name} is not what {SOURCE} says; run: make fix", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
