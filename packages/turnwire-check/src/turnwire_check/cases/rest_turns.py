"""REST: prompts, the end of each, queued prompts, cancels and permission requests."""

from __future__ import annotations

from typing import Any

import anyio

from turnwire_check.case import Part, holds, unscored
from turnwire_check.rest_client import ENDS, Match, RestClient, RestEvent, RestStream, accepted, ends, text
from turnwire_check.shapes import STOP_REASONS, is_one_of
from turnwire_check.tape import at, items

PROMPT = Part("rest.prompt", "A prompt")
TURN = Part("rest.turn", "Events")
BUSY = Part("rest.busy", "A prompt")
CANCEL = Part("rest.cancel", "Cancels and permission requests")
PERMISSION = Part("rest.permission", "Cancels and permission requests")
CLIENTS = Part("rest.clients", "Events")

KEY = "turnwire-check-key"


# -- prompts ----------------------------------------------------------------------------------------------------


@PROMPT.case("accepted", "A prompt is answered with 202.")
async def is_accepted(client: RestClient) -> None:
    answer = await client.post(await client.session())
    holds(answer.status == 202, f"the answer is {answer.status}", answer.frame)


@PROMPT.case("receipt", "The answer has `promptId`, `lastEventId` and `eventEpoch`.")
async def receipt(client: RestClient) -> None:
    answer = await client.post(await client.session())
    if answer.status != 202:
        unscored(f"the answer is {answer.status}")
    for name, kind in (("promptId", str), ("lastEventId", int), ("eventEpoch", str)):
        found = at(answer.value, name)
        holds(isinstance(found, kind) and not isinstance(found, bool), f"`{name}` is {found!r}", answer.frame)


@PROMPT.case("at-once", "The answer does not wait for the end of the turn.", scenes=("wait",))
async def at_once(client: RestClient) -> None:
    session, stream = await client.listen()
    body = {"prompt": [text(client.words("wait"))]}
    answer = await client.ask("POST", f"/session/{session}/prompt", body)
    if answer is None:
        # Only if it is answered once its turn has ended, it has waited for that.
        await client.cancel(session)
        end = await stream.until(lambda event: event.type in ENDS)
        holds(end is None, "it was not answered while its turn ran", None if end is None else end.frame)
        unscored("there is neither an answer nor a turn")


@PROMPT.case("unique", "Two prompts have two ids.")
async def unique(client: RestClient) -> None:
    session, stream = await client.listen()
    first, _ = await client.turn(stream, session)
    answer = await client.post(session)
    holds(accepted(answer) != first, f"both are {first!r}", answer.frame)


@PROMPT.case("position", "`lastEventId` stands before the first event of the turn, and behind all that was before.")
async def position(client: RestClient) -> None:
    session, stream = await client.listen()
    await client.turn(stream, session)
    before = stream.cursor()
    answer = await client.post(session)
    prompt = client.new(answer)
    await stream.end_of(prompt)
    stands = at(answer.value, "lastEventId")
    first = next(each for each in stream.of_session if each.prompt == prompt)
    if not isinstance(stands, int) or not isinstance(first.id, int):
        unscored("there are no ids")
    holds(
        before <= stands < first.id, f"it is {stands}, the turn begins with {first.id}", answer.frame, first.frame
    )


@PROMPT.case("echo", "The prompt is in the stream as message of the user, before anything that the agent says.")
async def echo(client: RestClient) -> None:
    session, stream = await client.listen()
    prompt, end = await client.turn(stream, session)
    said = [each for each in stream.of_prompt(prompt) if each.type == "session_update"]
    if not said:
        unscored("the turn has no updates")
    holds(said[0].kind == "user_message_chunk", f"the first update is {said[0].kind!r}", said[0].frame, end.frame)
    found = at(said[0].says, "update", "content", "text")
    holds(found == client.sent_words, f"its text is {found!r}", said[0].frame)


