"""The OpenAPI 3.1 document of the route table, and a page at /docs to try the routes.

A route's parameters, replies and errors come from its row, the schemas from the types that read and write them, the
statuses from the classes of the errors. So the document always matches the code.

The viewer is the package that `swagger-ui/package.toml` names, unchanged; `scripts/renew_swagger_ui.py` updates it.
Like the document, the page is the same for all callers and shows nothing of this daemon, so it needs no credential.
Requests sent from it do: the browser's login, or a token that the user enters. The page can reach this daemon only.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeAlias

import anyio
import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from starlette.types import Send

from turnwire import __version__
from turnwire.errors import (
    BadRequest,
    BodyTooSlow,
    Forbidden,
    HeadersTooLarge,
    LimitExceeded,
    LogFull,
    LogUnavailable,
    SessionNotFound,
    TooManyRequests,
    TurnwireError,
    Unauthenticated,
    UnsupportedMedia,
)
from turnwire.server.access.login import PAGE_KEY
from turnwire.server.access.origins import page_headers
from turnwire.server.endpoint import CLIENT_ID_HEADERS, Call, Endpoint
from turnwire.server.refusals import raw_headers

Json: TypeAlias = dict[str, Any]

REF = "#/components/schemas/{name}"
PROBLEM_MEDIA = "application/problem+json"
EVENT_STREAM = "text/event-stream"
COOKIE = (
    "A login of the page. Its name ends with the port if the address has one: `turnwire_4170`. It needs the header"
    f" `{PAGE_KEY}` of the same login, from the answer to `POST /login`."
)

ANYWHERE: tuple[type[TurnwireError], ...] = (Forbidden, HeadersTooLarge, TooManyRequests, TurnwireError)
"""Errors of the access middleware, which every route can return, and the internal error."""

_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")
_HEADERS: dict[str, tuple[str, ...]] = {
    "/session/{session_id}/prompt": ("Idempotency-Key", "Prefer"),
    "/session/{session_id}/steer": ("Idempotency-Key",),
    "/session/{session_id}/events": ("Last-Event-ID", "Turnwire-Epoch"),
    "/events": ("Last-Event-ID",),
}
"""Headers that a route reads, in addition to the client's id."""


class Problem(Struct, frozen=True):
    """An error: the members of RFC 9457, plus `error` and `code`. Some codes have further members."""

    type: str
    title: str
    status: int
    detail: str
    error: str
    code: str


