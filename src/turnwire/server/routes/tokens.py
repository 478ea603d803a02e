"""Credentials over HTTP: tokens for programs, logins for the page, share links for one session.

A secret is in the one answer that creates it and nowhere else. A digest is in no answer.
"""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

from msgspec import Meta, Struct
from starlette.types import Send

from turnwire.errors import BadRequest, CredentialsNotStored, Forbidden, LimitExceeded, NotFound, Unauthenticated
from turnwire.ids import SessionId
from turnwire.server.access.login import (
    COOKIE_S,
    LONGEST_SHARE_S,
    PAGE,
    PAGE_HEADERS,
    PAGE_KEY,
    SHARE_S,
    cookie,
    cookie_name,
    split,
)
from turnwire.server.access.middleware import cookie_of
from turnwire.server.access.origins import Host, parse_host
from turnwire.server.access.qr_code import qr_image
from turnwire.server.access.tokens import Kind, Lifetime, Role, TokenName, TokenRecord
from turnwire.server.endpoint import Call, Endpoint, Reply


class NewToken(Struct, frozen=True, kw_only=True, rename="camel"):
    """The purpose and rights of a new token."""

    name: TokenName
    role: Role
    session_id: SessionId | None = None
    expires_in_s: Lifetime | None = None


class TokenShown(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A credential without its secret."""

    id: str
    name: str
    role: Role
    kind: Kind
    created_at: int
    expires_at: int | None = None
    session_id: SessionId | None = None


class TokenMade(TokenShown, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A credential with its secret, which is shown only this once."""

    token: str


class TokenList(Struct, frozen=True):
    tokens: list[TokenShown]


class LoginCode(Struct, frozen=True):
    """The code of a login link or share link, or a token."""

    code: str


class LoginLink(Struct, frozen=True, rename="camel"):
    """A link that logs in one browser, once."""

    url: str
    qr_code: str
    """The link as a QR code: an SVG image in a data URL."""


class NewShare(Struct, frozen=True, kw_only=True, rename="camel"):
    """Lifetime of the link in seconds: one day by default, at most thirty days."""

    expires_in_s: Annotated[float, Meta(gt=0, le=LONGEST_SHARE_S)] = SHARE_S


class ShareShown(Struct, frozen=True, kw_only=True, rename="camel"):
    """A share link without its secret."""

    token_id: str
    created_at: int
    expires_at: int


class ShareMade(ShareShown, frozen=True, kw_only=True, rename="camel"):
    """A share link with its secret, which is shown only this once."""

    url: str


class ShareList(Struct, frozen=True):
    shares: list[ShareShown]


async def list_tokens(call: Call) -> Reply:
    return Reply(TokenList([_shown(each) for each in await call.daemon.tokens.list()]))


async def issue_token(call: Call) -> Reply:
    wanted: NewToken = call.body
    record, secret = await call.daemon.tokens.issue(
        wanted.name, wanted.role, wanted.session_id, wanted.expires_in_s
    )
    shown = _shown(record)
    return Reply(TokenMade(token=secret, **{name: getattr(shown, name) for name in shown.__struct_fields__}))


async def revoke_token(call: Call) -> Reply:
    await call.daemon.tokens.revoke(call.request.path_params["token_id"], spare=call.credential)
    return Reply()


async def make_link(call: Call) -> Reply:
    link = await call.daemon.login.login_link(_base_url(call), call.who)
    return Reply(LoginLink(link, qr_image(link)))


async def log_in(call: Call) -> Reply:
    login, code = call.daemon.login, call.body.code
    shared_s = await login.shared_s(code)
    if shared_s is not None:
        # An owner who opens their own share link to preview it stays logged in as an owner.
        kept = await _is_logged_in(call)
        return Reply(headers={} if kept else _login(call, code, shared_s))
    try:
        secret = await login.redeem(code)
    except Unauthenticated:
        call.daemon.failures.count(call.address, call.endpoint.method)
        raise
    return Reply(headers=_login(call, secret))


async def _is_logged_in(call: Call) -> bool:
    cookie = cookie_of(call.request.headers.get("cookie", ""), cookie_name(_host(call)))
    key = call.request.headers.get(PAGE_KEY)
    return bool(cookie and key) and await call.daemon.tokens.check(f"{cookie}{key}", "login") is not None


async def share(call: Call) -> Reply:
    daemon, wanted = call.daemon, call.body
    if daemon.settings.no_auth:
        raise Forbidden("this daemon asks nobody for a credential, so a link would limit nobody; run it with one")
    await daemon.sessions.entry(call.session_id)
    record, url = await daemon.login.share_link(_base_url(call), call.session_id, wanted.expires_in_s, call.who)
    shown = _share(record)
    return Reply(
        ShareMade(url=url, token_id=shown.token_id, created_at=shown.created_at, expires_at=shown.expires_at)
    )


async def list_shares(call: Call) -> Reply:
    await call.daemon.sessions.entry(call.session_id)
    return Reply(ShareList([_share(each) for each in await call.daemon.login.shares(call.session_id)]))


async def revoke_share(call: Call) -> Reply:
    wanted = call.request.path_params["token_id"]
    if wanted not in [each.id for each in await call.daemon.login.shares(call.session_id)]:
        raise NotFound("this session has no such share link; it was revoked, has expired, or was never made here")
    await call.daemon.tokens.revoke(wanted)
    return Reply()


def _share(record: TokenRecord) -> ShareShown:
    assert record.expires_at is not None, "every share link expires"
    return ShareShown(token_id=record.id, created_at=record.created_at, expires_at=record.expires_at)


async def log_out(call: Call) -> Reply:
    if not await call.daemon.login.leave(call.who, spare=call.credential):
        raise BadRequest("only a login of the page logs out; a token is revoked with DELETE /tokens/{id}")
    return Reply(headers={"Set-Cookie": _cookie(call, "")})


async def show_login(call: Call, send: Send) -> None:
    headers = [(name.lower().encode(), value.encode()) for name, value in PAGE_HEADERS.items()]
    headers.append((b"content-length", str(len(PAGE)).encode()))
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": PAGE})


def _shown(record: TokenRecord) -> TokenShown:
    return TokenShown(
        id=record.id,
        name=record.name,
        role=record.role,
        kind=record.kind,
        created_at=record.created_at,
        expires_at=record.expires_at,
        session_id=record.session_id,
    )


def _login(call: Call, secret: str, lifetime_s: float = COOKIE_S) -> dict[str, str]:
    """Return the headers that give a browser both halves of a login."""
    half, key = split(secret)
    return {"Set-Cookie": _cookie(call, half, lifetime_s), PAGE_KEY: key}


def _cookie(call: Call, secret: str, lifetime_s: float = COOKIE_S) -> str:
    path = _mount(call) or "/"
    return cookie(_host(call), secret, is_secure=_is_secure(call), path=path, lifetime_s=lifetime_s)


def _base_url(call: Call) -> str:
    """Return the base of links: the address under which the caller reached the daemon."""
    return str(call.request.base_url.replace(path=_mount(call), query="", fragment=""))


def _mount(call: Call) -> str:
    """Return the path under which another application mounts the daemon, as a browser writes it, or empty."""
    return quote(call.request.scope.get("root_path", "").rstrip("/"))


def _host(call: Call) -> Host:
    host = parse_host(call.request.headers["host"])
    assert host is not None, "the access middleware lets no other in"
    return host


def _is_secure(call: Call) -> bool:
    """Return whether the browser used TLS to the daemon or to a proxy in front of it, by the request's origin."""
    return call.request.url.scheme == "https" or call.request.headers.get("origin", "").startswith("https:")


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        method="GET",
        path="/tokens",
        act=list_tokens,
        summary="List the credentials that are valid now",
        role=Role.OWNER,
        gives=TokenList,
        tag="tokens",
    ),
    Endpoint(
        method="POST",
        path="/tokens",
        act=issue_token,
        summary="Make a token; its secret is in this answer only",
        role=Role.OWNER,
        takes=NewToken,
        gives=TokenMade,
        status=201,
        refuses=(CredentialsNotStored, LimitExceeded),
        tag="tokens",
    ),
    Endpoint(
        method="DELETE",
        path="/tokens/{token_id}",
        act=revoke_token,
        summary="Revoke a token and the logins it granted; their streams end now",
        role=Role.OWNER,
        status=204,
        refuses=(CredentialsNotStored, NotFound),
        tag="tokens",
    ),
    Endpoint(
        method="POST",
        path="/login-link",
        act=make_link,
        summary="Make a link that logs one browser in, once",
        role=Role.OWNER,
        gives=LoginLink,
        refuses=(CredentialsNotStored,),
        tag="tokens",
    ),
    Endpoint(
        method="GET",
        path="/login",
        stream=show_login,
        summary="The page that a login link opens",
        role=None,
        media_type="text/html",
        tag="tokens",
    ),
    Endpoint(
        method="POST",
        path="/login",
        act=log_in,
        summary="Exchange the code of a login link, or a token, for a cookie and a page key",
        role=None,
        takes=LoginCode,
        logs_in=True,
        status=204,
        refuses=(CredentialsNotStored, Unauthenticated),
        tag="tokens",
    ),
    Endpoint(
        method="POST",
        path="/session/{session_id}/share",
        act=share,
        summary="Make a link by which others watch this session; its secret is in this answer only",
        role=Role.OWNER,
        takes=NewShare,
        gives=ShareMade,
        status=201,
        refuses=(CredentialsNotStored, LimitExceeded),
        tag="tokens",
    ),
    Endpoint(
        method="GET",
        path="/session/{session_id}/shares",
        act=list_shares,
        summary="List the share links of this session that are good now",
        role=Role.OWNER,
        gives=ShareList,
        tag="tokens",
    ),
    Endpoint(
        method="DELETE",
        path="/session/{session_id}/shares/{token_id}",
        act=revoke_share,
        summary="Revoke a share link; what its holders read ends now",
        role=Role.OWNER,
        status=204,
        refuses=(CredentialsNotStored, NotFound),
        tag="tokens",
    ),
    Endpoint(
        method="POST",
        path="/logout",
        act=log_out,
        summary="End the login of this browser",
        role=Role.OBSERVER,
        status=204,
        narrows=True,
        refuses=(BadRequest, CredentialsNotStored),
        tag="tokens",
    ),
)
"""The routes of credentials."""
