"""v2: the work that a prompt starts, from the prompt to the idle that ends it, as frames."""

from __future__ import annotations

from typing import Any, NamedTuple

from turnwire_check.case import NoAnswer, Scene, unscored
from turnwire_check.raw_client import RawClient, prompted
from turnwire_check.raw_peer import HOLD, Request, is_answer_to
from turnwire_check.shapes import is_one_of
from turnwire_check.tape import Frame, Match, at, items

OUTPUT = frozenset(
    {
        *("agent_message", "agent_message_chunk", "agent_thought", "agent_thought_chunk", "tool_call_update"),
        *("tool_call_content_chunk", "terminal_update", "terminal_output_chunk", "plan_update"),
    }
)
"""Kinds of an agent's foreground output, as opposed to facts about the session."""
MESSAGES = frozenset(
    f"{who}{form}" for who in ("user_message", "agent_message", "agent_thought") for form in ("", "_chunk")
)
BUSY = ("running", "requires_action")


class Work(NamedTuple):
    """Work that is over."""

    request: Request
    idle: Frame
    frames: list[Frame]
    """The agent's frames from the prompt to the idle."""

    @property
    def answer(self) -> Frame | None:
        return next((each for each in self.frames if is_answer_to(self.request.id)(each)), None)

    @property
    def words(self) -> str:
        """The text of the prompt."""
        return prompted(self.request)

    def text(self, who: str = "agent_message") -> str:
        return told(self.frames, who)


def is_state(session: str, *states: str) -> Match:
    return lambda frame: (
        frame.kind == "state_update" and frame.session == session and at(frame.update, "state") in states
    )


def told(frames: list[Frame], who: str) -> str:
    """Return the text of messages of one role, from whole messages or chunks."""
    blocks: list[Any] = []
    for each in frames:
        if each.kind == who:
            blocks += items(at(each.update, "content"))
        elif each.kind == f"{who}_chunk":
            blocks.append(at(each.update, "content"))
    return "".join(words for each in blocks if isinstance(words := at(each, "text"), str))


async def work(client: RawClient, session: str, scene: Scene = "plain") -> Work:
    """Send a prompt, and wait for the idle. Raises `NotScored` if the prompt is rejected or no idle follows."""
    return await end_of(client, session, await client.prompt(session, scene), scene)


async def end_of(client: RawClient, session: str, request: Request, scene: Scene) -> Work:
    known = f"v2 idle ({scene})"
    if known in client.subject.given_up:
        raise NoAnswer(client.subject.given_up[known])
    idle = await client.until(
        lambda frame: is_state(session, "idle")(frame) or (is_answer_to(request.id)(frame) and frame.failed),
        request.frame.number,
    )
    if idle is None:
        client.subject.given_up[known] = f"no idle after a prompt ({scene})"
        raise NoAnswer(client.subject.given_up[known])
    if idle.is_answer:
        unscored(f"the prompt was refused ({scene})")
    # The answer may arrive after the end of short work.
    answer = await client.step(request, f"session/prompt ({scene})")
    end = max(idle.number, answer.number) + 1
    return Work(request, idle, list(client.tape.heard(request.frame.number, end)))


async def busy(client: RawClient, session: str) -> Request:
    """Start work that runs until it is cancelled, and wait until it runs."""
    request = await client.prompt(session, "wait")
    seen = await client.until(
        lambda frame: (
            frame.session == session and (is_one_of(frame.kind, OUTPUT) or is_state(session, "idle")(frame))
        ),
        request.frame.number,
    )
    if seen is None:
        client.no_answer("session/prompt (wait)")
    if seen.kind == "state_update":
        unscored("the prompt that should keep it busy did not")
    return request


async def cancelled(client: RawClient, session: str) -> Work:
    request = await busy(client, session)
    await client.cancel(session)
    return await end_of(client, session, request, "wait")


async def asked(client: RawClient, session: str) -> tuple[Request, Frame]:
    """Begin work in which the agent asks for permission, and do not answer it yet."""
    client.answers["session/request_permission"] = lambda frame: HOLD
    request = await client.prompt(session, "ask")
    found = await client.until(
        lambda frame: frame.method == "session/request_permission" or is_state(session, "idle")(frame),
        request.frame.number,
    )
    if found is None:
        client.no_answer("session/prompt (ask)")
    if not found.is_request:
        unscored("it did not ask for permission")
    return request, found
