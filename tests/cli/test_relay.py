"""The bookkeeping of frames in transit: forwarded, repeated, and forbidden ones."""

from __future__ import annotations

import json
from typing import Any

import pytest

from turnwire.cli.relay import LOST, Relay

HELLO = {"protocolVersion": 1, "clientCapabilities": {"fs": {"readTextFile": True}}}


def frame(**members: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **members}, separators=(",", ":")).encode()


def request(number: int | str, method: str, **params: Any) -> bytes:
    return frame(id=number, method=method, params=params)


def told(session: str, event: int | None = None) -> bytes:
    meta = {} if event is None else {"_meta": {"turnwire": {"eventId": event}}}
    return frame(method="session/update", params={"sessionId": session, "update": {"x": 1}, **meta})


OPEN_ALREADY = frame(id=2, error={"code": -32600, "message": "open already", "data": {"code": "request_open"}})


def read(frames: list[bytes]) -> list[dict[str, Any]]:
    return [json.loads(each) for each in frames]


def begun(session_id: str | None = None) -> Relay:
    """Return a client with the session `s`."""
    relay = Relay(session_id)
    relay.up(request(0, "initialize", **HELLO))
    relay.down(frame(id=0, result={}))
    relay.up(request(1, "session/new", cwd="/", mcpServers=[]))
    relay.down(frame(id=1, result={"sessionId": "s"}))
    return relay


def test_what_is_no_message_passes_both_ways() -> None:
    relay = Relay()
    for each in (b"nonsense", b"[1]", b'{"jsonrpc":"2.0"}'):
        assert relay.up(each) == each
        assert relay.down(each) == [each]


def test_the_daemon_is_asked_for_numbers_and_the_client_does_not_see_them() -> None:
    relay = Relay()
    sent = json.loads(relay.up(request(0, "initialize", **HELLO)) or b"")
    capabilities = sent["params"]["clientCapabilities"]
    assert capabilities == {"fs": {"readTextFile": True}, "_meta": {"turnwire": {"eventIds": True}}}
    assert relay.down(told("s", 7)) == [told("s")]
    kept = {"sessionId": "s", "_meta": {"other": 1, "turnwire": {"eventId": 8, "more": 2}}}
    [shown] = read(relay.down(frame(method="session/update", params=kept)))
    assert shown["params"]["_meta"] == {"other": 1, "turnwire": {"more": 2}}


def test_a_client_that_wants_the_numbers_gets_them() -> None:
    relay = Relay()
    relay.up(
        request(0, "initialize", protocolVersion=2, info={}, capabilities={"_meta": {"turnwire": {"eventIds": {}}}})
    )
    assert relay.down(told("s", 7)) == [told("s", 7)]


def test_the_answer_that_names_a_session_comes_before_its_frames() -> None:
    relay = Relay("given")
    sent = json.loads(relay.up(request("n", "session/new", cwd="/x", mcpServers=[])) or b"")
    assert (sent["id"], sent["method"]) == ("n", "session/attach")
    assert sent["params"] == {"sessionId": "given", "historyPolicy": "full"}
    assert relay.down(told("given", 1)) == []
    assert relay.down(told("other")) == [told("other")]
    answer = frame(id="n", result={"sessionId": "given"})
    assert relay.down(answer) == [answer, told("given")]
    assert relay.down(told("given", 2)) == [told("given")]


def test_an_open_request_that_the_daemon_still_has_is_waited_for() -> None:
    relay = begun()
    relay.up(request(2, "session/prompt", sessionId="s", prompt=[]))
    [_, again] = read(relay.reattached()[0])
    assert (again["id"], again["method"]) == (2, "session/prompt")
    assert relay.down(OPEN_ALREADY) == []
    answer = frame(id=2, result={"stopReason": "end_turn"})
    assert relay.down(answer) == [answer]


def test_a_prompt_has_the_same_key_however_often_it_is_sent() -> None:
    relay = begun()
    prompt = request(2, "session/prompt", sessionId="s", prompt=[], _meta={"a": 1})
    first = json.loads(relay.up(prompt) or b"")
    key = first["params"]["_meta"]["turnwire"]["idempotencyKey"]
    assert first["params"] == {
        "sessionId": "s",
        "prompt": [],
        "_meta": {"a": 1, "turnwire": {"idempotencyKey": key}},
    }
    relay.unsent(prompt)
    assert json.loads(relay.up(prompt) or b"") == first
    assert read(relay.reattached()[0])[-1] == first
    assert read(relay.restarted()[0])[-1] == first
    relay.down(frame(id=2, result={}))
    other = json.loads(relay.up(prompt) or b"")
    assert other["params"]["_meta"]["turnwire"]["idempotencyKey"] != key, "another prompt with the same id"


