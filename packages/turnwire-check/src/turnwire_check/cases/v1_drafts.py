"""v1 with drafts: `turn_complete` and `session/ready`, checked only for agents that claim them."""

from __future__ import annotations

from typing import Any

from turnwire_check import capability
from turnwire_check.capability import offers
from turnwire_check.case import IN_ORDER, Part, Scene, broken, holds, unscored
from turnwire_check.raw_client import RawClient, Turn
from turnwire_check.raw_peer import is_answer_to, text
from turnwire_check.shapes import CONTENT, is_one_of
from turnwire_check.tape import Frame, at
from turnwire_check.watch import Conversation

MARKER = Part("v1.turn-complete", "Draft: turn_complete in session/update")
READY = Part("v1.ready", "Draft: session/ready")


ASKS: dict[str, Any] = {"session": {"turnComplete": {}}}
"""The capability of a client that wants the marker."""


@MARKER.watch(
    "asked-for",
    "The marker, which is no update of version 1, goes only to clients that asked for it.",
    severity="should",
)
def asked_for(talk: Conversation) -> None:
    if at(talk.capabilities, *("session", "turnComplete")) is not None:
        unscored("the client asked for the marker")
    if not offers(talk.offer, capability.MARKER):
        unscored(f"it does not claim {capability.in_words(capability.MARKER)}")
    for each in talk.updates:
        holds(each.kind != "turn_complete", "the client did not ask for the marker", each)


async def _marked(client: RawClient, scene: Scene = "plain") -> tuple[Turn, Frame]:
    """Run a turn and return it with its marker. Raises `NotScored` without one."""
    turn = await client.turn(await client.open(ASKS), scene)
    await client.barrier()
    found = next((each for each in client.tape.heard() if each.kind == "turn_complete"), None)
    if found is None:
        unscored("there was no marker")
    return turn, found


@MARKER.case("once", "A turn has one marker.", severity="draft", capability=capability.MARKER)
async def once(client: RawClient) -> None:
    turn = await client.turn(await client.open(ASKS))
    await client.barrier()
    found = [each for each in client.tape.heard() if each.kind == "turn_complete"]
    holds(len(found) == 1, f"there are {len(found)}", turn.answer, *found)


@MARKER.case(
    "last",
    "The marker follows every message, tool call and plan of its turn.",
    severity="draft",
    capability=capability.MARKER,
)
async def last(client: RawClient) -> None:
    turn, marker = await _marked(client)
    behind = [each for each in turn.updates if each.number > marker.number and is_one_of(each.kind, CONTENT)]
    holds(not behind, "an update of the turn came behind it", marker, *behind)


@MARKER.case(
    "before-answer",
    "The marker comes before the answer to the prompt, as updates of a turn do.",
    severity="draft",
    capability=capability.MARKER,
)
async def before_answer(client: RawClient) -> None:
    turn, marker = await _marked(client)
    holds(marker.number < turn.answer.number, "it came behind the answer", turn.answer, marker)


@MARKER.case("whose", "The marker names the request of its prompt.", severity="draft", capability=capability.MARKER)
async def whose(client: RawClient) -> None:
    session = await client.open(ASKS)
    request = await client.prompt(session, id="prompt-7")
    await client.end_of(request, "plain")
    await client.barrier()
    for each in client.tape.heard():
        if each.kind == "turn_complete":
            found = at(each.update, "promptRequestId")
            holds(str(found) == "prompt-7", f"it names {found!r}", request.frame, each)
            return
    unscored("there was no marker")


@MARKER.case(
    "reason", "The marker has the stop reason of the answer.", severity="draft", capability=capability.MARKER
)
async def reason(client: RawClient) -> None:
    turn, marker = await _marked(client)
    found, answered = at(marker.update, "stopReason"), at(turn.answer.result, "stopReason")
    holds(found == answered, f"it says {found!r}, the answer {answered!r}", marker, turn.answer)


@MARKER.case(
    "cancelled",
    "A cancelled turn has its marker, too, with `cancelled`.",
    severity="draft",
    capability=capability.MARKER,
    scenes=("wait",),
)
async def cancelled(client: RawClient) -> None:
    session = await client.open(ASKS)
    request = await client.running(session)
    await client.cancel(session)
    turn = await client.end_of(request, "wait")
    await client.barrier()
    found = [at(each.update, "stopReason") for each in client.tape.heard() if each.kind == "turn_complete"]
    holds(found == ["cancelled"], f"the markers say {found}", turn.answer)


@MARKER.case(
    "failed",
    "A turn that fails has one marker, before the error.",
    severity="draft",
    capability=capability.MARKER,
    scenes=("fail",),
)
async def failed(client: RawClient) -> None:
    turn = await client.turn(await client.open(ASKS), "fail")
    await client.barrier()
    found = [each for each in client.tape.heard() if each.kind == "turn_complete"]
    is_right = len(found) == 1 and found[0].number < turn.answer.number
    holds(is_right, f"there are {len(found)} markers, or one behind the answer", turn.answer, *found)


@MARKER.case(
    "refused",
    "A prompt that never became a turn has no marker.",
    severity="draft",
    capability=capability.MARKER,
)
async def refused(client: RawClient) -> None:
    await client.open(ASKS)
    answer = await client.call("session/prompt", {"sessionId": "no such session", "prompt": [text("x")]})
    await client.barrier()
    if not answer.failed:
        unscored("a prompt for a session that there is not was taken")
    found = [each for each in client.tape.heard() if each.kind == "turn_complete"]
    holds(not found, "there is one", answer, *found)


# -- ready ----------------------------------------------------------------------------------------------


async def _opened(client: RawClient) -> str:
    """Open a session for a client that has not sent that it is ready."""
    await client.initialize()
    return await client.new_session(ready=False)


def _unsolicited(client: RawClient, session: str) -> list[Frame]:
    return [each for each in client.tape.heard() if each.session == session]


@READY.case(
    "held",
    "Until the client is ready, nothing is told about a session that it did not ask for.",
    severity="draft",
    capability=capability.READY,
    carriers=IN_ORDER,
)
async def held(client: RawClient) -> None:
    session = await _opened(client)
    await client.barrier()
    early = _unsolicited(client, session)
    holds(not early, "it was told before the client was ready", *early)


@READY.case(
    "no-answer",
    "`session/ready` is a notification, and is not answered.",
    severity="draft",
    capability=capability.READY,
)
async def no_answer(client: RawClient) -> None:
    session = await _opened(client)
    place = client.place
    sent = await client.notify("session/ready", {"sessionId": session})
    barrier = await client.barrier()
    answers = [each for each in client.tape.heard(place) if each.is_answer and each is not barrier]
    holds(not answers, "it was answered", sent, *answers)


@READY.case(
    "prompt",
    "A prompt from a client that never said that it is ready is served.",
    severity="draft",
    capability=capability.READY,
)
async def prompt(client: RawClient) -> None:
    await client.turn(await client.open())
    session = await client.new_session(ready=False)
    request = await client.prompt(session)
    answer = await client.until(is_answer_to(request.id), request.frame.number)
    holds(answer, "the prompt was not answered", request.frame)


@READY.case(
    "twice",
    "Being ready twice, or for a session that there is not, tells nothing twice.",
    severity="draft",
    capability=capability.READY,
)
async def twice(client: RawClient) -> None:
    session = await _opened(client)
    for named in (session, session, "no such session"):
        await client.notify("session/ready", {"sessionId": named})
        await client.barrier()
    told = [each.raw for each in client.tape.heard() if each.kind == "available_commands_update"]
    if len(told) != len(set(told)):
        broken("an update was told twice", *_unsolicited(client, session))
