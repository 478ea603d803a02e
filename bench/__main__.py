"""All measurements, in one run."""

from __future__ import annotations

import argparse

from bench import acp_turn, daemon, first_start, loop, page, stdio


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--updates", type=int, default=200_000, help="updates per measurement")
    loop.main(parser.parse_args().updates)
    print()
    stdio.main()
    print()
    daemon.main()
    print()
    acp_turn.main()
    print()
    page.main()
    print()
    first_start.main()


main()
