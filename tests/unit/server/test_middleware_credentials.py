"""The guard against strangers: sizes, secrets, credentials and rates."""

from __future__ import annotations

import logging

import pytest
from tests.unit.server.middleware_app import GIVEN, HERE, PAGE, GuardedApp, Headers

from turnwire.limits import Limits
from turnwire.server.access.login import KEY_PROTOCOL, PAGE_KEY, split
from turnwire.server.access.middleware import STRANGER
from turnwire.server.access.tokens import ANYBODY, OPERATOR_TOKEN_ID, Identity, Role
from turnwire.server.settings.declared import Settings

pytestmark = [pytest.mark.anyio, pytest.mark.guarantee("G13")]


async def test_headers_that_are_too_large_are_refused_first() -> None:
    guarded = GuardedApp(limits=Limits(header_bytes=1024))
    answer = await guarded.ask(host="evil.example", headers=[("X-Long", "x" * 1024)])
    assert (answer.status, answer.problem["code"]) == (431, "headers_too_large")
    assert (await guarded.ask(query="q=" + "x" * 1024)).status == 431
    assert (await guarded.ask(headers=[("X-Long", "x" * 512)])).status == 200


async def test_a_secret_in_the_url_is_refused_with_what_to_do() -> None:
    known = "x=tw_0123456789ab_0123456789abcdef"
    for query in ("token=x", "a=b&access_token=x", "Token=x", "%74oken=x", known, "token"):
        answer = await GuardedApp().ask(query=query)
        assert (answer.status, answer.problem["code"]) == (400, "bad_request"), query
        assert "Authorization" in answer.problem["detail"]
        assert "0123456789abcdef" not in answer.sent[1]["body"].decode()


async def test_another_query_is_left_alone() -> None:
    assert (await GuardedApp().ask(query="after=5&cursor=tw_&tokens=2")).status == 200


async def test_a_missing_credential_is_asked_for() -> None:
    answer = await GuardedApp().ask(token=None)
    assert (answer.status, answer.problem["code"]) == (401, "unauthenticated")
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.headers["cache-control"] == "no-store"
    assert int(answer.headers["content-length"]) == len(answer.sent[1]["body"])


async def test_a_wrong_credential_is_refused() -> None:
    for value in ("Bearer", "Bearer ", "Bearer wrong", "Basic YTpi", GIVEN, f"Bearer{GIVEN}", ""):
        answer = await GuardedApp().ask(headers=[("Authorization", value)], token=None)
        assert (answer.status, answer.problem["code"]) == (401, "unauthenticated"), value


async def test_the_application_learns_who_came_in() -> None:
    guarded = GuardedApp()
    record, secret = await guarded.tokens.issue("ci", Role.OBSERVER)
    await guarded.ask()
    await guarded.ask(token=None, headers=[("Authorization", f"bearer {secret}")])
    assert guarded.seen == [
        Identity("owner", Role.OWNER, None, OPERATOR_TOKEN_ID),
        Identity("ci", Role.OBSERVER, None, record.id),
    ]


async def test_a_public_route_needs_no_credential_and_ignores_a_wrong_one() -> None:
    guarded = GuardedApp()
    for method, path in (("GET", "/health"), ("HEAD", "/health"), ("POST", "/login")):
        for token in (None, "wrong"):
            assert (await guarded.ask(method, path, token=token)).status == 200, (method, path)
    assert guarded.seen == [STRANGER] * 6


async def test_a_path_or_method_that_is_not_declared_public_needs_a_credential() -> None:
    for method, path in (("POST", "/health"), ("GET", "/health/"), ("GET", "/page/a/b"), ("GET", "/nowhere")):
        assert (await GuardedApp().ask(method, path, token=None)).status == 401, (method, path)


async def test_a_socket_needs_a_credential_on_a_public_path_too() -> None:
    answer = await GuardedApp().ask(path="/health", kind="websocket", token=None)
    assert answer.sent == [{"type": "websocket.close", "code": 1008}]


async def test_without_credentials_everybody_is_anybody_but_pages_of_others_are_not() -> None:
    guarded = GuardedApp(settings=Settings(no_auth=True))
    assert (await guarded.ask(token=None)).status == 200
    assert (await guarded.ask(token=None, host="evil.example")).status == 403
    assert (await guarded.ask(token=None, headers=[("Origin", "https://evil.example")])).status == 403
    assert guarded.seen == [ANYBODY]


async def logged_in(guarded: GuardedApp, *headers: tuple[str, str], name: str = "turnwire_4170") -> Headers:
    _, secret = await guarded.tokens.issue("page", Role.OWNER, kind="login")
    cookie, key = split(secret)
    return [("Cookie", f"other=1; {name}={cookie}"), (PAGE_KEY, key), *headers]


@pytest.mark.parametrize("header", [("Origin", HERE), ("Sec-Fetch-Site", "same-origin"), ("Origin", PAGE)])
@pytest.mark.parametrize("kind", ["http", "websocket"])
async def test_a_cookie_changes_things_when_a_known_page_sends_it(header: tuple[str, str], kind: str) -> None:
    guarded = GuardedApp()
    await guarded.ask("POST", headers=await logged_in(guarded, header), token=None, kind=kind)
    assert [each.name for each in guarded.seen] == ["page"]


