"""Measure turnwire and its peers: `python -m bench [PHASE…]`. Without names all phases and the page are measured.

All daemons host the same agent (`bench/peers/daemon_agent.py`), are measured by the same client, alternate and
never run at the same time. Compare numbers within one run only.
"""

from __future__ import annotations

import sys

from bench.phases import PHASES, chosen
from bench.table import Table
from bench.targets import TURNWIRE


def main(wanted: list[str]) -> None:
    table, missing = Table(), dict[str, None]()
    for phase in chosen(wanted or [each.name for each in PHASES]):
        present = [TURNWIRE, *(each for each in phase.peers if each.missing is None)]
        missing |= dict.fromkeys(each.missing for each in phase.peers if each.missing is not None)
        for _ in range(phase.rounds):
            for target in present:
                table.add(target.name, phase.run(target))
    table.show()
    print(*missing, sep="\n")
    if not wanted:
        from bench import page

        page.main()


if __name__ == "__main__":
    main(sys.argv[1:])
