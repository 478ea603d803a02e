"""The published TypeScript SDK of the REST contract, unchanged, against a real daemon with a real agent process.

Its steps are in `clients/`; the expected results are here. The SDK reads statuses, `code` and a few fields, and
waits for the end of a turn without a deadline: an end that it misses is a program that hangs.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from tests.interop.node_session import Talk
from tests.interop.programs import cable, need_sdk, outcome, program
from tests.support.daemons import SCRIPTED, Running, running_daemon

from turnwire.ids import PromptId, SessionId

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module", autouse=True)
def sdk() -> None:
    need_sdk()


AGENTS = pytest.mark.parametrize("profile", ["v1", "v2"], indirect=True)
"""The SDK reads v1. By default it gets v1, also from an agent that speaks v2."""
QUEUE = 64
"""Number of prompts that the daemon queues after the running turn."""

NOT_CHECKED = {"replay_complete", "pending_prompt_started"}
"""The SDK names the first, and has no check for it. Of the second it wants the text, which is in the user message
that follows; all that it does without is to count it as one it does not know."""

Scenario: TypeAlias = Callable[..., Awaitable[Any]]


@pytest.fixture(scope="module")
def profile(request: pytest.FixtureRequest) -> str:
    """Return the agent's version: v1, or the one that a test names."""
    return getattr(request, "param", "v1")


@pytest.fixture(scope="module")
async def running(profile: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Running]:
    """Run one daemon for all tests that do not damage it; each has its own sessions."""
    agent = (*SCRIPTED, "--profile", profile)
    async with running_daemon(tmp_path_factory.mktemp("daemon") / "data", agent=agent) as opened:
        yield opened


@pytest.fixture
def scenario(running: Running) -> Scenario:
    """Return a function: `await scenario("turns", "create")` returns the client program's observations."""
    cwd = running.daemon.roots[0]

    async def run(name: str, which: str, *given: Any) -> Any:
        return await outcome(running.url, cwd, name, which, *given)

    return run


def ids(events: list[Any]) -> list[int]:
    return [each["id"] for each in events]


def ends(events: list[Any]) -> list[Any]:
    return [each for each in events if each["type"] in ("turn_complete", "turn_error")]


# -- sessions and turns --------------------------------------------------------------------------------------


async def test_a_session_is_created_shared_named_and_found(running: Running, scenario: Scenario) -> None:
    found = await scenario("turns", "create")
    cwd = str(running.daemon.roots[0])
    first, shared, named = found["first"], found["shared"], found["named"]
    assert found["health"]["status"] == "ok"
    assert found["capabilities"]["v"] == 1
    assert (first["workspaceCwd"], first["attached"]) == (cwd, False)
    assert (shared["sessionId"], shared["attached"]) == (first["sessionId"], True)
    assert shared["clientId"] != first["clientId"]
    assert (named["sessionId"], named["attached"]) == ("my-own-name", False)
    assert found["status"]["hasActivePrompt"] is False
    assert {first["sessionId"], "my-own-name"} <= set(found["listed"])
    assert (found["heartbeat"]["sessionId"], found["heartbeat"]["clientId"]) == (
        first["sessionId"],
        first["clientId"],
    )


async def test_the_plain_client_gets_the_end_of_each_turn(scenario: Scenario) -> None:
    found = await scenario("turns", "plain", ["hello", "stop max_tokens", "error -32000 no luck", "say 3 more"])
    assert [each.get("stopReason") for each in found["ends"]] == ["end_turn", "max_tokens", None, "end_turn"]
    failed = found["ends"][2]
    assert failed["status"] == 500
    assert failed["body"] == "agent_error"
    assert failed["message"] == "the agent answered the prompt with an error"


