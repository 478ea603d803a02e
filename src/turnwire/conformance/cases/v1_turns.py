"""v1: a prompt, what is told of its turn, and its one end."""

from __future__ import annotations

from typing import Any

from turnwire.conformance.capability import LIFECYCLE, MARKER, offers
from turnwire.conformance.case import Part, broken, holds, unscored
from turnwire.conformance.raw_client import PIXEL, RawClient
from turnwire.conformance.raw_peer import is_answer_to, text
from turnwire.conformance.shapes import (
    CONTENT,
    STOP_REASONS,
    UNSTABLE_UPDATES,
    UPDATES,
    block_complaint,
    is_count,
    is_objects,
    is_one_of,
    names,
    update_complaint,
)
from turnwire.conformance.tape import Frame, at

TURN = Part("v1.turn", "Prompt turn")
UPDATE = Part("v1.update", "Prompt turn, session updates")
FAIL = Part("v1.fail", "Overview, error handling")

DRAFTS = {MARKER: {"turn_complete"}, LIFECYCLE: {"user_message", "state_change"}}
"""Kinds of updates of drafts; whoever claims one is judged by the cases of the draft."""
SILENCE = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAIA+AAACABAAZGF0YQIAAAAAAA=="
"""A sound."""


@TURN.case("ends", "A prompt is answered.", "v1 53", section="Check for completion")
async def ends(client: RawClient) -> None:
    session = await client.open()
    request = await client.prompt(session)
    answer = await client.until(is_answer_to(request.id), request.frame.number)
    holds(answer, f"it was not answered within {client.subject.patience_s:g} s", request.frame)


@TURN.case(
    "result", "A prompt that did not fail is answered with a result.", "v1 53", section="Check for completion"
)
async def result(client: RawClient) -> None:
    turn = await client.turn(await client.open())
    holds(turn.answer.succeeded, "a plain prompt was answered with an error", turn.answer)


@TURN.case(
    "stop-reason",
    "The result of a prompt says why the turn ended, in one of five words.",
    "v1 53",
    "R11",
    section="Stop reasons",
)
async def stop_reason(client: RawClient) -> None:
    turn = await client.turn(await client.open())
    if turn.answer.failed:
        unscored("the prompt was answered with an error")
    found = at(turn.answer.result, "stopReason")
    holds(is_one_of(found, STOP_REASONS), f"`stopReason` is {found!r}", turn.answer)


@TURN.case("not-cancelled", "A turn that nobody cancelled does not end as cancelled.", section="Stop reasons")
async def not_cancelled(client: RawClient) -> None:
    turn = await client.turn(await client.open())
    holds(at(turn.answer.result, "stopReason") != "cancelled", "it says that it was cancelled", turn.answer)


@TURN.case("once", "A prompt is answered once.", "v1 53", section="Check for completion")
async def once(client: RawClient) -> None:
    turn = await client.turn(await client.open())
    await client.barrier()
    answers = [each for each in client.tape.heard() if is_answer_to(turn.request.id)(each)]
    holds(len(answers) == 1, f"it was answered {len(answers)} times", *answers)


@TURN.case(
    "nothing-after",
    "All that is told of a turn comes before the answer to its prompt.",
    "v1 101",
    "R16",
    section="Check for completion",
)
async def nothing_after(client: RawClient) -> None:
    turn = await client.turn(await client.open())
    await client.barrier()
    late = [each for each in client.tape.heard(turn.answer.number) if is_one_of(each.kind, CONTENT)]
    holds(not late, "something of the turn came behind its end", turn.answer, *late)


@TURN.case("again", "After the end of a turn the next prompt is taken.", "v1 52", section="Check for completion")
async def again(client: RawClient) -> None:
    session = await client.open()
    first = await client.turn(session)
    if first.answer.failed:
        unscored("the first prompt was answered with an error")
    second = await client.turn(session)
    holds(second.answer.succeeded, "the second prompt was refused", second.answer)


