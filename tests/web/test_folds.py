"""`@turnwire/client/view` folds a log into the same view as the daemon: of generated logs, and of real ones."""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections.abc import Generator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, cast

import anyio
import msgspec
import pytest
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test
from msgspec import UNSET, Struct
from msgspec.structs import replace
from tests.properties.test_session_machine import SessionMachine
from tests.properties.test_view import LOGS, raw, updates
from tests.server.seats import Seat, answer, seated
from tests.support.daemons import SCRIPTED
from tests.web.test_typescript_client import compiled

from turnwire.ids import ChildId, Epoch, SessionId
from turnwire.limits import MiB
from turnwire.projections.envelope import Form, Shape, ShapeFold
from turnwire.projections.view import ChildSession, Compaction, ToolCall, View
from turnwire.server.readers.history import snapshot_of
from turnwire.server.routes.transcripts import TranscriptQuery, earlier_of, page_of, transcript_of
from turnwire.session import events as ev
from turnwire.session.codec import decode, encode
from turnwire.session.evolve import fold
from turnwire.session.state import NOTHING, SessionState
from turnwire.session.turn import NEXT, TurnState
from turnwire.wire.schema.update import FINAL_TOOL_STATUS
from turnwire_testing.patience import WAIT_S
from turnwire_testing.plugin import find_tool

FOLDS = Path(__file__).parent / "clients" / "folds.mjs"
S1 = SessionId("s1")
SCALE = 10 if os.environ.get("TURNWIRE_SOAK") == "1" else 1
FOUND = (Phase.explicit, Phase.reuse, Phase.generate)
"""The reported difference is more useful than a log that needed minutes to shrink."""
CREATED = ev.SessionCreated(at=0, session_id=S1, cwd="/w")


class Folder:
    """A node process that folds its input."""

    def __init__(self, package: Path) -> None:
        command = [find_tool("node"), str(FOLDS), str(package / "view" / "index.js")]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def does(self, act: str, **given: object) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"act": act, **given}).encode() + b"\n")
        self._process.stdin.flush()
        told = json.loads(self._process.stdout.readline())
        assert "error" not in told, told["error"]
        return told["is"]

    def close(self) -> None:
        self._process.communicate(b"")
        assert self._process.returncode == 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Generator[Folder]:
    folder = Folder(compiled("tsconfig.build.json", tmp_path_factory.mktemp("client")))
    yield folder
    folder.close()


def envelopes(log: Sequence[ev.AnyEvent]) -> list[Any]:
    """Return the events as a reader with `acp=agent` receives them."""
    frames = ShapeFold(S1, Shape.AGENT).project([encode(each) for each in log], Form.LINE)
    return [json.loads(each) for each in frames]


def view_of(log: Sequence[ev.AnyEvent]) -> View:
    view = View()
    for event in log:
        view.apply(event)
    return view


def page_at(view: View, limit: int | None = None, before: int | None = None) -> dict[str, Any]:
    query = TranscriptQuery(acp="agent", limit=limit, before=before)
    return json.loads(msgspec.json.encode(transcript_of(S1, view, Epoch("e"), query, MiB)))


def child_page(
    view: View, child_id: ChildId, limit: int | None = None, before: int | None = None
) -> dict[str, Any]:
    child = view.children[child_id].view
    page = page_of(child, TranscriptQuery(acp="agent"), MiB)
    told = {
        "child": {"id": child_id},
        "lastEventId": view.offset,
        "first": page.first,
        "items": page.items,
        "terminals": page.terminals,
        "earlier": earlier_of(child, page),
        **({} if child.background is None else {"background": child.background}),
    }
    return json.loads(msgspec.json.encode(told))


USUAL = {
    ("tool_call", "kind"): "other",
    ("tool_call", "status"): "pending",
    ("compaction", "status"): "in_progress",
}


