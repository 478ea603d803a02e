"""How a command on the daemon's own machine gets in: a token of its own, in a file for the same user alone.

The daemon keeps it in its data folder, commands and programs read it there (`turnwire.link.local_daemon`).
It stands apart from `turnwire.cli.reach` because a daemon needs no client.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from turnwire.errors import TurnwireError
from turnwire.link.local_daemon import TOKEN_FILE, read_token
from turnwire.server.access.identity import Role
from turnwire.server.access.tokens import Tokens, write_private

TOKEN_NAME = "cli"
"""The author of what the command line does, as the log tells it."""


def keep_token(data: Path, tokens: Tokens) -> None:
    """See that the file holds a token that is valid; an old one that still is stays."""
    path = data / TOKEN_FILE
    with contextlib.suppress(TurnwireError):
        known = read_token(path)
        identity = None if known is None else tokens.check(known)
        if identity is not None and identity.role is Role.OWNER:
            return
    _, secret = tokens.issue(TOKEN_NAME, Role.OWNER)
    write_private(path, f"{secret}\n".encode())
