"""Logging in to the page: a link that works once, a link that is shared, and the cookies that they become.

A link has a code in its fragment, which browsers send to nobody. The page behind it posts the code and gets a
cookie. Of codes and cookies only the hashes are kept.

A login link is for one browser of an owner. A share link is for those who may watch one session: it is the
credential itself, so it opens as often as they like, until it expires or is revoked, and all of them end with it.
"""

from __future__ import annotations

import base64
import hashlib
import math
import secrets
from collections import OrderedDict
from contextlib import suppress
from typing import NamedTuple, Protocol

from turnwire.errors import CredentialsNotStored, LimitExceeded, LogError, Unauthenticated
from turnwire.ids import SessionId
from turnwire.runtime.clock import Clock
from turnwire.server.access.identity import Identity, Role
from turnwire.server.access.origins import Host, page_headers
from turnwire.server.access.tokens import OPERATOR_TOKEN_ID, Running, TokenRecord, Tokens

CODE_BYTES = 32
LINK_S = 600.0
"""Ten minutes: long enough to open a printed link, too short to find one later."""
COOKIE_S = 30 * 86_400
"""Thirty days; then the page asks for a new link."""
MOST_LINKS = 64
"""Links that wait to be opened; the oldest is forgotten first."""
NAME = "page"
"""The author of what is done in a page."""
SHARE_NAME = "share"
"""Who watches by a share link, whoever it is. The log has it nowhere: they change nothing."""
SHARE_S = 86_400.0
"""A day, if nobody says how long a share link is good."""
LONGEST_SHARE_S = COOKIE_S
"""It goes through chats and mails, where it stays; for longer, a token for one session is the way."""


class Link(NamedTuple):
    """A login link that was not used yet."""

    seconds: float
    """How long it is still good."""
    granted_by: str | None


class Links(Protocol):
    """Where the links are that were given out and not used yet. Of each only the hash of its code is known."""

    async def put(self, digest: bytes, link: Link) -> None:
        """Keep one; beyond `MOST_LINKS` the oldest are forgotten. Raises `CredentialsNotStored`."""
        ...

    async def take(self, digest: bytes) -> Link | None:
        """Use one up. Of several who ask at once one gets it. Raises `LogError`."""
        ...


class LinksInMemory:
    """`Links` of one daemon."""

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
    """The links that are given out, and the logins they become."""

    def __init__(self, tokens: Tokens, clock: Clock, links: Links) -> None:
        self._tokens = tokens
        self._clock = clock
        self._links = links

    async def login_link(self, base_url: str, who: Identity | None = None) -> str:
        """A link that logs one browser in as owner, once. The login ends with the token of `who`.

        Raises `CredentialsNotStored`.
        """
        return link_of(base_url, await self.code(who))

    async def code(self, who: Identity | None = None) -> str:
        """What `link_of` makes such a link of, for who does not know yet where it leads."""
        code = secrets.token_urlsafe(CODE_BYTES)
        granted_by = None if who is None or who.token_id == OPERATOR_TOKEN_ID else who.token_id
        await self._links.put(_digest(code), Link(LINK_S, granted_by))
        return code

    async def redeem(self, code: str) -> str:
        """The value of the cookie for a code, which is used up by this.

        Raises:
            Unauthenticated: It was used, is too old, or its token was revoked.
            CredentialsNotStored, LimitExceeded: There is no login. The code is good for another try, if it can be.
        """
        digest = _digest(code)
        link = await self._links.take(digest)
        if link is None:
            raise _refused()
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

    async def leave(self, who: Identity, spare: Running | None = None) -> bool:
        """End the login of `who`, and all under it but `spare`. Gives whether it was one: a token does not log out.

        A share link is not ended: the browser forgets it, and others go on with it.
        Raises `CredentialsNotStored`, as `Tokens.revoke` does.
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
        """A link by which others watch one session. It ends with the token of `who`, and not with their login.

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
        """The share links of a session that are good now, oldest first."""
        return [
            each for each in await self._tokens.list() if each.kind == "share" and each.session_id == session_id
        ]

    async def end_shares(self, session_id: SessionId) -> None:
        """Revoke all of them: another session may get the id. Raises `CredentialsNotStored`."""
        for each in await self.shares(session_id):
            await self._tokens.revoke(each.id)

    async def shared_s(self, code: str) -> float | None:
        """How long the share link with this code is good; none if there is no such."""
        found = await self._tokens.check(code, "share")
        record = None if found is None or found.token_id is None else await self._tokens.find(found.token_id)
        if record is None or record.expires_at is None:
            return None
        return (record.expires_at - self._clock.now_ms()) / 1000

    # -- what a link ends with -----------------------------------------------------------------------------------

    async def _token_behind(self, who: Identity) -> str | None:
        """The token of `who`, or the one that granted their login; none if it cannot be revoked."""
        record = None if who.token_id is None else await self._tokens.find(who.token_id)
        if record is None:
            return None
        return record.granted_by if record.kind == "login" else record.id

    async def _lifetime_s(self, granted_by: str | None) -> float:
        """What a token grants does not outlive it."""
        if granted_by is None:
            return COOKIE_S
        record = await self._tokens.find(granted_by)
        if record is None:
            return 0
        if record.expires_at is None:
            return COOKIE_S
        return min(COOKIE_S, (record.expires_at - self._clock.now_ms()) / 1000)


