"""Login links as QR codes, for phones. The encoder is imported on first use: few daemons need it."""

from __future__ import annotations

import io

BORDER = 2
"""Modules around the code. The standard asks for 4; 2 are enough on a screen and keep the code small."""

WHITE_ON_BLACK, RESET = "\x1b[97;40m", "\x1b[0m"
"""The blocks of the terminal's code are its light modules."""


def qr_image(link: str) -> str:
    """Return an SVG image in a data URL."""
    import segno

    # Black on white in both themes: many phones do not recognize an inverted code.
    return segno.make(link, micro=False).svg_data_uri(scale=4, border=4, dark="#000", light="#fff")


def qr_text(link: str) -> str:
    """Return lines of half-block characters for a terminal, black on white whatever the terminal's colours are."""
    import segno

    out = io.StringIO()
    segno.make(link, micro=False, error="l", boost_error=False).terminal(out, border=BORDER, compact=True)
    return "\n".join(f"{WHITE_ON_BLACK}{each}{RESET}" for each in out.getvalue().splitlines())
