"""Write the files of the frozen sets of `turnwire check` from its cases.

`--check` writes nothing and fails when a file is out of date.
"""

from __future__ import annotations

import sys
from pathlib import Path

from turnwire_check import catalogue, frozen

SETS = Path(__file__).resolve().parents[1] / "packages" / "turnwire-check" / "src" / "turnwire_check" / "sets"


def main(arguments: list[str]) -> int:
    is_check = arguments == ["--check"]
    stale: list[str] = []
    for name, file in frozen.FILES.items():
        text = frozen.frozen(name, catalogue.of_set(name))
        if (SETS / file).read_text(encoding="utf-8") != text:
            stale.append(file)
            if not is_check:
                (SETS / file).write_text(text, encoding="utf-8")
    if stale and is_check:
        print(f"Out of date: {', '.join(stale)}. Run: make fix", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