@PROMPT.case("key", "The same `Idempotency-Key` and body is the same prompt.", capability="idempotency_key")
async def key(client: RestClient) -> None:
    session = await client.session()
    first = await client.post(session, headers={"Idempotency-Key": KEY})
    second = await client.post(session, words=client.sent_words, headers={"Idempotency-Key": KEY})
    same = accepted(first) == accepted(second)
    holds(same, "there are two prompts", first.frame, second.frame)


@PROMPT.case(
    "key-once", "A prompt that is sent again with its `Idempotency-Key` runs once.", capability="idempotency_key"
)
async def key_once(client: RestClient) -> None:
    session, stream = await client.listen()
    prompt, _ = await client.turn(stream, session, headers={"Idempotency-Key": KEY})
    again = await client.post(session, words=client.sent_words, headers={"Idempotency-Key": KEY})
    if accepted(again) != prompt:
        unscored("it is taken for another prompt")
    await client.turn(stream, session)
    echoes = [each for each in stream.of_prompt(prompt) if each.kind == "user_message_chunk"]
    ended = [each for each in stream.events if ends(prompt)(each)]
    holds(len(echoes) <= 1, f"it ran {len(echoes)} times", *(each.frame for each in (*echoes, *ended)))


@PROMPT.case(
    "key-other", "The same `Idempotency-Key` with another body is refused with 409.", capability="idempotency_key"
)
async def key_other(client: RestClient) -> None:
    session = await client.session()
    accepted(await client.post(session, headers={"Idempotency-Key": KEY}))
    body = {"prompt": [text(f"{client.words('plain')} And again.")]}
    answer = await client.call("POST", f"/session/{session}/prompt", body, headers={"Idempotency-Key": KEY})
    holds(answer.status == 409, f"the answer is {answer.status}", answer.frame)


# -- the end of a turn ------------------------------------------------------------------------------------------


@TURN.case("ends", "Every prompt that was accepted has an end: `turn_complete` or `turn_error`.")
async def has_an_end(client: RestClient) -> None:
    session, stream = await client.listen()
    answer = await client.post(session)
    prompt = client.new(answer)
    end = await stream.until(lambda event: event.type in ENDS and event.prompt in (None, prompt))
    holds(end, f"there is none within {client.subject.patience_s:g} s", answer.frame)


@TURN.case("once", "A turn has one end.")
async def once(client: RestClient) -> None:
    session, stream = await client.listen()
    prompt, _ = await client.turn(stream, session)
    await client.turn(stream, session)
    await stream.pause()
    found = [each for each in stream.events if ends(prompt)(each)]
    holds(len(found) == 1, f"it has {len(found)}", *(each.frame for each in found))


@TURN.case("last", "The end of a turn comes behind everything else of it.")
async def last(client: RestClient) -> None:
    session, stream = await client.listen()
    prompt, end = await client.turn(stream, session)
    await client.turn(stream, session)
    await stream.pause()
    behind = stream.events[stream.events.index(end) + 1 :]
    late = [each for each in behind if each.prompt == prompt and each.type not in ENDS]
    holds(not late, "something of the turn came behind its end", end.frame, *(each.frame for each in late))


@TURN.case("named", "The end of a turn has the `promptId`, in `data` and beside it.")
async def named(client: RestClient) -> None:
    session, stream = await client.listen()
    prompt, end = await client.turn(stream, session)
    found = at(end.says, "promptId"), at(end.value, "promptId")
    holds(found == (prompt, prompt), f"it has {found!r}", end.frame)


@TURN.case("reason", "`turn_complete` has a `stopReason` of ACP.")
async def reason(client: RestClient) -> None:
    session, stream = await client.listen()
    _, end = await client.turn(stream, session)
    if end.type != "turn_complete":
        unscored("a plain turn ends with an error")
    found = at(end.says, "stopReason")
    holds(is_one_of(found, STOP_REASONS), f"it is {found!r}", end.frame)