def test_a_key_that_the_client_gave_is_kept() -> None:
    mine = request(2, "session/prompt", sessionId="s", prompt=[], _meta={"turnwire": {"idempotencyKey": "mine"}})
    assert begun().up(mine) == mine


def test_a_request_that_was_asked_again_and_is_refused_fails() -> None:
    relay = begun()
    relay.up(request(2, "session/prompt", sessionId="s", prompt=[]))
    relay.reattached()
    refused = frame(id=2, error={"code": -32600, "message": "forbidden", "data": {"code": "forbidden"}})
    assert relay.down(refused) == [refused]


def test_an_open_request_that_the_daemon_does_not_have_fails() -> None:
    relay = begun()
    relay.up(request(2, "_own/method", sessionId="s"))
    [_, probe] = read(relay.reattached()[0])
    assert (probe["id"], probe["method"]) == (2, "session/list")
    [failed] = read(relay.down(frame(id=2, result={"sessions": []})))
    assert (failed["id"], failed["error"]["message"]) == (2, LOST)


def test_a_probe_is_refused_while_its_request_is_open() -> None:
    relay = begun()
    relay.up(request(2, "_own/method", sessionId="s"))
    relay.reattached()
    assert relay.down(OPEN_ALREADY) == []
    answer = frame(id=2, result={"own": 1})
    assert relay.down(answer) == [answer]


def test_a_request_that_opens_a_session_is_lost_with_what_its_answer_stood_behind() -> None:
    relay = begun()
    for number, method in enumerate(("session/new", "session/load", "session/fork"), 2):
        relay.up(request(number, method, sessionId="t", cwd="/", mcpServers=[]))
    sent, said = (read(each) for each in relay.reattached())
    assert [each["params"]["sessionId"] for each in sent] == ["s"], "nothing is asked of these again"
    assert [(each["id"], each["error"]["data"]["code"]) for each in said] == [
        (number, "answer_lost") for number in (2, 3, 4)
    ]
    assert relay.down(frame(id=3, result={"_meta": {"turnwire": {"lastEventId": 9}}})) == []
    assert len(relay.reattached()[0]) == 1


def test_an_answer_that_overtakes_its_probe_is_the_only_one() -> None:
    relay = begun()
    relay.up(request(2, "session/prompt", sessionId="s", prompt=[]))
    relay.reattached()
    answer = frame(id=2, result={"stopReason": "end_turn"})
    assert relay.down(answer) == [answer]
    assert relay.down(answer) == [], "the same, of the request that was asked again"


def test_ids_keep_their_type() -> None:
    relay = begun()
    relay.up(request(2, "session/prompt", sessionId="s", prompt=[]))
    assert relay.down(frame(id="2", result={})) == [], "nobody waits for this one"
    answer = frame(id=2, result={})
    assert relay.down(answer) == [answer]


def test_answers_of_the_client_are_said_again_to_the_same_connection_only() -> None:
    relay = begun()
    relay.down(request(5, "session/request_permission", sessionId="s"))
    answer = frame(id=5, result={"outcome": {}})
    assert relay.up(answer) == answer
    assert relay.reattached()[0][0] == answer
    assert answer not in relay.restarted()[0]


def test_the_same_connection_goes_on_behind_the_last_event_that_came() -> None:
    relay = begun()
    assert cursor(relay) == 0, "all of a new session"
    relay.down(told("s", 41))
    relay.down(told("s"))
    assert cursor(relay) == 41


def cursor(relay: Relay) -> int:
    """Return the event after which the session `s` continues."""
    [attach] = [each for each in read(relay.reattached()[0]) if each["method"] == "session/attach"]
    assert attach["params"]["sessionId"] == "s"
    return attach["params"]["_meta"]["turnwire"]["after"]


@pytest.mark.parametrize("method", ["session/load", "session/resume", "session/attach"])
def test_a_session_that_is_opened_goes_on_behind_what_its_answer_names(method: str) -> None:
    relay = Relay()
    relay.up(request(1, method, sessionId="s", cwd="/", mcpServers=[]))
    relay.down(frame(id=1, result={"_meta": {"turnwire": {"lastEventId": 7}}}))
    assert cursor(relay) == 7
    [attach] = read(relay.reattached()[0])
    assert relay.down(frame(id=attach["id"], result={"_meta": {"turnwire": {"lastEventId": 9}}})) == []
    assert cursor(relay) == 9, "what our own attach brought has come, too"


def test_the_answer_to_an_attach_of_a_way_that_was_lost_again_says_nothing() -> None:
    relay = begun()
    [attach] = read(relay.reattached()[0])
    assert cursor(relay) == 0
    relay.down(frame(id=attach["id"], result={"_meta": {"turnwire": {"lastEventId": 9}}}))
    assert cursor(relay) == 0, "its history was lost with the way"


