"""`python tee.py FILE COMMAND…`: run an agent and record every line that passes, with its direction.

It runs in the agent's place and knows nothing of ACP. The first line of each process is `pid N`; then `> ` marks
input of the agent and `< ` its output. It ends when the agent does, with its exit code.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import IO

LAST_WORDS_S = 2.0
"""Timeout for forwarding output that the agent wrote before its end."""


def copy(source: IO[bytes], target: IO[bytes], mark: bytes, record: IO[bytes]) -> None:
    try:
        for line in source:
            record.write(mark + line)
            target.write(line)
            target.flush()
    except OSError:
        return  # one side is gone; its end is what matters
    finally:
        if target is not sys.stdout.buffer:
            target.close()


def main(file: str, command: list[str]) -> int:
    # Unbuffered and appending, so that each line is one write, and a kill loses no line.
    with (
        open(file, "ab", buffering=0) as record,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as agent,
    ):
        assert agent.stdin is not None
        assert agent.stdout is not None
        record.write(f"pid {agent.pid}\n".encode())
        threading.Thread(target=copy, args=(sys.stdin.buffer, agent.stdin, b"> ", record), daemon=True).start()
        out = threading.Thread(target=copy, args=(agent.stdout, sys.stdout.buffer, b"< ", record), daemon=True)
        out.start()
        code = agent.wait()
        out.join(LAST_WORDS_S)
        # Exit without returning: closing the pipes would wait for other processes that hold them.
        os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
