"""The server against its own document: for any request, the response is one that the document names.

A real daemon with a real agent, called over HTTP with bodies, queries and headers generated from the document,
valid and invalid ones. The sessions in the paths mostly exist.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any

import httpx
import pytest
import schemathesis
from anyio.from_thread import start_blocking_portal
from hypothesis import HealthCheck, settings
from schemathesis.checks import CheckContext
from schemathesis.specs.openapi import checks as conformance
from tests.support.daemons import TOKEN, Running, running_daemon

from turnwire.limits import Limits
from turnwire.server.routes.document import openapi
from turnwire.server.routes.table import ENDPOINTS

FEW = 6
EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", FEW))
"""For each route; `make fuzz` wants more of them, and other ones each time."""
FOR_ANOTHER_PROGRAM = frozenset(
    {"agent_launch_failed", "agent_unavailable", "link_broken", "link_closed", "peer_broke_protocol", "turn_failed"}
)
"""Failures of the agent, which are not the server's own."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Generator[Running]:
    data = tmp_path_factory.mktemp("schemathesis") / "d"
    limits = Limits(opening_s=0.2, initialize_s=2, blocking_s=0.2)
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(running_daemon(data, limits=limits)) as running,
    ):
        yield running


document: Any = schemathesis.openapi.from_dict(openapi(ENDPOINTS))
schema: Any = document.exclude(
    # These do not end by themselves, and the last would delete the credential.
    path_regex="/events$|/services$|/logout$"
)


def no_failure_of_our_own(ctx: CheckContext, response: Any, case: Any) -> None:
    if response.status_code >= 500:
        assert response.json()["code"] in FOR_ANOTHER_PROGRAM, response.text


NAMES = ("status_code_conformance", "content_type_conformance", "response_schema_conformance")
CHECKS: list[Any] = [no_failure_of_our_own, *(getattr(conformance, each) for each in NAMES)]


@pytest.fixture
def session_id(running: Running) -> str:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    return httpx.post(f"{running.url}/session", json={}, headers=headers).json()["sessionId"]


@pytest.mark.full("makes thousands of requests")
@schema.parametrize()
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=EXAMPLES == FEW,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.function_scoped_fixture],
)
def test_every_answer_is_one_that_the_document_names(case: Any, running: Running, session_id: str) -> None:
    if "session_id" in case.path_parameters and len(case.path_parameters["session_id"]) % 4:
        case.path_parameters["session_id"] = session_id
    headers: dict[str, str] = case.headers or {}
    for name in ("Turnwire-Client-Id", "X-Qwen-Client-Id"):
        headers.pop(name, None)
    credential = {"Authorization": f"Bearer {TOKEN}"}
    case.call_and_validate(base_url=running.url, headers=credential, checks=CHECKS, timeout=20)