@TURN.case(
    "every-prompt",
    "A prompt that comes while a turn runs is answered, too.",
    scenes=("wait",),
    section="JSON-RPC requests",
)
async def every_prompt(client: RawClient) -> None:
    session = await client.open()
    await client.sound_turn(session)
    first = await client.running(session)
    second = await client.prompt(session)
    await client.pause()
    await client.cancel(session)
    for each in (first, second):
        if await client.until(is_answer_to(each.id), first.frame.number) is None:
            if each is first:
                unscored("the cancelled turn did not end")
            broken("the second prompt was never answered", second.frame)


async def _takes(client: RawClient, block: dict[str, Any]) -> None:
    session = await client.open_proven()
    prompt = [text(client.words("plain")), block]
    answer = await client.call("session/prompt", {"sessionId": session, "prompt": prompt})
    sent = next(each for each in reversed(client.tape.frames) if each.method == "session/prompt")
    holds(at(answer.error, "code") is None, f"a prompt with {block['type']!r} was refused", sent, answer)


@TURN.case("link", "A prompt may hold a link to a resource, always.", "v1 13", section="Content")
async def link(client: RawClient) -> None:
    await _takes(client, {"type": "resource_link", "uri": "file:///tmp/notes.txt", "name": "notes.txt"})


@TURN.case(
    "image",
    "An agent that offers to take pictures takes them.",
    "v1 10",
    section="Content",
    capability="agentCapabilities.promptCapabilities.image",
)
async def image(client: RawClient) -> None:
    await _takes(client, {"type": "image", "mimeType": "image/png", "data": PIXEL})


@TURN.case(
    "audio",
    "An agent that offers to take sounds takes them.",
    "v1 10",
    section="Content",
    capability="agentCapabilities.promptCapabilities.audio",
)
async def audio(client: RawClient) -> None:
    await _takes(client, {"type": "audio", "mimeType": "audio/wav", "data": SILENCE})


@TURN.case(
    "embedded",
    "An agent that offers to take embedded resources takes them.",
    "v1 10",
    section="Content",
    capability="agentCapabilities.promptCapabilities.embeddedContext",
)
async def embedded(client: RawClient) -> None:
    held = {"uri": "file:///tmp/notes.txt", "mimeType": "text/plain", "text": "a note"}
    await _takes(client, {"type": "resource", "resource": held})


# -- what is told ---------------------------------------------------------------------------------------


async def _everything(client: RawClient) -> list[Frame]:
    """All updates of a turn of each kind that can be had."""
    session = await client.open()
    for scene in ("plain", "tool", "plan", "usage"):
        if scene in client.subject.prompts:
            await client.turn(session, scene)
    await client.barrier()
    return [each for each in client.tape.heard() if each.method == "session/update"]


@UPDATE.case("kind", "An update is of a kind that the protocol has.", section="schema")
async def kind(client: RawClient) -> None:
    known = UPDATES | UNSTABLE_UPDATES
    for draft, words in DRAFTS.items():
        known |= words if offers(client.subject.offers.get(1), draft) else set[str]()
    for each in await _everything(client):
        holds(is_one_of(each.kind, known), f"an update of the kind {each.kind!r}", each)


@UPDATE.case("members", "An update has the members that its kind must have.", "v1 60", "v1 75", section="schema")
async def members(client: RawClient) -> None:
    for each in await _everything(client):
        if complaint := update_complaint(each.update):
            broken(complaint, each)


@UPDATE.case(
    "usage-size",
    "There is no usage update without a context size that means something.",
    "v1 61",
    severity="should",
    scenes=("usage",),
    section="schema",
)
async def usage_size(client: RawClient) -> None:
    turn = await client.turn(await client.open(), "usage")
    told = [each for each in turn.updates if each.kind == "usage_update" and is_count(at(each.update, "size"))]
    if not told:
        unscored("it told no usage")
    for each in told:
        holds(at(each.update, "size") > 0, "the size of the context is 0", each)