@pytest.mark.guarantee("G1")
async def test_two_observers_see_the_same_events_in_the_same_order_and_the_end(scenario: Scenario) -> None:
    found = await scenario("turns", "observers", ["say 20 a", "tool t1 edit a file", "say 20 b"])
    one, other = found["seen"]
    shared = min(len(one), len(other))
    assert one[:shared] == other[:shared]
    assert ids(one) == list(range(1, len(one) + 1))
    assert [each["data"]["promptId"] for each in ends(one)] == [each["promptId"] for each in found["accepted"]]
    assert found["said"] == "a" * 20 + "b" * 20


async def test_an_accepted_prompt_says_where_its_turn_begins(scenario: Scenario) -> None:
    found = await scenario("turns", "observers", ["hello", "hello again"])
    events = found["seen"][0]
    for accepted in found["accepted"]:
        of_turn = [each["id"] for each in events if each.get("promptId") == accepted["promptId"]]
        assert min(of_turn) == accepted["lastEventId"] + 1


@AGENTS
async def test_a_cancel_ends_the_turn_and_one_more_does_nothing(scenario: Scenario) -> None:
    found = await scenario("turns", "cancel")
    assert found["ended"] == {"stopReason": "cancelled"}
    assert [(each["promptId"], each["state"]) for each in found["pendingPrompts"]] == [
        (found["promptId"], "running")
    ]
    assert found["types"].index("prompt_cancelled") < found["types"].index("turn_complete")


async def test_a_call_that_is_given_up_cancels_its_turn(scenario: Scenario) -> None:
    found = await scenario("turns", "abort")
    assert found["rejected"]["name"] == "AbortError"
    assert found["end"]["stopReason"] == "cancelled"


async def test_a_waiting_prompt_is_listed_removed_and_still_ends(scenario: Scenario) -> None:
    found = await scenario("turns", "queue")
    assert [each["state"] for each in found["pendingPrompts"]] == ["running", "queued"]
    assert found["pendingPrompts"][1]["text"] == "echo never said"
    assert found["removed"]["removed"] is True
    assert found["again"]["removed"] is False
    assert found["withdrawn"] == {"stopReason": "cancelled"}
    assert found["ended"] == {"stopReason": "cancelled"}


async def test_a_cursor_that_is_no_place_in_the_log_is_told_in_the_words_of_the_sdk(scenario: Scenario) -> None:
    found = await scenario("restoring", "misplaced", 99_999)
    assert (found["told"]["reason"], found["told"]["detail"]) == ("epoch_reset", "ahead")
    assert (found["known"], found["said"]) == (True, "there")
    assert found["ids"] == list(range(1, found["last"] + 1)), "it goes on from the start"


async def test_a_new_name_is_told_to_all(scenario: Scenario) -> None:
    found = await scenario("turns", "rename")
    assert found["given"] == {"displayName": "A better name"}
    assert found["data"]["displayName"] == "A better name"


async def test_closing_ends_the_streams_and_may_be_repeated(scenario: Scenario) -> None:
    found = await scenario("turns", "close")
    assert found["ended"] is None
    assert found["last"]["type"] == "session_closed"
    assert found["last"]["data"]["reason"]
    assert (found["prompted"]["status"], found["prompted"]["body"]["code"]) == (410, "session_closed")


@AGENTS
async def test_a_mode_and_a_model_are_chosen(scenario: Scenario) -> None:
    found = await scenario("turns", "settings")
    assert (found["mode"]["mode"], found["mode"]["persisted"]) == ("code", False)
    assert (found["wrong"]["status"], found["wrong"]["body"]["code"]) == (400, "invalid_approval_mode")
    assert found["wrong"]["body"]["allowed"] == ["ask", "code"]
    assert found["model"]["modelId"] == "large"
    assert found["changed"]["next"] == "code"
    assert found["switched"]["modelId"] == "large"


