"""The OpenAPI document: valid, complete, and one with the route table."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from jsonschema_rs import Draft202012Validator, meta
from tests.server.seats import answer
from tests.support.daemons import running_daemon

from turnwire.errors import QueueFull
from turnwire.ids import SessionId
from turnwire.projections.envelope import stream_frame, to_envelope
from turnwire.server.endpoint import Endpoint
from turnwire.server.refusals import problem_of
from turnwire.server.routes import document, page
from turnwire.server.routes.document import openapi
from turnwire.server.routes.table import ENDPOINTS
from turnwire.session.codec import encode
from turnwire.session.events import SessionClosed

DOCUMENT = openapi(ENDPOINTS)
METHODS = {"get", "post", "put", "patch", "delete"}


def operations() -> Iterator[tuple[Endpoint, dict[str, Any]]]:
    """Return every row with its entry in the document."""
    for each in ENDPOINTS:
        path = re.sub(r"\{(\w+):\w+\}", r"{\1}", each.path)
        yield each, DOCUMENT["paths"][path][each.method.lower()]


def validator(name: str) -> Draft202012Validator:
    schema = {"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]}
    return Draft202012Validator(schema)


def references(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for key, each in cast("dict[str, object]", value).items():
            if key == "$ref":
                yield str(each)
            else:
                yield from references(each)
    elif isinstance(value, list):
        for each in cast("list[object]", value):
            yield from references(each)


def test_every_route_is_in_it_once_and_nothing_else_is() -> None:
    documented = [(path, method) for path, known in DOCUMENT["paths"].items() for method in known]
    assert len(documented) == len(ENDPOINTS)
    assert {method for _, method in documented} <= METHODS
    ids = [operation["operationId"] for _, operation in operations()]
    assert len(set(ids)) == len(ids)


def test_every_reference_leads_somewhere_and_every_schema_is_one() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    assert {each.rsplit("/", 1)[-1] for each in references(DOCUMENT)} <= set(schemas)
    for schema in schemas.values():
        meta.validate(schema)


def test_every_parameter_of_a_path_is_declared() -> None:
    for path, known in DOCUMENT["paths"].items():
        for operation in known.values():
            declared = {each["name"] for each in operation["parameters"] if each["in"] == "path"}
            assert declared == set(re.findall(r"\{(\w+)\}", path)), path
            names = [(each["in"], each["name"]) for each in operation["parameters"]]
            assert len(set(names)) == len(names), path


def test_the_refusals_of_a_row_are_the_answers_of_its_operation() -> None:
    for endpoint, operation in operations():
        for error in endpoint.refuses:
            told = operation["responses"][str(error.http_status)]
            problem = told["content"]["application/problem+json"]["schema"]
            assert error.code in problem["allOf"][1]["properties"]["code"]["enum"], endpoint.path
        success = operation["responses"][str(endpoint.status)]
        assert ("content" in success) == (endpoint.gives is not None or endpoint.stream is not None)


@pytest.mark.guarantee("G13")
def test_a_route_needs_a_credential_unless_its_row_says_otherwise() -> None:
    public = {endpoint.path for endpoint, operation in operations() if operation["security"] == []}
    pages = {each.path for each in (*document.ENDPOINTS, *page.ENDPOINTS)}
    assert public == {"/health", "/ready", "/openapi.json", "/login", *pages}
    for endpoint, operation in operations():
        assert ("401" in operation["responses"]) or endpoint.role is None
        assert operation.get("x-turnwire-role") == (endpoint.role.value if endpoint.role else None)


def test_streams_are_event_streams_of_envelopes() -> None:
    for path in ("/session/{session_id}/events", "/events", "/session/{session_id}/services"):
        content = DOCUMENT["paths"][path]["get"]["responses"]["200"]["content"]["text/event-stream"]
        assert content["x-turnwire-event"] == {"$ref": "#/components/schemas/Envelope"}


def test_problems_and_envelopes_are_as_documented() -> None:
    _, _, body = problem_of(QueueFull("the queue is full", limit=3))
    validator("Problem").validate(body)
    event = SessionClosed(at=1, reason="closed", author="ann")
    for line in (
        to_envelope(SessionId("s"), 1, encode(event)),
        stream_frame("replay_complete", {"replayedCount": 0}).split(b"data: ")[1],
    ):
        validator("Envelope").validate(json.loads(line))
    assert not validator("Problem").is_valid({"error": "x"})


@pytest.mark.anyio
async def test_the_daemon_serves_it(tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "d") as running, running.client() as client:
        assert answer(await client.get("/openapi.json"), 200) == DOCUMENT