@TURN.case("failed", "A turn that fails ends with `turn_error`, which has a `message`.", scenes=("fail",))
async def failed(client: RestClient) -> None:
    session, stream = await client.listen()
    _, end = await client.turn(stream, session, "fail")
    holds(end.type == "turn_error", f"it ends with {end.type!r}", end.frame)
    found = at(end.says, "message")
    holds(isinstance(found, str) and found, f"`message` is {found!r}", end.frame)


@TURN.case("after-failure", "After a turn that failed the next prompt runs to its own end.", scenes=("fail",))
async def after_failure(client: RestClient) -> None:
    session, stream = await client.listen()
    await client.turn(stream, session)
    await client.turn(stream, session, "fail")
    answer = await client.post(session)
    holds(answer.status == 202, f"the next prompt is answered with {answer.status}", answer.frame)
    prompt = client.new(answer)
    end = await stream.until(ends(prompt))
    holds(end is not None and end.type == "turn_complete", "it did not", answer.frame, end and end.frame)


@TURN.case("updates", "What the agent says is `session_update`, with `sessionId` and `update` in its `data`.")
async def updates(client: RestClient) -> None:
    session, stream = await client.listen()
    prompt, end = await client.turn(stream, session)
    found = [each for each in stream.of_prompt(prompt) if each.type == "session_update"]
    holds(found, "the turn has none", end.frame)
    for each in found:
        holds(at(each.says, "sessionId") == session, "it names another session", each.frame)
        holds(isinstance(at(each.says, "update", "sessionUpdate"), str), "it has no `update`", each.frame)


@TURN.case("marked", "Every update of a turn has the `promptId`.")
async def marked(client: RestClient) -> None:
    session, stream = await client.listen()
    prompt, end = await client.turn(stream, session)
    begun = next(place for place, each in enumerate(stream.events) if each.prompt == prompt)
    words = ("agent_message_chunk", "agent_thought_chunk", "tool_call", "tool_call_update")
    for each in stream.events[begun : stream.events.index(end)]:
        if each.kind in words and at(each.value, "late") is not True:
            holds(at(each.value, "promptId") == prompt, "it has none", each.frame)


@TURN.case(
    "looked-up",
    "`…/turns/{promptId}` of a turn that has ended is `completed`, and of none 404.",
    capability="prompt_status",
    section="Everything else",
)
async def looked_up(client: RestClient) -> None:
    session, stream = await client.listen()
    prompt, end = await client.turn(stream, session)
    if end.type != "turn_complete":
        unscored("a plain turn ends with an error")
    answer = await client.call("GET", f"/session/{session}/turns/{prompt}")
    found = at(answer.value, "state")
    holds(answer.status == 200 and found == "completed", f"{answer.status}, and {found!r}", answer.frame)
    none = await client.call("GET", f"/session/{session}/turns/no-such-prompt")
    holds(none.status == 404, f"the answer is {none.status}", none.frame)


# -- a prompt while a turn runs ---------------------------------------------------------------------------------


async def _behind(client: RestClient, stream: RestStream, session: str) -> tuple[str, str]:
    """Start a turn and queue a prompt after it."""
    first = await client.running(stream, session)
    answer = await client.post(session)
    if answer.status != 202:
        unscored("a second prompt does not wait here")
    return first, client.new(answer)


@BUSY.case("taken", "A prompt while a turn runs is taken with 202, or refused with 409.", scenes=("wait",))
async def taken(client: RestClient) -> None:
    session, stream = await client.listen()
    await client.running(stream, session)
    answer = await client.post(session)
    holds(answer.status in (202, 409), f"the answer is {answer.status}", answer.frame)


