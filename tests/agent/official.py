"""The official Python SDK and turnwire in one process, as for an author who adapts an agent.

The name of a peer becomes a command that runs a program with both. The SDK is in a separate environment, so its
packages are added after ours.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.interop.peers import PEERS, ROOT, absent

SITE = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"


def official_python(name: str) -> list[str]:
    """Python with turnwire and this SDK. Skips if the SDK is not there."""
    packages = PEERS / name / SITE
    if not (PEERS / name / ".installed").exists() or not (packages / "acp").exists():
        absent(f"{(PEERS / name).relative_to(ROOT)} is not there for this Python; run: make peers")
    return [sys.executable, str(Path(__file__).parent / "with_sdk.py"), str(packages)]
