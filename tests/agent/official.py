"""The official Python SDK beside turnwire in one process, as an author has it who adapts an agent.

Takes the name of a peer; gives a command that runs a program with both. The SDK is in an environment of its own, so
its packages are added behind ours.
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
