"""Run the command line with any limit: `limited.py serve --limit ring_events=16`.

Most limits are not settings. This program accepts `--limit` for those too and changes their defaults before
anything else runs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from turnwire.limits import Limits
from turnwire.server.settings.declared import LIMITS

PROGRAM = (sys.executable, "-m", "turnwire")
# Without the folder of this file on the path: it has a module `acp`.
LIMITED = (sys.executable, "-P", str(Path(__file__)))
SETTINGS = {each.name.partition(".")[2] for each in LIMITS}


def program_for(words: Sequence[str]) -> tuple[str, ...]:
    """Return the program for these arguments: as users start it if possible."""
    return LIMITED if "--limit" in words else PROGRAM


def apply(words: Sequence[str]) -> list[str]:
    """Change the defaults of limits that are not settings; return the other arguments."""
    defaults: dict[str, Any] = Limits.__init__.__kwdefaults__ or {}
    rest = list(words)
    index = 0
    while index < len(rest) and rest[index] != "--":
        name, _, value = rest[index + 1].partition("=") if rest[index] == "--limit" else ("", "", "")
        if name in defaults and name not in SETTINGS:
            defaults[name] = type(defaults[name])(value)
            del rest[index : index + 2]
        else:
            index += 1
    return rest


if __name__ == "__main__":
    from turnwire.cli.main import main

    sys.argv = ["turnwire", *apply(sys.argv[1:])]
    main()
