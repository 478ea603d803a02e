"""Error messages for an agent that cannot have a file or a terminal.

Each has a code, a stable reason and a sentence with the remedy. None repeats the text of a foreign exception or
reveals anything outside the roots.
"""

from __future__ import annotations

import errno
import os
from urllib.parse import quote

from turnwire.errors import RequestRefused
from turnwire.wire.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS, REQUEST_CANCELLED, RESOURCE_NOT_FOUND

CLOSED = "closed_directory"

_BY_ERRNO = {
    errno.EACCES: (INVALID_PARAMS, "not_permitted", "the system does not permit it; check the file's permissions"),
    errno.EPERM: (INVALID_PARAMS, "not_permitted", "the system does not permit it; check the file's permissions"),
    errno.EROFS: (INVALID_PARAMS, "not_permitted", "the file system is read-only; write somewhere else"),
    errno.ENOTDIR: (
        INVALID_PARAMS,
        "not_a_directory",
        "the path leads through a file; name a path below directories",
    ),
    errno.ELOOP: (INVALID_PARAMS, "changed", "the path was changed while it was opened; try again"),
    errno.ENAMETOOLONG: (INVALID_PARAMS, "name_too_long", "a name in the path is too long; use a shorter one"),
    errno.EISDIR: (INVALID_PARAMS, "not_a_file", "the path names a directory; name a file"),
    errno.ENOSPC: (INTERNAL_ERROR, "disk_full", "the disk is full; make room and try again"),
    errno.EDQUOT: (INTERNAL_ERROR, "disk_full", "the disk quota is used up; make room and try again"),
}


def invalid(message: str, reason: str) -> RequestRefused:
    """Return the error for an invalid request; the same one would fail again."""
    return RequestRefused(message, jsonrpc=INVALID_PARAMS, reason=reason)


def outside() -> RequestRefused:
    return invalid(
        "the path is outside the session's directories; use one below its cwd or additionalDirectories",
        "outside_roots",
    )


def closed_directory() -> RequestRefused:
    return invalid("the path leads into turnwire's own data, which no agent is given", CLOSED)


def not_a_file() -> RequestRefused:
    return invalid("the path names no regular file; directories, pipes and devices are not opened", "not_a_file")


def not_found(path: str) -> RequestRefused:
    """Return the error for a missing file. `path` is the agent's spelling: the error reveals nothing else."""
    return RequestRefused(
        "there is no such file; check the path",
        jsonrpc=RESOURCE_NOT_FOUND,
        reason="not_found",
        data={"uri": f"file://{quote(os.fsencode(path))}"},
    )


def unknown_terminal() -> RequestRefused:
    return RequestRefused(
        "there is no such terminal; it was released, or never created in this session",
        jsonrpc=RESOURCE_NOT_FOUND,
        reason="unknown_terminal",
    )


def failed(reason: str, message: str) -> RequestRefused:
    """Return the error for a failure on our side; the same request may succeed later."""
    return RequestRefused(message, jsonrpc=INTERNAL_ERROR, reason=reason)


def closed() -> RequestRefused:
    return RequestRefused(
        "the session is closing; nothing more is served", jsonrpc=REQUEST_CANCELLED, reason="closed"
    )


def from_os(error: OSError, path: str) -> RequestRefused:
    """Return the error for a system error about a path of the agent."""
    number = error.errno or 0
    if number == errno.ENOENT:
        return not_found(path)
    name = errno.errorcode.get(number, "EIO")
    fallback = (INTERNAL_ERROR, "io_error", f"the system could not do it ({name}); try again")
    code, reason, message = _BY_ERRNO.get(number, fallback)
    return RequestRefused(message, jsonrpc=code, reason=reason)
