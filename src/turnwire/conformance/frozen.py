"""Frozen sets of cases. A set that was published never changes: what is judged under its name stays the same.

A set is a file with the ids of its cases, the digest of each, and one over all. A case that changes after its set
was published gets another id, and goes into the next set. The file also has the digests of the modules that its
cases share: they may be mended, and then the file says that verdicts may have changed with them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from hashlib import sha256
from importlib import resources
from typing import Any

from turnwire.conformance.case import Case, bare
from turnwire.conformance.tape import at

FILES = {
    "acp-v1/2026-11": "acp-v1-2026-11.json",
    "acp-v2-draft/2026-11": "acp-v2-draft-2026-11.json",
    "acp-client/2026-11": "acp-client-2026-11.json",
    "acp-http-draft/1": "acp-http-draft-1.json",
    "rest/1": "rest-1.json",
}
PUBLISHED: Mapping[str, str] = {
    "acp-v1/2026-11": "9565877791d16fe457e16ed350bb371afd1a69dbbab44bf85d45937683dc7cad",
    "acp-v2-draft/2026-11": "ccf52272ba69ac3c55a71479fbcf28b10b07550a70b688a408a4861c3d5ba075",
    "rest/1": "96c67394cc1faf4d73608b441e2ecd70e0e75f55a58297d4c8cac1b080bc9c66",
}
"""Sets that others hold their results against, with their digests: their files are never written again."""


def _read(file: str) -> Any:
    return json.loads((resources.files("turnwire.conformance") / "sets" / file).read_text(encoding="utf-8"))


def digests(name: str) -> dict[str, str]:
    """The cases of a set, each with the digest that it had when the set was frozen."""
    return dict(at(_read(FILES[name]), "cases"))


def digest_of(name: str) -> str:
    """The digest over all cases of a set."""
    return str(at(_read(FILES[name]), "digest"))


SETS: Mapping[str, tuple[str, ...]] = {name: tuple(digests(name)) for name in FILES}
"""The ids of the cases of each set."""


PACKAGE = "turnwire.conformance"
JUDGE = f"{PACKAGE}.run"
"""Says what can be judged at all, for every case."""


def shared_digests(cases: Iterable[Case]) -> dict[str, str]:
    """The modules that these cases are in, and all of ours that those import, each with its digest."""
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


def published(name: str, every: Mapping[str, Case]) -> str:
    """The file of a set that was published: its cases as they were, and what they share now."""
    listed = digests(name)
    return _file(name, listed, shared_digests(every[each] for each in listed if each in every))


def _file(name: str, listed: Mapping[str, str], shared: Mapping[str, str]) -> str:
    whole = sha256(json.dumps(listed).encode()).hexdigest()
    return json.dumps({"set": name, "digest": whole, "cases": listed, "shared": shared}, indent=1) + "\n"