def test_a_question_that_comes_again_is_passed_on_only_if_the_client_has_not_heard_it() -> None:
    relay = begun()
    heard, answered, lost = (request(each, "session/request_permission", sessionId="s") for each in (4, 5, 6))
    for each in (heard, answered):
        assert relay.down(each) == [each]
    relay.up(frame(id=5, result={}))
    relay.reattached()
    assert relay.down(heard) == []
    assert relay.down(answered) == [], "its answer is on its way"
    assert relay.down(lost) == [lost]
    assert relay.up(frame(id=4, result={})) is not None, "the client may still answer"


def test_a_client_whose_place_the_daemon_has_lost_is_told() -> None:
    relay = begun()
    relay.down(told("s", 3))
    [attach] = read(relay.reattached()[0])
    why = {"code": "position_lost", "why": "trimmed", "first": 40, "head": 90}
    [resync] = read(relay.down(frame(id=attach["id"], error={"code": -32002, "message": "x", "data": why})))
    assert resync["method"] == "_turnwire/state_resync_required"
    assert resync["params"] == {
        "sessionId": "s",
        "reason": "trimmed",
        "lastDeliveredId": 3,
        "earliestAvailableId": 40,
    }


def test_a_new_connection_takes_up_behind_the_last_event() -> None:
    relay = begun()
    relay.down(told("s", 41))
    relay.up(request(2, "session/prompt", sessionId="s", prompt=[]))
    relay.up(request(3, "session/fork", sessionId="s"))
    sent, said = (read(each) for each in relay.restarted())
    assert [each["method"] for each in sent] == ["initialize", "session/attach", "session/prompt"]
    assert sent[1]["params"]["_meta"] == {"turnwire": {"after": 41}}
    assert [(each["id"], each["error"]["data"]) for each in said] == [(3, {"code": "answer_lost"})]
    for each in sent[:2]:
        assert relay.down(frame(id=each["id"], result={})) == [], "the client did not ask"
    assert relay.down(frame(id=3, result={"sessionId": "t"})) == [], "it failed already"
    answer = frame(id=2, result={"stopReason": "end_turn"})
    assert relay.down(answer) == [answer], "it was asked again"


def test_an_initialize_that_was_not_answered_is_sent_again_as_it_was() -> None:
    relay = Relay()
    sent = relay.up(request("hello", "initialize", **HELLO))
    assert relay.reattached() == ([sent], [])
    assert relay.restarted() == ([sent], [])


def test_a_session_that_was_left_is_not_taken_up_again() -> None:
    relay = begun()
    relay.up(request(2, "session/close", sessionId="s"))
    relay.down(frame(id=2, result={}))
    assert [each["method"] for each in read(relay.restarted()[0])] == ["initialize"]


def test_no_answer_to_a_question_of_an_old_connection_passes() -> None:
    relay = begun()
    relay.down(request(1, "session/request_permission", sessionId="s", which="old"))
    _, said = relay.restarted()
    assert read(said) == [{"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": 1}}]
    [asked] = read(relay.down(request(1, "session/request_permission", sessionId="s", which="new")))
    assert asked["id"] != 1
    assert relay.up(frame(id=1, result="to the old one")) is None
    assert json.loads(relay.up(frame(id=asked["id"], result="to the new one")) or b"")["id"] == 1
    assert relay.up(frame(id=asked["id"], result="once more")) is None


def test_a_question_that_is_taken_back_is_named_as_the_client_knows_it() -> None:
    relay = begun()
    relay.restarted()
    [asked] = read(relay.down(request(3, "session/request_permission", sessionId="s")))
    [gone] = read(relay.down(frame(method="$/cancel_request", params={"requestId": 3})))
    assert gone["params"] == {"requestId": asked["id"]}


def test_a_frame_that_did_not_get_away_is_not_waited_for() -> None:
    relay = begun()
    prompt = request(2, "session/prompt", sessionId="s", prompt=[])
    relay.up(prompt)
    relay.unsent(prompt)
    assert [each["method"] for each in read(relay.reattached()[0])] == ["session/attach"]
    assert relay.up(prompt) is not None


def test_what_is_told_of_a_child_counts_for_the_session_whose_child_it_is() -> None:
    relay = begun()
    relay.down(told("s", 3))
    assert relay.down(told("s.1", 4)) == [told("s.1")]
    attached = [each["params"] for each in read(relay.reattached()[0]) if each.get("method") == "session/attach"]
    assert [each["sessionId"] for each in attached] == ["s"]
    assert "4" in json.dumps(attached)
