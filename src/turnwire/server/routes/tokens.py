"""Credentials over HTTP: tokens for programs, logins for the page.

A secret is in the one answer that makes it and nowhere else, and a digest is in none.
"""

from __future__ import annotations

from urllib.parse import quote

from msgspec import Struct
from starlette.types import Send

from turnwire.errors import BadRequest, CredentialsNotStored, LimitExceeded, NotFound, Unauthenticated
from turnwire.ids import SessionId
from turnwire.server.access.identity import Role
from turnwire.server.access.login import PAGE, PAGE_HEADERS, cookie
from turnwire.server.access.origins import Host, parse_host
from turnwire.server.access.tokens import Kind, Lifetime, TokenName, TokenRecord
from turnwire.server.endpoint import Call, Endpoint, Reply


class NewToken(Struct, frozen=True, kw_only=True, rename="camel"):
    """What a token is for."""

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
    """A credential with its secret, this once."""

    token: str


class TokenList(Struct, frozen=True):
    tokens: list[TokenShown]


class LoginCode(Struct, frozen=True):
    """The code of a login link."""

    code: str


class LoginLink(Struct, frozen=True):
    """A link that logs one browser in, once."""

    url: str


async def list_tokens(call: Call) -> Reply:
    return Reply(TokenList([_shown(each) for each in call.daemon.tokens.list()]))


async def issue_token(call: Call) -> Reply:
    wanted: NewToken = call.body
    record, secret = call.daemon.tokens.issue(wanted.name, wanted.role, wanted.session_id, wanted.expires_in_s)
    shown = _shown(record)
    return Reply(TokenMade(token=secret, **{name: getattr(shown, name) for name in shown.__struct_fields__}))


async def revoke_token(call: Call) -> Reply:
    call.daemon.tokens.revoke(call.request.path_params["token_id"], spare=call.credential)
    return Reply()


async def make_link(call: Call) -> Reply:
    base = call.request.base_url.replace(path=_mount(call), query="", fragment="")
    return Reply(LoginLink(call.daemon.login.login_link(str(base), call.who)))


async def log_in(call: Call) -> Reply:
    try:
        secret = call.daemon.login.redeem(call.body.code)
    except Unauthenticated:
        call.daemon.failures.count(call.address, call.endpoint.method)
        raise
    return Reply(headers={"Set-Cookie": _cookie(call, secret)})


async def log_out(call: Call) -> Reply:
    if not call.daemon.login.leave(call.who, spare=call.credential):
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


def _cookie(call: Call, secret: str) -> str:
    return cookie(_host(call), secret, is_secure=_is_secure(call), path=_mount(call) or "/")


def _mount(call: Call) -> str:
    """Where another application has put us, as a browser writes it; empty when we are alone."""
    return quote(call.request.scope.get("root_path", "").rstrip("/"))


def _host(call: Call) -> Host:
    host = parse_host(call.request.headers["host"])
    assert host is not None, "the access middleware lets no other in"
    return host


def _is_secure(call: Call) -> bool:
    """Whether the browser came by TLS, to us or to a proxy in front of us: then its origin says so."""
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
        summary="Exchange the code of a login link for a cookie",
        role=None,
        takes=LoginCode,
        logs_in=True,
        status=204,
        refuses=(CredentialsNotStored, Unauthenticated),
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
