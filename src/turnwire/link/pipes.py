"""Standard input and output as a link, kept clean: nothing else in this process reads or writes there any more.

Takes the descriptors that the process was started with; gives a link over copies of them. What anybody prints from
here on goes to stderr, and who reads standard input finds it empty.
"""

from __future__ import annotations

import os
import sys

from turnwire.limits import Limits
from turnwire.link.stdio import StdioLink

STDIN, STDOUT, STDERR = 0, 1, 2


def open_pipes(limits: Limits) -> StdioLink:
    """The link to whoever started us. Once, and inside a running event loop."""
    sys.stdout.flush()
    read_fd, write_fd = os.dup(STDIN), os.dup(STDOUT)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, STDIN)
    os.close(nothing)
    os.dup2(STDERR, STDOUT)
    return StdioLink(read_fd, write_fd, limits)
