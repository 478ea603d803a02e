"""What a client program prints about itself: one line of JSON. Needs nothing but the standard library."""

from __future__ import annotations

import json
import re
import resource
import sys
import time
from pathlib import Path


class Measure:
    """From the prompt to the moment when everything was heard."""

    def __init__(self) -> None:
        self._begun = time.perf_counter()
        self._cpu = time.process_time()

    def report(self, heard: int) -> None:
        """Print messages, seconds, CPU seconds of this process, and the most memory it ever had."""
        seconds, cpu = time.perf_counter() - self._begun, time.process_time() - self._cpu
        numbers = {"heard": heard, "seconds": seconds, "cpu": cpu, "rss_mb": peak_mb()}
        print(json.dumps(numbers), flush=True)


def peak_mb() -> float:
    """The peak of this program alone. `getrusage` would count the parent it was forked from, too."""
    status = Path("/proc/self/status")
    found = re.search(r"VmHWM:\s+(\d+)", status.read_text()) if status.exists() else None
    if found:
        return int(found[1]) / 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024 * 1024 if sys.platform == "darwin" else 1024)
