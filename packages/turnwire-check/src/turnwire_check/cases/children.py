"""Child sessions, a draft in both versions: an agent's reports of its child sessions, and a client's handling of
them.
"""

from __future__ import annotations

from typing import Any

from turnwire_check.case import IN_ORDER, Part, broken, holds, unscored
from turnwire_check.judging_agent import JudgingAgent
from turnwire_check.raw_client import RawClient
from turnwire_check.raw_peer import is_answer_to
from turnwire_check.shapes import as_key, is_one_of, is_text
from turnwire_check.tape import Frame, at
from turnwire_check.v2_work import BUSY, work
from turnwire_check.watch import Conversation

V1 = Part("v1.child", "Draft: child sessions (unstable schema)")
V2 = Part("v2.child", "v2 draft, unstable schema: child sessions")
CLIENT = Part("client.child", "Draft: child sessions (unstable schema)")
CLIENT_V2 = Part("client.v2", "v2 draft, unstable schema: child sessions")

CAN_TAKE = "clientCapabilities.subagents"
TAKES_CHILDREN: dict[str, Any] = {"subagents": {}}
ANNOUNCEMENT = "subagent_update"
ABOUT = frozenset({ANNOUNCEMENT, "session_message", "session_message_chunk"})


async def _told(client: RawClient) -> tuple[str, list[Frame]]:
    """Return a session in which a child session was reported: its id, and all received frames. Raises
    `NotScored`.
    """
    session = await client.open(TAKES_CHILDREN if client.version == 1 else None)
    await (client.turn(session, "child") if client.version == 1 else work(client, session, "child"))
    await client.barrier()
    heard = list(client.tape.heard())
    strange = [each for each in heard if each.session not in (None, session)]
    if not strange and not any(each.kind == ANNOUNCEMENT for each in heard):
        unscored("it tells of no child session")
    return session, heard


async def _announced(client: RawClient) -> None:
    """Check that no update has an id that the client neither opened nor received."""
    session, heard = await _told(client)
    known = {as_key(session)}
    for each in heard:
        if each.session is not None:
            holds(as_key(each.session) in known, f"nothing was told of {each.session!r} before", each)
        if each.kind == ANNOUNCEMENT:
            known.add(as_key(at(each.update, "sessionId")))


async def _shape(client: RawClient) -> None:
    session, heard = await _told(client)
    found = [each for each in heard if each.kind == ANNOUNCEMENT]
    if not found:
        unscored("no child session was announced")
    children = {as_key(at(each.update, "sessionId")) for each in found}
    for each in found:
        child = at(each.update, "sessionId")
        holds(is_text(child) and child, f"`sessionId` of the child is {child!r}", each)
        holds(child != session, "the child has the id of its session", each)
        holds(each.session == session or as_key(each.session) in children, "it is announced in no session", each)


@V1.watch("offered", "Child sessions are told only to clients that support them.", severity="draft")
def v1_offered(talk: Conversation) -> None:
    if at(talk.capabilities, "subagents") is not None:
        unscored("the client supports child sessions")
    for each in talk.updates:
        holds(not is_one_of(each.kind, ABOUT), f"the client did not ask for {each.kind!r}", each)


@V1.case(
    "announced",
    "A child session is announced before anything is told of it.",
    severity="draft",
    scenes=("child",),
    carriers=IN_ORDER,
)
async def v1_announced(client: RawClient) -> None:
    await _announced(client)


@V1.case("shape", "A child session is announced with an id of its own.", severity="draft", scenes=("child",))
async def v1_shape(client: RawClient) -> None:
    await _shape(client)


@V2.case(
    "announced",
    "A child session is announced before anything is told of it.",
    severity="draft",
    scenes=("child",),
    carriers=IN_ORDER,
)
async def v2_announced(client: RawClient) -> None:
    await _announced(client)


@V2.case("shape", "A child session is announced with an id of its own.", severity="draft", scenes=("child",))
async def v2_shape(client: RawClient) -> None:
    await _shape(client)


@V2.case(
    "state",
    "The state of a child session, where it is told, is one of ACP's or begins with `_`.",
    severity="draft",
    scenes=("child",),
)
async def v2_state(client: RawClient) -> None:
    session, heard = await _told(client)
    told = [(each, at(each.update, "state", "state")) for each in heard if each.kind == ANNOUNCEMENT]
    told += [
        (each, at(each.update, "state"))
        for each in heard
        if each.kind == "state_update" and each.session != session
    ]
    words = [(each, word) for each, word in told if word is not None]
    if not words:
        unscored("it tells no state of a child session")
    for each, word in words:
        is_known = word in ("idle", "unknown", *BUSY) or (isinstance(word, str) and word.startswith("_"))
        holds(is_known, f"the state is {word!r}", each)


# -- clients ----------------------------------------------------------------------------------------------------


async def _child(agent: JudgingAgent) -> tuple[str, list[Frame]]:
    """Announce a child session in a turn; return its id and the sent frames."""
    prompt = await agent.attentive()
    if agent.version > 1:
        await agent.insert(prompt)
    await agent.say("a session that nobody has")
    if await agent.hears() is None:
        unscored("it does not answer behind an update of a session that it does not know")
    child = f"{prompt.session}/child"
    sent = [await agent.update(prompt.session, ANNOUNCEMENT, sessionId=child, title="A helper")]
    return child, [*sent, await agent.say(child, "From a child session.")]


async def _unharmed(agent: JudgingAgent) -> None:
    _, sent = await _child(agent)
    if await agent.hears() is None:
        broken(agent.tape.ended or "it does not answer any more", *sent)


async def _answered(agent: JudgingAgent) -> None:
    child, sent = await _child(agent)
    if await agent.hears() is None:
        unscored("it does not answer behind the announcement")
    asked = await agent.want(child)
    answer = await agent.until(is_answer_to(asked.id), asked.frame.number)
    holds(answer, "it was not answered", *sent, asked.frame)


@CLIENT.case("updates", "What is told of a child session does no harm.", severity="draft", capability=CAN_TAKE)
async def client_updates(agent: JudgingAgent) -> None:
    await _unharmed(agent)


@CLIENT.case(
    "permission",
    "A permission request of a child session is answered, be it with an error.",
    severity="draft",
    capability=CAN_TAKE,
)
async def client_permission(agent: JudgingAgent) -> None:
    await _answered(agent)


@CLIENT_V2.case("child", "What is told of a child session does no harm.", severity="should")
async def client_v2_updates(agent: JudgingAgent) -> None:
    await _unharmed(agent)


@CLIENT_V2.case(
    "child-permission",
    "A permission request of a child session is answered, be it with an error.",
    severity="should",
)
async def client_v2_permission(agent: JudgingAgent) -> None:
    await _answered(agent)
