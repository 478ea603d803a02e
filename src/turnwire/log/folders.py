"""Folders that survive a power cut.

A new file, folder, rename or removal is durable only when the folder that has the name was synced; syncing the file
is not enough.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def make_folders(path: Path) -> None:
    """Create `path` and its missing parents, for their owner only, and make them durable. Raises `OSError`."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    # `mkdir(parents=True)` applies the mode to the last folder only.
    for folder in reversed(missing):
        # Another process may create it at the same time.
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            # A parent that may be written but not read cannot be synced.
            with suppress(PermissionError):
                sync_folder(folder.parent)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable. Raises `OSError`."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
