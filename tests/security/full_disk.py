"""A disk that does not take what the credentials are written to."""

from __future__ import annotations

import errno
from typing import NoReturn

import pytest

from turnwire.server.access import tokens


class FullDisk:
    """No new file can be written; `overwrites` says whether old ones take other bytes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, overwrites: bool) -> None:
        self._patched = monkeypatch
        monkeypatch.setattr(tokens.tempfile, "mkstemp", self._refuse)
        if not overwrites:
            monkeypatch.setattr(tokens, "overwrite_records", self._refuse)

    def make_room(self) -> None:
        self._patched.undo()

    @staticmethod
    def _refuse(*args: object, **options: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "no room")