@BUSY.case("waits", "A prompt that waits begins when the turn before it has ended.", scenes=("wait",))
async def waits(client: RestClient) -> None:
    session, stream = await client.listen()
    first, second = await _behind(client, stream, session)
    await stream.pause()
    await client.cancel(session)
    end = await stream.end_of(first)
    before = stream.events[: stream.events.index(end)]
    early = [each for each in before if each.prompt == second and each.type in ("session_update", *ENDS)]
    holds(not early, "it began before", *(each.frame for each in early[:2]), end.frame)


@BUSY.case("ends", "A prompt that waited has an end of its own.", scenes=("wait",))
async def waited_ends(client: RestClient) -> None:
    session, stream = await client.listen()
    first, second = await _behind(client, stream, session)
    await client.cancel(session)
    end = await stream.end_of(first)
    found = await stream.until(ends(second))
    holds(found, "it has none", end.frame)


@BUSY.case(
    "rejected",
    "With `whenBusy` as `reject` a prompt while a turn runs is refused with 409 `busy`.",
    scenes=("wait",),
    capability="prompt_queue",
)
async def rejected(client: RestClient) -> None:
    session, stream = await client.listen()
    await client.running(stream, session)
    answer = await client.post(session, whenBusy="reject")
    found = at(answer.value, "code")
    holds(answer.status == 409 and found == "busy", f"{answer.status}, and {found!r}", answer.frame)


@BUSY.case(
    "listed",
    "`…/pending-prompts` has the prompt that runs and the one that waits.",
    scenes=("wait",),
    capability="prompt_queue",
    section="Cancels and permission requests",
)
async def listed(client: RestClient) -> None:
    session, stream = await client.listen()
    first, second = await _behind(client, stream, session)
    answer = await client.call("GET", f"/session/{session}/pending-prompts")
    found = [(at(each, "promptId"), at(each, "state")) for each in items(at(answer.value, "pendingPrompts"))]
    wanted = [(first, "running"), (second, "queued")]
    holds(found == wanted, f"it has {found}", answer.frame)


@BUSY.case(
    "removed",
    "A prompt that is taken out of the queue ends as `cancelled`, and never runs.",
    scenes=("wait",),
    capability="prompt_queue",
    section="Cancels and permission requests",
)
async def removed(client: RestClient) -> None:
    session, stream = await client.listen()
    _, second = await _behind(client, stream, session)
    answer = await client.call("DELETE", f"/session/{session}/pending-prompts/{second}")
    holds(answer.status == 200, f"the answer is {answer.status}", answer.frame)
    end = await stream.until(ends(second))
    found = end and at(end.says, "stopReason")
    holds(end is not None and found == "cancelled", f"it ended with {found!r}", answer.frame, end and end.frame)
    ran = [each for each in stream.of_prompt(second) if each.type == "session_update"]
    holds(not ran, "it ran", *(each.frame for each in ran))


@BUSY.case("many", "Of prompts that several clients send at once each has an end.")
async def many(client: RestClient) -> None:
    session, stream = await client.listen()
    await client.turn(stream, session)
    answers: list[Any] = []

    async def send() -> None:
        answers.append(await client.ask("POST", f"/session/{session}/prompt", body))

    body = {"prompt": [text(client.words("plain"))]}
    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(send)
    taken = [client.new(each) for each in answers if each is not None and each.status == 202]
    if not taken:
        unscored("none was accepted")
    for each in taken:
        holds(await stream.until(ends(each)), f"{each} has no end")


# -- cancels ----------------------------------------------------------------------------------------------------


async def _cancelled(client: RestClient) -> tuple[str, RestStream, RestEvent]:
    session, stream = await client.listen()
    prompt = await client.running(stream, session)
    await client.cancel(session)
    return session, stream, await stream.end_of(prompt)


@CANCEL.case("answered", "A cancel is answered with 204.", scenes=("wait",))
async def answered(client: RestClient) -> None:
    session, stream = await client.listen()
    await client.running(stream, session)
    answer = await client.cancel(session)
    holds(answer.status == 204, f"the answer is {answer.status}", answer.frame)


