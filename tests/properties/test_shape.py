"""Random agents of either version, read over REST in either shape: the published form of each event, for every
start of a fold, and the prompting client.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.properties.saying import MODES, V1_SAYS, V2_SAYS
from tests.unit.projections.translate.speaking import complaints, raw, text

from turnwire.ids import AgentSessionId, ClientId, MessageId, PermissionId, PromptId, SessionId
from turnwire.limits import Limits
from turnwire.projections.envelope import Form, Parties, Shape, ShapeFold, read_envelope
from turnwire.session import events as ev
from turnwire.session.codec import encode_all
from turnwire.wire.sse import SseReader

S1 = SessionId("s1")
SHAPES = (Shape.V1, Shape.V2, Shape.AGENT)
PEOPLE = {PromptId("p1"): ("ann", ClientId("c1")), PromptId("p2"): ("bob", None), PromptId("p3"): (None, None)}

Json = dict[str, Any]


def started(version: int, how: str = "new") -> ev.AgentStarted:
    offers = (
        {"modes": MODES}
        if version == 1
        else {"availableCommands": [{"type": "command", "name": "a", "description": "A"}]}
    )
    return ev.AgentStarted(
        at=1,
        agent_session_id=AgentSessionId("agents-own"),
        protocol_version=version,
        turn_end=ev.TurnEnd.RESPONSE if version == 1 else ev.TurnEnd.IDLE,
        how=how,
        offers=raw(offers),
    )


def said(says: Sequence[Any], *, turn: PromptId | None = None, after: PromptId | None = None) -> list[ev.AnyEvent]:
    return [
        ev.SessionUpdated(at=2, kind=update["sessionUpdate"], update=raw(update), prompt_id=turn, after=after)
        for _, update in says
    ]


def question(prompt_id: PromptId, version: int) -> ev.PermissionRequested:
    call = {"toolCallId": "t1", "title": "T"}
    subject: Json = {"title": "May I?", "subject": {"type": "tool_call", "toolCall": call}}
    options = [{"optionId": "yes", "name": "Yes", "kind": "allow_once"}]
    asked = ({"toolCall": call} if version == 1 else subject) | {"options": options}
    return ev.PermissionRequested(
        at=3,
        request_id=PermissionId(f"q-{prompt_id}"),
        agent_request_id=1,
        method="session/request_permission",
        params=raw({"sessionId": "agents-own", **asked}),
        options=("yes",),
        prompt_id=prompt_id,
    )


def begun(prompt_id: PromptId, blocks: int) -> list[ev.AnyEvent]:
    """Generate the start of a turn; the agent copies the prompt and marks its state."""
    author, client_id = PEOPLE[prompt_id]
    content, message_id = raw([text(f"{number}") for number in range(blocks)]), MessageId(f"m-{prompt_id}")
    copy = raw({"sessionUpdate": "user_message_chunk", "content": text("0"), "messageId": "m9"})
    state = raw({"sessionUpdate": "state_update", "state": "running"})
    return [
        ev.PromptAccepted(at=3, prompt_id=prompt_id, after_offset=0, author=author, client_id=client_id),
        ev.UserMessage(
            at=3, prompt_id=prompt_id, message_id=message_id, content=content, author=author, client_id=client_id
        ),
        ev.TurnStarted(at=3, prompt_id=prompt_id),
        ev.SessionUpdated(at=3, kind="user_message_chunk", update=copy, prompt_id=prompt_id, echo=True),
        ev.SessionUpdated(at=3, kind="state_update", update=state, prompt_id=prompt_id),
    ]


@st.composite
def logs(draw: st.DrawFn) -> list[ev.AnyEvent]:
    """Generate a session with an agent of one version, or of one after the other; each sends late and unsolicited
    output.
    """
    events: list[ev.AnyEvent] = [ev.SessionCreated(at=0, session_id=S1, cwd="/work")]
    version = 0
    for prompt_id in PEOPLE:
        if not version or draw(st.booleans()):
            version = draw(st.sampled_from([1, 2]))
            events.append(started(version, draw(st.sampled_from(["new", "load", "lost"]))))
        says = st.lists(V1_SAYS if version == 1 else V2_SAYS, max_size=3)
        events += begun(prompt_id, draw(st.integers(1, 3)))
        events += said(draw(says), turn=prompt_id)
        events += [question(prompt_id, version)] if draw(st.booleans()) else []
        events.append(ev.CancelAsked(at=3, prompt_id=prompt_id, author="eve", client_id=ClientId("c9")))
        events += said(draw(says), turn=prompt_id)
        end: ev.AnyEvent = ev.TurnFailed(at=3, prompt_id=prompt_id, code="x", message="y")
        if draw(st.booleans()):
            end = ev.TurnCompleted(at=3, prompt_id=prompt_id, stop_reason="end_turn", ending=ev.Ending.RESPONSE)
        events += [end, *said(draw(says), after=prompt_id), *said(draw(says))]
    return events


def envelopes(frame: bytes) -> list[Json]:
    """Return the envelopes that a client reads from the frames of one event."""
    seen = SseReader(Limits().frame_bytes).feed(frame)
    told = [json.loads(each.data) for each in seen]
    assert [each["type"] for each in told] == [each.event for each in seen]
    return told


def whole(events: Sequence[ev.AnyEvent], shape: Shape, form: Form = Form.SSE) -> list[bytes]:
    frames = ShapeFold(S1, shape).project(encode_all(events), form)
    assert len(frames) == len(events)
    return frames


@pytest.mark.guarantee("G11")
@settings(max_examples=150, deadline=None)
@given(events=logs())
def test_each_event_has_its_number_once_in_every_shape_and_the_words_of_that_version(
    events: list[ev.AnyEvent],
) -> None:
    for shape in SHAPES:
        for offset, (event, frame) in enumerate(zip(events, whole(events, shape), strict=True), 1):
            *parts, last = envelopes(frame)
            assert last["id"] == offset
            assert all("id" not in each and each["_meta"]["partOf"] == offset for each in parts)
            assert frame.count(b"\nid: ") + frame.startswith(b"id: ") == 1
            for each in (*parts, last):
                assert (each["v"], each["data"]["sessionId"], each["_meta"]["serverTimestamp"]) == (1, S1, event.at)
                if each["type"] == "session_update" and shape.version is not None:
                    assert complaints(shape.version, "SessionUpdate", each["data"]["update"]) == []
        lines = b"".join(whole(events, shape, Form.LINE)).splitlines()
        told = [each for frame in whole(events, shape) for each in envelopes(frame)]
        assert [json.loads(line) for line in lines] == told


@settings(max_examples=100, deadline=None)
@given(events=logs())
def test_every_event_of_a_turn_names_who_prompted_it(events: list[ev.AnyEvent]) -> None:
    for shape in SHAPES:
        for event, frame in zip(events, whole(events, shape), strict=True):
            prompt_id: PromptId | None = getattr(event, "prompt_id", None)
            after: PromptId | None = getattr(event, "after", None)
            author, client_id = (None, None) if prompt_id is None else PEOPLE[prompt_id]
            for each in envelopes(frame):
                assert each.get("promptId") == prompt_id
                assert each.get("author") == (getattr(event, "author", None) or author)
                assert each.get("originatorClientId") == client_id
                assert (each.get("late", False), each["data"].get("after")) == (after is not None, after)


@pytest.mark.guarantee("G9")
@settings(max_examples=60, deadline=None)
@given(events=logs())
def test_where_a_fold_begins_is_not_seen_in_what_it_gives(events: list[ev.AnyEvent]) -> None:
    bodies = encode_all(events)
    for shape in SHAPES:
        frames = whole(events, shape)
        silent, parties = ShapeFold(S1, shape), Parties()
        for begin, event in enumerate(events):
            middle = ShapeFold(S1, shape, begin, parties.copy(), is_whole=False)
            taken = middle.project(bodies[begin:])
            assert taken == frames[begin : begin + len(taken)]
            assert middle.is_stuck == (len(taken) < len(bodies) - begin)
            if middle.is_stuck:
                assert is_of_another_version(events, begin + len(taken), shape)
            copy = silent.copy()
            if copy is not None:
                assert copy.project(bodies[begin:]) == frames[begin:]
            silent.pass_over(bodies[begin : begin + 1])
            assert silent.project(()) == []
            parties.take(event)
        assert silent.offset == len(events)


def is_of_another_version(events: Sequence[ev.AnyEvent], place: int, shape: Shape) -> bool:
    """Return True if the agent of this event speaks another version than the shape's, or is not known yet."""
    starts = [each for each in events[: place + 1] if isinstance(each, ev.AgentStarted)]
    return not starts or starts[-1].protocol_version != shape.version