@AGENTS
async def test_events_have_the_shapes_that_the_sdk_checks(scenario: Scenario) -> None:
    script = (
        "think hm\nplan one; two\nsay 2 so\ntool t1 edit a file\nask t2 yes,no\nusage 9 99\ntitle T\nsay 1 done"
    )
    found = await scenario("turns", "shapes", script)
    assert {each["type"] for each in found["misshapen"]} == NOT_CHECKED
    assert set(found["named"]) == NOT_CHECKED | {
        *("session_update", "session_metadata_updated", "session_closed", "session_snapshot"),
        *("permission_request", "permission_resolved", "approval_mode_changed", "model_switched"),
        *("pending_prompt_added", "pending_prompt_completed", "turn_complete", "turn_error"),
    }
    said = [(each["kind"], each["text"]) for each in found["blocks"] if each["kind"] in ("user", "assistant")]
    assert [text for kind, text in said if kind == "user"] == [script, "echo next", "error -32000 no luck"]
    assert "".join(text for kind, text in said if kind == "assistant") == "sososelected yesdonenext"


# -- permissions ---------------------------------------------------------------------------------------------


@AGENTS
async def test_the_first_answer_to_a_question_wins_and_the_others_are_told(scenario: Scenario) -> None:
    found = await scenario("permissions", "select")
    assert [each["optionId"] for each in found["question"]["options"]] == ["yes", "no"]
    assert found["question"]["toolCall"]["toolCallId"] == "t1"
    assert found["status"]["isWaitingForPermission"] is True
    assert (found["wrong"]["status"], found["wrong"]["body"]["code"]) == (400, "invalid_option_id")
    assert found["answers"] == [True, False, False, False]
    settled = found["settled"]["data"]
    assert settled["outcome"] == {"outcome": "selected", "optionId": "yes"}
    assert settled["voterClientId"] == found["clientId"]
    assert found["ended"] == {"stopReason": "end_turn"}
    assert found["said"] == "selected yes"


async def test_a_question_may_be_answered_with_a_cancel(scenario: Scenario) -> None:
    found = await scenario("permissions", "cancel")
    assert found["answers"] == [True, False]
    assert found["settled"]["data"]["outcome"] == {"outcome": "cancelled"}
    assert found["said"] == "cancelled"


# -- coming back ---------------------------------------------------------------------------------------------


@AGENTS
async def test_loading_gives_the_history_and_goes_on_after_it(scenario: Scenario) -> None:
    found = await scenario("restoring", "load", ["say 3 a", "error -32000 no luck", "stop refusal"])
    seen = found["seen"]
    assert found["complete"] is True
    numbered = [each for each in found["history"] if "id" in each]
    assert numbered[: len(seen)] == seen
    assert found["lastEventId"] >= len(seen)
    assert [(each["v"], each["terminal"]) for each in found["promptTerminals"]] == [
        (1, "completed"),
        (1, "error"),
        (1, "completed"),
    ]
    assert [each["promptId"] for each in found["promptTerminals"]] == [
        each["data"]["promptId"] for each in ends(seen)
    ]
    assert found["promptTerminals"][0]["stopReason"] == "end_turn"
    assert found["promptTerminals"][1]["code"] == "agent_error"
    assert found["followed"][0] == found["history"][-1]["id"] + 1
    assert found["later"] == "later"
    assert len(set(found["clientIds"])) == 3


async def test_resuming_goes_on_without_the_history(scenario: Scenario) -> None:
    found = await scenario("restoring", "resume")
    assert found["ended"] == {"stopReason": "end_turn"}
    assert found["said"] == "after"
    assert len(set(found["clientIds"])) == 2


async def test_a_client_id_that_is_not_known_is_refused_and_the_sdk_gets_a_new_one(scenario: Scenario) -> None:
    found = await scenario("restoring", "heal")
    assert (found["refused"]["status"], found["refused"]["body"]["code"]) == (400, "invalid_client_id")
    assert (found["heartbeat"]["status"], found["heartbeat"]["body"]["code"]) == (400, "invalid_client_id")
    assert found["ended"] == [{"stopReason": "end_turn"}] * 2
    assert found["after"] not in (None, found["before"])
    assert {found["said"][:3], found["said"][3:]} == {"one", "two"}


