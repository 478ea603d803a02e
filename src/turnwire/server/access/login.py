"""Logging in to the page: a link that works once, and a cookie that stays.

The link has a code in its fragment, which browsers send to nobody. The page behind it posts the code and gets a
cookie. Of codes and cookies only the hashes are kept.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
from collections import OrderedDict
from typing import NamedTuple

import anyio

from turnwire.errors import Unauthenticated
from turnwire.runtime.clock import Clock
from turnwire.server.access.identity import Identity, Role
from turnwire.server.access.origins import Host
from turnwire.server.access.tokens import OPERATOR_TOKEN_ID, Tokens

CODE_BYTES = 32
LINK_S = 600.0
"""Ten minutes: long enough to open a printed link, too short to find one later."""
COOKIE_S = 30 * 86_400
"""Thirty days; then the page asks for a new link."""
MOST_LINKS = 64
"""Links that wait to be opened; the oldest is forgotten first."""
NAME = "page"
"""The author of what is done in a page."""


class _Link(NamedTuple):
    until: float
    granted_by: str | None


class Login:
    """The links that were given out and not used yet, and the logins they become."""

    def __init__(self, tokens: Tokens, clock: Clock) -> None:
        self._tokens = tokens
        self._clock = clock
        self._links: OrderedDict[bytes, _Link] = OrderedDict()

    def login_link(self, base_url: str, who: Identity | None = None) -> str:
        """A link that logs one browser in as owner, once. The login ends with the token of `who`."""
        code = secrets.token_urlsafe(CODE_BYTES)
        granted_by = None if who is None or who.token_id == OPERATOR_TOKEN_ID else who.token_id
        self._links[_digest(code)] = _Link(self._clock.monotonic() + LINK_S, granted_by)
        if len(self._links) > MOST_LINKS:
            self._links.popitem(last=False)
        return f"{base_url.rstrip('/')}/login#{code}"

    def redeem(self, code: str) -> str:
        """The value of the cookie for a code, which is used up by this.

        Raises:
            Unauthenticated: It was used, is too old, or its token was revoked.
            CredentialsNotStored: The disk did not take the login. The code is good for another try.
        """
        digest = _digest(code)
        link = self._links.get(digest)
        if link is None or link.until < self._clock.monotonic():
            raise _refused()
        lifetime_s = self._lifetime_s(link.granted_by)
        if lifetime_s <= 0:
            raise _refused()
        _, secret = self._tokens.issue(NAME, Role.OWNER, None, lifetime_s, kind="login", granted_by=link.granted_by)
        del self._links[digest]
        return secret

    def leave(self, who: Identity, spare: anyio.CancelScope | None = None) -> bool:
        """End the login of `who`, and all under it but `spare`. Gives whether it was one: a token does not log out.

        Raises `CredentialsNotStored`, as `Tokens.revoke` does.
        """
        record = None if who.token_id is None else self._tokens.find(who.token_id)
        if record is None or record.kind != "login":
            return False
        self._tokens.revoke(record.id, spare)
        return True

    def _lifetime_s(self, granted_by: str | None) -> float:
        """A login does not outlive the token that granted it."""
        if granted_by is None:
            return COOKIE_S
        record = self._tokens.find(granted_by)
        if record is None:
            return 0
        if record.expires_at is None:
            return COOKIE_S
        return min(COOKIE_S, (record.expires_at - self._clock.now_ms()) / 1000)


def cookie_name(host: Host) -> str:
    """One per port: browsers keep cookies by name only, and two daemons on one machine differ by port."""
    return "turnwire" if host.port is None else f"turnwire_{host.port}"


def cookie(host: Host, value: str, *, is_secure: bool, path: str = "/") -> str:
    """The `Set-Cookie` header of a login; of a logout, with an empty value. Others below our host do not get it."""
    parts = [f"{cookie_name(host)}={value}", "HttpOnly", "SameSite=Strict", f"Path={path}"]
    parts.append(f"Max-Age={COOKIE_S if value else 0}")
    if is_secure:
        parts.append("Secure")
    return "; ".join(parts)


def _digest(code: str) -> bytes:
    return hashlib.sha256(code.encode("utf-8", "surrogatepass")).digest()


def _refused() -> Unauthenticated:
    return Unauthenticated("this login link was used or is too old; ask for a new one with `turnwire login`")


_SCRIPT = """
const say = text => { document.getElementById("state").textContent = text; };
const code = location.hash.slice(1);
history.replaceState(null, "", location.pathname);
if (!code) say("This page needs a login link. Run turnwire login to get one.");
else fetch("login", {
  method: "POST",
  headers: {"Content-Type": "application/json"},
  body: JSON.stringify({code}),
}).then(reply => {
  if (reply.ok) say("You are logged in. This browser may use the API; /docs shows it.");
  else say("This link was used or is too old. Run turnwire login to get a new one.");
}, () => say("The daemon does not answer. Is it running?"));
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
"""The page of `GET /login`. It takes the code out of the address bar before it does anything else."""

PAGE_HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Content-Security-Policy": "default-src 'none'; connect-src 'self'; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'; script-src"
    f" 'sha256-{base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()}'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Nothing but that one script runs, and it reaches nobody but us."""
