"""v1 with the draft of the prompt lifecycle: an answer at acceptance, then `user_message` and `state_change`.

Judged only where an agent offers it, with a client that asks for it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from turnwire_check import capability
from turnwire_check.case import Judge, Part, Scene, holds, unscored
from turnwire_check.raw_client import RawClient
from turnwire_check.raw_peer import HOLD, Request, is_answer_to, text
from turnwire_check.shapes import CONTENT, is_object, is_objects, is_one_of, is_text
from turnwire_check.tape import Frame, at, has

LIFECYCLE = Part("v1.lifecycle", "Draft: the prompt lifecycle on v1")

ASKS: dict[str, Any] = {"session": {"lifecycle": {}}}
"""Client capabilities that request the draft."""
WORDS = ("user_message", "state_change")
STATES = ("running", "requires_action", "idle")
OUTPUT = frozenset(CONTENT - {"user_message_chunk"})


def _case(name: str, rule: str, *, scenes: tuple[Scene, ...] = ()) -> Callable[[Judge], Judge]:
    offered = partial(LIFECYCLE.case, severity="draft", capability=capability.LIFECYCLE)
    return offered(name, rule, scenes=scenes)


class Life(NamedTuple):
    """A prompt, and all updates after it."""

    session: str
    request: Request
    frames: list[Frame]

    @property
    def answers(self) -> list[Frame]:
        return [each for each in self.frames if is_answer_to(self.request.id)(each)]

    @property
    def idles(self) -> list[Frame]:
        return [each for each in self.frames if _is_state(self.session, "idle")(each)]

    @property
    def end(self) -> Frame:
        """Return the end of the turn. Raises `NotScored` if there is none."""
        return self.idles[0] if self.idles else unscored("there was no idle")


def _is_state(session: str, state: str) -> Callable[[Frame], bool]:
    return lambda frame: (
        frame.kind == "state_change" and frame.session == session and at(frame.update, "state") == state
    )


async def _opened(client: RawClient) -> str:
    """Open a session for a client that requests the draft. Its current state may be reported first, which is not
    the end of a turn.
    """
    session = await client.open(ASKS)
    await client.barrier()
    return session


async def _lived(client: RawClient, scene: Scene = "plain") -> Life:
    """Send a prompt and wait for the reported end of its turn. Raises `NotScored` if it is rejected."""
    session = await _opened(client)
    return await _end_of(client, session, await client.prompt(session, scene))


async def _end_of(client: RawClient, session: str, request: Request) -> Life:
    is_idle, is_answer = _is_state(session, "idle"), is_answer_to(request.id)
    found = await client.until(
        lambda frame: is_idle(frame) or (is_answer(frame) and frame.failed), request.frame.number
    )
    if found is not None and found.is_answer:
        unscored("the prompt was refused")
    await client.until(is_answer, request.frame.number)
    await client.barrier()
    return Life(session, request, list(client.tape.heard(request.frame.number)))


async def _runs(client: RawClient) -> tuple[str, Request]:
    """Start a turn that runs until it is cancelled, and wait for its first update."""
    session = await _opened(client)
    request = await client.prompt(session, "wait")
    seen = await client.until(
        lambda frame: is_one_of(frame.kind, OUTPUT) or _is_state(session, "idle")(frame), request.frame.number
    )
    if seen is None or seen.kind == "state_change":
        unscored("the prompt that should keep it busy did not")
    return session, request


@_case("asked-for", "Who did not ask for it hears none of its words.")
async def asked_for(client: RawClient) -> None:
    await client.turn(await client.open())
    await client.barrier()
    found = [each for each in client.tape.heard() if is_one_of(each.kind, WORDS)]
    holds(not found, "the client did not ask for it", *found)


@_case("answer", "The answer to a prompt says that it is accepted, and no stop reason.")
async def answer(client: RawClient) -> None:
    life = await _lived(client)
    if not life.answers:
        unscored("the prompt was not answered")
    for each in life.answers:
        is_plain = is_object(each.result) and not has(each.result, "stopReason")
        holds(is_plain, f"the result is {each.result!r}", life.request.frame, each)


@_case("at-once", "A prompt is answered when it is accepted, and not when its turn ends.", scenes=("wait",))
async def at_once(client: RawClient) -> None:
    _, request = await _runs(client)
    await client.barrier()
    found = any(map(is_answer_to(request.id), client.tape.heard(request.frame.number)))
    holds(found, "the turn runs, and its prompt is not answered", request.frame)


@_case("answered-once", "A prompt that was accepted has no other answer when its turn ends.")
async def answered_once(client: RawClient) -> None:
    life = await _lived(client)
    holds(len(life.answers) == 1, f"it was answered {len(life.answers)} times", life.request.frame, *life.answers)


@_case("message", "The message of a prompt is told with an id of its own and its content.")
async def message(client: RawClient) -> None:
    life = await _lived(client)
    found = [each for each in life.frames if each.kind == "user_message"]
    holds(len(found) == 1, f"`user_message` was told {len(found)} times", life.request.frame, *found)
    content = at(found[0].update, "content")
    is_whole = is_text(at(found[0].update, "messageId")) and is_objects(content)
    holds(is_whole, "it has no `messageId` or no `content`", found[0])
    holds(any(_has_text(each) for each in content), "what was said is not in it", life.request.frame, found[0])


def _has_text(block: Any) -> bool:
    return at(block, "type") == "text" and bool(at(block, "text"))


@_case("refused", "A prompt that is refused is answered with an error, and is told of nowhere.")
async def refused(client: RawClient) -> None:
    session = await _opened(client)
    place = client.place
    answer = await client.call("session/prompt", {"sessionId": session, "prompt": [{"type": "text"}]})
    if not answer.failed:
        unscored("a text without text was accepted")
    await client.barrier()
    found = [each for each in client.tape.heard(place) if is_one_of(each.kind, WORDS)]
    holds(not found, "it was refused, and told of", answer, *found)


@_case("running", "A turn is told to run before its first output.")
async def running(client: RawClient) -> None:
    life = await _lived(client)
    output = next((each for each in life.frames if is_one_of(each.kind, OUTPUT)), None)
    if output is None:
        unscored("it said nothing in the turn")
    before = [each for each in life.frames if each.number < output.number]
    holds(any(map(_is_state(life.session, "running"), before)), "it was not told to run before", output)


@_case("states", "A state is one of three words.")
async def states(client: RawClient) -> None:
    life = await _lived(client)
    told = [each for each in life.frames if each.kind == "state_change"]
    if not told:
        unscored("it told no state")
    for each in told:
        holds(is_one_of(at(each.update, "state"), STATES), f"it is {at(each.update, 'state')!r}", each)


@_case("waits", "A turn that waits for an answer of its user is told to need one.", scenes=("ask",))
async def waits(client: RawClient) -> None:
    session = await _opened(client)
    client.answers["session/request_permission"] = lambda frame: HOLD
    request = await client.prompt(session, "ask")
    asked = await client.until(
        lambda frame: frame.method == "session/request_permission" or _is_state(session, "idle")(frame),
        request.frame.number,
    )
    if asked is None or not asked.is_request:
        unscored("it did not ask for permission")
    await client.barrier()
    told = any(map(_is_state(session, "requires_action"), client.tape.heard(request.frame.number)))
    holds(told, "it asks for permission, and `requires_action` was not told", asked)


@_case("idle", "When a turn has ended, its session is told to be idle.")
async def idle(client: RawClient) -> None:
    life = await _lived(client)
    holds(life.idles, "no `state_change` says so", life.request.frame, *life.answers)


@_case("idle-once", "A turn has one idle.")
async def idle_once(client: RawClient) -> None:
    life = await _lived(client)
    holds(life.end and len(life.idles) == 1, f"there are {len(life.idles)}", *life.idles)


@_case("idle-last", "Nothing of a turn comes behind its idle.")
async def idle_last(client: RawClient) -> None:
    life = await _lived(client)
    late = [
        each for each in life.frames if each.number > life.end.number and is_one_of(each.kind, OUTPUT | {WORDS[0]})
    ]
    holds(not late, "it goes on behind it", life.end, *late)


@_case("reason", "The idle that ends a turn has `stop_reason`.")
async def reason(client: RawClient) -> None:
    life = await _lived(client)
    found = at(life.end.update, "stop_reason")
    holds(is_text(found) and found, f"`stop_reason` is {found!r}", life.end)


@_case("cancelled", "A turn that is cancelled ends with an idle that says `cancelled`.", scenes=("wait",))
async def cancelled(client: RawClient) -> None:
    session, request = await _runs(client)
    sent = await client.cancel(session)
    life = await _end_of(client, session, request)
    found = [at(each.update, "stop_reason") for each in life.idles]
    holds(found and found[0] == "cancelled", f"the stop reasons are {found}", sent, *life.idles)


@_case("failed", "A turn that fails ends with an idle that says `error`.", scenes=("fail",))
async def failed(client: RawClient) -> None:
    life = await _lived(client, "fail")
    found = [at(each.update, "stop_reason") for each in life.idles]
    holds(found and found[0] == "error", f"the stop reasons are {found}", life.request.frame, *life.idles)


@_case("error", "Where an idle tells what went wrong, it has a code and a message.", scenes=("fail",))
async def error(client: RawClient) -> None:
    life = await _lived(client, "fail")
    found = at(life.end.update, "error")
    if found is None:
        unscored("it does not tell what went wrong")
    code = at(found, "code")
    is_whole = isinstance(code, int) and not isinstance(code, bool) and is_text(at(found, "message"))
    holds(is_whole, f"`error` is {found!r}", life.end)


@_case("goes-on", "A session that is idle again takes the next prompt.")
async def goes_on(client: RawClient) -> None:
    life = await _lived(client)
    assert life.end
    params = {"sessionId": life.session, "prompt": [text(client.words("plain"))]}
    answer = await client.call("session/prompt", params)
    holds(answer.succeeded, "it was refused", life.end, answer)
