"""The page at `/`: the built files of `web/page`, which `make page` writes into the folder `page` next to this
module.

The files are the same for all callers and reveal nothing of this daemon, so they need no credential; the page's
requests do. Only existing files can be requested, by name: no path is ever made from a request. They are read and
compressed once, together, so that a page never gets the files of another build.
"""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import anyio
from starlette.types import Send

from turnwire.errors import NotFound
from turnwire.server.access.origins import page_headers
from turnwire.server.endpoint import Call, Endpoint
from turnwire.server.refusals import raw_headers

FOLDER = Path(__file__).parents[1] / "page"
INDEX = "index.html"
ASSETS = "assets"

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self';"
    " worker-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Content security policy: the page may load from and connect to its own origin only. A worker is bound by the
policy sent with its script.
"""
UNUSED = ("camera", "display-capture", "geolocation", "hid", "microphone", "midi", "payment", "serial", "usb")
"""Browser features that no script of the page may use, even if it is compromised."""

_NAMED_BY_CONTENT = "public, max-age=31536000, immutable"
"""Assets have the hash of their bytes in their name, so a cached copy never needs revalidation."""
_ASKED_AGAIN = "no-cache"
_MEDIA = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/x-icon",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".webmanifest": "application/manifest+json",
    ".woff2": "font/woff2",
}
_NONE_OF_IT = re.compile(r"q=0(\.0*)?")


class _File(NamedTuple):
    body: bytes
    compressed: bytes | None
    """`None` if compression would not make it smaller."""
    etag: str
    """Weak, because both encodings share it."""
    media_type: str


def media_type(name: str) -> str:
    return _MEDIA.get(Path(name).suffix, "application/octet-stream")


@cache
def _files() -> dict[str, _File]:
    return {path.relative_to(FOLDER).as_posix(): _file(path) for path in FOLDER.rglob("*") if path.is_file()}


def _file(path: Path) -> _File:
    body = path.read_bytes()
    compressed = gzip.compress(body, mtime=0)
    etag = f'W/"{hashlib.sha256(body).hexdigest()[:32]}"'
    return _File(body, compressed if len(compressed) < len(body) else None, etag, media_type(path.name))


async def show_file(name: str, call: Call, send: Send) -> None:
    await _write(call, send, name, _ASKED_AGAIN)


async def show_asset(call: Call, send: Send) -> None:
    await _write(call, send, f"{ASSETS}/{call.request.path_params['name']}", _NAMED_BY_CONTENT)


async def _write(call: Call, send: Send, name: str, caching: str) -> None:
    file = (await anyio.to_thread.run_sync(_files)).get(name)
    if file is None:
        raise NotFound("the page has no such file; load the page anew, for the daemon may have been updated")
    asked = call.request.headers
    headers = page_headers(POLICY) | {
        "Permissions-Policy": ", ".join(f"{each}=()" for each in UNUSED),
        "Cache-Control": caching,
        "ETag": file.etag,
        "Vary": "Accept-Encoding",
    }
    if file.etag in (each.strip() for each in asked.get("if-none-match", "").split(",")):
        await _send(send, 304, headers, b"")
        return
    body = file.body
    if file.compressed is not None and takes_gzip(asked.get("accept-encoding", "")):
        headers["Content-Encoding"] = "gzip"
        body = file.compressed
    await _send(send, 200, headers | {"Content-Type": file.media_type, "Content-Length": str(len(body))}, body)


async def _send(send: Send, status: int, headers: Mapping[str, str], body: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": raw_headers(headers)})
    await send({"type": "http.response.body", "body": body})


def takes_gzip(accepted: str) -> bool:
    """Return whether `Accept-Encoding` accepts gzip."""
    for each in accepted.lower().replace(" ", "").split(","):
        coding, _, quality = each.partition(";")
        if coding == "gzip":
            return _NONE_OF_IT.fullmatch(quality) is None
    return False


def _row(path: str, name: str, summary: str) -> Endpoint:
    return Endpoint(
        method="GET",
        path=path,
        stream=partial(show_file, name),
        summary=summary,
        role=None,
        media_type=media_type(name).partition(";")[0],
        refuses=(NotFound,),
        tag="page",
    )


ENDPOINTS: tuple[Endpoint, ...] = (
    _row("/", INDEX, "The page"),
    Endpoint(
        method="GET",
        path=f"/{ASSETS}/{{name}}",
        stream=show_asset,
        summary="A script or a style of the page",
        role=None,
        media_type="*/*",
        refuses=(NotFound,),
        tag="page",
    ),
    *(
        _row(f"/{each.name}", each.name, "A file of the page")
        for each in sorted(FOLDER.glob("*"))
        if each.is_file() and each.name != INDEX
    ),
)
"""The routes of the page. All its files but the document are named one by one: all else at the root is API."""
