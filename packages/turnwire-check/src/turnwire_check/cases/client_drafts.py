"""Clients with drafts: `session/ready` and `turn_complete`, from an agent that offers them."""

from __future__ import annotations

from typing import Any

from turnwire_check.capability import MARKER, READY
from turnwire_check.case import Part, broken, holds, unscored
from turnwire_check.judging_agent import JudgingAgent
from turnwire_check.raw_peer import HOLD
from turnwire_check.tape import Frame, at, has

SESSION_READY = Part("client.ready", "Draft: session/ready")
TURN_COMPLETE = Part("client.turn-complete", "Draft: turn_complete in session/update")
V2_READY = Part("client.v2", "Draft: session/ready")

OTHER_PROMPT = "no prompt of this client"


# -- session/ready --------------------------------------------------------------------------------------


def _offer_ready(agent: JudgingAgent) -> None:
    agent.claims["agentCapabilities"] = {"loadSession": True, "sessionCapabilities": {READY: {}}}
    agent.answers["session/load"] = lambda asked: {"result": {}}


async def _loading(agent: JudgingAgent) -> Frame:
    """The request `session/load`. Raises `NotScored` when the client prompts without it."""
    await agent.initialized()
    found = await agent.until(lambda frame: frame.method in ("session/load", "session/prompt"))
    if found is None or found.method != "session/load":
        unscored("it loads no session; make the client do so")
    return found


async def _readiness(agent: JudgingAgent, opening: Frame, session: Any) -> None:
    """Broken unless `session/ready` for this session follows the response that opened it."""
    found = await agent.until(
        lambda frame: frame.method == "session/ready" and frame.session == session, opening.number
    )
    holds(found, f"no `session/ready` within {agent.patience_s:g} s", opening)


@SESSION_READY.case(
    "new", "A client that is offered `session/ready` sends it after `session/new`.", severity="draft"
)
async def ready_new(agent: JudgingAgent) -> None:
    _offer_ready(agent)
    await _readiness(agent, await agent.opened(), "session-1")


@SESSION_READY.case(
    "load",
    "A client that is offered `session/ready` sends it after `session/load`.",
    severity="draft",
    scenes=("load",),
)
async def ready_load(agent: JudgingAgent) -> None:
    _offer_ready(agent)
    load = await _loading(agent)
    await _readiness(agent, load, load.session)


@SESSION_READY.case(
    "offer", "The offer also counts as `capabilities.session.ready: true`, as the text has it.", severity="draft"
)
async def ready_offer(agent: JudgingAgent) -> None:
    agent.claims["capabilities"] = {"session": {READY: True}}
    await _readiness(agent, await agent.opened(), "session-1")


async def _none_before(agent: JudgingAgent, opening: Frame, result: dict[str, Any]) -> None:
    """Delay the response to this request. Broken when `session/ready` comes before it."""
    await agent.pause()
    early = [each for each in agent.tape.heard() if each.method == "session/ready"]
    await agent.respond(opening, {"result": result})
    holds(not early, "it was sent before the response", opening, *early[:1])


@SESSION_READY.case("early", "`session/ready` is not sent before the response to `session/new`.", severity="draft")
async def ready_early(agent: JudgingAgent) -> None:
    _offer_ready(agent)
    agent.answers["session/new"] = lambda asked: HOLD
    await _none_before(agent, await agent.opened(), {"sessionId": "session-1"})


@SESSION_READY.case(
    "load-early",
    "`session/ready` is not sent before the response to `session/load`.",
    severity="draft",
    scenes=("load",),
)
async def ready_load_early(agent: JudgingAgent) -> None:
    _offer_ready(agent)
    agent.answers["session/load"] = lambda asked: HOLD
    await _none_before(agent, await _loading(agent), {})


async def _sent_ready(agent: JudgingAgent) -> list[Frame]:
    """Every `session/ready` of a visit. Raises `NotScored` without one."""
    _offer_ready(agent)
    prompt = await agent.prompted()
    await agent.pause()
    await agent.end(prompt)
    await agent.pause()
    found = [each for each in agent.tape.heard() if each.method == "session/ready"]
    if not found:
        unscored("it sent no `session/ready`")
    return found


@SESSION_READY.case("notification", "`session/ready` is a notification.", severity="draft")
async def ready_notification(agent: JudgingAgent) -> None:
    requests = [each for each in await _sent_ready(agent) if has(each.value, "id")]
    holds(not requests, "it has an id", *requests[:1])


