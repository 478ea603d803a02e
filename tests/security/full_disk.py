"""A disk that rejects writes of credentials."""

from __future__ import annotations

import errno
from typing import NoReturn

import pytest

from turnwire.server.access import token_file


class FullDisk:
    """No new file can be written; `overwrites` is True if existing files accept other bytes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, overwrites: bool) -> None:
        self._patched = monkeypatch
        monkeypatch.setattr(token_file.tempfile, "mkstemp", self._refuse)
        if not overwrites:
            monkeypatch.setattr(token_file, "overwrite_records", self._refuse)

    def make_room(self) -> None:
        self._patched.undo()

    @staticmethod
    def _refuse(*args: object, **options: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "no room")
