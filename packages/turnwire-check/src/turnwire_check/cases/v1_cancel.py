"""v1: cancelled turns and cancelled requests."""

from __future__ import annotations

from turnwire_check.case import Part, holds, unscored
from turnwire_check.raw_client import DISMISS, RawClient
from turnwire_check.raw_peer import CANCELLED, Request, is_answer_to
from turnwire_check.shapes import CONTENT, STOP_REASONS, is_one_of
from turnwire_check.tape import Frame, at

CANCEL = Part("v1.cancel", "Prompt turn, cancellation")
TAKE_BACK = Part("v1.take-back", "Cancellation of requests")


async def _cancelled(client: RawClient, session: str) -> tuple[Request, Frame]:
    """Cancel a turn; return the prompt and its answer. Raises `NotScored` if there is no answer."""
    request = await client.running(session)
    await client.cancel(session)
    return request, (await client.end_of(request, "wait")).answer


@CANCEL.case("heard", "A prompt whose turn is cancelled is answered.", scenes=("wait",))
async def heard(client: RawClient) -> None:
    session = await client.open()
    request = await client.running(session)
    sent = await client.cancel(session)
    answer = await client.until(is_answer_to(request.id), request.frame.number)
    holds(answer, f"it was not answered within {client.subject.patience_s:g} s", request.frame, sent)


@CANCEL.case(
    "no-error",
    "A cancelled turn ends with a result: what was broken off is no error.",
    scenes=("wait",),
)
async def no_error(client: RawClient) -> None:
    _, answer = await _cancelled(client, await client.open())
    holds(not answer.failed, "the prompt was answered with an error", answer)


@CANCEL.case("reason", "A cancelled turn ends as `cancelled`.", scenes=("wait",))
async def reason(client: RawClient) -> None:
    _, answer = await _cancelled(client, await client.open())
    if answer.failed:
        unscored("the prompt was answered with an error")
    found = at(answer.result, "stopReason")
    holds(found == "cancelled", f"it ended with {found!r}", answer)


@CANCEL.case(
    "nothing-after",
    "After a cancel, too, all that is told of the turn comes before the answer.",
    scenes=("wait",),
)
async def nothing_after(client: RawClient) -> None:
    _, answer = await _cancelled(client, await client.open())
    await client.barrier()
    late = [each for each in client.tape.heard(answer.number) if is_one_of(each.kind, CONTENT)]
    holds(not late, "something of the turn came behind its end", answer, *late)


@CANCEL.case("once", "A prompt whose turn is cancelled twice is answered once.", scenes=("wait",))
async def once(client: RawClient) -> None:
    session = await client.open()
    request = await client.running(session)
    await client.cancel(session)
    await client.cancel(session)
    await client.end_of(request, "wait")
    await client.barrier()
    answers = [each for each in client.tape.heard() if is_answer_to(request.id)(each)]
    holds(len(answers) == 1, f"it was answered {len(answers)} times", *answers)


@CANCEL.case("goes-on", "After a cancelled turn the next prompt runs to its own end.", scenes=("wait",))
async def goes_on(client: RawClient) -> None:
    session = await client.open()
    await client.sound_turn(session)
    await _cancelled(client, session)
    following = await client.turn(session)
    found = at(following.answer.result, "stopReason")
    holds(found != "cancelled", "the next turn was cancelled, too", following.answer)
    holds(following.answer.succeeded, "the next prompt was refused", following.answer)


@CANCEL.case("idle", "A cancel while no turn runs does nothing, and the next prompt is not cancelled by it.")
async def idle(client: RawClient) -> None:
    session = await client.open_proven()
    sent = await client.cancel(session)
    await client.barrier()
    turn = await client.turn(session)
    found = at(turn.answer.result, "stopReason")
    holds(found != "cancelled", "the turn that came later was cancelled", sent, turn.answer)
    holds(turn.answer.succeeded, "the prompt that came later was refused", sent, turn.answer)


@CANCEL.case("unknown-session", "A cancel for a session that there is not does nothing.", severity="should")
async def unknown_session(client: RawClient) -> None:
    session = await client.open_proven()
    sent = await client.cancel("no such session")
    request = await client.prompt(session)
    answer = await client.until(is_answer_to(request.id), request.frame.number)
    holds(answer is not None and answer.succeeded, "the session next to it broke", sent, answer)


@CANCEL.case("other-session", "A cancel ends the turn of its own session, and no other.", scenes=("wait",))
async def other_session(client: RawClient) -> None:
    first, second = await client.open_two()
    kept = await client.running(first)
    other = await client.running(second)
    await client.cancel(second)
    await client.end_of(other, "wait")
    await client.barrier()
    ended = next((each for each in client.tape.heard() if is_answer_to(kept.id)(each)), None)
    holds(ended is None, "the turn of the other session ended, too", ended)


@CANCEL.case(
    "asked",
    "A turn that is cancelled while it waits for permission ends as `cancelled`.",
    scenes=("ask",),
)
async def asked(client: RawClient) -> None:
    session = await client.open()
    request, question = await client.asked(session)
    client.answers["session/request_permission"] = DISMISS
    await client.cancel(session)
    await client.respond(question, DISMISS(question))
    turn = await client.end_of(request, "ask")
    found = at(turn.answer.result, "stopReason")
    holds(found == "cancelled", f"it ended with {found!r}", question, turn.answer)


@TAKE_BACK.case(
    "answered",
    "A prompt that is taken back is answered with a result or with -32800.",
    scenes=("wait",),
    section="$/cancel_request",
)
async def take_back(client: RawClient) -> None:
    session = await client.open()
    request = await client.running(session)
    sent = await client.notify("$/cancel_request", {"requestId": request.id})
    await client.pause()
    await client.cancel(session)
    answer = (await client.end_of(request, "wait")).answer
    code = at(answer.error, "code")
    is_right = code == CANCELLED or (code is None and is_one_of(at(answer.result, "stopReason"), STOP_REASONS))
    holds(is_right, f"it was answered with {code!r}", sent, answer)


@TAKE_BACK.case("unknown", "Taking back a request that there is not does nothing.", section="$/cancel_request")
async def take_back_unknown(client: RawClient) -> None:
    session = await client.open_proven()
    place = client.place
    sent = await client.notify("$/cancel_request", {"requestId": "no such request"})
    barrier = await client.barrier()
    answers = [each for each in client.tape.heard(place) if each.is_answer and each is not barrier]
    holds(not answers, "it was answered", sent, *answers)
    turn = await client.turn(session)
    holds(turn.answer.succeeded, "the session next to it broke", sent, turn.answer)
