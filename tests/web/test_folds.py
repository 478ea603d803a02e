"""What `@turnwire/client/view` makes of a log is what the daemon makes of it: over made-up logs, and with a daemon."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test
from msgspec import UNSET
from msgspec.structs import replace
from tests.properties.test_session_machine import SessionMachine
from tests.properties.test_view import LOGS, raw, updates
from tests.web.test_typescript_client import compiled

from turnwire.core import events as ev
from turnwire.core.codec import decode, encode
from turnwire.core.envelope import Form
from turnwire.core.evolve import FINAL_TOOL_STATUS, fold
from turnwire.core.shape import Shape, ShapeFold
from turnwire.core.state import NOTHING, SessionState
from turnwire.core.view import Compaction, ToolCall, View
from turnwire.ids import ChildId, Epoch, SessionId
from turnwire.limits import MiB
from turnwire.server.routes.transcripts import TranscriptQuery, earlier_of, page_of, transcript_of
from turnwire.testing.plugin import find_tool

FOLDS = Path(__file__).parent / "clients" / "folds.mjs"
S1 = SessionId("s1")
SCALE = 5 if os.environ.get("TURNWIRE_HYPOTHESIS") == "ci" else 1
FOUND = (Phase.explicit, Phase.reuse, Phase.generate)
"""The difference that is told says more than a log that took minutes to shrink."""
CREATED = ev.SessionCreated(at=0, session_id=S1, cwd="/w")


class Folder:
    """A node process that folds what it is told."""

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
    """The events as a reader with `acp=agent` hears them."""
    frames = ShapeFold(S1, Shape.AGENT).take([encode(each) for each in log], Form.LINE)
    return [json.loads(each) for each in frames]


def view_of(log: Sequence[ev.AnyEvent]) -> View:
    view = View()
    for event in log:
        view.apply(event)
    return view


def page_at(view: View, limit: int | None = None, before: int | None = None) -> dict[str, Any]:
    query = TranscriptQuery(acp="agent", limit=limit, before=before)
    return json.loads(msgspec.json.encode(transcript_of(S1, view, Epoch("e"), query, MiB)))


def child_page(view: View, child_id: ChildId, limit: int | None = None, before: int | None = None) -> dict[str, Any]:
    child = view.children[child_id].view
    page = page_of(child, TranscriptQuery(acp="agent", limit=limit, before=before), MiB)
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


USUAL = {("tool_call", "kind"): "other", ("tool_call", "status"): "pending", ("compaction", "status"): "in_progress"}


def brief(items: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    """Items without what has its usual value, which the daemon leaves out unless the agent said so itself."""
    if items is None:
        return None
    return [{k: v for k, v in each.items() if USUAL.get((each["item"], k), UNSET) != v} for each in items]


def difference(one: Any, other: Any, path: str = "") -> str | None:
    """Where two values differ first."""
    if isinstance(one, dict) and isinstance(other, dict):
        keys: set[str] = {*one, *other}
        found = (difference(one.get(key), other.get(key), f"{path}.{key}") for key in sorted(keys))
        return next((each for each in found if each), None)
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        parts = (difference(a, b, f"{path}[{i}]") for i, (a, b) in enumerate(zip(one, other, strict=True)))
        return next((each for each in parts if each), None)
    return None if one == other else f"{path}: {one!r} is not {other!r}"


SAME = ("lastEventId", "state", "title", "items", "latest", "background")


def expected(view: View, children: bool = True) -> dict[str, Any]:
    """What a fold should show, as the daemon would tell it."""
    page = page_at(view)
    shown: dict[str, Any] = {each: page.get(each) for each in SAME}
    shown["items"] = brief(shown["items"])
    shown["turns"] = {each["promptId"]: each for each in page["turns"]}
    shown["terminals"] = page.get("terminals", {})
    shown["activePromptId"] = view.active
    shown["permissions"] = [each.request_id for each in view.permissions.values()]
    for child_id, each in view.children.items() if children else ():
        told = child_page(view, child_id)
        parts = {name: told.get(name) for name in ("terminals", "background")} | {"items": brief(told["items"])}
        shown[f"child {child_id}"] = json.loads(msgspec.json.encode(each.record)) | parts
    return shown


def shown(told: dict[str, Any], children: bool = True) -> dict[str, Any]:
    """What a fold shows, likewise."""
    found: dict[str, Any] = {each: told.get(each) for each in (*SAME, "terminals", "activePromptId")}
    found["items"] = brief(found["items"])
    found["turns"] = {each["promptId"]: each for each in told["turns"]}
    found["permissions"] = [each["requestId"] for each in told["permissions"]]
    for each in told["children"] if children else ():
        parts = {name: each.get(name) for name in ("terminals", "background")} | {"items": brief(each.get("items"))}
        found[f"child {each['record']['childId']}"] = each["record"] | parts
    return found


# -- made-up logs ----------------------------------------------------------------------------------------------

NAMES = {"a1": "s1.1", "a2": "s1.2", "me": "s1"}
CHILDREN = st.sampled_from([ChildId("s1.1"), ChildId("s1.2")])


@st.composite
def child_updates(draw: st.DrawFn) -> ev.SessionUpdated:
    """What is said in a child, or of one, in the agent's names for them."""
    said = draw(updates())
    child = draw(st.none() | CHILDREN)
    if draw(st.booleans()):
        return replace(said, child=child, after=None)
    state = draw(st.sampled_from([None, {"state": "running"}, {"state": "idle"}, {"state": "odd"}, "wrong"]))
    titles = draw(st.dictionaries(st.sampled_from(["title", "description", "cwd"]), st.none() | st.text(max_size=3)))
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


