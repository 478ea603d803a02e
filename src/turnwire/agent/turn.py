"""A turn as the author of an agent sees it: updates, questions, files and commands.

It is the argument of the author's function and ends when that returns. Updates are sent at once and in order; each
call returns an awaitable that waits until the client accepts more. Updates sent after the end belong to no turn and
are marked late. While a permission request is open, a v2 client sees that the turn waits for its user; only a
selected allow option counts as consent.
"""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, cast

import msgspec
from anyio.lowlevel import checkpoint
from msgspec import Raw

from turnwire.agent import workplace
from turnwire.agent.connected_client import Sent
from turnwire.agent.own_workplace import Ran
from turnwire.agent.session import Session
from turnwire.agent.session_client import SessionClient
from turnwire.agent.tool_call import ToolCall, described
from turnwire.agent.turn_run import TurnRun, read_result
from turnwire.agent.v2_updates import MESSAGE, THOUGHT, Json, as_block, for_v1, for_v2, shown
from turnwire.errors import LocalProtocolError, NotOffered
from turnwire.projections.translate.tools import V1_KINDS
from turnwire.session.json_members import as_object, child
from turnwire.wire.jsonrpc import Failure, Result, raw
from turnwire.wire.methods import ELICITATION_CREATE, SESSION_REQUEST_PERMISSION

PLAN = "main"
"""The one plan of a turn."""


@dataclass(frozen=True)
class Entry:
    """A step of a plan."""

    content: str
    status: str = "pending"
    priority: str = "medium"


@dataclass(frozen=True)
class PermissionOption:
    """Something the user may answer."""

    id: str
    name: str
    kind: str
    """allow_once, allow_always, reject_once or reject_always."""


USUAL = (
    PermissionOption("allow_once", "Allow", "allow_once"),
    PermissionOption("allow_always", "Always allow", "allow_always"),
    PermissionOption("reject_once", "Reject", "reject_once"),
)


@dataclass(frozen=True)
class Choice:
    """The user's answer. True if it allows the call."""

    option_id: str | None = None
    kind: str | None = None

    def __bool__(self) -> bool:
        return self.kind in {"allow_once", "allow_always"}

    @property
    def always(self) -> bool:
        """True if the answer covers similar calls."""
        return self.kind in {"allow_always", "reject_always"}


class Asking(Awaitable[Choice]):
    """A question being asked: `await` it. It is not an answer, so its truth value raises."""

    def __init__(self, asked: Coroutine[Any, Any, Choice]) -> None:
        self._asked = asked

    def __await__(self) -> Generator[Any, Any, Choice]:
        return self._asked.__await__()

    def __bool__(self) -> NoReturn:
        self._asked.close()
        raise TypeError("nobody has been asked yet; write `if await turn.ask(…):`")


