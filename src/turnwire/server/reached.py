"""How far what was written to a TCP connection has come: to the other machine, or to the program there.

TCP tells a sender what the other machine has, late and only that: a program that is busy may not have read it for
long. Of a program on this machine Linux tells more: the other socket of the connection is here too, and the kernel
says how much of what it received nobody has read yet. Asks the kernel, waits for nobody, changes nothing.
"""

from __future__ import annotations

import socket
import struct
import sys
from enum import Enum, auto

_IS_TOLD = sys.platform == "linux"
"""Elsewhere nothing is known."""

_INFO_BYTES = 216
_UNACKED, _BYTES_RECEIVED, _NOT_SENT, _BYTES_SENT, _BYTES_SENT_AGAIN = 24, 128, 144, 200, 208
"""Where Linux has them in `struct tcp_info`, which only ever grows."""

_SOCK_DIAG, _BY_FAMILY, _REQUEST, _INFO = 4, 20, 1, 2
_HEADER = struct.Struct("=IHHII")
_QUESTION = struct.Struct("=BBBxI")
_ATTRIBUTE = struct.Struct("=HH")
_QUEUES_AT, _ATTRIBUTES_AT = 16 + 56, 16 + 72
_EVERY_STATE, _NO_COOKIE = 0xFFFF_FFFF, b"\0" * 4 + b"\xff" * 8
"""Of netlink's `sock_diag`, as <linux/inet_diag.h> has it."""


class Reached(Enum):
    """The furthest place that all of it has reached, for sure."""

    WAY = auto()
    MACHINE = auto()
    """More cannot be known of a program on another machine, or behind a proxy."""
    PROGRAM = auto()


def reached(connection: socket.socket) -> Reached:
    """How far it is."""
    if not _IS_TOLD:
        return Reached.MACHINE
    try:
        own = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
        if len(own) < _INFO_BYTES:
            return Reached.MACHINE
        if _number(own, _NOT_SENT):
            return Reached.WAY
        sent = _number(own, _BYTES_SENT, 8) - _number(own, _BYTES_SENT_AGAIN, 8)
        read = _read_by_peer(connection)
    except OSError:
        # It is not there any more, or this system does not let us ask.
        return Reached.MACHINE
    if read is not None:
        return Reached.PROGRAM if read >= sent else Reached.WAY
    return Reached.WAY if _number(own, _UNACKED) else Reached.MACHINE


def _read_by_peer(connection: socket.socket) -> int | None:
    """How many bytes the program at the other end has read; none if it is on another machine. Raises `OSError`."""
    family = connection.family
    ours, theirs = connection.getsockname(), connection.getpeername()
    ends = struct.pack("!HH", theirs[1], ours[1]) + _address(family, theirs[0]) + _address(family, ours[0])
    question = _QUESTION.pack(family, socket.IPPROTO_TCP, 1 << (_INFO - 1), _EVERY_STATE) + ends + _NO_COOKIE
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
        kernel.setblocking(False)
        kernel.send(_HEADER.pack(_HEADER.size + len(question), _BY_FAMILY, _REQUEST, 0, 0) + question)
        answer = kernel.recv(8192)
    size, kind, *_ = _HEADER.unpack_from(answer)
    at = _ATTRIBUTES_AT
    while kind == _BY_FAMILY and at < size:
        length, what = _ATTRIBUTE.unpack_from(answer, at)
        if what == _INFO:
            return _number(answer, at + _ATTRIBUTE.size + _BYTES_RECEIVED, 8) - _number(answer, _QUEUES_AT)
        at += (length + 3) & ~3
    return None


def _address(family: int, text: str) -> bytes:
    return socket.inet_pton(family, text.partition("%")[0]).ljust(16, b"\0")


def _number(data: bytes, at: int, size: int = 4) -> int:
    return int.from_bytes(data[at : at + size], sys.byteorder)
