"""A file that is written whole or not at all.

Takes a path of the user's; gives a file to write to. What was at the path stays until all of the new content is
there. A link stays one: what it leads to is written. Something that is no regular file, such as a pipe, is written
to as it is. Never removes a file that it did not make.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def whole_file(path: str) -> Generator[BinaryIO]:
    """A file that is at `path` once the block has ended without an error. Raises `OSError` with the user's path."""
    mode = _mode(path)
    if mode is not None and not stat.S_ISREG(mode):
        with open(path, "wb") as direct:
            yield direct
        return
    target = Path(os.path.realpath(path))
    # In the same folder, so that it can take the target's place in one step.
    unfinished = target.with_name(f".turnwire-{secrets.token_hex(8)}.part")
    try:
        file = unfinished.open("xb")
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None
    try:
        with file:
            if mode is not None:
                os.fchmod(file.fileno(), stat.S_IMODE(mode))
            yield file
        unfinished.replace(target)
    except BaseException as error:
        unfinished.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename in (None, str(unfinished)):
            raise OSError(error.errno, error.strerror, path) from None
        raise


def _mode(path: str) -> int | None:
    try:
        return os.stat(path).st_mode
    except FileNotFoundError:
        return None
