"""The API as a page, at /docs: a viewer of `/openapi.json`, with which a person can try each route.

The viewer is the package that `swagger-ui/package.toml` names, unchanged; `scripts/renew_swagger_ui.py` renews it.
Like the document the page is the same for everybody and tells nothing of this daemon, so it needs no credential.
What is tried on it does: the browser's login, or a token that its user gives it. It reaches nobody but us.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache, partial
from pathlib import Path

import anyio
from starlette.types import Send

from turnwire.server.access.origins import page_headers
from turnwire.server.endpoint import Call, Endpoint
from turnwire.server.refusals import raw_headers

FOLDER = Path(__file__).with_name("swagger-ui")
KEPT_S = 3600
"""How long a browser keeps the viewer's files: an update of the daemon is seen soon, and a second look is quick."""

# The document names no server, for it is the same wherever it is mounted. A browser sends the login itself and lets
# no page set a cookie, so that way in is not offered as a field.
_SCRIPT = """
fetch("openapi.json").then(reply => reply.json()).then(spec => {
  spec.servers = [{url: new URL(".", location).href.replace(/[/]$/, "")}];
  spec.info.description = "A browser that has logged in (`turnwire login`) may try the routes as they are. " +
    "Otherwise give a token with **Authorize**. What is tried is done.";
  delete spec.components.securitySchemes.cookie;
  SwaggerUIBundle({
    spec, dom_id: "#viewer", deepLinking: true, docExpansion: "list", defaultModelsExpandDepth: 0,
    displayRequestDuration: true, filter: true, validatorUrl: null,
  });
}).catch(() => { document.getElementById("viewer").textContent = "The daemon does not answer. Is it running?"; });
"""

_PAGE = f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>turnwire: the API</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="docs/swagger-ui.css">
<main id="viewer"><noscript>This page needs JavaScript; /openapi.json says the same without.</noscript></main>
<script src="docs/swagger-ui-bundle.js"></script>
<script>{_SCRIPT}</script>
</html>
""".encode()

_POLICY = (
    "default-src 'none'; connect-src 'self'; img-src data:; style-src 'self'; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'; script-src 'self'"
    f" 'sha256-{base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()}'"
)
"""Nothing runs but the viewer and the script above, and it reaches nobody but us."""


async def show_page(call: Call, send: Send) -> None:
    await _write(send, _PAGE, "text/html; charset=utf-8", "no-store")


async def show_file(name: str, call: Call, send: Send) -> None:
    body = await anyio.to_thread.run_sync(_read, name)
    await _write(send, body, f"{_MEDIA[name]}; charset=utf-8", f"max-age={KEPT_S}")


async def _write(send: Send, body: bytes, media_type: str, caching: str) -> None:
    headers = page_headers(_POLICY) | {
        "Content-Type": media_type,
        "Content-Length": str(len(body)),
        "Cache-Control": caching,
    }
    await send({"type": "http.response.start", "status": 200, "headers": raw_headers(headers)})
    await send({"type": "http.response.body", "body": body})


@cache
def _read(name: str) -> bytes:
    return (FOLDER / name).read_bytes()


_MEDIA = {"swagger-ui.css": "text/css", "swagger-ui-bundle.js": "text/javascript"}

ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        method="GET",
        path="/docs",
        stream=show_page,
        summary="This document as a page",
        role=None,
        media_type="text/html",
        tag="daemon",
    ),
    *(
        Endpoint(
            method="GET",
            path=f"/docs/{name}",
            stream=partial(show_file, name),
            summary="A file of that page",
            role=None,
            media_type=media_type,
            tag="daemon",
        )
        for name, media_type in _MEDIA.items()
    ),
)
"""The routes of the page."""