@pytest.mark.parametrize("headers", [[], [("Sec-Fetch-Site", "none")]])
async def test_a_cookie_alone_reads_and_changes_nothing(headers: Headers) -> None:
    guarded = GuardedApp()
    cookies = await logged_in(guarded, *headers)
    assert (await guarded.ask("GET", headers=cookies, token=None)).status == 200
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        assert (await guarded.ask(method, headers=cookies, token=None)).status == 403
    denied = await guarded.ask(kind="websocket", headers=cookies, token=None)
    assert denied.sent == [{"type": "websocket.close", "code": 1008}]


async def test_a_cookie_without_its_page_key_is_nothing() -> None:
    guarded = GuardedApp()
    cookie, key, own = await logged_in(guarded, ("Origin", HERE))
    for keys in ([], [(PAGE_KEY, "")], [(PAGE_KEY, "A" * len(key[1]))], [(PAGE_KEY, key[1][:-1])]):
        assert (await guarded.ask("POST", headers=[cookie, own, *keys], token=None)).status == 401
    assert (await guarded.ask("POST", headers=[key, own], token=None)).status == 401, "nor is the key alone"
    assert guarded.seen == []
    assert (await guarded.ask("POST", headers=[cookie, key, own], token=None)).status == 200


async def test_a_websocket_shows_the_page_key_as_a_subprotocol() -> None:
    guarded = GuardedApp()
    cookie, key, own = await logged_in(guarded, ("Origin", HERE))
    for protocols in ("acp", f"{KEY_PROTOCOL}wrong"):
        offered = ("Sec-WebSocket-Protocol", protocols)
        denied = await guarded.ask(kind="websocket", headers=[cookie, own, offered], token=None)
        assert denied.sent == [{"type": "websocket.close", "code": 1008}]
    offered = ("Sec-WebSocket-Protocol", f"acp, {KEY_PROTOCOL}{key[1]}")
    await guarded.ask(kind="websocket", headers=[cookie, own, offered], token=None)
    assert [each.name for each in guarded.seen] == ["page"]


async def test_a_cookie_of_another_port_or_of_nobody_is_refused() -> None:
    guarded = GuardedApp()
    assert (await guarded.ask(headers=await logged_in(guarded, name="turnwire_9"), token=None)).status == 401
    assert (await guarded.ask(headers=[("Cookie", f"turnwire_4170={GIVEN}")], token=None)).status == 401


async def test_a_wrong_header_is_not_saved_by_a_good_cookie() -> None:
    guarded = GuardedApp()
    assert (await guarded.ask(headers=await logged_in(guarded), token="wrong")).status == 401


async def test_a_credential_has_a_rate_and_is_told_when_to_come_back() -> None:
    guarded = GuardedApp(limits=Limits(request_rate=0.5))
    _, other = await guarded.tokens.issue("ci", Role.OBSERVER)
    assert (await guarded.ask()).status == 200
    slowed = await guarded.ask(address="192.0.2.8")
    assert (slowed.status, slowed.problem["code"], slowed.headers["retry-after"]) == (429, "rate_limited", "2")
    assert (await guarded.ask(token=other)).status == 200
    guarded.clock.advance(2)
    assert (await guarded.ask()).status == 200


async def test_strangers_have_a_rate_by_address() -> None:
    guarded = GuardedApp(limits=Limits(request_rate=1))
    statuses = [(await guarded.ask(path="/health", address=each)).status for each in ("192.0.2.7",) * 2 + ("::1",)]
    assert statuses == [200, 429, 200]


async def test_wrong_credentials_are_slowed_down_by_address_and_right_ones_never() -> None:
    guarded = GuardedApp(limits=Limits(failed_logins=3))
    _, made = await guarded.tokens.issue("ci", Role.OBSERVER)
    answers = [await guarded.ask(token=f"guess-{each}") for each in range(5)]
    assert [each.status for each in answers] == [401, 401, 401, 429, 429]
    assert answers[-1].headers["retry-after"] == "20"
    assert (await guarded.ask(token=made)).status == 200
    assert (await guarded.ask(token=GIVEN)).status == 200
    assert (await guarded.ask(address="192.0.2.8", token="wrong")).status == 401
    guarded.clock.advance(60)
    assert (await guarded.ask(token="wrong")).status == 401


async def test_those_who_use_up_the_rate_of_an_address_keep_nobody_from_logging_in_there() -> None:
    guarded = GuardedApp(limits=Limits(request_rate=1))
    assert [(await guarded.ask(path="/health", token=None)).status for _ in range(2)] == [200, 429]
    assert (await guarded.ask("POST", "/login", token=None)).status == 200


async def test_behind_a_trusted_proxy_each_client_is_slowed_for_itself() -> None:
    settings = Settings(trusted_proxy=("192.0.2.0/24",))
    guarded = GuardedApp(settings=settings, limits=Limits(failed_logins=1))
    first, second = [("X-Forwarded-For", "198.51.100.1")], [("X-Forwarded-For", "198.51.100.2")]
    statuses = [(await guarded.ask(headers=each, token="wrong")).status for each in (first, first, second)]
    assert statuses == [401, 429, 401]


async def test_a_missing_credential_is_no_guess() -> None:
    guarded = GuardedApp(limits=Limits(failed_logins=1))
    for _ in range(5):
        assert (await guarded.ask(token=None)).status == 401
    assert (await guarded.ask()).status == 200


async def test_a_refused_credential_is_logged_without_itself(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        await GuardedApp().ask(token="a-secret-that-is-wrong", path="/session/some-path")
    [record] = [each for each in caplog.records if each.name == "turnwire.audit"]
    assert vars(record)["event"] == "credential_refused"
    assert vars(record)["address"] == "192.0.2.7"
    assert not [each for each in caplog.records if "a-secret-that-is-wrong" in str(vars(each))]