async def test_a_session_that_nobody_made_is_not_found(scenario: Scenario) -> None:
    found = await scenario("restoring", "missing")
    for each in (found["load"], found["resume"]):
        assert (each["status"], each["body"]["code"]) == (404, "session_not_found")


@pytest.mark.guarantee("G8", "G9")
async def test_after_a_cut_the_sdk_goes_on_where_it_was(running: Running, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    script = f"say 50 x\nsay 1 before\ngate {gate}\nsay 50 after"
    async with (
        cable() as line,
        program(line.url, running.daemon.roots[0], "restoring", "interrupted", script) as client,
    ):
        line.lead_to(running.url)
        await client.tell("begin")
        told = await client.hear()
        line.cut()
        left = await client.hear()
        gate.touch()
        talk = Talk(running.daemon.node, running.daemon.log, SessionId(told["sessionId"]))
        await talk.end(PromptId(told["promptId"]))
        await client.tell("go on")
        found = await client.hear()
    assert found["rejected"]["message"] == "SSE stream ended"
    assert found["second"][0] == left["lastEventId"] + 1
    joined = found["first"] + found["second"]
    assert joined == list(range(1, len(joined) + 1))
    assert found["resync"] is False
    assert found["end"]["data"]["stopReason"] == "end_turn"
    assert found["said"].startswith("x" * 50 + "before" + "after" * 50)
    assert found["again"] == {"stopReason": "end_turn"}


@pytest.mark.guarantee("G1", "G3", "G9")
async def test_after_a_restart_the_sdk_goes_on_where_it_was(tmp_path: Path) -> None:
    data = tmp_path / "data"
    script = "say 50 x\nsay 1 before\nnever"
    async with (
        cable() as line,
        program(line.url, tmp_path, "restoring", "interrupted", script) as client,
    ):
        async with running_daemon(data) as first:
            line.lead_to(first.url)
            await client.tell("begin")
            await client.hear()
        left = await client.hear()
        async with running_daemon(data) as second:
            line.lead_to(second.url)
            await client.tell("go on")
            found = await client.hear()
    joined = found["first"] + found["second"]
    assert found["second"][0] == left["lastEventId"] + 1
    assert joined == list(range(1, len(joined) + 1))
    assert found["epochs"][0] == found["epochs"][1]
    assert found["resync"] is False
    assert (found["end"]["type"], found["end"]["data"]["code"]) == ("turn_error", "daemon_restarted")
    assert found["again"] == {"stopReason": "end_turn"}


# -- many at once --------------------------------------------------------------------------------------------


async def test_what_is_too_much_for_the_queue_is_refused_as_the_sdk_types_it_and_the_rest_ends(
    scenario: Scenario,
) -> None:
    found = await scenario("crowds", "tooMany", QUEUE + 6)
    for refused in (found["refused"], found["plain"]):
        assert refused["name"] == "DaemonPendingPromptLimitError"
        assert (refused["limit"], refused["pendingCount"]) == (QUEUE, QUEUE)
        assert refused["sessionId"]
    assert found["ends"] == {"end_turn": QUEUE, "DaemonPendingPromptLimitError": 6}


@AGENTS
@pytest.mark.guarantee("G10")
async def test_two_thousand_fast_chunks_reach_every_reader(scenario: Scenario) -> None:
    found = await scenario("crowds", "chunks", 2000)
    assert found["bound"] == found["plain"] == {"stopReason": "end_turn"}
    assert (found["count"], found["inOrder"]) == (2000, True)


@pytest.mark.guarantee("G10")
async def test_the_hundredth_reader_is_as_welcome_as_the_first(scenario: Scenario) -> None:
    found = await scenario("crowds", "readers", 100)
    assert found["ended"] == {"stopReason": "end_turn"}
    assert list(found["ends"].values()) == [100]
    assert list(found["lengths"].values()) == [100]
