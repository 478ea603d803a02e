"""How a command on the daemon's own machine gets in: a token of its own, in a file for the same user alone.

The daemon keeps it in its data folder, commands read it there. A file that others may read is refused: what it held
is not a secret any more. It stands apart from `turnwire.cli.reach` because a daemon needs no client.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from turnwire.errors import ConfigError, TurnwireError
from turnwire.server.access.identity import Role
from turnwire.server.access.tokens import OTHERS, Tokens, write_private

TOKEN_FILE = "cli-token"
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


def read_token(path: Path) -> str | None:
    """The token in a file; none if there is no file.

    Raises:
        ConfigError: Others may read it, it cannot be read, or it holds no token.
    """
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_mode & OTHERS:
                raise ConfigError(
                    f"others may read {path}, which holds a token; close it to them: chmod 600 {path}"
                )
            content = file.read(4096)
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        raise ConfigError(
            f"{path.parent} is no folder, so {path.name} is not in it; give the right folder"
        ) from None
    except OSError as error:
        raise ConfigError(f"cannot read {path} ({type(error).__name__}); check its permissions") from None
    token = content.decode("ascii", "replace").strip()
    if not token or not all("!" <= each <= "~" for each in token):
        raise ConfigError(f"{path} holds no token; write one into it, and nothing else")
    return token