@CANCEL.case("ends", "A turn that is cancelled has its end.", scenes=("wait",))
async def cancelled_ends(client: RestClient) -> None:
    session, stream = await client.listen()
    prompt = await client.running(stream, session)
    answer = await client.cancel(session)
    holds(await stream.until(ends(prompt)), "there is none", answer.frame)


@CANCEL.case("reason", "A turn that is cancelled ends with `turn_complete` as `cancelled`.", scenes=("wait",))
async def cancelled_reason(client: RestClient) -> None:
    _, _, end = await _cancelled(client)
    found = end.type, at(end.says, "stopReason")
    holds(found == ("turn_complete", "cancelled"), f"it ended with {found}", end.frame)


@CANCEL.case("once", "A turn that is cancelled twice has one end.", scenes=("wait",))
async def cancelled_once(client: RestClient) -> None:
    session, stream = await client.listen()
    prompt = await client.running(stream, session)
    await client.cancel(session)
    await client.cancel(session)
    await stream.end_of(prompt)
    await client.turn(stream, session)
    await stream.pause()
    found = [each for each in stream.events if ends(prompt)(each)]
    holds(len(found) == 1, f"it has {len(found)}", *(each.frame for each in found))


@CANCEL.case("goes-on", "After a turn that was cancelled the next prompt runs to its own end.", scenes=("wait",))
async def goes_on(client: RestClient) -> None:
    session, stream, _ = await _cancelled(client)
    answer = await client.post(session)
    holds(answer.status == 202, f"the next prompt is answered with {answer.status}", answer.frame)
    prompt = client.new(answer)
    end = await stream.until(ends(prompt))
    well = end is not None and end.type == "turn_complete" and at(end.says, "stopReason") != "cancelled"
    holds(well, "it did not", answer.frame, end and end.frame)


@CANCEL.case("idle", "A cancel while no turn runs is answered with 204.")
async def idle(client: RestClient) -> None:
    answer = await client.cancel(await client.session())
    holds(answer.status == 204, f"the answer is {answer.status}", answer.frame)


@CANCEL.case("idle-nothing", "A cancel while no turn runs does nothing to the next prompt.")
async def idle_nothing(client: RestClient) -> None:
    session, stream = await client.listen()
    await client.turn(stream, session)
    answer = await client.cancel(session)
    _, end = await client.turn(stream, session)
    holds(at(end.says, "stopReason") != "cancelled", "it was cancelled, too", answer.frame, end.frame)


@CANCEL.case("other", "A cancel ends the turn of its own session, and no other.", scenes=("wait",))
async def other(client: RestClient) -> None:
    first, second = await client.two_sessions()
    streams = await client.stream(first), await client.stream(second)
    kept = await client.running(streams[0], first)
    gone = await client.running(streams[1], second)
    await client.cancel(second)
    await streams[1].end_of(gone)
    await streams[0].pause()
    ended = next((each for each in streams[0].events if ends(kept)(each)), None)
    holds(ended is None, "the turn of the other session ended, too", ended and ended.frame)


# -- permission requests ----------------------------------------------------------------------------------------


def _option(asked: RestEvent) -> dict[str, Any]:
    """Return the selection of the first option. Raises `NotScored` if there is none."""
    options = items(at(asked.says, "options"))
    found = at(options[0], "optionId") if options else None
    if not isinstance(found, str):
        unscored("the permission request has no options")
    return {"outcome": "selected", "optionId": found}


def _resolved(request: str) -> Match:
    return lambda event: event.type == "permission_resolved" and at(event.says, "requestId") == request


