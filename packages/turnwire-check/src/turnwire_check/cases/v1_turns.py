"""v1: a prompt, the updates of its turn, and its one end."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from turnwire_check.capability import LIFECYCLE, MARKER, offers
from turnwire_check.case import Part, broken, holds, unscored
from turnwire_check.raw_client import PIXEL, RawClient, Turn
from turnwire_check.raw_peer import is_answer_to, text
from turnwire_check.shapes import (
    CONTENT,
    MEMBERS_OF_UPDATES,
    STOP_REASONS,
    UNSTABLE_UPDATES,
    UPDATES,
    block_complaint,
    is_count,
    is_object,
    is_objects,
    is_one_of,
    is_text,
    names,
    update_complaint,
)
from turnwire_check.tape import Frame, at
from turnwire_check.watch import Conversation

TURN = Part("v1.turn", "Prompt turn")
UPDATE = Part("v1.update", "Prompt turn, session updates")
FAIL = Part("v1.fail", "Overview, error handling")

DRAFTS = {MARKER: {"turn_complete"}, LIFECYCLE: {"user_message", "state_change"}}
"""Kinds of draft updates; agents that claim a draft are checked by its cases."""
SILENCE = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAIA+AAACABAAZGF0YQIAAAAAAA=="
"""A sound clip."""


@TURN.case("ends", "A prompt is answered.", section="Check for completion")
async def ends(client: RawClient) -> None:
    session = await client.open()
    request = await client.prompt(session)
    answer = await client.until(is_answer_to(request.id), request.frame.number)
    holds(answer, f"it was not answered within {client.subject.patience_s:g} s", request.frame)


@TURN.case("result", "A prompt that did not fail is answered with a result.", section="Check for completion")
async def result(client: RawClient) -> None:
    turn, *_ = await _turns(client)
    holds(turn.answer.succeeded, "a plain prompt was answered with an error", turn.answer)


@TURN.watch(
    "stop-reason",
    "The result of a prompt has one of five stop reasons.",
    section="Stop reasons",
)
def stop_reason(talk: Conversation) -> None:
    if at(talk.capabilities, "session", "lifecycle") is not None:
        unscored("the client asked for the draft lifecycle")
    for each in talk.answers("session/prompt"):
        found = at(each.result, "stopReason")
        holds(each.failed or is_one_of(found, STOP_REASONS), f"`stopReason` is {found!r}", each)


async def _turns(client: RawClient) -> list[Turn]:
    """Two turns of one session. A second prompt that is refused is another rule's matter."""
    session = await client.open()
    first, second = await client.turn(session), await client.turn(session)
    return [first] if second.answer.failed else [first, second]


@TURN.case("not-cancelled", "A turn that nobody cancelled does not end as cancelled.", section="Stop reasons")
async def not_cancelled(client: RawClient) -> None:
    for turn in await _turns(client):
        holds(at(turn.answer.result, "stopReason") != "cancelled", "it says that it was cancelled", turn.answer)


@TURN.case("once", "A prompt is answered once.", section="Check for completion")
async def once(client: RawClient) -> None:
    turns = await _turns(client)
    await client.barrier()
    for turn in turns:
        answers = [each for each in client.tape.heard() if is_answer_to(turn.request.id)(each)]
        holds(len(answers) == 1, f"it was answered {len(answers)} times", *answers)


@TURN.case(
    "nothing-after",
    "All that is told of a turn comes before the answer to its prompt.",
    section="Check for completion",
)
async def nothing_after(client: RawClient) -> None:
    session = await client.open()
    for _ in range(2):
        turn = await client.turn(session)
        await client.barrier()
        late = [each for each in client.tape.heard(turn.answer.number) if is_one_of(each.kind, CONTENT)]
        holds(not late, "an update of the turn came after its answer", turn.answer, *late)


@TURN.case("again", "After the end of a turn the next prompt is taken.", section="Check for completion")
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


@TURN.case("link", "A prompt may hold a link to a resource, always.", section="Content")
async def link(client: RawClient) -> None:
    await _takes(client, {"type": "resource_link", "uri": "file:///tmp/notes.txt", "name": "notes.txt"})


@TURN.case(
    "image",
    "An agent that offers to take pictures takes them.",
    section="Content",
    capability="agentCapabilities.promptCapabilities.image",
)
async def image(client: RawClient) -> None:
    await _takes(client, {"type": "image", "mimeType": "image/png", "data": PIXEL})


