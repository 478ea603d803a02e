"""An agent on the official SDK that is adapted. Its argument is the folder of its sessions. Runs as a program.

It is the agent of `tests/interop/agents/py_v1.py`, unchanged.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from turnwire_agent.adapter import adapt

WORDS = Path(__file__).parents[3] / "tests" / "interop" / "agents" / "py_v1.py"

if __name__ == "__main__":
    made = runpy.run_path(str(WORDS), run_name="words")
    adapt(made["Agent"](Path(sys.argv[1]))).run()
