"""The directories that the daemon offers, with a short name for each.

Takes the roots that the operator named; gives ids that stay the same over restarts. Never looks at the file system.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path


def workspace_id(cwd: str) -> str:
    """The name of a directory in URLs."""
    return hashlib.sha256(cwd.encode()).hexdigest()[:16]


def workspace_of(roots: Sequence[Path], name: str) -> str | None:
    """The directory that is meant by an id; none if there is no such."""
    paths = (str(root.absolute()) for root in roots)
    return next((each for each in paths if workspace_id(each) == name), None)