class Turn:
    """A turn: the prompt, and every way to answer it."""

    def __init__(self, run: TurnRun) -> None:
        self._run = run
        self.session: Session = run.live.session
        self.content: list[Json] = run.content
        """Blocks of the prompt; empty if the agent started the turn."""
        self.message_id = run.message_id
        self.meta: Json = run.meta

    def __repr__(self) -> str:
        return f"<Turn {self._run.prompt_id}>"

    @property
    def text(self) -> str:
        """The text of the prompt, its blocks as lines."""
        return "\n".join(str(each.get("text", "")) for each in self.content if each.get("type") == "text")

    @property
    def cancelled(self) -> bool:
        """The client has cancelled it; its work is being stopped."""
        return self._run.is_cancelled

    # -- telling -----------------------------------------------------------------------------------------------

    def say(self, content: str | Json) -> Sent:
        """Text for the user, or a content block."""
        return self._run.speak(MESSAGE, as_block(content))

    def think(self, content: str | Json) -> Sent:
        """Send a thought."""
        return self._run.speak(THOUGHT, as_block(content))

    def plan(self, entries: Sequence[str | Entry]) -> Sent:
        """Send the complete plan. Raises `TypeError` for anything but a list of entries."""
        given: Any = entries
        if not isinstance(given, Sequence) or isinstance(given, str) or not all(map(_is_entry, cast("Any", given))):
            raise TypeError(f"a plan is a list of texts or entries, not {shown(entries)}; write plan([…])")
        listed = [Entry(each) if isinstance(each, str) else each for each in entries]
        items = [{"content": each.content, "priority": each.priority, "status": each.status} for each in listed]
        plan = {"type": "items", "planId": PLAN, "entries": items}
        return self._run.publish({"sessionUpdate": "plan_update", "plan": plan})

    def tool(
        self,
        title: str,
        *,
        kind: str = "other",
        id: str | None = None,
        input: Any = None,
        locations: Sequence[str | Path | tuple[str | Path, int]] = (),
    ) -> ToolCall:
        """Create a tool call, for `async with`. Raises `ValueError` for an unknown kind."""
        if kind not in V1_KINDS and not kind.startswith("_"):
            raise ValueError(f"there is no tool kind {kind!r}; use one of {', '.join(sorted(V1_KINDS))}")
        return ToolCall(self._run, title, kind, id, described(input, locations))

    def usage(
        self,
        *,
        input_tokens: int = 0,
        output_tokens: int = 0,
        cached_tokens: int = 0,
        cached_write_tokens: int = 0,
        thought_tokens: int = 0,
        context_used: int | None = None,
        context_size: int | None = None,
        cost: tuple[float, str] | None = None,
    ) -> None:
        """Add tokens to the turn's usage, sent at its end, and report the context size now."""
        tally = {
            "inputTokens": input_tokens,
            "outputTokens": output_tokens,
            "cachedReadTokens": cached_tokens,
            "cachedWriteTokens": cached_write_tokens,
            "thoughtTokens": thought_tokens,
        }
        self.add_usage(tally)
        if context_used is None or context_size is None:
            if cost is not None or context_used is not context_size:
                raise LocalProtocolError("a cost or a context needs both context_used and context_size")
            return
        told: Json = {"sessionUpdate": "usage_update", "used": context_used, "size": context_size}
        if cost is not None:
            told["cost"] = {"amount": cost[0], "currency": cost[1]}
        self._run.publish(told)

    def add_usage(self, usage: Mapping[str, Any]) -> None:
        """Tokens by ACP's own names, which add up. Without `totalTokens` the total is input and output."""
        for name, tokens in usage.items():
            if isinstance(tokens, int) and tokens:
                self._run.usage[name] = self._run.usage.get(name, 0) + tokens

    def update(self, update: Json, version: int | None = None) -> Sent:
        """Send any update. `version` is the ACP version it is written in, by default the client's. Chunks get an
        id.
        """
        sent = Sent(None)
        for each in self._run.live.canonical(update, version, self._run.prompt_id):
            sent = self._run.publish(each)
        return sent

    def new_id(self, letter: str) -> str:
        """Return an id that is unique in the session."""
        return self._run.new_id(letter)

    def publish(self, update: Json) -> Sent:
        """Send any v2 update, whatever version the client speaks."""
        return self._run.publish(update)

    # -- asking ------------------------------------------------------------------------------------------------

    def ask(
        self,
        about: ToolCall | str,
        options: Sequence[PermissionOption] | None = None,
        description: str | None = None,
    ) -> Asking:
        """Ask for permission, with `await`. If granted, the tool call starts; if denied, it fails when left."""
        return Asking(self._ask(about, options, description))

    async def _ask(
        self, about: ToolCall | str, options: Sequence[PermissionOption] | None, description: str | None
    ) -> Choice:
        offered = tuple(USUAL if options is None else options)
        if not offered or len({each.id for each in offered}) < len(offered):
            raise LocalProtocolError("a permission request needs at least one option, and each its own id")
        if isinstance(about, ToolCall):
            about.announce()
        run, answer = self._run, None
        client = run.asked_client
        if client is not None:
            request = self._permission_request(client, about, offered, description)
            answer = await run.ask(client, SESSION_REQUEST_PERMISSION, request)
        if run.is_cancelled:
            await checkpoint()
        choice = _read_choice(answer, offered)
        if isinstance(about, ToolCall):
            if choice:
                about.start()
            else:
                about.deny()
        return choice

    def _permission_request(
        self,
        client: SessionClient,
        about: ToolCall | str,
        offered: Sequence[PermissionOption],
        description: str | None,
    ) -> Json:
        options = [{"optionId": each.id, "name": each.name, "kind": each.kind} for each in offered]
        asked: Json = {"sessionId": client.session_id, "options": options}
        described = about.described if isinstance(about, ToolCall) else None
        if client.connected.profile.version == 2:
            asked["title"] = about.title if isinstance(about, ToolCall) else about
            if description is not None:
                asked["description"] = description
            if described is not None:
                asked["subject"] = {"type": "tool_call", "toolCall": _items(described, for_v2)}
            return asked
        if described is None:
            made = {"toolCallId": self._run.new_id("q"), "title": about, "kind": "other", "status": "pending"}
            shown = [] if description is None else [{"type": "text", "text": description}]
            described = {**made, "content": [{"type": "content", "content": each} for each in shown]}
        return {**asked, "toolCall": _items(described, for_v1)}

    async def elicit(self, message: str, schema: Json) -> Json | None:
        """Ask the user to fill in a form; None if they did not. Raises `NotOffered`."""
        client = self._run.client_to_ask()
        if not client.connected.profile.elicitation_form:
            raise NotOffered("the client shows no forms; ask in words instead", what="elicitation.form")
        answer = await self._elicit(client, {"message": message, "mode": "form", "requestedSchema": schema})
        content = answer.get("content")
        if answer.get("action") != "accept":
            return None
        return content if isinstance(content, dict) else {}  # pyright: ignore[reportUnknownVariableType]  JSON

    async def elicit_url(self, message: str, url: str) -> bool:
        """Have the user visit a page; whether they agreed to. Raises `NotOffered`."""
        client = self._run.client_to_ask()
        if not client.connected.profile.elicitation_url:
            raise NotOffered("the client opens no pages; ask in words instead", what="elicitation.url")
        named = {"elicitationId": self._run.new_id("e"), "url": url}
        answer = await self._elicit(client, {"message": message, "mode": "url", **named})
        return answer.get("action") == "accept"

    async def _elicit(self, client: SessionClient, params: Json) -> Json:
        answer = await self._run.ask(client, ELICITATION_CREATE, {"sessionId": client.session_id, **params})
        return read_result(answer, ELICITATION_CREATE)

    async def request(self, method: str, params: Json | None = None) -> Json:
        """Ask the client anything. `sessionId` is added. Raises `NotOffered` and `RequestRefused`."""
        return await self._run.request(method, params)

    # -- work ----------------------------------------------------------------------------------------------------

    async def read_file(self, path: str | Path, line: int | None = None, limit: int | None = None) -> str:
        """Return a text file, or `limit` lines of it from `line` on; the client's if it offers files. Raises
        `RequestRefused`.
        """
        return await workplace.read_file(self._run, path, line, limit)

    async def write_file(self, path: str | Path, text: str) -> None:
        """Create or replace a text file. Raises `RequestRefused`."""
        await workplace.write_file(self._run, path, text)

    async def run(
        self,
        command: str,
        *args: str,
        cwd: str | Path | None = None,
        env: Mapping[str, str] | None = None,
        call: ToolCall | None = None,
        limit: int | None = None,
    ) -> Ran:
        """Run a command to its end; with `call`, its output is shown there. Raises `RequestRefused`."""
        return await workplace.run(self._run, command, args, cwd=cwd, env=env, call=call, limit=limit)


def _is_entry(given: object) -> bool:
    return isinstance(given, str | Entry)


def _items(described: Json, written: Any) -> Json:
    """Return a tool call with its content in the client's version."""
    told: Raw = written(raw({"sessionUpdate": "tool_call_update", **described}))
    call = msgspec.json.decode(told, type=dict[str, Any])
    del call["sessionUpdate"]
    return call


def _read_choice(answer: Result | Failure | None, offered: Sequence[PermissionOption]) -> Choice:
    if not isinstance(answer, Result):
        return Choice()
    outcome = child(as_object(answer.result), "outcome")
    chosen = outcome.get("optionId") if outcome.get("outcome") == "selected" else None
    return next((Choice(each.id, each.kind) for each in offered if each.id == chosen), Choice())
