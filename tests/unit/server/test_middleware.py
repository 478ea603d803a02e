"""The guard against browsers: host and origin are checked in front of everything, for every kind of request."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from starlette.types import Message
from tests.unit.server.middleware_app import HERE, PAGE, GuardedApp, scope_of

from turnwire.errors import ConfigError
from turnwire.server.access.tokens import ANYBODY
from turnwire.server.settings.declared import Settings

pytestmark = [pytest.mark.anyio, pytest.mark.guarantee("G13")]


async def test_what_is_neither_a_request_nor_a_socket_passes() -> None:
    guarded = GuardedApp()
    await guarded.guard({"type": "lifespan"}, None, None)  # pyright: ignore[reportArgumentType]
    assert guarded.seen == [ANYBODY]


async def statuses(key: str, values: Iterable[Any], **options: Any) -> dict[Any, int]:
    """The status for each value of one argument of `ask`, each at a new application."""
    return {value: (await GuardedApp().ask(**{key: value}, **options)).status for value in values}


async def test_a_request_is_accepted_for_the_daemons_hosts_only() -> None:
    ours = ("127.0.0.1:4170", "localhost", "LOCALHOST:1", "localhost.", "[::1]:4170", "127.8.8.8", "tw.example:443")
    assert await statuses("host", ours) == dict.fromkeys(ours, 200)
    others = (
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost.evil.example:4170",
        "192.0.2.1",
        "0.0.0.0",
        "[::2]",
    )
    assert await statuses("host", others) == dict.fromkeys(others, 403)
    malformed = (None, "", "a b", "localhost:port", "http://localhost", "user@localhost", "a/b")
    assert await statuses("host", malformed) == dict.fromkeys(malformed, 400)


async def test_another_host_is_refused_on_a_public_route_too() -> None:
    guarded = GuardedApp()
    answer = await guarded.ask(host="evil.example", path="/health")
    assert (answer.status, answer.problem["code"]) == (403, "forbidden")
    assert guarded.seen == []


@pytest.mark.parametrize("name", ["Host", "Authorization", "Origin"])
async def test_a_header_that_decides_comes_once(name: str) -> None:
    twice = [("Origin", HERE), ("Origin", HERE)] if name == "Origin" else [(name, "localhost")]
    answer = await GuardedApp().ask(headers=twice)
    assert (answer.status, answer.problem["code"]) == (400, "bad_request")


async def test_bound_to_every_address_any_address_is_ours_but_no_name() -> None:
    guarded = GuardedApp(settings=Settings(host="0.0.0.0"))
    assert (await guarded.ask(host="192.0.2.1:4170")).status == 200
    assert (await guarded.ask(host="[2001:db8::1]:4170")).status == 200
    assert (await guarded.ask(host="evil.example")).status == 403


async def test_the_name_it_is_bound_to_is_ours() -> None:
    assert (await GuardedApp(settings=Settings(host="Box.Example")).ask(host="box.example:4170")).status == 200


ORIGINS = dict.fromkeys((HERE, PAGE, "HTTPS://Page.Example", f"{PAGE}:443"), 200) | dict.fromkeys(
    (
        *("null", "", "*", "file://", "https://evil.example"),
        *("http://127.0.0.1:4171", "http://127.0.0.1", "https://127.0.0.1:4170", "http://localhost:4170"),
        *("http://page.example", "https://page.example.evil.example"),
        *("https://page.example@evil.example", "https://page.example/path"),
    ),
    403,
)
"""Origins, and the status of a request from a page there."""


async def test_a_request_is_accepted_from_our_own_page_and_allowed_origins_only() -> None:
    found = {each: (await GuardedApp().ask("POST", headers=[("Origin", each)])).status for each in ORIGINS}
    assert found == ORIGINS


@pytest.mark.parametrize(
    ("path", "kind"), [("/session", "http"), ("/health", "http"), ("/login", "http"), ("/acp", "websocket")]
)
async def test_another_origin_is_refused_on_every_kind_of_route(path: str, kind: str) -> None:
    guarded = GuardedApp()
    options: dict[str, Any] = {"kind": kind, "extensions": {"websocket.http.response": {}}}
    answer = await guarded.ask("POST", path, [("Origin", "https://evil.example")], **options)
    assert (answer.status, answer.problem["code"]) == (403, "forbidden")
    assert "access-control-allow-origin" not in answer.headers
    assert guarded.seen == []


async def test_a_page_over_tls_is_our_own_when_we_serve_tls() -> None:
    guarded = GuardedApp()
    origin = [("Origin", "https://localhost")]
    assert (await guarded.ask(headers=origin, host="localhost", scheme="https")).status == 200
    assert (await guarded.ask(headers=origin, host="localhost", scheme="wss", kind="websocket")).sent == [
        {"type": "websocket.accept"}
    ]
    assert (await guarded.ask(headers=origin, host="localhost")).status == 403


async def test_a_request_from_another_site_needs_an_allowed_origin() -> None:
    guarded = GuardedApp()
    for site in ("cross-site", "same-site", "surprise"):
        for origin, status in ((None, 403), (HERE, 403), (PAGE, 200)):
            headers = [("Sec-Fetch-Site", site), *([("Origin", origin)] if origin else [])]
            assert (await guarded.ask(headers=headers)).status == status, headers
    for site in ("same-origin", "none"):
        assert (await guarded.ask(headers=[("Sec-Fetch-Site", site)])).status == 200, site


NAVIGATION = [("Sec-Fetch-Site", "cross-site"), ("Sec-Fetch-Mode", "navigate"), ("Sec-Fetch-Dest", "document")]


async def test_a_link_elsewhere_opens_a_public_page_and_nothing_else() -> None:
    guarded = GuardedApp()
    assert (await guarded.ask(path="/page/login", headers=NAVIGATION)).status == 200
    assert (await guarded.ask(path="/session", headers=NAVIGATION)).status == 403
    assert (await guarded.ask("POST", "/login", NAVIGATION)).status == 403
    framed = [*NAVIGATION[:2], ("Sec-Fetch-Dest", "iframe")]
    assert (await guarded.ask(path="/page/login", headers=framed)).status == 403


async def test_an_allowed_page_may_ask_first_without_a_credential() -> None:
    asking = [("Origin", PAGE), ("Access-Control-Request-Method", "POST"), ("Sec-Fetch-Site", "cross-site")]
    guarded = GuardedApp()
    answer = await guarded.ask("OPTIONS", headers=asking, token=None)
    assert answer.status == 204
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert answer.headers["access-control-allow-credentials"] == "true"
    assert answer.headers["vary"] == "Origin"
    assert "Authorization" in answer.headers["access-control-allow-headers"]
    assert guarded.seen == []


async def test_another_page_may_not_ask_first() -> None:
    asking = [("Origin", "https://evil.example"), ("Access-Control-Request-Method", "POST")]
    answer = await GuardedApp().ask("OPTIONS", headers=asking, token=None)
    assert answer.status == 403
    assert not [name for name in answer.headers if name.startswith("access-control")]


async def test_an_allowed_page_may_read_answers_and_refusals() -> None:
    guarded = GuardedApp()
    passed = await guarded.ask(headers=[("Origin", PAGE)])
    refused = await guarded.ask(headers=[("Origin", PAGE)], token=None)
    assert (passed.status, refused.status) == (200, 401)
    assert passed.headers["x-app"] == "yes"
    for answer in (passed, refused):
        assert answer.headers["access-control-allow-origin"] == PAGE


async def test_what_is_sent_is_wrapped_for_allowed_pages_only() -> None:
    guarded = GuardedApp()

    async def send(message: Message) -> None:
        return

    async def receive() -> Message:
        raise AssertionError

    for origin in ([], [("Origin", HERE)], [("Origin", PAGE)]):
        await guarded.guard(scope_of(headers=origin), receive, send)
    assert [each is send for each in guarded.sends] == [True, True, False]


def test_allowed_origins_and_hosts_are_checked_at_the_start() -> None:
    for origin in ("*", "null", "page.example", "https://", "https://a/b", "ftp://a"):
        with pytest.raises(ConfigError, match="origin"):
            GuardedApp(settings=Settings(allow_origin=(origin,)))
    for host in ("", "https://a", "a b", "*"):
        with pytest.raises(ConfigError, match="host"):
            GuardedApp(settings=Settings(allow_host=(host,)))