@SESSION_READY.case("unknown", "`session/ready` names a session that was opened.", severity="should")
async def ready_unknown(agent: JudgingAgent) -> None:
    sent = await _sent_ready(agent)
    opened = [at(each.result, "sessionId") for each in agent.tape.frames if each.is_ours]
    unknown = [each for each in sent if not isinstance(each.session, str) or each.session not in opened]
    holds(not unknown, f"it names {unknown and unknown[0].session!r}", *unknown[:1])


@V2_READY.case("ready", "A client that is offered `session/ready` sends it after `session/new`.", severity="draft")
async def v2_ready(agent: JudgingAgent) -> None:
    agent.claims["capabilities"] = {"session": {"mcp": {"stdio": {}}, READY: True}}
    await _readiness(agent, await agent.opened(), "session-1")


# -- turn_complete --------------------------------------------------------------------------------------


async def _marking(agent: JudgingAgent) -> Frame:
    """Return a prompt of a client that was offered `turn_complete`."""
    agent.claims["agentCapabilities"] = {"sessionCapabilities": {MARKER: {}}}
    return await agent.prompted()


@TURN_COMPLETE.case(
    "accepted",
    "A client accepts the update `turn_complete`, and its next prompt works.",
    severity="draft",
    scenes=("again",),
)
async def accepted(agent: JudgingAgent) -> None:
    prompt = await _marking(agent)
    if await agent.hears() is None:
        unscored("it does not answer a request that it does not know")
    marker = await agent.mark(prompt)
    await agent.respond(prompt, {"result": {"stopReason": "end_turn"}})
    if await agent.hears() is None:
        if agent.tape.ended:
            unscored("it left after the turn")
        broken("it does not answer any more", prompt, marker)
    await agent.end(await agent.first("session/prompt", prompt.number + 1))


def _following(agent: JudgingAgent, prompt: Frame) -> list[Frame]:
    """Later prompts in the session of this prompt."""
    heard = agent.tape.heard(prompt.number + 1)
    return [each for each in heard if each.method == "session/prompt" and each.session == prompt.session]


async def _one_end(agent: JudgingAgent, prompt: Frame, last: Frame) -> None:
    """Fail if a client that receives both signals of an end mistakes one of them for the end of its next turn."""
    following = await agent.first("session/prompt", prompt.number + 1)
    await agent.pause()
    holds(not agent.tape.ended, "it left while its second turn ran", prompt, last, following)
    more = _following(agent, following)
    holds(not more, "it ended its second turn, too", prompt, last, *more[:1])
    await agent.end(following)


@TURN_COMPLETE.case(
    "once",
    "A turn whose `turn_complete` comes before the response ends once.",
    severity="draft",
    scenes=("again",),
)
async def once(agent: JudgingAgent) -> None:
    prompt = await _marking(agent)
    await agent.mark(prompt)
    await agent.pause()
    await _one_end(agent, prompt, await agent.respond(prompt, {"result": {"stopReason": "end_turn"}}))


@TURN_COMPLETE.case(
    "once-reversed",
    "A turn whose response comes before `turn_complete` ends once.",
    severity="draft",
    scenes=("again",),
)
async def once_reversed(agent: JudgingAgent) -> None:
    prompt = await _marking(agent)
    await agent.respond(prompt, {"result": {"stopReason": "end_turn"}})
    await agent.pause()
    if agent.tape.ended:
        unscored("it left after the response")
    await _one_end(agent, prompt, await agent.mark(prompt))


@TURN_COMPLETE.case(
    "other",
    "The `turn_complete` of another prompt does not end the turn.",
    severity="draft",
    scenes=("again",),
)
async def other(agent: JudgingAgent) -> None:
    prompt = await _marking(agent)
    await agent.pause()
    if agent.tape.ended or _following(agent, prompt):
        unscored("it does not wait for the end of its turn")
    marker = await agent.update(
        prompt.session, "turn_complete", promptRequestId=OTHER_PROMPT, stopReason="end_turn"
    )
    await agent.pause()
    holds(not agent.tape.ended, "it left", prompt, marker)
    early = _following(agent, prompt)
    holds(not early, "it sent its next prompt", prompt, marker, *early[:1])
    await agent.end(prompt)
