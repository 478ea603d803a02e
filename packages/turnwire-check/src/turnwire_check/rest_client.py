"""REST for cases: sessions, prompts and streams, without a model of them; the server's identity; and the checker.

The steps that most cases begin with leave the case unscored if one fails.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias
from urllib.parse import quote

from turnwire.errors import LinkBroken
from turnwire_check.case import SCENES, Case, NoAnswer, Scene, unscored
from turnwire_check.http_client import Answer, Event, HttpClient, HttpSubject, Stream
from turnwire_check.http_exchange import HttpPeer, Opener
from turnwire_check.plain_text import quoted
from turnwire_check.provocation import prompts_for
from turnwire_check.run import Bounds, Outcome, outcome_of, unknown_scene
from turnwire_check.tape import at, items

ENDS = ("turn_complete", "turn_error")
SCOPED = "session_scope_override"
"""The feature of servers that accept a parameter for sharing a session."""
MADE_FOR_ONE = ("replay_complete", "state_resync_required", "session_snapshot")
"""Frames of one stream, which are no events of the session."""


@dataclass(frozen=True)
class RestSubject(HttpSubject):
    """The known facts about the server."""

    name: str = ""
    features: frozenset[str] = frozenset()
    prompts: Mapping[Scene, str] = field(default_factory=dict[Scene, str])


class RestEvent(Event):
    """An event whose data is an envelope."""

    @property
    def id(self) -> Any:
        return at(self.value, "id")

    @property
    def type(self) -> Any:
        return at(self.value, "type")

    @property
    def says(self) -> Any:
        return at(self.value, "data")

    @property
    def prompt(self) -> Any:
        """Return the prompt of the event, from any of the members that name it."""
        return at(self.value, "promptId") or at(self.says, "promptId")

    @property
    def kind(self) -> Any:
        return at(self.says, "update", "sessionUpdate")

    @property
    def is_of_session(self) -> bool:
        return self.type not in MADE_FOR_ONE


Match: TypeAlias = Callable[[RestEvent], bool]


def ends(prompt: str) -> Match:
    return lambda event: event.type in ENDS and event.prompt == prompt


class RestStream(Stream[RestEvent]):
    """The events of a session."""

    @property
    def of_session(self) -> list[RestEvent]:
        return [each for each in self.events if each.is_of_session]

    def cursor(self) -> int:
        """The id of the last event."""
        found = [each.id for each in self.of_session if isinstance(each.id, int)]
        return found[-1] if found else 0

    def of_prompt(self, prompt: str) -> list[RestEvent]:
        return [each for each in self.events if each.prompt == prompt]

    async def end_of(self, prompt: str) -> RestEvent:
        """Raises `NotScored` when the turn has no end."""
        known = "a turn had no end"
        if known in self._bounds.given_up:
            raise NoAnswer(known)
        found = await self.until(ends(prompt))
        if found is None:
            self._bounds.given_up[known] = known
            raise NoAnswer(known)
        return found

    async def replayed(self) -> list[RestEvent]:
        """Return the events up to the end of the replay. Raises `NotScored` if the end is not reported."""
        last = await self.until(lambda event: event.type == "replay_complete")
        if last is None:
            unscored("the end of the replay was not told")
        return [each for each in self.events[: self.events.index(last)] if each.is_of_session]


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


class RestClient(HttpClient):
    """Requests and streams of one case."""

    def __init__(self, peer: HttpPeer, subject: RestSubject) -> None:
        super().__init__(peer, subject)
        self.subject = subject
        self._opened: list[str] = []
        self._prompts: set[str] = set()
        self.sent_words = ""
        """The text of the last prompt."""

    # -- streams --------------------------------------------------------------------------------------------

    async def open_stream(
        self,
        session: str,
        after: int | str | None = None,
        *,
        query: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> RestStream | None:
        """Return a stream as soon as its head has arrived, with any status; `None` if it has not arrived in
        time.
        """
        given = {"Accept": "text/event-stream", **(headers or {})}
        if after is not None:
            given["Last-Event-ID"] = str(after)
        found = await self.open("GET", f"/session/{session}/events{query}", headers=given)
        if found is None:
            return None
        return RestStream(found, self.tape, f"stream {next(self._numbers)}", self.subject, RestEvent)

    async def stream(self, session: str, after: int | str | None = None, **more: Any) -> RestStream:
        """Open a stream. Raises `NotScored` if that fails."""
        known = "a stream is not opened"
        self.not_in_vain(known)
        found = await self.open_stream(session, after, **more)
        if found is None:
            self.give_up(known)
        if found.body.status != 200:
            unscored(f"a stream is answered with {found.body.status}")
        return found

    async def history(self, session: str, after: int = 0) -> list[RestEvent]:
        """The events after a place that there are now."""
        stream = await self.stream(session, after)
        events = await stream.replayed()
        await stream.cut()
        return events

    # -- the steps that most cases begin with. Where one does not work, the case is unjudged ----------------

    async def create(self) -> Answer:
        """Request a private session: by default some servers return the one that is open."""
        scope = {"sessionScope": "thread"} if SCOPED in self.subject.features else {}
        return await self.call("POST", "/session", scope)

    async def session(self) -> str:
        """Open a session and return its id."""
        answer = await self.create()
        found = at(answer.value, "sessionId")
        if answer.status != 200 or not isinstance(found, str) or not found:
            unscored(f"`POST /session` gave no session, and {answer.status}")
        self.opened(found)
        return found

    def opened(self, session: str) -> None:
        """Open a session that is closed when the case is over."""
        self._opened.append(session)

    async def two_sessions(self) -> tuple[str, str]:
        first, second = await self.session(), await self.session()
        if first == second:
            unscored("two sessions have one id")
        return first, second

    async def listen(self) -> tuple[str, RestStream]:
        """Open a session, and its stream of new events."""
        session = await self.session()
        return session, await self.stream(session)

    def words(self, scene: Scene) -> str:
        found = self.subject.prompts.get(scene)
        if found is None:
            unscored(f"no prompt is known that makes it {SCENES[scene]}; give one: --provoke {scene}=TEXT")
        return found.replace("{n}", str(next(self._numbers)))

    async def post(self, session: str, scene: Scene = "plain", *, words: str = "", **more: Any) -> Answer:
        """Send a prompt, with this text or the one of the scene, and return the answer."""
        headers = more.pop("headers", None)
        self.sent_words = words or self.words(scene)
        body = {"prompt": [text(self.sent_words)], **more}
        return await self.call("POST", f"/session/{session}/prompt", body, headers=headers)

    async def prompt(self, session: str, scene: Scene = "plain", **more: Any) -> str:
        """Send a prompt and return its id. Raises `NotScored` if it is not accepted, or has the id of
        another one.
        """
        return self.new(await self.post(session, scene, **more))

    def new(self, answer: Answer) -> str:
        """Return the id of an accepted prompt that differs from all earlier ones. Raises `NotScored`."""
        found = accepted(answer)
        if found in self._prompts:
            unscored("two prompts have one id")
        self._prompts.add(found)
        return found

    async def turn(
        self, stream: RestStream, session: str, scene: Scene = "plain", **more: Any
    ) -> tuple[str, RestEvent]:
        """Prompt and wait for the end."""
        prompt = await self.prompt(session, scene, **more)
        return prompt, await stream.end_of(prompt)

    async def running(self, stream: RestStream, session: str) -> str:
        """Start a turn that runs until it is cancelled, and wait for its first update."""
        prompt = await self.prompt(session, "wait")
        found = await stream.until(
            lambda event: event.kind not in (None, "user_message_chunk") or ends(prompt)(event),
            since=len(stream.events),
        )
        if found is None or found.type in ENDS:
            unscored("the prompt that should keep it busy did not")
        return prompt

    async def asked(self, stream: RestStream, session: str) -> tuple[str, str, RestEvent]:
        """Start a turn that waits for permission: return the prompt, the id of the request and the event."""
        prompt = await self.prompt(session, "ask")
        found = await stream.until(lambda event: event.type == "permission_request" or ends(prompt)(event))
        if found is None or found.type in ENDS:
            unscored("it did not ask for permission")
        request = at(found.says, "requestId")
        if not isinstance(request, str) or not request:
            unscored("the permission request has no id")
        return prompt, request, found

    async def answer(self, session: str, request: str, outcome: Any) -> Answer:
        return await self.call("POST", f"/session/{session}/permission/{request}", {"outcome": outcome})

    async def cancel(self, session: str) -> Answer:
        return await self.call("POST", f"/session/{session}/cancel", {})

    async def leave(self) -> None:
        """Close the opened sessions."""
        for each in self._opened:
            await self.ask("DELETE", f"/session/{each}")


def accepted(answer: Answer) -> str:
    """The id of a prompt that was accepted. Raises `NotScored`."""
    if answer.status != 202:
        unscored(f"a prompt is answered with {answer.status}")
    found = at(answer.value, "promptId")
    if not isinstance(found, str) or not found:
        unscored("the answer to a prompt has no promptId")
    return found


# -- a server, and what became of each case -----------------------------------------------------------------


async def probe_rest(
    opener: Opener,
    headers: Mapping[str, str],
    *,
    given: Mapping[Scene, str] | None = None,
    bounds: Bounds | None = None,
) -> RestSubject:
    """Read the server's capabilities and its agent's name."""
    bounds = bounds or Bounds()
    subject = RestSubject(headers=headers, patience_s=bounds.patience_s, silence_s=bounds.silence_s)
    async with opener() as peer:
        client = RestClient(peer, subject)
        found = await client.ask("GET", "/capabilities")
        agent = None if found is None else await _agent(client, found.value)
    if found is None:
        raise LinkBroken("no server answers there; look at the address")
    if found.status in (401, 403):
        raise LinkBroken("the server does not let the suite in; give a credential, --header NAME:VALUE")
    claims = found.value
    features = frozenset(each for each in items(at(claims, "features")) if isinstance(each, str))
    name = " ".join(filter(None, (quoted(at(claims, each)) for each in ("mode", "version"))))
    return replace(subject, name=name, features=features, prompts=prompts_for(agent or "", given or {}))


async def _agent(client: RestClient, claims: object) -> str | None:
    """Return the agent's name in a new session, if the server reports it, at once or on request."""
    told = at(claims, "agent", "agentName")
    if told is None and "agents" in items(at(claims, "features")):
        listed = await client.ask("GET", "/agents")
        hosted = items(at(None if listed is None else listed.value, "agents"))
        name = next((at(each, "name") for each in hosted if at(each, "default") is True), None)
        # To look at one starts it, if it has not run yet.
        looked = await client.ask("GET", f"/agents/{quote(name, safe='')}") if isinstance(name, str) else None
        told = at(None if looked is None else looked.value, "agentName")
    return told if isinstance(told, str) else None


def rest_obstacle(case: Case, subject: RestSubject) -> str:
    """Why a case cannot be judged at this server, as far as that is known before; empty if it can."""
    if case.capability and case.capability not in subject.features:
        return f"it does not list the feature `{case.capability}`"
    return unknown_scene(case, subject.prompts)


async def judge_rest(case: Case, opener: Opener, subject: RestSubject) -> Outcome:
    """Check one case on separate connections and sessions."""
    if reason := rest_obstacle(case, subject):
        return Outcome(case, "not_scored", reason)
    async with opener() as peer:
        client = RestClient(peer, subject)
        try:
            return await outcome_of(case, case.judge(client), [client.tape])
        finally:
            await client.leave()
