"""An agent process without logic: it forwards its standard input to a test, and the test's messages to its standard
output.

A separate program that uses only the standard library. Its one argument is the port on which the test listens; its
first line there is its process id. The test decides everything else that it sends.
"""

from __future__ import annotations

import os
import socket
import sys
import threading


def main() -> None:
    test = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    test.sendall(f'{{"pid":{os.getpid()}}}\n'.encode())

    def listen() -> None:
        for line in sys.stdin.buffer:
            test.sendall(line)
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    for line in test.makefile("rb"):
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
