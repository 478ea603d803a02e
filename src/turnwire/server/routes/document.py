"""The OpenAPI 3.1 document: the route table for tools to read.

What a route takes, gives and refuses comes from its row, the shapes from the types that read and write them, the
statuses from the classes of the errors. So the document says what the code does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

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
from turnwire.server.endpoint import CLIENT_ID_HEADERS, Endpoint

Json: TypeAlias = dict[str, Any]

REF = "#/components/schemas/{name}"
PROBLEM_MEDIA = "application/problem+json"
EVENT_STREAM = "text/event-stream"
COOKIE = "A login of the page. Its name ends with the port if the address has one: `turnwire_4170`."

ANYWHERE: tuple[type[TurnwireError], ...] = (Forbidden, HeadersTooLarge, TooManyRequests, TurnwireError)
"""What the access middleware refuses, whatever the route; and that something went wrong."""

_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")
_HEADERS: dict[str, tuple[str, ...]] = {
    "/session/{session_id}/prompt": ("Idempotency-Key", "Prefer"),
    "/session/{session_id}/steer": ("Idempotency-Key",),
    "/session/{session_id}/events": ("Last-Event-ID", "Turnwire-Epoch"),
    "/events": ("Last-Event-ID",),
}
"""Headers that a route reads, besides the client's id."""


class Problem(Struct, frozen=True):
    """A refusal: the members of RFC 9457 beside `error` and `code`. Each code may have more members of its own."""

    type: str
    title: str
    status: int
    detail: str
    error: str
    code: str


class EnvelopeMeta(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    server_timestamp: int
    event: str | None = None
    """The event's own name, where `type` is another."""
    part_of: int | None = None
    """The id of the event that this is a part of; its last part has the id itself."""


class Envelope(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One event, as the streams and the export tell it, or a part of one; only the last part has the event's id.

    Frames made for one stream have none.
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
    """The document of these routes."""
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
    """A parameter is text: it cannot be null, only absent."""
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
    known: Json = {"schema": {"type": "string"}}
    if endpoint.media_type in {EVENT_STREAM, "application/x-ndjson"}:
        known["x-turnwire-event"] = shapes[id(Envelope)]
    return known


def _refusals(endpoint: Endpoint) -> dict[int, list[str]]:
    """Codes by status, in the order of the codes."""
    found: dict[int, set[str]] = {}
    for error in {*ANYWHERE, *_of_the_row(endpoint), *endpoint.refuses}:
        found.setdefault(error.http_status, set()).add(error.code)
    return {status: sorted(codes) for status, codes in found.items()}


def _of_the_row(endpoint: Endpoint) -> Iterable[type[TurnwireError]]:
    """What follows from the row itself."""
    if endpoint.role is not None:
        yield from (Unauthenticated, LogUnavailable, LogFull)
    if endpoint.takes is not None:
        yield from (BadRequest, UnsupportedMedia, LimitExceeded, BodyTooSlow)
    if endpoint.query is not None:
        yield BadRequest
    if "{session_id}" in endpoint.path:
        yield SessionNotFound