class EnvelopeMeta(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    server_timestamp: int
    event: str | None = None
    """The event's name in the log, if `type` differs."""
    part_of: int | None = None
    """The id of the event that this is a part of; only its last part has that id as `id`."""


class Envelope(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One event in the streams and the export, or a part of one. Only an event's last part has its id.

    Frames made for a single stream have no id.
    """

    id: int | None = None
    v: int
    type: str
    data: dict[str, Raw]
    prompt_id: str | None = None
    late: bool = False
    author: str | None = None
    originator_client_id: str | None = None
    meta: EnvelopeMeta | UnsetType = msgspec.field(default=UNSET, name="_meta")


def openapi(endpoints: Sequence[Endpoint]) -> Json:
    """Return the OpenAPI document of these routes."""
    types = list(_types(endpoints))
    schemas, components = msgspec.json.schema_components(types, ref_template=REF)
    shapes = dict(zip(map(id, types), schemas, strict=True))
    paths: Json = {}
    for each in endpoints:
        path = _PARAMETER.sub(r"{\1}", each.path)
        paths.setdefault(path, {})[each.method.lower()] = _operation(each, shapes)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "turnwire",
            "version": __version__,
            "summary": "Sessions with agents: prompts, turns, events.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "cookie": {"type": "apiKey", "in": "cookie", "name": "turnwire", "description": COOKIE},
            },
        },
    }


def _types(endpoints: Sequence[Endpoint]) -> Iterator[Any]:
    yield from (Problem, Envelope)
    for each in endpoints:
        yield from (kind for kind in (each.takes, each.gives, *each.also.values()) if kind is not None)


def _operation(endpoint: Endpoint, shapes: dict[int, Json]) -> Json:
    operation: Json = {
        "operationId": _operation_id(endpoint),
        "summary": endpoint.summary,
        "tags": [endpoint.tag],
        "parameters": [*_in_path(endpoint), *_in_query(endpoint), *_in_header(endpoint)],
        "responses": _responses(endpoint, shapes),
        "security": [] if endpoint.role is None else [{"bearer": []}, {"cookie": []}],
    }
    if endpoint.role is not None:
        operation["x-turnwire-role"] = endpoint.role.value
    if endpoint.takes is not None:
        operation["requestBody"] = {
            "required": not endpoint.optional_body,
            "content": {"application/json": {"schema": shapes[id(endpoint.takes)]}},
        }
    return operation


def _operation_id(endpoint: Endpoint) -> str:
    words = re.findall(r"\w+", _PARAMETER.sub(r"by_\1", endpoint.path))
    return "_".join([endpoint.method.lower(), *words])


# -- parameters ----------------------------------------------------------------------------------------------


def _in_path(endpoint: Endpoint) -> Iterator[Json]:
    for name in _PARAMETER.findall(endpoint.path):
        yield {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}


def _in_query(endpoint: Endpoint) -> Iterator[Json]:
    if endpoint.query is None:
        return
    _, components = msgspec.json.schema_components([endpoint.query], ref_template=REF)
    schema: Json = components[endpoint.query.__name__]
    required: list[str] = schema.get("required", [])
    for name, member in schema["properties"].items():
        yield {"name": name, "in": "query", "required": name in required, "schema": _as_text(member)}


def _as_text(schema: Json) -> Json:
    """Return the schema of a parameter. A parameter is text: it can be absent but not null."""
    choices = [each for each in schema.get("anyOf", ()) if each != {"type": "null"}]
    if not choices:
        return {key: value for key, value in schema.items() if key != "default" or value is not None}
    return choices[0] if len(choices) == 1 else {"anyOf": choices}


def _in_header(endpoint: Endpoint) -> Iterator[Json]:
    names = [*_HEADERS.get(endpoint.path, ())]
    if "{session_id}" in endpoint.path:
        names += ["-".join(word.capitalize() for word in each.split("-")) for each in CLIENT_ID_HEADERS]
    for name in names:
        yield {"name": name, "in": "header", "required": False, "schema": {"type": "string"}}


# -- answers -------------------------------------------------------------------------------------------------


def _responses(endpoint: Endpoint, shapes: dict[int, Json]) -> Json:
    responses: Json = {}
    for status, codes in sorted(_refusals(endpoint).items()):
        schema = {"allOf": [shapes[id(Problem)], {"properties": {"code": {"enum": codes}}}]}
        responses[str(status)] = {"description": ", ".join(codes), "content": {PROBLEM_MEDIA: {"schema": schema}}}
    for status, kind in endpoint.also.items():
        known = responses.setdefault(str(status), {"description": "the answer", "content": {}})
        known["content"]["application/json"] = {"schema": shapes[id(kind)]}
    success: Json = {"description": endpoint.summary}
    if endpoint.stream is not None:
        success["content"] = {endpoint.media_type: _streamed(endpoint, shapes)}
    elif endpoint.gives is not None:
        success["content"] = {endpoint.media_type: {"schema": shapes[id(endpoint.gives)]}}
    responses[str(endpoint.status)] = success
    return responses


def _streamed(endpoint: Endpoint, shapes: dict[int, Json]) -> Json:
    # A schema describes the content of the text if its media type defines how to read it.
    known: Json = {"schema": {"type": "object" if endpoint.media_type.endswith("+json") else "string"}}
    if endpoint.media_type in {EVENT_STREAM, "application/x-ndjson"}:
        known["x-turnwire-event"] = shapes[id(Envelope)]
    return known


def _refusals(endpoint: Endpoint) -> dict[int, list[str]]:
    """Return the error codes by status, in the order of the codes."""
    found: dict[int, set[str]] = {}
    for error in {*ANYWHERE, *_of_the_row(endpoint), *endpoint.refuses}:
        found.setdefault(error.http_status, set()).add(error.code)
    return {status: sorted(codes) for status, codes in found.items()}


def _of_the_row(endpoint: Endpoint) -> Iterable[type[TurnwireError]]:
    """Return the members that follow from the row itself."""
    if endpoint.role is not None:
        yield from (Unauthenticated, LogUnavailable, LogFull)
    if endpoint.takes is not None:
        yield from (BadRequest, UnsupportedMedia, LimitExceeded, BodyTooSlow)
    if endpoint.query is not None:
        yield BadRequest
    if "{session_id}" in endpoint.path:
        yield SessionNotFound


# -- the page ------------------------------------------------------------------------------------------------


FOLDER = Path(__file__).with_name("swagger-ui")
KEPT_S = 3600
"""Seconds that a browser caches the viewer's files: short enough to notice an update of the daemon soon, long
enough to reload quickly.
"""

# The document names no server, because it is the same at every mount path. A browser sends its login by itself and
# does not let a page set a cookie, so the cookie login is not offered as a field.
_SCRIPT = """
fetch("openapi.json").then(reply => reply.json()).then(spec => {
  spec.servers = [{url: new URL(".", location).href.replace(/[/]$/, "")}];
  spec.info.description = "A browser that has logged in (`turnwire login`) may try the routes as they are. " +
    "Otherwise give a token with **Authorize**. What is tried is done.";
  delete spec.components.securitySchemes.cookie;
  SwaggerUIBundle({
    spec, dom_id: "#viewer", deepLinking: true, docExpansion: "list", defaultModelsExpandDepth: 0,
    displayRequestDuration: true, filter: true, validatorUrl: null,
    requestInterceptor: request => {
      const key = localStorage.getItem("turnwire key " + location.pathname.replace(/[^/]*$/, ""));
      if (key && !request.headers.Authorization) request.headers["Turnwire-Page-Key"] = key;
      return request;
    },
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
"""Only the viewer and the script above run, and they can reach this daemon only."""


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