@PERMISSION.case(
    "asked", "`permission_request` has a `requestId`, the `toolCall` and `options` with ids.", scenes=("ask",)
)
async def asked(client: RestClient) -> None:
    session, stream = await client.listen()
    prompt = await client.prompt(session, "ask")
    found = await stream.until(lambda event: event.type == "permission_request" or ends(prompt)(event))
    if found is None or found.type in ENDS:
        unscored("it did not ask for permission")
    holds(isinstance(at(found.says, "requestId"), str), "it has no `requestId`", found.frame)
    holds(isinstance(at(found.says, "toolCall", "toolCallId"), str), "it has no `toolCall`", found.frame)
    options = items(at(found.says, "options"))
    sound = options and all(isinstance(at(each, "optionId"), str) for each in options)
    holds(sound, "it has no options, or one without its id", found.frame)


@PERMISSION.case("answered", "An answer to a permission request is taken with 200.", scenes=("ask",))
async def is_answered(client: RestClient) -> None:
    session, stream = await client.listen()
    _, request, found = await client.asked(stream, session)
    answer = await client.answer(session, request, _option(found))
    holds(answer.status == 200, f"the answer is {answer.status}", answer.frame)


@PERMISSION.case("told", "`permission_resolved` tells which option was selected.", scenes=("ask",))
async def told(client: RestClient) -> None:
    session, stream = await client.listen()
    _, request, found = await client.asked(stream, session)
    option = _option(found)
    answer = await client.answer(session, request, option)
    if answer.status != 200:
        unscored("the answer was not taken")
    event = await stream.until(_resolved(request))
    holds(event, "it does not come", answer.frame)
    outcome = event and at(event.says, "outcome", "optionId")
    holds(outcome == option["optionId"], f"it tells of {outcome!r}", event and event.frame)


@PERMISSION.case("goes-on", "The turn goes on with the answer, to its end.", scenes=("ask",))
async def asked_goes_on(client: RestClient) -> None:
    session, stream = await client.listen()
    prompt, request, found = await client.asked(stream, session)
    answer = await client.answer(session, request, _option(found))
    if answer.status != 200:
        unscored("the answer was not taken")
    holds(await stream.until(ends(prompt)), "it has none", answer.frame)


@PERMISSION.case("unknown", "An answer to a permission request that there is not is refused with 404.")
async def unknown(client: RestClient) -> None:
    answer = await client.answer(await client.session(), "no-such-request", {"outcome": "cancelled"})
    holds(answer.status == 404, f"the answer is {answer.status}", answer.frame)


@PERMISSION.case(
    "option", "An option that was not offered is refused with 400, and the request stays open.", scenes=("ask",)
)
async def option(client: RestClient) -> None:
    session, stream = await client.listen()
    _, request, found = await client.asked(stream, session)
    sound = _option(found)
    answer = await client.answer(session, request, {"outcome": "selected", "optionId": "no-such-option"})
    holds(answer.status == 400, f"the answer is {answer.status}", answer.frame)
    after = await client.answer(session, request, sound)
    holds(after.status < 300, f"an option that was offered is answered with {after.status} then", after.frame)


@PERMISSION.case("malformed", "An answer that is none is refused with 400.", scenes=("ask",))
async def malformed(client: RestClient) -> None:
    session, stream = await client.listen()
    _, request, _ = await client.asked(stream, session)
    for outcome in (5, {"outcome": "no such outcome"}, {"outcome": "selected"}):
        answer = await client.answer(session, request, outcome)
        holds(answer.status == 400, f"the answer is {answer.status}", answer.frame)


@PERMISSION.case("second", "The first answer counts; another one is refused with 404.", scenes=("ask",))
async def second(client: RestClient) -> None:
    session, stream = await client.listen()
    _, request, found = await client.asked(stream, session)
    first = await client.answer(session, request, _option(found))
    if first.status != 200:
        unscored("the first answer was not taken")
    other_answer = await client.answer(session, request, {"outcome": "cancelled"})
    holds(other_answer.status == 404, f"the second one is answered with {other_answer.status}", other_answer.frame)


