"""Write what follows from the cases of `turnwire check`: the files of the sets, the list in the docs, the map.

`docs/conformance-cases.md` lists every case with its rule; `docs/schema/conformance.json` maps each rule of the
checklists to its cases, or to the reason why it has none. `--check` writes nothing and fails when a file is not
what the cases say. Of a set that was published only the digests of what its cases share are written again.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from pages import keep, table
from turnwire.conformance import catalogue, frozen

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
SETS = ROOT / "src" / "turnwire" / "conformance" / "sets"
CASES = ROOT / "src" / "turnwire" / "conformance" / "catalogue.py"

HEAD = """\
# The cases of `turnwire check`

Written by `scripts/write_conformance.py` from the cases themselves. What they are for is in
[conformance.md](conformance.md); the numbers are those of [checklists.md](checklists.md) and
[requirements.md](requirements.md).
"""


def page() -> str:
    """Every case, a table for each part."""
    parts: dict[str, list[list[str]]] = {}
    for case in catalogue.EVERY.values():
        part, _, _ = case.id.rpartition(".")
        judged = ", ".join(filter(None, [case.capability and f"`{case.capability}`", *case.scenes]))
        cells = [f"`{case.id}`", case.severity, case.rule, case.source, ", ".join(case.numbers), judged]
        parts.setdefault(part, []).append(cells)
    lines = [HEAD]
    for part, rows in parts.items():
        lines += table(part, ["case", "severity", "rule", "source", "numbers", "needs"], rows)
    return "\n".join(lines) + "\n"


def rule_map() -> str:
    """Rule → its cases; where a rule that binds agents or clients has none, `why` says so."""
    listed = msgspec.toml.decode((DOCS / "checklists.toml").read_bytes())
    rules: dict[str, dict[str, Any]] = {
        f"v{group['version']} {item['number']}": {"cases": [], **_why(item)}
        for group in listed["group"]
        for item in group["item"]
        if item["side"] in ("agent", "client", "both")
    }
    for case in catalogue.EVERY.values():
        for number in case.numbers:
            rules.setdefault(number, {"cases": []})["cases"].append(case.id)
    return json.dumps(rules, indent=1) + "\n"


def _why(item: dict[str, str]) -> dict[str, str]:
    return {"why": item["unjudged"]} if "unjudged" in item else {}


def main(arguments: list[str]) -> int:
    codes = [
        keep(sys.argv[0], arguments, DOCS / "conformance-cases.md", CASES, page()),
        keep(sys.argv[0], arguments, DOCS / "schema" / "conformance.json", CASES, rule_map()),
    ]
    for name, file in frozen.FILES.items():
        is_published = name in frozen.PUBLISHED
        text = (
            frozen.published(name, catalogue.EVERY) if is_published else frozen.frozen(name, catalogue.of_set(name))
        )
        codes.append(keep(sys.argv[0], arguments, SETS / file, CASES, text))
    return max(codes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