@TURN.case(
    "audio",
    "An agent that offers to take sounds takes them.",
    section="Content",
    capability="agentCapabilities.promptCapabilities.audio",
)
async def audio(client: RawClient) -> None:
    await _takes(client, {"type": "audio", "mimeType": "audio/wav", "data": SILENCE})


@TURN.case(
    "embedded",
    "An agent that offers to take embedded resources takes them.",
    section="Content",
    capability="agentCapabilities.promptCapabilities.embeddedContext",
)
async def embedded(client: RawClient) -> None:
    held = {"uri": "file:///tmp/notes.txt", "mimeType": "text/plain", "text": "a note"}
    await _takes(client, {"type": "resource", "resource": held})


# -- updates --------------------------------------------------------------------------------------------


@UPDATE.watch("kind", "An update is of a kind that the protocol has.", section="schema")
def kind(talk: Conversation) -> None:
    known = UPDATES | UNSTABLE_UPDATES
    for draft, words in DRAFTS.items():
        known |= words if offers(talk.offer, draft) else set[str]()
    for each in talk.updates:
        holds(is_one_of(each.kind, known), f"an update of the kind {each.kind!r}", each)


@UPDATE.watch("members", "An update has the members that its kind requires.", section="schema")
def members(talk: Conversation) -> None:
    for each in talk.updates:
        if complaint := update_complaint(each.update):
            broken(complaint, each)


@UPDATE.case(
    "usage-size",
    "There is no usage update without a context size that means something.",
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


@UPDATE.watch("content", "A message chunk is content of a type that the protocol has.", section="Content")
def content(talk: Conversation) -> None:
    for each in talk.updates:
        if is_text(each.kind) and each.kind.endswith("_chunk") and is_object(at(each.update, "content")):
            complaint = block_complaint(at(each.update, "content"))
            holds(not complaint, complaint, each)


@UPDATE.watch(
    "asked-for",
    "Notices and compactions go only to clients that asked for them.",
    section="Client capabilities",
)
def asked_for(talk: Conversation) -> None:
    _not_sent(talk, ("notice", "compaction_update", "compaction_summary_chunk"))


@UPDATE.watch("stable", "Unstable updates go only to clients that asked for them.", section="Client capabilities")
def stable(talk: Conversation) -> None:
    _not_sent(talk, ("plan_update", "plan_removed"))


def _not_sent(talk: Conversation, kinds: Collection[str]) -> None:
    """Broken when a client without capabilities gets an update of these kinds."""
    if talk.capabilities:
        return
    for each in talk.updates:
        holds(not is_one_of(each.kind, kinds), f"the client did not ask for {each.kind!r}", each)


@UPDATE.case(
    "message-ids",
    "No two messages of a kind have one id in a session.",
    section="Message ids",
)
async def message_ids(client: RawClient) -> None:
    session = await client.open()
    owners: dict[tuple[str, str], int] = {}
    for number in range(2):
        turn = await client.turn(session)
        for each in turn.updates:
            identity = at(each.update, "messageId")
            if not isinstance(identity, str):
                continue
            owner = owners.setdefault((identity, str(each.kind)), number)
            holds(owner == number, f"the id {identity!r} names messages of two turns", each)
    if not owners:
        unscored("its messages have no ids")


@UPDATE.watch(
    "no-members-of-its-own",
    "Updates and prompt results have no custom members except `_meta`.",
    section="Extensibility",
)
def no_members_of_its_own(talk: Conversation) -> None:
    for each in talk.updates:
        _no_extra(each, each.params, "sessionId", "update")
        if is_one_of(each.kind, UPDATES):
            _no_extra(each, each.update, "sessionUpdate", *MEMBERS_OF_UPDATES[each.kind])
    for each in talk.answers("session/prompt"):
        _no_extra(each, each.result, "stopReason", "usage")


def _no_extra(frame: Frame, value: object, *known: str) -> None:
    extra = names(value) - {*known, "_meta"}
    holds(not extra, f"the member {min(extra, default='')!r} is not the protocol's", frame)


@UPDATE.case("plan", "A plan is told whole each time.", scenes=("plan",), section="Agent plan")
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
