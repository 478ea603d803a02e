"""A terminal tells its end only when everything that was printed has been read."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys

import anyio
import pytest

from turnwire.link.process_guard import Ends
from turnwire.runtime.services.terminal import READ_BYTES, Terminal
from turnwire.testing.patience import WAIT_S

pytestmark = pytest.mark.anyio

ROOM = 1024 * 1024


@pytest.fixture
def dead_guard() -> subprocess.Popen[bytes]:
    guard = subprocess.Popen(["true"])
    guard.wait(timeout=WAIT_S)
    return guard


@pytest.mark.skipif(sys.platform != "linux", reason="makes a pipe larger")
async def test_an_exit_that_is_heard_first_waits_for_the_output(dead_guard: subprocess.Popen[bytes]) -> None:
    control, to_control = os.pipe()
    from_status, status = os.pipe()
    from_output, out = os.pipe()
    fcntl.fcntl(out, fcntl.F_SETPIPE_SZ, ROOM)
    printed = 5 * READ_BYTES
    assert os.write(out, b"x" * printed) == printed
    os.write(status, b'{"pid": 0}\n{"exit_code": 3, "signal": 0}\n{"gone": 0, "left": 0}\n')
    os.close(status)
    terminal = Terminal(dead_guard, Ends(-1, from_output, -1, to_control, from_status), ROOM)
    with anyio.fail_after(WAIT_S):
        assert (await terminal.exited()).exit_code == 3
    assert len(terminal.output.text()) == printed
    os.close(out)
    os.close(control)


@pytest.mark.skipif(sys.platform != "linux", reason="makes a pipe larger")
async def test_a_foreign_writer_cannot_keep_an_exit_back(dead_guard: subprocess.Popen[bytes]) -> None:
    """The other end is still open, in our own hands, when the guard is gone."""
    control, to_control = os.pipe()
    from_status, status = os.pipe()
    from_output, out = os.pipe()
    os.close(status)
    terminal = Terminal(dead_guard, Ends(-1, from_output, -1, to_control, from_status), ROOM)
    with anyio.fail_after(WAIT_S):
        exit = await terminal.exited()
    assert (exit.exit_code, exit.signal) == (None, None)
    with pytest.raises(BrokenPipeError):
        os.write(out, b"x")
    os.close(out)
    os.close(control)