@UPDATE.case("content", "A piece of a message is content of a type that the protocol has.", section="Content")
async def content(client: RawClient) -> None:
    for each in await _everything(client):
        if (
            isinstance(each.kind, str)
            and each.kind.endswith("_chunk")
            and isinstance(at(each.update, "content"), dict)
        ):
            complaint = block_complaint(at(each.update, "content"))
            holds(not complaint, complaint, each)


@UPDATE.case(
    "asked-for",
    "Notices and compactions go only to clients that asked for them.",
    "v1 74a",
    section="Client capabilities",
)
async def asked_for(client: RawClient) -> None:
    for each in await _everything(client):
        is_gated = each.kind in ("notice", "compaction_update", "compaction_summary_chunk")
        holds(not is_gated, f"the client did not ask for {each.kind!r}", each)


@UPDATE.case(
    "stable", "Updates that are not stable go only to clients that asked for them.", section="Client capabilities"
)
async def stable(client: RawClient) -> None:
    for each in await _everything(client):
        holds(not is_one_of(each.kind, UNSTABLE_UPDATES), f"the client did not ask for {each.kind!r}", each)


@UPDATE.case(
    "message-ids", "A message has an id that no other message of the session has.", "v1 58", section="Message ids"
)
async def message_ids(client: RawClient) -> None:
    session = await client.open()
    owners: dict[str, tuple[int, str]] = {}
    for number in range(2):
        turn = await client.turn(session)
        for each in turn.updates:
            identity = at(each.update, "messageId")
            if not isinstance(identity, str):
                continue
            owner = owners.setdefault(identity, (number, str(each.kind)))
            holds(owner == (number, str(each.kind)), f"the id {identity!r} names two messages", each)
    if not owners:
        unscored("its messages have no ids")


@UPDATE.case(
    "no-members-of-its-own",
    "Updates and results get no members of somebody's own beside `_meta`.",
    "v1 17",
    section="Extensibility",
)
async def no_members_of_its_own(client: RawClient) -> None:
    await _everything(client)
    for each in client.tape.heard():
        if each.method == "session/update":
            extra = names(each.params) - {"sessionId", "update", "_meta"}
        elif is_answer_to_prompt(client, each):
            extra = names(each.result) - {"stopReason", "usage", "_meta"}
        else:
            continue
        holds(not extra, f"the member {min(extra, default='')!r} is not the protocol's", each)


def is_answer_to_prompt(client: RawClient, frame: Frame) -> bool:
    asked = [each for each in client.tape.frames if each.is_ours and each.method == "session/prompt"]
    return any(is_answer_to(each.id)(frame) for each in asked)


@UPDATE.case("plan", "A plan is told whole each time.", "v1 75", scenes=("plan",), section="Agent plan")
async def plan(client: RawClient) -> None:
    session = await client.open()
    turn = await client.turn(session, "plan")
    plans = [at(each.update, "entries") for each in turn.updates if each.kind == "plan"]
    if not plans:
        unscored("it showed no plan")
    for each in plans:
        holds(is_objects(each) and each, "a plan without entries", *turn.updates)
    longest = max(len(each) for each in plans if is_objects(each))
    last = plans[-1]
    holds(is_objects(last) and len(last) == longest, "the last plan has lost entries", *turn.updates)


# -- a turn that fails ----------------------------------------------------------------------------------


@FAIL.case(
    "answered", "A turn that fails is answered: with an error, or with the reason why it stopped.", scenes=("fail",)
)
async def fail_answered(client: RawClient) -> None:
    session = await client.open()
    request = await client.prompt(session, "fail")
    answer = await client.until(is_answer_to(request.id), request.frame.number)
    holds(answer, "it was not answered", request.frame)


@FAIL.case("goes-on", "After a turn that failed the next prompt is taken.", scenes=("fail",))
async def fail_goes_on(client: RawClient) -> None:
    session = await client.open()
    await client.sound_turn(session)
    await client.turn(session, "fail")
    following = await client.turn(session)
    holds(following.answer.succeeded, "the next prompt was refused", following.answer)
