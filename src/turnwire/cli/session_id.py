"""Which session is meant on the command line: its id, the beginning of it that no other has, or `last`.

A whole id is taken as it is, so it costs no question. Everything else is looked up in the daemon's list. `last` is
the session in which something happened most recently, in whatever folder; one that is closed only if all are. An
archived one is never the last, and has its id as all others.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlencode

from msgspec import Struct

from turnwire.client.http import Http
from turnwire.errors import DaemonUnreachable, NotFound, SessionNotFound

LAST = "last"
PAGE = "100"
WHOLE = re.compile(r"s_[0-9a-f]{20}")
"""An id as daemons make them. What goes on behind it names a child session."""
MOST_SHOWN = 10
"""Sessions that are named when several are meant."""

Entry = dict[str, Any]
"""A session as `GET /session` lists it."""


class _Page(Struct, rename="camel"):
    sessions: list[Entry]
    next_cursor: str | None = None


async def list_sessions(http: Http, wanted: dict[str, str] | None = None) -> list[Entry]:
    """The sessions that are wanted, those first in which something happened most recently."""
    found: list[Entry] = []
    query = {"size": PAGE, **(wanted or {})}
    while True:
        page = (await http.ask("GET", f"/session?{urlencode(query)}", patient=False)).read(_Page)
        found += page.sessions
        if page.next_cursor is None:
            return sorted(found, key=_age, reverse=True)
        query["cursor"] = page.next_cursor


def _age(entry: Entry) -> tuple[str, str]:
    return str(entry.get("updatedAt", "")), str(entry.get("createdAt", ""))


async def whole_id(http: Http, given: str) -> str:
    """The id of the session that is meant. Raises `SessionNotFound`, `NotFound` if several begin so."""
    try:
        found = await list_sessions(http, {"archived": "all"})
    except DaemonUnreachable:
        # Whoever needs the daemon will say so; what a command does without one needs the id as it is.
        return given
    if given in (ids := [str(each["sessionId"]) for each in found]):
        return given
    if given == LAST:
        listed = [each for each in found if not each.get("archived")]
        if not listed:
            raise SessionNotFound("there is no session yet, so none is the last; `turnwire prompt TEXT` makes one")
        return str(next((each for each in listed if not each.get("closed")), listed[0])["sessionId"])
    begun = [index for index, each in enumerate(ids) if given and each.startswith(given)]
    if not begun:
        raise SessionNotFound(f"no session has the id {given!r}, or one that begins so")
    if len(begun) > 1:
        shown = "".join(f"\n  {_in_a_line(found[each])}" for each in begun[:MOST_SHOWN])
        more = f"\n  and {len(begun) - MOST_SHOWN} more" if len(begun) > MOST_SHOWN else ""
        raise NotFound(f"{len(begun)} sessions begin with {given!r}; write more of the id of one:{shown}{more}")
    return ids[begun[0]]


def _in_a_line(entry: Entry) -> str:
    return f"{entry['sessionId']}  {about(entry)}"


def about(entry: Entry) -> str:
    """A session in words, beside its id."""
    title, cwd = entry.get("title"), str(entry.get("cwd", ""))
    return f"{' '.join(str(title).split())} ({cwd})" if title else cwd
