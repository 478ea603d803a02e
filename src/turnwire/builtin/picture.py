"""A small picture, drawn here, so that a demonstration needs no file.

Takes a size; gives a PNG. Never reads or writes anything.
"""

from __future__ import annotations

import struct
import zlib

SIGNATURE = b"\x89PNG\r\n\x1a\n"
TRUECOLOUR = 2


def gradient_png(width: int = 96, height: int = 48) -> bytes:
    """A field that goes from blue to orange."""
    rows = bytearray()
    for _ in range(height):
        rows.append(0)
        for x in range(width):
            share = x / max(width - 1, 1)
            rows += bytes((round(40 + 200 * share), round(90 + 60 * share), round(220 - 180 * share)))
    header = struct.pack(">IIBBBBB", width, height, 8, TRUECOLOUR, 0, 0, 0)
    return SIGNATURE + _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(bytes(rows))) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, content: bytes) -> bytes:
    checked = kind + content
    return struct.pack(">I", len(content)) + checked + struct.pack(">I", zlib.crc32(checked))