@PERMISSION.case(
    "resolved-once", "A permission request is resolved once, whoever answers it again.", scenes=("ask",)
)
async def resolved_once(client: RestClient) -> None:
    session, stream = await client.listen()
    prompt, request, found = await client.asked(stream, session)
    await client.answer(session, request, _option(found))
    await client.answer(session, request, {"outcome": "cancelled"})
    await stream.end_of(prompt)
    await stream.pause()
    resolved = [each for each in stream.events if _resolved(request)(each)]
    holds(len(resolved) <= 1, f"it was resolved {len(resolved)} times", *(each.frame for each in resolved))


@PERMISSION.case("status", "`…/status` says that the session waits for permission, while it does.", scenes=("ask",))
async def status(client: RestClient) -> None:
    session, stream = await client.listen()
    prompt, request, found = await client.asked(stream, session)
    during = await client.call("GET", f"/session/{session}/status")
    if (await client.answer(session, request, _option(found))).status != 200:
        unscored("the answer was not taken")
    await stream.end_of(prompt)
    after = await client.call("GET", f"/session/{session}/status")
    for answer, wanted in ((during, True), (after, False)):
        told = at(answer.value, "isWaitingForPermission")
        holds(told is wanted, f"`isWaitingForPermission` is {told}", answer.frame)


@PERMISSION.case(
    "cancelled", "A cancel while the agent waits for permission ends the turn as `cancelled`.", scenes=("ask",)
)
async def cancelled(client: RestClient) -> None:
    session, stream = await client.listen()
    prompt, request, asking = await client.asked(stream, session)
    await client.cancel(session)
    end = await stream.end_of(prompt)
    found = at(end.says, "stopReason")
    holds(found == "cancelled", f"it ended with {found!r}", end.frame)
    answer = await client.answer(session, request, _option(asking))
    holds(answer.status == 404, f"the request is still open: {answer.status}", answer.frame)


# -- several clients ----------------------------------------------------------------------------------------------


async def _clients(client: RestClient) -> tuple[str, RestStream, str, str]:
    """Open a session with two clients: return its stream, and the ids of both. Raises `NotScored`."""
    created = await client.create()
    session, first = at(created.value, "sessionId"), at(created.value, "clientId")
    if not isinstance(session, str) or not isinstance(first, str):
        unscored("a new session gives no client id")
    client.opened(session)
    resumed = await client.call("POST", f"/session/{session}/resume", {})
    second = at(resumed.value, "clientId")
    if not isinstance(second, str) or second == first:
        unscored("resuming gives no client id of its own")
    return session, await client.stream(session), first, second


def _as_client(name: str) -> dict[str, str]:
    return {"X-Qwen-Client-Id": name, "Turnwire-Client-Id": name}


@CLIENTS.case(
    "prompted",
    "Updates and the end of a turn name the client that prompted, as `originatorClientId`.",
    capability="client_identity",
)
async def prompted(client: RestClient) -> None:
    session, stream, first, second = await _clients(client)
    for name in (second, first):
        prompt, end = await client.turn(stream, session, headers=_as_client(name))
        told = [each for each in stream.of_prompt(prompt) if each.type == "session_update"]
        for each in (*told, end):
            found = at(each.value, "originatorClientId")
            holds(found == name, f"it names {found!r} in place of {name!r}", each.frame)


@CLIENTS.case(
    "cancel",
    "A client cancels the turn that another has begun.",
    capability="client_identity",
    scenes=("wait",),
    section="Cancels and permission requests",
)
async def cancelled_by_another(client: RestClient) -> None:
    session, stream, _, second = await _clients(client)
    before = await client.running(stream, session)
    await client.cancel(session)
    if at((await stream.end_of(before)).says, "stopReason") != "cancelled":
        unscored("a cancel of nobody in particular does not end a turn as cancelled")
    prompt = await client.running(stream, session)
    answer = await client.call("POST", f"/session/{session}/cancel", {}, headers=_as_client(second))
    end = await stream.until(ends(prompt))
    reason = None if end is None else at(end.says, "stopReason")
    holds(reason == "cancelled", f"the turn ended with {reason!r}", answer.frame)