ANYTHING = st.builds(
    lambda logs, others: [*logs, *others], LOGS, st.lists(st.one_of(child_updates(), updates(wrong=True)), max_size=15)
).flatmap(st.permutations)


def is_said(event: ev.AnyEvent) -> bool:
    """An update is an object that names its kind, or it is in no log."""
    if not isinstance(event, ev.SessionUpdated):
        return True
    update = msgspec.json.decode(event.update)
    return isinstance(update, dict) and update.get("sessionUpdate") == event.kind


def log_of(events: Sequence[ev.AnyEvent]) -> list[ev.AnyEvent]:
    return [CREATED, *filter(is_said, events)]


@settings(max_examples=400 * SCALE, deadline=None, phases=FOUND)
@given(events=ANYTHING)
def test_a_whole_log_folds_to_what_the_daemon_shows(folder: Folder, events: list[ev.AnyEvent]) -> None:
    log = log_of(events)
    told = folder.does("view", sessionId=S1, events=envelopes(log))
    assert difference(shown(told), expected(view_of(log))) is None


@settings(max_examples=300 * SCALE, deadline=None, phases=FOUND)
@given(events=ANYTHING, data=st.data())
def test_a_page_of_any_moment_and_what_came_since_are_the_whole(
    folder: Folder, events: list[ev.AnyEvent], data: st.DataObject
) -> None:
    """Children's transcripts are read before or after the events that they have are heard."""
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


@settings(max_examples=400 * SCALE, deadline=None, phases=FOUND)
@given(events=ANYTHING, limit=st.integers(1, 6), data=st.data())
def test_the_newest_page_then_older_ones_read_at_any_time_are_the_whole(
    folder: Folder, events: list[ev.AnyEvent], limit: int, data: st.DataObject
) -> None:
    log = log_of(events)
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
    for each in found, wanted:
        del each["permissions"], each["terminals"]
        for turn in each["turns"].values():
            # Where an answer is that was not on the page when its turn ended, nobody tells.
            turn["place"].pop("answer", None)
    assert difference(found, wanted) is None
    records = {each["record"]["childId"]: each["record"] for each in told["children"]}
    assert records == {each["childId"]: each for each in page_at(whole).get("children", [])}


def changes_what_was_over(view: View, whole: View, first: int) -> bool:
    """Whether an item before the page is changed by name that was over when the page was read."""
    now, then = whole.items[:first], view.items[:first]
    changed = [old for old, new in zip(then, now, strict=True) if new.last_event_id > view.offset]
    return any(not is_open(each, view.transcript.speaker.life) for each in changed)


def is_open(item: object, life: int) -> bool:
    if isinstance(item, ToolCall):
        return item.life == life and item.status not in FINAL_TOOL_STATUS
    return isinstance(item, Compaction) and item.life == life and item.status == "in_progress"


# -- logs that a session can have ------------------------------------------------------------------------------


def counts(state: SessionState, entry: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the state says of an entry, and what a fold does."""
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


def test_a_log_of_any_session_folds_to_its_view_its_queue_and_its_entry(folder: Folder) -> None:
    class FoldedMachine(SessionMachine):
        def teardown(self) -> None:
            super().teardown()
            log = [decode(each) for each in self.stored]
            told = folder.does("view", sessionId=S1, events=envelopes(log))
            assert difference(shown(told), expected(view_of(log))) is None
            assert told["queue"] == [each.prompt_id for each in self.state.queue]
            assert told.get("queueHeld") == self.state.held
            known, found = counts(self.state, folder.does("entry", events=envelopes(log)))
            assert found == known

    example = settings(max_examples=100 * SCALE, stateful_step_count=50, deadline=None, phases=FOUND)
    run_state_machine_as_test(FoldedMachine, settings=example)  # pyright: ignore[reportUnknownMemberType]


_ = NOTHING, fold
