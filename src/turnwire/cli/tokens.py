"""`turnwire token`, `login`, `open` and `share`: credentials for programs, browsers and observers.

The daemon handles the command; if none answers, its stored credentials are changed (`turnwire.cli.credentials`). A
secret is printed once, to stdout, and nothing else is.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import anyio
import click
from msgspec import Struct, to_builtins

from turnwire.cli.commands import Command, Group
from turnwire.cli.credentials import kept_tokens, start_browser
from turnwire.cli.output import moment, print_json, print_table, tell
from turnwire.cli.reach import LAST, Reach, ask, session_ids, tell_daemon, with_reach
from turnwire.client.http import segment
from turnwire.errors import DaemonUnreachable, NotFound
from turnwire.ids import SessionId
from turnwire.server.access.tokens import Role, Tokens

EXAMPLES = """
turnwire token create ci --role controller --expires 30d     for a job
turnwire token create ann --role observer --session SESSION  for somebody who watches one session
turnwire token list
turnwire token revoke ci
"""
CREATE_EXAMPLES = """
turnwire token create laptop                                 all rights, until it is revoked
turnwire token create ci --role controller --expires 12h     prompts and answers, for half a day
turnwire token create ann --role observer --session SESSION  reads one session
TURNWIRE_TOKEN=$(turnwire token create script) my-script     stdout has the token only
"""
LIST_EXAMPLES = """
turnwire token list
turnwire token list --json
"""
LOGIN_EXAMPLES = """
turnwire login              print a link; open it within ten minutes
xdg-open "$(turnwire login)"
"""
OPEN_EXAMPLES = """
turnwire open               open the page in the browser, logged in
turnwire open --print       print the link instead, for a browser elsewhere
"""
SHARE_EXAMPLES = """
turnwire share SESSION               print a link by which others watch this session, for a day
turnwire share last --for 2h
turnwire share SESSION --list        active links
turnwire share SESSION --revoke ID   end one, and the streams that use it
"""
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

Result = TypeVar("Result")


class _Made(Struct):
    id: str
    token: str


class _List(Struct):
    tokens: list[dict[str, Any]]


class _Link(Struct):
    url: str


class _Share(Struct, rename="camel"):
    token_id: str
    created_at: int
    expires_at: int
    url: str | None = None


class _Shares(Struct):
    shares: list[_Share]


@click.group(cls=Group, examples=EXAMPLES)
def token() -> None:
    """Create, list and revoke credentials."""


@token.command(cls=Command, examples=CREATE_EXAMPLES)
@click.argument("name")
@click.option("--role", type=click.Choice([each.value for each in Role]), default="owner", help="What it may do.")
@click.option("--session", metavar="SESSION", shell_complete=session_ids, help="The one session it is for.")
@click.option("--expires", metavar="TIME", help="How long it is valid, such as 90s, 15m, 12h, 30d.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@with_reach
def create(reach: Reach, name: str, role: str, session: str | None, expires: str | None, as_json: bool) -> None:
    """Make a token. It is printed once and cannot be shown again."""
    seconds = None if expires is None else _seconds(expires, "--expires")
    body = {"name": name, "role": role, "sessionId": session, "expiresInS": seconds}

    async def offline(tokens: Tokens) -> _Made:
        record, secret = await tokens.issue(
            name, Role(role), None if session is None else SessionId(session), seconds
        )
        return _Made(record.id, secret)

    made = _online_or_not(reach, lambda: ask(reach, "POST", "/tokens", body, shape=_Made), offline)
    if as_json:
        print_json({"id": made.id, "token": made.token})
    else:
        click.echo(made.token)
        tell(f"made {made.id} for {name}, role {role}; it is shown only once")


@token.command("list", cls=Command, examples=LIST_EXAMPLES)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@with_reach
def list_tokens(reach: Reach, as_json: bool) -> None:
    """List the valid credentials, without their secrets."""

    async def offline(tokens: Tokens) -> _List:
        shown = [to_builtins(each) for each in await tokens.list()]
        return _List([{name: value for name, value in each.items() if name != "digest"} for each in shown])

    found = _online_or_not(reach, lambda: ask(reach, "GET", "/tokens", shape=_List), offline).tokens
    if as_json:
        print_json(found)
        return
    print_table(("id", "name", "role", "kind", "made", "expires", "session"), [_row(each) for each in found])


@token.command(cls=Command, examples="turnwire token revoke ci\nturnwire token revoke ID")
@click.argument("token", metavar="NAME_OR_ID")
@with_reach
def revoke(reach: Reach, token: str) -> None:
    """End a token, the logins it granted, and their streams."""

    def online() -> str:
        token_id = _id_of(token, ask(reach, "GET", "/tokens", shape=_List).tokens)
        tell_daemon(reach, "DELETE", f"/tokens/{segment(token_id)}")
        return token_id

    async def offline(tokens: Tokens) -> str:
        token_id = _id_of(token, [{"id": each.id, "name": each.name} for each in await tokens.list()])
        await tokens.revoke(token_id)
        return token_id

    tell(f"revoked {_online_or_not(reach, online, offline)}")


def _id_of(given: str, listed: list[dict[str, Any]]) -> str:
    """Return the id of the token with this id or name. Raises `NotFound` if several have the name."""
    named = [str(each["id"]) for each in listed if each["name"] == given]
    if len(named) < 2 or any(each["id"] == given for each in listed):
        return named[0] if named and all(each["id"] != given for each in listed) else given
    raise NotFound(f"{len(named)} tokens are named {given!r}; revoke one by its id: {', '.join(named)}")


@click.command(cls=Command, examples=LOGIN_EXAMPLES)
@with_reach
def login(reach: Reach) -> None:
    """Print a link that signs a browser in, once, within ten minutes."""
    click.echo(ask(reach, "POST", "/login-link", shape=_Link).url)


@click.command(cls=Command, examples=OPEN_EXAMPLES)
@click.option("--print", "is_printed", is_flag=True, help="Print the link instead of opening it.")
@with_reach
def open(reach: Reach, is_printed: bool) -> None:
    """Open the page in the browser, signed in.

    A one-time link is created for it. It is printed only on request, or if no browser can be started.
    """
    link = ask(reach, "POST", "/login-link", shape=_Link).url
    if is_printed:
        click.echo(link)
    elif start_browser(link, os.environ):
        tell("opened the page in the browser; if it does not show, `turnwire open --print` prints a link")
    else:
        tell("no browser can be started here; open this link in one within ten minutes")
        click.echo(link)


@click.command(cls=Command, examples=SHARE_EXAMPLES)
@click.argument("session", default=LAST, shell_complete=session_ids)
@click.option(
    "--for", "lifetime", metavar="TIME", help="How long it is valid, such as 15m, 12h, 30d.  [default: 1d]"
)
@click.option("--list", "is_list", is_flag=True, help="List the links of the session instead.")
@click.option("--revoke", metavar="ID", help="End a link of the session instead.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@with_reach
def share(
    reach: Reach, session: str, lifetime: str | None, is_list: bool, revoke: str | None, as_json: bool
) -> None:
    """Print a link to watch one session, and to do nothing else.

    It opens any number of times until it expires or is revoked. Everyone who has it sees everything in the session,
    past and future.
    """
    if (lifetime is not None) + is_list + (revoke is not None) > 1:
        raise click.UsageError("give one of --for, --list and --revoke")
    path = f"/session/{segment(session)}"
    if is_list:
        _print_shares(ask(reach, "GET", f"{path}/shares", shape=_Shares).shares, as_json=as_json)
    elif revoke is not None:
        tell_daemon(reach, "DELETE", f"{path}/shares/{segment(revoke)}")
        tell(f"revoked {revoke}")
    else:
        body = {} if lifetime is None else {"expiresInS": _seconds(lifetime, "--for")}
        made = ask(reach, "POST", f"{path}/share", body, shape=_Share)
        if as_json:
            print_json(to_builtins(made))
        else:
            click.echo(made.url)
            tell(f"made {made.token_id}, valid until {moment(made.expires_at)}; it is shown only once")


def _print_shares(shares: list[_Share], *, as_json: bool) -> None:
    if as_json:
        print_json(
            [
                {"tokenId": each.token_id, "createdAt": each.created_at, "expiresAt": each.expires_at}
                for each in shares
            ]
        )
        return
    rows = [(each.token_id, moment(each.created_at), moment(each.expires_at)) for each in shares]
    print_table(("id", "made", "expires"), rows)
    if not shares:
        tell("this session has no share links; `turnwire share SESSION` makes one")


def _online_or_not(
    reach: Reach, online: Callable[[], Result], offline: Callable[[Tokens], Awaitable[Result]]
) -> Result:
    """Run at the daemon if one answers, else on its stored credentials."""
    try:
        return online()
    except DaemonUnreachable as unreachable:
        return anyio.run(_offline, reach, offline, unreachable)


async def _offline(
    reach: Reach, act: Callable[[Tokens], Awaitable[Result]], unreachable: DaemonUnreachable
) -> Result:
    async with kept_tokens(reach.log, reach.data, reach.url) as kept:
        if kept is None:
            raise unreachable
        tokens, where = kept
        tell(f"no daemon answers at {reach.url}, so this is about its {where}")
        return await act(tokens)


def _row(shown: dict[str, Any]) -> tuple[str, ...]:
    return (
        str(shown["id"]),
        str(shown["name"]),
        str(shown["role"]),
        str(shown.get("kind", "token")),
        moment(shown["createdAt"]),
        moment(shown["expiresAt"]) if "expiresAt" in shown else "never",
        str(shown.get("sessionId", "all")),
    )


def _seconds(text: str, option: str) -> float:
    number, unit = text[:-1], UNITS.get(text[-1:])
    if unit is None or not number.isdecimal() or int(number) == 0:
        raise click.UsageError(f"{option} is a number and a unit, such as 90s, 15m, 12h or 30d")
    return float(int(number) * unit)
