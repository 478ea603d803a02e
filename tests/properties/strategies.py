"""Random inputs of a session: valid, stale, repeated and out of order.

The one hypothesis strategy is `happenings`, weighted so that whole turns occur. A part that names a turn is a
`Which`: the machine resolves it against the state of its session at that moment, so that most draws are meaningful
and some are not. A new prompt never gets an old id: the runtime mints them.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple

from hypothesis import strategies as st
from tests.unit.session.driving import SAMPLES

from turnwire.ids import RequestId
from turnwire.session.events import CancelRung, TurnEnd, TurnEvent
from turnwire.session.inputs import SteerOutcome, WhenBusy


class Which(Enum):
    """A turn or question by its position in the session, not by its id."""

    ACTIVE = "the active turn"
    WAITING = "a waiting prompt"
    JOINED = "a joined prompt"
    OFFERED = "a prompt that the agent was handed"
    LAST = "the turn that ended last"
    OLD = "any that has been"
    UNKNOWN = "one that never was"


which = st.sampled_from([Which.ACTIVE] * 4 + [Which.WAITING, Which.OFFERED] * 2 + [*Which])
"""Biased to the running turn, where most bugs are."""

steered = st.sampled_from([Which.WAITING] * 4 + [*Which])
"""Steering prompts wait until the agent has answered."""

whens = st.sampled_from([WhenBusy.STEER] * 4 + [WhenBusy.QUEUE] * 2 + [*WhenBusy])
keys = st.sampled_from([None, None, None, "k1", "k2", "k3"])
digests = st.sampled_from(["d1", "d1", "d2"])
clients = st.sampled_from(["c1", "c2", None])
positions = st.one_of(st.none(), st.integers(-1, 4))
steering = st.sampled_from([True, True, True, False])
turn_ends = st.sampled_from(TurnEnd)
rungs = st.sampled_from(CancelRung)
stop_reasons = st.sampled_from(["end_turn", "end_turn", "cancelled", "refusal", None])
message_ids = st.sampled_from(["m1", "m2", None])
options = st.sampled_from(["allow", "allow", "reject", "never_offered", None])
methods = st.sampled_from(["session/request_permission", "elicitation/create"])
gone_codes = st.sampled_from(["agent_exited", "agent_launch_failed", "agent_unresponsive", "daemon_stopped"])
request_ids: st.SearchStrategy[RequestId] = st.sampled_from([1, "1", 2, "2"])
"""Few and alike, so that ids that differ only in their JSON type meet."""

kinds = st.sampled_from(
    [
        "agent_message_chunk",
        "plan",
        "tool_call",
        "tool_call_update",
        "user_message",
        "user_message_chunk",
        "terminal_output_chunk",
        "made_up_kind",
    ]
)
PIECE_KINDS = ("agent_message_chunk", "agent_thought_chunk")
tools = st.sampled_from(["t1", "t2", "t3"])
statuses = st.sampled_from(["pending", "in_progress", "completed", None])
markers = st.sampled_from(["turn_complete", "_turn_complete"])
children = st.sampled_from(["c1", "c/2"])
parents = st.sampled_from([None, "c1"])
child_states = st.sampled_from([{}, {"state": None}, {"state": {"state": "running"}}, {"state": {"state": "idle"}}])
child_kinds = st.sampled_from(["agent_message_chunk", "tool_call", "state_update", "turn_complete", "user_message"])
agent_states = st.sampled_from(["running", "running", "requires_action", "idle", "idle", "made_up_state"])
state_reasons = st.sampled_from(["end_turn", "cancelled", "error", None])
backgrounds: st.SearchStrategy[list[str] | None] = st.sampled_from([None, None, [], ["t1"], ["t1", "t2"]])
ABOUT_TURNS = [each for each in SAMPLES if isinstance(each, TurnEvent)]

_pick = st.integers(0, 9)
"""Index among several, if a `Which` matches several."""


class Happening(NamedTuple):
    """The name of a method of the machine and its arguments."""

    name: str
    parts: dict[str, Any]


def _happening(name: str, **parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Happening]:
    return st.builds(Happening, st.just(name), st.fixed_dictionaries(parts))


_WEIGHTED: list[tuple[int, st.SearchStrategy[Happening]]] = [
    (8, _happening("prompt", when=whens, key=keys, digest=digests, client=clients)),
    (1, _happening("prompt_with_a_known_id", which=which, pick=_pick)),
    (2, _happening("edit", which=which, pick=_pick, position=positions, new=st.booleans())),
    (1, _happening("remove", which=which, pick=_pick)),
    (3, _happening("cancel", which=st.none() | which, pick=_pick, client=clients)),
    (1, _happening("settle", which=which, pick=_pick)),
    (3, _happening("answer", pick=_pick, option=options, client=clients)),
    (1, _happening("attach_or_detach", client=st.sampled_from(["c1", "c2"]), here=st.booleans())),
    (1, _happening("choose", what=st.sampled_from(["effort", "mode"]), value=st.sampled_from(["low", "high"]))),
    (1, _happening("agent_was_told_the_choices", lost=st.sets(st.sampled_from(["effort", "mode"])))),
    (1, _happening("agent_starts", turn_end=turn_ends, steering=steering)),
    (4, _happening("agent_speaks", kind=kinds, tool=tools, status=statuses, message=message_ids)),
    (
        4,
        _happening(
            "agent_says_pieces", kind=st.sampled_from(PIECE_KINDS), message=message_ids, count=st.integers(1, 4)
        ),
    ),
    (3, _happening("agent_marks_the_end", kind=markers, reason=stop_reasons, named=st.booleans(), pick=_pick)),
    (7, _happening("agent_reports_its_state", state=agent_states, reason=state_reasons, background=backgrounds)),
    (1, _happening("agent_has_the_prompt", which=which, pick=_pick, agent_id=request_ids)),
    (1, _happening("agent_replayed")),
    (4, _happening("agent_answers", which=which, pick=_pick, reason=stop_reasons, message=message_ids)),
    (6, _happening("agent_ends_the_turn", reason=stop_reasons)),
    (1, _happening("agent_refuses", which=which, pick=_pick)),
    (4, _happening("agent_asks", agent_id=request_ids, method=methods)),
    (2, _happening("child_is_announced", child=children, parent=parents, state=child_states, cancel=st.booleans())),
    (3, _happening("child_speaks", child=children, kind=child_kinds, tool=tools, state=agent_states)),
    (2, _happening("child_asks", child=children, agent_id=request_ids, method=methods)),
    (1, _happening("child_is_cancelled", pick=_pick)),
    (1, _happening("agent_withdraws", agent_id=request_ids)),
    (5, _happening("agent_answers_steering", which=steered, pick=_pick, outcome=st.sampled_from(SteerOutcome))),
    (1, _happening("agent_goes", code=gone_codes)),
    (2, _happening("deadline_passes", which=which, pick=_pick, rung=rungs)),
    (1, _happening("restart")),
    (1, _happening("an_event_is_offered", which=which, pick=_pick, event=st.sampled_from(ABOUT_TURNS))),
    (1, _happening("read_from_a_snapshot", cut=st.integers(0, 1000))),
    (1, _happening("commit")),
    (1, _happening("close")),
]
happenings = st.sampled_from([each for weight, each in _WEIGHTED for _ in range(weight)]).flatmap(lambda each: each)
