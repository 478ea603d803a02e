"""What a shell offers while somebody types a command: sessions, open permission requests and their answers, agents.

It comes from the daemon that the command would talk to. Nobody waits for it: where none is known to run none is
looked for, one that does not answer at once is left alone, and nothing is ever printed but what is offered.
"""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import anyio
import click
from click.shell_completion import CompletionItem
from msgspec import Struct

from turnwire.cli.output import printable
from turnwire.cli.reach import LAST, WHOLE, about, find_daemon, list_sessions, run, whole_id
from turnwire.client.http import Http, segment
from turnwire.link.local_daemon import URL_VARIABLE, running

PATIENCE_S = 1.0
"""Somebody has just pressed a key."""

PLAIN = re.compile(r"[\w.:@%+=/-]+")
"""What means nothing to a shell: ids come from agents and other clients, and go into the user's command line."""

Found = TypeVar("Found")


class _Option(Struct, rename="camel"):
    option_id: str
    name: str = ""


class _Titled(Struct, frozen=True):
    title: str = ""


class _Params(Struct, frozen=True, rename="camel"):
    tool_call: _Titled = _Titled()
    title: str = ""
    message: str = ""


class _Asked(Struct, rename="camel"):
    request_id: str
    method: str
    params: _Params = _Params()
    options: list[_Option] = []

    @property
    def subject(self) -> str:
        return self.params.tool_call.title or self.params.title or self.params.message or self.method


class _Questions(Struct):
    permissions: list[_Asked]


class _Agent(Struct):
    name: str
    label: str | None = None


class _Agents(Struct):
    agents: list[_Agent]


class _Waiting(Struct, rename="camel"):
    prompt_id: str
    text: str | None = None


class _Queue(Struct):
    prompts: list[_Waiting]


def session_ids(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Every session, the newest first, with its title and folder."""
    found = _asked(ctx, list_sessions) or []
    offered = [(str(each["sessionId"]), about(each)) for each in found]
    return _items([*offered, *([(LAST, "the newest of them")] if offered else [])], incomplete)


def request_ids(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """What the agent of the session asks now."""
    return _items([(each.request_id, each.subject) for each in _questions(ctx)], incomplete)


def option_ids(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The answers to that permission request."""
    asked = (each for each in _questions(ctx) if each.request_id == ctx.params.get("request"))
    return _items([(option.option_id, option.name) for each in asked for option in each.options], incomplete)


def queued_prompts(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The prompts that wait in the session, the next one first."""
    found = _of_session(ctx, "queue", _Queue)
    return _items([(each.prompt_id, each.text or "") for each in found.prompts] if found else [], incomplete)


def agent_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The agents of the daemon."""

    async def read(http: Http) -> list[_Agent]:
        return (await http.ask("GET", "/agents", patient=False)).read(_Agents).agents

    return _items([(each.name, each.label or "") for each in _asked(ctx, read) or []], incomplete)


def _questions(ctx: click.Context) -> list[_Asked]:
    found = _of_session(ctx, "permissions", _Questions)
    return [] if found is None else found.permissions


def _of_session(ctx: click.Context, what: str, shape: type[Found]) -> Found | None:
    given = ctx.params.get("session")
    if not given:
        return None

    async def read(http: Http) -> Found:
        session = given if WHOLE.match(given) else await whole_id(http, given)
        return (await http.ask("GET", f"/session/{segment(session)}/{what}", patient=False)).read(shape)

    return _asked(ctx, read)


def _asked(ctx: click.Context, read: Callable[[Http], Awaitable[Found]]) -> Found | None:
    """What the daemon says; none if none is there, or it says nothing that can be used."""
    url, token_file, data = (ctx.params.get(name) for name in ("url", "token_file", "data"))
    if not (url or os.environ.get(URL_VARIABLE) or running(os.environ)):
        return None

    async def in_time(http: Http) -> Found:
        with anyio.fail_after(PATIENCE_S):
            return await read(http)

    try:
        return run(find_daemon(url, token_file, data), in_time)
    except Exception:  # noqa: BLE001  Whoever types sees nothing offered; the command itself will say what is wrong.
        return None


def _items(offered: Iterable[tuple[str, str]], incomplete: str) -> list[CompletionItem]:
    return [
        CompletionItem(value, help=" ".join(printable(words).split()) or None)
        for value, words in offered
        if value.startswith(incomplete) and PLAIN.fullmatch(value)
    ]
