"""Logging in to the page: one-time login links, share links, and the cookies that they become.

A link has a code in its fragment, which browsers never send. The page at the link posts the code and gets a login.
Only hashes of codes and logins are stored.

Browsers send a cookie to every port of a host, so another local server sees it. So the secret of a login is split:
the cookie has one half, and the page stores the other, its *page key*, in `localStorage`, which browsers separate
by origin. Each request contains both (`Turnwire-Page-Key`, or a subprotocol of a WebSocket); one half is worth
nothing.

A login link is for one browser of an owner. A token can be exchanged for a login with the same rights. A share link
lets its users watch one session: it is the credential itself, so it can be opened any number of times until it
expires or is revoked, and everything opened with it ends with it.
"""

from __future__ import annotations

import base64
import hashlib
import math
import secrets
from collections import OrderedDict
from contextlib import suppress
from typing import NamedTuple, Protocol

from turnwire.clock import Clock
from turnwire.errors import CredentialsNotStored, LimitExceeded, LogError, Unauthenticated
from turnwire.ids import SessionId
from turnwire.server.access.origins import Host, page_headers
from turnwire.server.access.tokens import OPERATOR_TOKEN_ID, Identity, Role, Running, TokenRecord, Tokens

CODE_BYTES = 32
PAGE_KEY = "Turnwire-Page-Key"
"""The header with the half of a login that is not in the cookie."""
PAGE_KEY_LENGTH = 22
"""Characters of 6 bits each: as hard to guess as the other half."""
KEY_PROTOCOL = "turnwire.key."
"""The prefix of a subprotocol that carries the page key: scripts cannot set headers of a WebSocket."""
LINK_S = 600.0
"""Ten minutes: long enough to open a printed link, too short to find one later."""
COOKIE_S = 30 * 86_400
"""Thirty days; then the page asks for a new link."""
MOST_LINKS = 64
"""Maximum number of unused links; the oldest is forgotten first."""
NAME = "page"
"""The author of actions in a page."""
SHARE_NAME = "share"
"""The name of every user of a share link. It never appears in the log, because these users change nothing."""
SHARE_S = 86_400.0
"""The default lifetime of a share link: a day."""
LONGEST_SHARE_S = COOKIE_S
"""The maximum lifetime of a share link, which remains in chats. Beyond it, use a token for the session."""


class Link(NamedTuple):
    """An unused login link."""

    seconds: float
    """The remaining lifetime."""
    granted_by: str | None


class Links(Protocol):
    """Storage for unused links. Only the hash of each code is stored."""

    async def put(self, digest: bytes, link: Link) -> None:
        """Store a link; beyond `MOST_LINKS` the oldest are forgotten. Raises `CredentialsNotStored`."""
        ...

    async def take(self, digest: bytes) -> Link | None:
        """Remove and return a link. Only one of several concurrent callers gets it. Raises `LogError`."""
        ...


