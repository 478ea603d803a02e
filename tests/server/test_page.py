"""The page at `/`: its files are served as they were built, to every client, and can load and reach nothing
else.
"""

from __future__ import annotations

import gzip
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from tests.patience import LONG_S
from tests.support.daemons import running_daemon

from turnwire.server.app import create_app
from turnwire.server.routes.page import ENDPOINTS, FOLDER, media_type, takes_gzip

pytestmark = pytest.mark.anyio

FILES = sorted(each.relative_to(FOLDER).as_posix() for each in FOLDER.rglob("*") if each.is_file())
ADDRESSES = {name: "/" if name == "index.html" else f"/{name}" for name in FILES}
PLAIN = {"Accept-Encoding": "identity"}


@asynccontextmanager
async def a_stranger(tmp_path: Path, **settings: Any) -> AsyncGenerator[httpx.AsyncClient]:
    with anyio.fail_after(LONG_S):
        async with running_daemon(tmp_path / "d", **settings) as running, running.stranger() as http:
            yield http


def test_the_page_is_built() -> None:
    assert "index.html" in FILES, "run: make page"
    assert any(name.startswith("assets/") and name.endswith(".js") for name in FILES)


async def test_every_file_is_served_as_it_was_built_without_a_credential(tmp_path: Path) -> None:
    async with a_stranger(tmp_path) as http:
        for name, address in ADDRESSES.items():
            plain = await http.get(address, headers=PLAIN)
            assert (plain.status_code, plain.content) == (200, (FOLDER / name).read_bytes()), name
            assert plain.headers["content-type"] == media_type(name)
            assert "content-encoding" not in plain.headers
            head = await http.head(address, headers=PLAIN)
            assert (head.status_code, head.content) == (200, b"")
            assert head.headers["content-length"] == str(len(plain.content))


async def test_what_gets_smaller_comes_compressed_to_those_who_take_it(tmp_path: Path) -> None:
    async with a_stranger(tmp_path) as http:
        for name, address in ADDRESSES.items():
            async with http.stream("GET", address, headers={"Accept-Encoding": "br, gzip;q=0.5"}) as answer:
                body = b"".join([each async for each in answer.aiter_raw()])
            assert answer.headers["vary"] == "Accept-Encoding"
            assert answer.headers["content-length"] == str(len(body))
            whole = (FOLDER / name).read_bytes()
            if answer.headers.get("content-encoding") == "gzip":
                assert len(body) < len(whole)
                body = gzip.decompress(body)
            else:
                assert not name.endswith((".js", ".css"))
            assert body == whole


def test_gzip_is_sent_to_those_who_name_it(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, bool]] = [
        ("gzip", True),
        ("deflate, gzip", True),
        ("GZIP ; q=0.1", True),
        ("gzip;q=0", False),
        ("gzip; q=0.000, br", False),
        ("", False),
        ("br", False),
        ("*", False),
        ("x-gzip", False),
    ]
    for accepted, expected in cases:
        with subtests.test(repr((accepted, expected))):
            assert takes_gzip(accepted) is expected


async def test_a_browser_keeps_assets_and_asks_for_the_rest_again(tmp_path: Path) -> None:
    async with a_stranger(tmp_path) as http:
        for name, address in ADDRESSES.items():
            first = await http.get(address)
            kept = "public, max-age=31536000, immutable" if name.startswith("assets/") else "no-cache"
            assert first.headers["cache-control"] == kept, name
            again = await http.get(address, headers={"If-None-Match": f'"other", {first.headers["etag"]}'})
            assert (again.status_code, again.content) == (304, b"")
            assert again.headers["etag"] == first.headers["etag"]
            changed = await http.get(address, headers={"If-None-Match": 'W/"other"'})
            assert changed.status_code == 200


async def test_every_file_forbids_what_is_not_the_pages_own(tmp_path: Path) -> None:
    async with a_stranger(tmp_path) as http:
        for address in ADDRESSES.values():
            headers = (await http.get(address)).headers
            assert headers["content-security-policy"] == (
                "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:;"
                " connect-src 'self'; worker-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none';"
                " frame-ancestors 'none'"
            )
            assert headers["referrer-policy"] == "no-referrer"
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["x-frame-options"] == "DENY"
            assert headers["cross-origin-opener-policy"] == "same-origin"
            assert "camera=()" in headers["permissions-policy"]


async def test_nothing_else_is_found_below_the_page(tmp_path: Path, subtests: pytest.Subtests) -> None:
    cases: list[str] = [
        "/assets/",
        "/assets/nothing.js",
        "/assets/index.html",
        "/assets/%2e%2e",
        "/assets/..%2findex.html",
        "/assets/%2e%2e%2f%2e%2e%2fapp.py",
        "/index.html",
        "/page/index.html",
    ]
    async with running_daemon(tmp_path / "d") as running, running.client() as http:
        for path in cases:
            with subtests.test(repr(path)):
                answer = await http.get(path)
                assert answer.status_code == 404, path
                assert answer.headers["content-type"] == "application/problem+json"


async def test_the_page_changes_nothing_of_who_may_read_the_api(tmp_path: Path) -> None:
    """A file of the page in the place of a route would be a vulnerability."""
    assert not {each.path for each in ENDPOINTS} & {"/session", "/events", "/tokens", "/{name}", "/{path:path}"}
    async with a_stranger(tmp_path) as http:
        for path in ("/session", "/events", "/capabilities", "/tokens", "/favicon.none", "/assets/a/b"):
            assert (await http.get(path)).status_code == 401, path
        assert (await http.post("/")).status_code == 401


async def test_the_page_can_be_off(tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "d", page=False) as running, running.client() as http:
        for address in ADDRESSES.values():
            assert (await http.get(address)).status_code == 404
        assert (await http.get("/health")).status_code == 200


async def test_below_a_path_of_another_application_its_files_are_found_from_the_document(tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "d") as running:
        theirs = Starlette(routes=[Mount("/team/agents", app=create_app(running.daemon))])
        base = "http://127.0.0.1/team/agents/"
        async with httpx.AsyncClient(transport=httpx.ASGITransport(theirs)) as http:
            document = await http.get(base)
            assert document.status_code == 200
            assert '"/' not in document.text.replace("</", ""), (
                "an address that begins at the root leaves the mount"
            )
            for name, address in ADDRESSES.items():
                assert (await http.get(f"{base.rstrip('/')}{address}")).status_code == 200, name
            assert (await http.get("http://127.0.0.1/team/agents", follow_redirects=True)).url == base