def brief(items: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    """Return items without members of default value, which the daemon omits unless the agent sent them."""
    if items is None:
        return None
    return [{k: v for k, v in each.items() if USUAL.get((each["item"], k), UNSET) != v} for each in items]


def difference(one: Any, other: Any, path: str = "") -> str | None:
    """Return the first position in which two values differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        left, right = cast("dict[str, Any]", one), cast("dict[str, Any]", other)
        keys = sorted({*left, *right})
        found = (difference(left.get(each), right.get(each), f"{path}.{each}") for each in keys)
    elif isinstance(one, list) and isinstance(other, list):
        pairs = enumerate(zip_longest(cast("list[Any]", one), cast("list[Any]", other)))
        found = (difference(a, b, f"{path}[{place}]") for place, (a, b) in pairs)
    else:
        return None if one == other else f"{path}: {one!r} is not {other!r}"
    return next((each for each in found if each), None)


SAME = ("lastEventId", "state", "title", "items", "latest", "background")


def expected(view: View, children: bool = True) -> dict[str, Any]:
    """Return the expected result of a fold, in the daemon's form."""
    page = page_at(view)
    shown: dict[str, Any] = {each: page.get(each) for each in SAME}
    shown["items"] = brief(shown["items"])
    shown["turns"] = {each["promptId"]: each for each in page["turns"]}
    shown["terminals"] = page.get("terminals", {})
    shown["activePromptId"] = view.active
    shown["permissions"] = sorted(view.permissions)
    for child_id, each in view.children.items() if children else ():
        told = child_page(view, child_id)
        parts = {name: told.get(name) for name in ("terminals", "background")} | {"items": brief(told["items"])}
        shown[f"child {child_id}"] = json.loads(msgspec.json.encode(each.record)) | parts
    return shown


def shown(told: dict[str, Any], children: bool = True) -> dict[str, Any]:
    """Return the result of a fold, in the same form."""
    found: dict[str, Any] = {each: told.get(each) for each in (*SAME, "terminals", "activePromptId")}
    found["items"] = brief(found["items"])
    found["turns"] = {each["promptId"]: each for each in told["turns"]}
    found["permissions"] = sorted(each["requestId"] for each in told["permissions"])
    for each in told["children"] if children else ():
        parts = {name: each.get(name) for name in ("terminals", "background")} | {"items": brief(each.get("items"))}
        found[f"child {each['record']['childId']}"] = each["record"] | parts
    return found


# -- made-up logs ----------------------------------------------------------------------------------------------

NAMES = {"a1": "s1.1", "a2": "s1.2", "me": "s1"}
CHILDREN = st.sampled_from([ChildId("s1.1"), ChildId("s1.2")])


@st.composite
def child_updates(draw: st.DrawFn) -> ev.SessionUpdated:
    """Return updates in a child, or about one, with the agent's ids for them."""
    said = draw(updates())
    child = draw(st.none() | CHILDREN)
    if draw(st.booleans()):
        return replace(said, child=child, after=None)
    state = draw(st.sampled_from([None, {"state": "running"}, {"state": "idle"}, {"state": "odd"}, "wrong"]))
    titles = draw(
        st.dictionaries(st.sampled_from(["title", "description", "cwd"]), st.none() | st.text(max_size=3))
    )
    work = [{"type": "subagent", "sessionId": draw(st.sampled_from([*NAMES, "x"]))}]
    update: dict[str, object] = draw(
        st.sampled_from(
            [
                {"sessionUpdate": "subagent_update", "sessionId": draw(st.sampled_from([*NAMES])), **titles},
                {"sessionUpdate": "subagent_update", "sessionId": "a1", "state": state, "capabilities": None},
                {"sessionUpdate": "subagent_update", "sessionId": "a2", "capabilities": {"cancel": {}}},
                {"sessionUpdate": "subagent_update", "sessionId": 7},
                {"sessionUpdate": "state_update", "state": "running", "background": work},
                {"sessionUpdate": "session_message", "senderSessionId": "a1", "recipientSessionId": "me"},
            ]
        )
    )
    kind = str(update["sessionUpdate"])
    return replace(said, kind=kind, update=raw(update), child=child, names=NAMES, after=None, echo=False)


@st.composite
def anything(draw: st.DrawFn) -> list[ev.AnyEvent]:
    others = draw(st.lists(st.one_of(child_updates(), updates(wrong=True)), max_size=15))
    return draw(st.permutations([*draw(LOGS), *others]))


class _Named(Struct, rename="camel"):
    session_update: str


def is_said(event: ev.AnyEvent) -> bool:
    """Return True for an update that is an object with a kind; others are in no log."""
    if not isinstance(event, ev.SessionUpdated):
        return True
    try:
        return msgspec.json.decode(event.update, type=_Named).session_update == event.kind
    except msgspec.DecodeError:
        return False


def log_of(events: Sequence[ev.AnyEvent], *, is_legal: bool = False) -> list[ev.AnyEvent]:
    """Generate any log in which only one turn runs at a time. `is_legal`: turns also follow the table."""
    log: list[ev.AnyEvent] = [CREATED]
    view = view_of(log)
    for event in filter(is_said, events):
        if isinstance(event, ev.TurnStarted) and view.active is not None:
            continue
        if is_legal and isinstance(event, ev.TurnEvent):
            record = view.turns.get(event.prompt_id)
            if type(event) not in NEXT[TurnState.NEW if record is None else record.state]:
                continue
        view.apply(event)
        log.append(event)
    return log


@settings(max_examples=200 * SCALE, deadline=None, phases=FOUND)
@given(events=anything())
def test_a_whole_log_folds_to_what_the_daemon_shows(folder: Folder, events: list[ev.AnyEvent]) -> None:
    log = log_of(events)
    told = folder.does("view", sessionId=S1, events=envelopes(log))
    assert difference(shown(told), expected(view_of(log))) is None


@settings(max_examples=150 * SCALE, deadline=None, phases=FOUND)
@given(events=anything(), data=st.data())
def test_a_page_of_any_moment_and_what_came_since_are_the_whole(
    folder: Folder, events: list[ev.AnyEvent], data: st.DataObject
) -> None:
    """Children's transcripts are read before or after their events are received."""
    log = log_of(events)
    cut = data.draw(st.integers(1, len(log)))
    view = view_of(log[:cut])
    children: list[object] = []
    for child_id in view.children:
        heard, read = data.draw(st.integers(cut, len(log))), data.draw(st.integers(cut, len(log)))
        if any(isinstance(each, ev.AgentStarted) for each in log[read:heard]):
            read = heard
        children.append({"after": heard, "page": child_page(view_of(log[:read]), child_id)})
    told = folder.does("view", page=page_at(view), events=envelopes(log), children=children)
    assert told["taken"] == [True for _ in children]
    # Which permission requests were open at the cut is not in a page.
    found, whole = shown(told), expected(view_of(log))
    assert difference(found | {"permissions": []}, whole | {"permissions": []}) is None


@settings(max_examples=200 * SCALE, deadline=None, phases=FOUND)
@given(events=anything(), limit=st.integers(1, 6), data=st.data())
def test_the_newest_page_then_older_ones_read_at_any_time_are_the_whole(
    folder: Folder, events: list[ev.AnyEvent], limit: int, data: st.DataObject
) -> None:
    log = log_of(events, is_legal=True)
    cut = data.draw(st.integers(1, len(log)))
    view, whole = view_of(log[:cut]), view_of(log)
    page = page_at(view, limit)
    heard = data.draw(st.integers(cut, len(log)))
    assume(not changes_what_was_over(view, whole, page["first"]))
    older: list[dict[str, Any]] = []
    before = page.get("before")
    while before is not None:
        read = data.draw(st.integers(cut, len(log)))
        older.append({"after": heard, "page": page_at(view_of(log[:read]), limit, before)})
        before = older[-1]["page"].get("before")
    told = folder.does("view", page=page, events=envelopes(log), older=older)
    assert told["taken"] == [True for _ in older]
    found, wanted = shown(told, children=False), expected(whole, children=False)
    # A completed turn without any text is on no page.
    wanted["turns"] = {name: each for name, each in wanted["turns"].items() if name in found["turns"]}
    for each in found, wanted:
        del each["permissions"], each["terminals"]
        for turn in each["turns"].values():
            # The position of an answer that was not on the page when its turn ended is unknown.
            turn["place"].pop("answer", None)
    assert difference(found, wanted) is None
    # A child that sent updates and was never announced is on no page.
    records = {each["record"]["childId"]: each["record"] for each in told["children"]}
    announced = {each.child_id for each in whole.items if isinstance(each, ChildSession)}
    assert {each: records[each] for each in announced} == {
        each["childId"]: each for each in page_at(whole).get("children", []) if each["childId"] in announced
    }


def changes_what_was_over(view: View, whole: View, first: int) -> bool:
    """Return True if a named item before the page is changed that was complete when the page was read."""
    now, then = whole.items[:first], view.items[:first]
    changed = [old for old, new in zip(then, now, strict=True) if new.last_event_id > view.offset]
    return any(not is_open(each, view.transcript.speaker.life) for each in changed)


def is_open(item: object, life: int) -> bool:
    if isinstance(item, ToolCall):
        return item.life == life and item.status not in FINAL_TOOL_STATUS
    return isinstance(item, Compaction) and item.life == life and item.status == "in_progress"


# -- logs that a session can have ------------------------------------------------------------------------------


def counts(state: SessionState, entry: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the state's counts for an entry, and those of a fold."""
    turn = state.turn
    known = {
        "state": "closed" if state.phase.value == "closed" else turn.state.value if turn else "idle",
        "hasActivePrompt": turn is not None,
        "activePromptId": turn.prompt_id if turn else None,
        "permissionCount": len(state.permissions),
        "isWaitingForPermission": bool(state.permissions),
        "queuedCount": len(state.queue),
        "queueHeld": state.held,
        "backgroundCount": len(state.work),
        "runningChildCount": len(state.running_children),
        "clientCount": len(state.clients),
        "archived": state.archived or None,
    }
    return known, {each: entry.get(each) for each in known}


def entry_at(state: SessionState, offset: int) -> dict[str, Any]:
    known, _ = counts(state, {})
    blank = {
        "sessionId": S1,
        "cwd": "/w",
        "updatedAt": "",
        "closed": known["state"] == "closed",
        "lastEventId": offset,
    }
    return blank | {name: value for name, value in known.items() if value is not None}


def snapshot_at(view: View, state: SessionState) -> dict[str, Any]:
    snapshot = snapshot_of(S1, view, Epoch("e"), view.offset, state.queue, Shape.AGENT)
    held = {} if state.held is None else {"queueHeld": state.held}
    return json.loads(msgspec.json.encode(snapshot | held))


NAMED: set[str] = {"backgroundCount", "runningChildCount", "clientCount"}
"""Counts of an entry whose events name ids that a reader who began with the entry does not know."""


def test_a_log_of_any_session_folds_to_its_view_its_queue_and_its_entry(folder: Folder) -> None:
    class FoldedMachine(SessionMachine):
        def teardown(self) -> None:
            super().teardown()
            log, some = [decode(each) for each in self.stored], random.Random(len(self.stored))
            # At its end a session does nothing any more.
            for end in {len(log), *(some.randint(1, len(log)) for _ in range(3))}:
                check_the_whole(folder, log[:end])
                check_from_the_middle(folder, log[:end], some)

    example = settings(max_examples=80 * SCALE, stateful_step_count=50, deadline=None, phases=FOUND)
    run_state_machine_as_test(FoldedMachine, settings=example)  # pyright: ignore[reportUnknownMemberType]


def check_the_whole(folder: Folder, log: list[ev.AnyEvent]) -> None:
    state, heard = fold(log, NOTHING), envelopes(log)
    told = folder.does("view", sessionId=S1, events=heard)
    assert difference(shown(told), expected(view_of(log))) is None
    assert waits(told) == waiting(state)
    known, found = counts(state, folder.does("entry", events=heard))
    assert found == known


def check_from_the_middle(folder: Folder, log: list[ev.AnyEvent], some: random.Random) -> None:
    """Check a page and an entry of one moment, and a snapshot of a second moment that arrived at a third."""
    state, heard = fold(log, NOTHING), envelopes(log)
    cut = some.randint(1, len(log))
    asked, came = some.randint(cut, len(log)), some.randint(cut, len(log))
    snapshot = snapshot_at(view_of(log[:asked]), fold(log[:asked], NOTHING))
    page = page_at(view_of(log[:cut]))
    told = folder.does("view", page=page, events=heard, snapshot={"after": came, "page": snapshot})
    assert told["taken"] == [True]
    assert waits(told) == waiting(state)
    listed = fold(log[:cut], NOTHING)
    known, found = counts(state, folder.does("entry", entry=entry_at(listed, cut), events=heard))
    # A prompt that was handed to the agent is not queued any more, which later events about it do not repeat.
    unknown = {*NAMED, "queuedCount"} if listed.offered or listed.joined else NAMED
    assert [each for each in known if known[each] != found[each] and each not in unknown] == []


def waits(told: dict[str, Any]) -> dict[str, Any]:
    """Return the pending requests and prompts, as a fold shows them."""
    permissions = [each["requestId"] for each in told["permissions"]]
    return {"queue": told["queue"], "held": told.get("queueHeld"), "permissions": permissions}


def waiting(state: SessionState) -> dict[str, Any]:
    queue, permissions = [each.prompt_id for each in state.queue], [each.request_id for each in state.permissions]
    return {"queue": queue, "held": state.held, "permissions": permissions}


# -- a real daemon ---------------------------------------------------------------------------------------------


class Moments:
    """The possible responses to a page about a session, at some moments of its life."""

    def __init__(self, seat: Seat) -> None:
        self._seat = seat
        self._told: list[tuple[Any, Any, Any, Any]] = []

    async def note(self) -> None:
        seat = self._seat
        newest, whole = await seat.get("transcript?limit=3&acp=agent"), await seat.get("transcript?acp=agent")
        snapshot = answer(await seat.client.get("/session/s1?acp=agent"), 200)
        self._told.append((newest, whole, snapshot, await self._entry()))

    async def _entry(self) -> Any:
        [entry] = answer(await self._seat.client.get("/session?archived=all"), 200)["sessions"]
        return entry

    async def _log(self) -> list[Any]:
        events: list[Any] = []
        part: dict[str, Any] = {"nextAfter": 0, "lastEventId": 1}
        while part["nextAfter"] < part["lastEventId"]:
            part = await self._seat.get(f"log?after={part['nextAfter']}&limit=1000&acp=agent")
            events += part["events"]
        return events

    async def check(self, folder: Folder) -> None:
        """Check that each of them, with the later events, equals the daemon's current view."""
        with anyio.fail_after(WAIT_S):
            while True:
                await self.note()
                events, (_, whole, snapshot, entry) = await self._log(), self._told[-1]
                if {each["lastEventId"] for each in self._told[-1]} == {len(events)}:
                    break  # nothing happened meanwhile
        children = [
            await self._seat.get(f"children/{each['childId']}/transcript?acp=agent")
            for each in whole.get("children", ())
        ]
        told = folder.does("view", sessionId="s1", events=events)
        assert difference(pictured(told), picture(whole, children, snapshot)) is None
        assert difference(listing(folder.does("entry", events=events)), listing(entry)) is None
        read = [{"after": len(events), "page": each} for each in children]
        for newest, before, asked, listed in self._told:
            begun = {"after": before["lastEventId"], "page": asked}
            told = folder.does("view", page=before, events=events, snapshot=begun, children=read)
            assert all(told["taken"])
            assert difference(pictured(told), picture(whole, children, snapshot)) is None
            older = [{"after": len(events), "page": each} for each in await self._before(newest)]
            told = folder.does("view", page=newest, events=events, older=older)
            assert all(told["taken"])
            assert difference(brief(told["items"]), brief(whole["items"])) is None
            assert difference(listing(folder.does("entry", entry=listed, events=events)), listing(entry)) is None

    async def _before(self, page: Any) -> list[Any]:
        found: list[Any] = []
        while "before" in page:
            page = await self._seat.get(f"transcript?limit=4&before={page['before']}&acp=agent")
            found.append(page)
        return found


def picture(whole: Any, children: list[Any], snapshot: Any) -> dict[str, Any]:
    records = {each["childId"]: each for each in whole.get("children", ())}
    return {
        **{each: whole.get(each) for each in ("lastEventId", "state", "title", "latest", "background")},
        "items": brief(whole["items"]),
        "turns": {each["promptId"]: each for each in whole["turns"]},
        "terminals": whole.get("terminals", {}),
        "activePromptId": snapshot.get("activePromptId"),
        "queue": [each["promptId"] for each in snapshot["queue"]],
        "queueHeld": snapshot.get("queueHeld"),
        "permissions": snapshot["permissions"],
        "children": {each["child"]["id"]: records[each["child"]["id"]] | said_in(each) for each in children},
    }


def pictured(told: Any) -> dict[str, Any]:
    same = ("lastEventId", "state", "title", "latest", "background", "terminals", "activePromptId", "queue")
    return {
        **{each: told.get(each) for each in (*same, "queueHeld", "permissions")},
        "items": brief(told["items"]),
        "turns": {each["promptId"]: each for each in told["turns"]},
        "children": {each["record"]["childId"]: each["record"] | said_in(each) for each in told["children"]},
    }


def said_in(child: Any) -> dict[str, Any]:
    parts = {"terminals": child.get("terminals", {}), "background": child.get("background")}
    return parts | {"items": brief(child["items"])}


def listing(entry: Any) -> dict[str, Any]:
    """Return an entry without members that no event has: the log's incarnation, the name of the default agent, the
    silent agents.
    """
    return {
        name: each
        for name, each in entry.items()
        if name not in {"eventEpoch", "agent", "clientCount", "firstPrompt"}
    }


COMPACTIONS: list[dict[str, object]] = [
    {"sessionUpdate": "compaction_update", "compactionId": "k"},
    {"sessionUpdate": "compaction_summary_chunk", "compactionId": "k", "content": {"type": "text", "text": "s"}},
    {"sessionUpdate": "compaction_update", "compactionId": "k", "status": "completed"},
]
TALK = "\n".join(
    [
        *("say 3 'word '", "think hm", "tool a read Look", "say 2 'more '", "tool b edit Change", "plan one,two"),
        *(
            "usage 5 10",
            "title 'By the agent'",
            "commands x,y",
            *(f"update {json.dumps(each)}" for each in COMPACTIONS),
        ),
        *('update {"sessionUpdate":"odd","x":[1]}', "terminal echo hello", "say 1 over"),
        *("after say 2 late", "after tool c read Late"),
    ]
)


@pytest.mark.anyio
@pytest.mark.parametrize("profile", ["v1", "v2"])
async def test_a_session_of_a_daemon_is_shown_as_it_is(folder: Folder, tmp_path: Path, profile: str) -> None:
    async with seated(tmp_path / "d", "s1", agent=(*SCRIPTED, "--profile", profile)) as seat:
        moments = Moments(seat)
        await moments.note()
        await seat.run(TALK)
        await seat.until(ev.SessionUpdated, text="Late")
        await moments.check(folder)
        if profile == "v2":
            await seat.run("child c1 say 2 hello\nchild c1 tool t1 read Look\nchild c2 say 1 hi\nchild-rests c2")
            await seat.run("child c1 say 1 again")
            listed = '[{"type":"terminal","terminalId":"t1"}]'
            said = f'{{"sessionUpdate":"state_update","state":"idle","background":{listed}}}'
            await seat.run(f"after update {said}")
            await seat.until(ev.SessionUpdated, text='"background":[{"type')
        else:
            going = '{"sessionUpdate":"tool_call","toolCallId":"g","title":"Go","status":"in_progress"}'
            await seat.run(f"update {going}\nsay 1 word")
        await moments.check(folder)
        flooded = await seat.prompt("flood 300 20")
        for _ in range(3):
            await moments.note()
        await seat.end(flooded["promptId"])
        await moments.check(folder)
        await waits_and_is_asked(seat, moments, folder)
        await fails_and_comes_back(seat, moments, folder)
        await seat.client.delete("/session/s1")
        await moments.check(folder)


async def waits_and_is_asked(seat: Seat, moments: Moments, folder: Folder) -> None:
    """Play a permission request that is answered while others wait, a queue that is changed and held, a cancel."""
    asking = await seat.prompt("ask q1 allow_once,reject_once\nsay 1 thanks\nnever")
    request = await seat.until(ev.PermissionRequested, asking["promptId"])
    waiting = [(await seat.prompt(f"say 1 later{number}"))["promptId"] for number in range(3)]
    await moments.check(folder)
    await seat.patch(f"queue/{waiting[2]}", {"position": 0})
    await seat.patch(f"queue/{waiting[0]}", {"content": [{"type": "text", "text": "say 1 other"}]})
    await seat.delete(f"queue/{waiting[1]}")
    await seat.patch("queue", {"held": True})
    await moments.check(folder)
    option = {"outcome": {"outcome": "selected", "optionId": "allow_once"}}
    await seat.post(f"permissions/{request.request_id}", option)
    await seat.until(ev.SessionUpdated, asking["promptId"], text="thanks")
    await moments.check(folder)
    await seat.post("cancel", status=204)
    await seat.end(asking["promptId"])
    await moments.check(folder)
    await seat.patch("queue", {"held": False})
    for each in waiting:
        await seat.end(each)
    await moments.check(folder)


async def fails_and_comes_back(seat: Seat, moments: Moments, folder: Folder) -> None:
    """Play errors, an agent that dies and its replacement, names, and unloading."""
    await seat.run("tool-open o1\nerror -32001 boom")
    answer(await seat.client.patch("/session/s1/metadata", json={"title": "By a user"}), 200)
    await seat.run("title 'Other words'\nmode ask")
    await seat.post("archive", status=204)
    await moments.check(folder)
    await seat.run("tool-open o2\nexit 3")
    await seat.until(ev.AgentExited)
    await moments.check(folder)
    await seat.run("tool a read Again\nsay 1 back")
    answer(await seat.client.patch("/session/s1/metadata", json={"title": None}), 200)
    await moments.check(folder)
