"""Login links as QR codes: an image for the page, and text for a terminal."""

from __future__ import annotations

import re
from urllib.parse import unquote
from xml.etree import ElementTree

import pytest
import segno

from turnwire.cli.daemon import reachable
from turnwire.server.access.qr_code import BORDER, qr_image, qr_text

LINK = "http://192.0.2.7:4170/login#V3g5WGuktDzXnGRhwD5LzBffoZd16OTkaAINYhTHXmI"
LIGHT = {" ": (0, 0), "▀": (1, 0), "▄": (0, 1), "█": (1, 1)}
"""The light modules of each character: upper and lower."""


def test_terminal_text_has_the_modules_of_the_code_and_its_border() -> None:
    lines = [re.sub(r"\x1b\[[\d;]*m", "", each) for each in qr_text(LINK).splitlines()]
    rows = [[LIGHT[each][half] for each in line] for line in lines for half in (0, 1)]
    code = segno.make(LINK, micro=False, error="l", boost_error=False)
    size = len(code.matrix)
    found = [row[BORDER:-BORDER] for row in rows[BORDER : BORDER + size]]
    assert found == [[int(not module) for module in row] for row in code.matrix]
    assert all(rows[0]), "the border is light"


def test_image_is_an_svg_without_scripts_or_references() -> None:
    kind, _, body = qr_image(LINK).partition(",")
    assert kind.startswith("data:image/svg+xml")
    root = ElementTree.fromstring(unquote(body))
    assert {each.tag.rpartition("}")[2] for each in root.iter()} == {"svg", "g", "path"}


@pytest.mark.parametrize("host", ["192.0.2.7", "daemon.example"])
def test_a_daemon_bound_to_one_address_is_reachable_there(host: str) -> None:
    assert reachable(f"https://{host}:4170", host) == f"https://{host}:4170"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", ""])
def test_a_daemon_bound_to_every_address_has_a_url_with_its_port(host: str) -> None:
    assert re.fullmatch(r"http://[\d.]+:4170", reachable("http://127.0.0.1:4170", host))
