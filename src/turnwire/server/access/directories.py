"""Which directories a session may work in, and the short names of those that the daemon offers.

A path of a client counts by its true path. A link that leads out of the operator's roots is refused, and so is
everything outside, in the same words whether it exists or not. The checks block: call them in a worker thread.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from turnwire.errors import Forbidden, InvalidCwd, RequestRefused
from turnwire.runtime.services.refusals import CLOSED
from turnwire.runtime.services.roots import Roots

OUTSIDE, ROOT_MISSING = "outside_roots", "root_missing"


def check_cwd(cwd: str, roots: Sequence[Path], what: str = "cwd") -> str:
    """The true path of `cwd`, which errors call `what`.

    Raises:
        InvalidCwd: It is not absolute, missing, or no directory.
        Forbidden: It is not inside one of `roots`, or one of those is gone.
    """
    if not roots:
        raise _outside(what, roots)
    first, *others = (str(root.absolute()) for root in roots)
    try:
        return Roots(first, others).directory(cwd)
    except RequestRefused as refused:
        if refused.reason == OUTSIDE:
            raise _outside(what, roots) from None
        if refused.reason == CLOSED:
            raise Forbidden(f"{what} is inside turnwire's own data; choose another directory") from None
        if refused.reason == ROOT_MISSING:
            raise Forbidden(
                "an allowed directory is gone; make it again, or restart the daemon without it"
            ) from None
        raise InvalidCwd(
            f"{what} must be the absolute path of a directory that exists; check it, or make the directory first",
            reason=refused.reason,
        ) from None


def check_directories(paths: Sequence[str], roots: Sequence[Path]) -> tuple[str, ...]:
    """The true paths of further directories of a session. Raises as `check_cwd` does."""
    return tuple(check_cwd(each, roots, "an additional directory") for each in paths)


def _outside(what: str, roots: Sequence[Path]) -> Forbidden:
    # Who comes so far may ask `GET /capabilities` for the same names.
    allowed = ", ".join(str(each.absolute()) for each in roots) or "none"
    return Forbidden(
        f"{what} is outside the allowed directories: {allowed}; choose one inside them, or start the daemon with"
        f" `--cwd DIR` for it, once for each directory"
    )


def workspace_id(cwd: str) -> str:
    """The name of a directory in URLs."""
    return hashlib.sha256(cwd.encode()).hexdigest()[:16]


def workspace_of(roots: Sequence[Path], name: str) -> str | None:
    """The directory that is meant by an id; none if there is no such."""
    paths = (str(root.absolute()) for root in roots)
    return next((each for each in paths if workspace_id(each) == name), None)