@settings(max_examples=60, deadline=None)
@given(events=logs())
def test_in_the_agents_own_words_every_event_reads_back(events: list[ev.AnyEvent]) -> None:
    for offset, line in enumerate(whole(events, Shape.AGENT, Form.LINE), 1):
        assert read_envelope(line) == (offset, events[offset - 1])


PAYLOADS = st.sampled_from(
    [
        b'{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"hi"}}',
        '{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"é😀"}}'.encode(),
        b'{"sessionUpdate":"agent_message_chunk",\r\n"content":null}',
        b'{"x":",\\"promptId\\":\\"p1\\",\\"at\\":1700000000000}"}',
        b'{"update":{},"promptId":"p1","at":1700000000000}',
    ]
)
ODD = st.fixed_dictionaries(
    {},
    optional={
        "after": st.just(PromptId("p1")),
        "echo": st.just(True),
        "beside": st.sampled_from([raw({"promptId": "p1"}), raw({}), raw(None)]),
        "child": st.just("c1"),
        "names": st.just({"a": "b"}),
    },
)


@st.composite
def runs(draw: st.DrawFn) -> list[ev.AnyEvent]:
    """Generate runs of updates as agents write them, many of one turn, kind and time, with different ones in
    between.
    """
    start = ev.PromptAccepted(at=1, prompt_id=PromptId("p1"), after_offset=0, author=draw(st.sampled_from("aé")))
    events: list[ev.AnyEvent] = [started(draw(st.sampled_from([1, 2]))), start]
    for length in draw(st.lists(st.integers(1, 9), max_size=5)):
        at = draw(st.sampled_from([0, 7, 1_700_000_000_000, 1_700_000_000_001]))
        kind = draw(st.sampled_from(["agent_message_chunk", "plan", "state_update", "turn_complete", 'o"d%d', "é"]))
        turn = draw(st.sampled_from([PromptId("p1"), None, PromptId('q"%b')]))
        more: dict[str, Any] = draw(ODD) if draw(st.booleans()) else {}
        events += [
            ev.SessionUpdated(at=at, kind=kind, update=msgspec.Raw(draw(PAYLOADS)), prompt_id=turn, **more)
            for _ in range(length)
        ]
        if draw(st.booleans()):
            events.append(ev.ModeChanged(at=at, mode="code"))
    return events


@pytest.mark.guarantee("G11")
@settings(max_examples=300, deadline=None)
@given(events=runs())
def test_updates_that_are_alike_are_told_together_byte_for_byte_as_each_alone(events: list[ev.AnyEvent]) -> None:
    bodies = encode_all(events)
    for shape in SHAPES:
        for form in Form:
            together, alone = ShapeFold(S1, shape), ShapeFold(S1, shape)
            frames = together.project(bodies, form)
            assert frames == [frame for body in bodies for frame in alone.project((body,), form)]
            assert together.offset == alone.offset == len(bodies)