class LinksInMemory:
    """`Links` of one daemon, in memory."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._links: OrderedDict[bytes, tuple[float, str | None]] = OrderedDict()

    async def put(self, digest: bytes, link: Link) -> None:
        self._links[digest] = self._clock.monotonic() + link.seconds, link.granted_by
        if len(self._links) > MOST_LINKS:
            self._links.popitem(last=False)

    async def take(self, digest: bytes) -> Link | None:
        until, granted_by = self._links.pop(digest, (-math.inf, None))
        left = until - self._clock.monotonic()
        return Link(left, granted_by) if left >= 0 else None


class Login:
    """Issuer of login links and share links, and of the logins that they become."""

    def __init__(self, tokens: Tokens, links: Links) -> None:
        self._tokens = tokens
        self._links = links

    async def login_link(self, base_url: str, who: Identity | None = None) -> str:
        """Return a link that logs one browser in as owner, once. The login ends with the token of `who`.

        Raises `CredentialsNotStored`.
        """
        return link_of(base_url, await self.code(who))

    async def code(self, who: Identity | None = None) -> str:
        """Return the code for `link_of`, for callers that do not know the base URL yet."""
        code = secrets.token_urlsafe(CODE_BYTES)
        granted_by = None if who is None or who.token_id == OPERATOR_TOKEN_ID else who.token_id
        await self._links.put(_digest(code), Link(LINK_S, granted_by))
        return code

    async def redeem(self, code: str) -> str:
        """Return the secret of a new login for a code, which can be used only once, or for a token.

        Raises:
            Unauthenticated: The code was used, is too old, or its token was revoked; or the token is not valid.
            CredentialsNotStored, LimitExceeded: The login was not created. The code can be used again, if possible.
        """
        digest = _digest(code)
        link = await self._links.take(digest)
        if link is None:
            return await self._exchange(code)
        try:
            lifetime_s = await self._lifetime_s(link.granted_by)
            if lifetime_s <= 0:
                raise _refused()
            _, secret = await self._tokens.issue(
                NAME, Role.OWNER, None, lifetime_s, kind="login", granted_by=link.granted_by
            )
        except (CredentialsNotStored, LimitExceeded, LogError):
            with suppress(CredentialsNotStored):
                await self._links.put(digest, link)
            raise
        return secret

    async def _exchange(self, token: str) -> str:
        """Return the secret of a login with the rights of a token; it ends with the token. Raises as `redeem`."""
        who = await self._tokens.check(token)
        if who is None:
            raise _refused()
        granted_by = None if who.token_id == OPERATOR_TOKEN_ID else who.token_id
        lifetime_s = await self._lifetime_s(granted_by)
        _, secret = await self._tokens.issue(
            who.name, who.role, who.session_id, lifetime_s, kind="login", granted_by=granted_by
        )
        return secret

    async def leave(self, who: Identity, spare: Running | None = None) -> bool:
        """End the login of `who`, and everything that runs under it except `spare`.

        Returns False for a token, which cannot log out. A share link is not ended: the browser forgets it, and
        other users continue to use it. Raises `CredentialsNotStored`, as `Tokens.revoke` does.
        """
        record = None if who.token_id is None else await self._tokens.find(who.token_id)
        if record is None or record.kind == "token":
            return False
        if record.kind == "login":
            await self._tokens.revoke(record.id, spare)
        return True

    # -- share links ---------------------------------------------------------------------------------------------

    async def share_link(
        self, base_url: str, session_id: SessionId, lifetime_s: float, who: Identity
    ) -> tuple[TokenRecord, str]:
        """Create a link by which others watch one session. It ends with the token of `who`, not with their login.

        Raises `CredentialsNotStored`, `LimitExceeded`, as `Tokens.issue` does.
        """
        granted_by = await self._token_behind(who)
        record, secret = await self._tokens.issue(
            SHARE_NAME,
            Role.OBSERVER,
            session_id,
            min(lifetime_s, await self._lifetime_s(granted_by)),
            kind="share",
            granted_by=granted_by,
        )
        return record, link_of(base_url, secret)

    async def shares(self, session_id: SessionId) -> list[TokenRecord]:
        """Return the valid share links of a session, oldest first."""
        return [
            each for each in await self._tokens.list() if each.kind == "share" and each.session_id == session_id
        ]

    async def end_shares(self, session_id: SessionId) -> None:
        """Revoke a session's share links: another may get its id. Raises `CredentialsNotStored`."""
        for each in await self.shares(session_id):
            await self._tokens.revoke(each.id)

    async def shared_s(self, code: str) -> float | None:
        """Return the remaining lifetime of the share link with this code; None if there is no such link."""
        found = await self._tokens.check(code, "share")
        record = None if found is None or found.token_id is None else await self._tokens.find(found.token_id)
        if record is None or record.expires_at is None:
            return None
        return (record.expires_at - self._tokens.now_ms()) / 1000

    # -- the lifetime of a link ----------------------------------------------------------------------------------

    async def _token_behind(self, who: Identity) -> str | None:
        """Return the token of `who`, or the one that granted their login; None if it cannot be revoked."""
        record = None if who.token_id is None else await self._tokens.find(who.token_id)
        if record is None:
            return None
        return record.granted_by if record.kind == "login" else record.id

    async def _lifetime_s(self, granted_by: str | None) -> float:
        """Return the maximum lifetime of a grant, which does not outlive the token that granted it."""
        if granted_by is None:
            return COOKIE_S
        record = await self._tokens.find(granted_by)
        if record is None:
            return 0
        if record.expires_at is None:
            return COOKIE_S
        return min(COOKIE_S, (record.expires_at - self._tokens.now_ms()) / 1000)


