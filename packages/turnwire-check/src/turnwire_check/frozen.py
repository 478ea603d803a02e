"""Frozen sets of cases. A published set never changes: the rules checked under its name stay the same.

A set is a file with the ids of its cases, the digest of each, and one over all. A case that changes after its set
was published gets another id, and goes into the next set. The file also has the digests of the modules that its
cases share: these may be fixed, and then the file shows that verdicts may have changed with them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from hashlib import sha256
from importlib import resources
from typing import Any

from turnwire_check.case import Case, bare
from turnwire_check.tape import at

FILES = {
    "acp-v1/2026-11": "acp-v1-2026-11.json",
    "acp-v2-draft/2026-11": "acp-v2-draft-2026-11.json",
    "acp-client/2026-11": "acp-client-2026-11.json",
    "acp-http-draft/1": "acp-http-draft-1.json",
    "rest/1": "rest-1.json",
}


def _read(file: str) -> Any:
    return json.loads((resources.files("turnwire_check") / "sets" / file).read_text(encoding="utf-8"))


def digests(name: str) -> dict[str, str]:
    """The cases of a set, each with the digest that it had when the set was frozen."""
    return dict(at(_read(FILES[name]), "cases"))


def digest_of(name: str) -> str:
    """The digest over all cases of a set."""
    return str(at(_read(FILES[name]), "digest"))


SETS: Mapping[str, tuple[str, ...]] = {name: tuple(digests(name)) for name in FILES}
"""The ids of the cases of each set."""


PACKAGE = "turnwire_check"
JUDGE = f"{PACKAGE}.run"
"""The module that decides, for every case, if it can be checked at all."""


def shared_digests(cases: Iterable[Case]) -> dict[str, str]:
    """Return the modules of these cases and all our modules that those import, each with its digest."""
    found: dict[str, str] = {}
    left = sorted({JUDGE, *(case.judge.__module__ for case in cases)})
    while left:
        name = left.pop()
        if name in found or not name.startswith(f"{PACKAGE}."):
            continue
        source = _source(name)
        found[name] = sha256(bare(source).encode()).hexdigest()[:16]
        left += re.findall(r"^from (\S+) import", source, re.MULTILINE)
        left += [
            f"{PACKAGE}.{each}" for each in re.findall(rf"^from {PACKAGE} import (\w+)$", source, re.MULTILINE)
        ]
    return dict(sorted(found.items()))


def _source(module: str) -> str:
    *folders, name = module.removeprefix(f"{PACKAGE}.").split(".")
    return resources.files(PACKAGE).joinpath(*folders, f"{name}.py").read_text(encoding="utf-8")


def frozen(name: str, cases: Iterable[Case]) -> str:
    """The file of a set."""
    chosen = list(cases)
    return _file(name, {case.id: case.digest() for case in chosen}, shared_digests(chosen))


def _file(name: str, listed: Mapping[str, str], shared: Mapping[str, str]) -> str:
    whole = sha256(json.dumps(listed).encode()).hexdigest()
    return json.dumps({"set": name, "digest": whole, "cases": listed, "shared": shared}, indent=1) + "\n"
