"""The child program of the daemon's kill test: forks daemons, so that one costs no imports.

It reads orders on standard input, one line each: the arguments of `turnwire`, a file for standard error, and
whether to start the program as a user would. The fork runs the product's unmodified command line. It reports the id
of each process, and, on the order to reap it, its exit status; the daemon's own line comes in between, on the same
output.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from typing import NamedTuple, NoReturn

from tests.support.limited import LIMITED, apply


class Start(NamedTuple):
    """One daemon to start."""

    arguments: list[str]
    errors: str
    """File of its standard error, which is appended to."""
    cold: bool = False
    """True to start it as a separate program, without a fork."""

    def line(self) -> bytes:
        return json.dumps(self).encode() + b"\n"


def say(**what: int) -> None:
    """Report to the test, on a separate line, after any half line of the daemon."""
    os.write(1, f"\n{json.dumps(what)}\n".encode())


def become_daemon(start: Start) -> NoReturn:
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    errors = os.open(start.errors, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(errors, 2)
    if start.cold:
        os.execv(sys.executable, [*LIMITED, *start.arguments])
    from turnwire.cli.main import main

    sys.argv = ["turnwire", *apply(start.arguments)]
    code: object = 70
    try:
        main()
    except SystemExit as leaving:
        code = leaving.code
    finally:
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 70)


def serve() -> None:
    # A daemon's startup imports are done before the first fork.
    import_module("turnwire.cli.serve")
    import_module("turnwire.cli.daemon")
    for line in sys.stdin.buffer:
        pid = os.fork()
        if not pid:
            become_daemon(Start(*json.loads(line)))
        say(forked=pid)
        # A process retains its id until it is reaped, so no other process is killed by mistake.
        sys.stdin.buffer.readline()
        _, status = os.waitpid(pid, 0)
        say(ended=os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    serve()