def link_of(base_url: str, code: str) -> str:
    """Return a link with a code in its fragment."""
    return f"{base_url.rstrip('/')}/login#{code}"


def split(secret: str) -> tuple[str, str]:
    """Return the halves of a login's secret: the cookie's half, and the page key."""
    return secret[:-PAGE_KEY_LENGTH], secret[-PAGE_KEY_LENGTH:]


def cookie_name(host: Host) -> str:
    """Return the cookie's name, one per port: browsers separate cookies by name, but not by port."""
    return "turnwire" if host.port is None else f"turnwire_{host.port}"


def cookie(host: Host, value: str, *, is_secure: bool, path: str = "/", lifetime_s: float = COOKIE_S) -> str:
    """Return the `Set-Cookie` header of a login; of a logout if `value` is empty. Not for subdomains."""
    parts = [f"{cookie_name(host)}={value}", "HttpOnly", "SameSite=Strict", f"Path={path}"]
    parts.append(f"Max-Age={math.ceil(lifetime_s) if value else 0}")
    if is_secure:
        parts.append("Secure")
    return "; ".join(parts)


def _digest(code: str) -> bytes:
    return hashlib.sha256(code.encode("utf-8", "surrogatepass")).digest()


def _refused() -> Unauthenticated:
    return Unauthenticated(
        "this link has expired or was already used, or this token is not valid; run `turnwire login` for a new"
        " link, or ask whoever sent it"
    )


_SCRIPT = """
const say = text => { document.getElementById("state").textContent = text; };
const code = location.hash.slice(1);
const place = "turnwire key " + location.pathname.replace(/[^/]*$/, "");
const headers = {"Content-Type": "application/json"};
if (localStorage.getItem(place)) headers["Turnwire-Page-Key"] = localStorage.getItem(place);
history.replaceState(null, "", location.pathname);
const open = async (part, text) => {
  if ((await fetch("./", {method: "HEAD"})).ok) location.replace("./" + part);
  else say(text);
};
if (!code) open("", "This page needs a login link. Run turnwire login to get one.");
else fetch("login", {
  method: "POST",
  headers,
  body: JSON.stringify({code}),
}).then(async reply => {
  if (!reply.ok) {
    await open("#/link-expired", "This link has expired or was already used. Run turnwire login for a new one.");
    return;
  }
  const key = reply.headers.get("Turnwire-Page-Key");
  if (key) localStorage.setItem(place, key);
  await open("", "You are logged in. This browser may use the API; /docs shows it.");
}).catch(() => say("The daemon does not answer. Is it running?"));
"""

PAGE = f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark">
<title>turnwire: login</title>
<p id="state" role="status">Logging in…</p>
<script>{_SCRIPT}</script>
</html>
""".encode()
"""The page of `GET /login`. Its script removes the code from the address bar before anything else; then it opens
the main page, if there is one. A used link opens it as well: the browser may be logged in already.
"""

PAGE_HEADERS = page_headers(
    "default-src 'none'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none';"
    f" script-src 'sha256-{base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()}'"
) | {"Content-Type": "text/html; charset=utf-8", "Cache-Control": "no-store"}
"""Headers that allow only this one script, which may connect only to this daemon."""
