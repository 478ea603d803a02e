"""Runs a program with further packages after ours: the folder of packages, the program, its arguments."""

from __future__ import annotations

import runpy
import sys

sys.path.append(sys.argv[1])
del sys.argv[:2]
runpy.run_path(sys.argv[0], run_name="__main__")