def link_of(base_url: str, code: str) -> str:
    """A link with a code in its fragment."""
    return f"{base_url.rstrip('/')}/login#{code}"


def cookie_name(host: Host) -> str:
    """One per port: browsers keep cookies by name only, and two daemons on one machine differ by port."""
    return "turnwire" if host.port is None else f"turnwire_{host.port}"


def cookie(host: Host, value: str, *, is_secure: bool, path: str = "/", lifetime_s: float = COOKIE_S) -> str:
    """The `Set-Cookie` header of a login; of a logout, with an empty value. Others below our host do not get it."""
    parts = [f"{cookie_name(host)}={value}", "HttpOnly", "SameSite=Strict", f"Path={path}"]
    parts.append(f"Max-Age={math.ceil(lifetime_s) if value else 0}")
    if is_secure:
        parts.append("Secure")
    return "; ".join(parts)


def _digest(code: str) -> bytes:
    return hashlib.sha256(code.encode("utf-8", "surrogatepass")).digest()


def _refused() -> Unauthenticated:
    return Unauthenticated(
        "this link was used or revoked, or is too old; get a new one with `turnwire login`, or from who shared it"
    )


_SCRIPT = """
const say = text => { document.getElementById("state").textContent = text; };
const code = location.hash.slice(1);
history.replaceState(null, "", location.pathname);
if (!code) say("This page needs a login link. Run turnwire login to get one.");
else fetch("login", {
  method: "POST",
  headers: {"Content-Type": "application/json"},
  body: JSON.stringify({code}),
}).then(async reply => {
  if (!reply.ok)
    say("This link was used or revoked, or is too old. Run turnwire login, or ask who shared it for a new one.");
  else if ((await fetch("./", {method: "HEAD"})).ok) location.replace("./");
  else say("You are logged in. This browser may use the API; /docs shows it.");
}).catch(() => say("The daemon does not answer. Is it running?"));
"""

PAGE = f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>turnwire: login</title>
<p id="state" role="status">Logging in …</p>
<script>{_SCRIPT}</script>
</html>
""".encode()
"""What `GET /login` shows. It takes the code out of the address bar before anything else; then it leads on to
the page, if there is one."""

PAGE_HEADERS = page_headers(
    "default-src 'none'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none';"
    f" script-src 'sha256-{base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()}'"
) | {"Content-Type": "text/html; charset=utf-8", "Cache-Control": "no-store"}
"""Nothing but that one script runs, and it reaches nobody but us."""
