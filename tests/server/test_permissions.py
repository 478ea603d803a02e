"""Permission requests of the agent over HTTP: visible to all, answered once, and late answers are reported
as such.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from tests.server.reading import open_session, reading
from tests.server.seats import Seat, answer, seated
from tests.support.driving import of

from turnwire.server.access.tokens import Role
from turnwire.session import events as ev
from turnwire.session.inputs import Close

pytestmark = [pytest.mark.anyio, pytest.mark.every_log]

YES: dict[str, Any] = {"outcome": {"outcome": "selected", "optionId": "yes"}}
NO: dict[str, Any] = {"outcome": {"outcome": "selected", "optionId": "no"}}
CANCELLED: dict[str, Any] = {"outcome": {"outcome": "cancelled"}}


async def asked(seat: Seat, script: str = "ask t1 yes,no") -> ev.PermissionRequested:
    accepted = await seat.prompt(script)
    return await seat.until(ev.PermissionRequested, accepted["promptId"])


async def test_an_open_question_is_listed_until_it_is_answered(tmp_path: Path) -> None:
    async with seated(tmp_path / "d") as seat:
        question = await asked(seat)
        [shown] = (await seat.get("permissions"))["permissions"]
        assert shown["requestId"] == question.request_id
        assert shown["sessionId"] == seat.session_id
        assert shown["promptId"] == question.prompt_id
        assert shown["method"] == "session/request_permission"
        assert shown["toolCall"]["toolCallId"] == "t1"
        assert [each["optionId"] for each in shown["options"]] == ["yes", "no"]
        assert shown["params"]["toolCall"] == shown["toolCall"]
        won = await seat.post(f"permissions/{question.request_id}", YES)
        assert won == {"won": True, "answer": YES, "outcome": YES["outcome"]}
        assert question.prompt_id is not None
        await seat.end(question.prompt_id)
        assert (await seat.get(f"turns/{question.prompt_id}"))["resultText"] == "selected yes"
        assert await seat.get("permissions") == {"permissions": []}


@pytest.mark.parametrize("route", ["session", "anywhere"])
async def test_to_older_clients_an_answer_that_does_not_count_is_404(tmp_path: Path, route: str) -> None:
    async with seated(tmp_path / "d") as seat:

        async def vote(request_id: str, body: object, status: int, client_id: str) -> Any:
            path = f"/permission/{request_id}" if route == "anywhere" else seat.path(f"permission/{request_id}")
            return answer(await seat.client.post(path, json=body, headers={"X-Qwen-Client-Id": client_id}), status)

        ann, bob = await seat.attach("ann"), await seat.attach("bob")
        question = await asked(seat)
        assert (await vote("q_none", YES, 404, ann))["code"] == "permission_not_found"
        assert (await vote(question.request_id, YES, 200, ann)) == {}
        assert (await vote(question.request_id, YES, 200, ann)) == {}, "a repeat is harmless"
        assert (await vote(question.request_id, NO, 404, bob))["code"] == "permission_not_found"
        resolved = await seat.until(ev.PermissionResolved)
        assert (resolved.client_id, resolved.author) == (ann, "owner")
        await seat.until(ev.PermissionAnsweredLate)
        await seat.running.daemon.node.submit(seat.session_id, Close(at=1))
        answer(await seat.client.post(seat.path(f"permission/{question.request_id}"), json=YES), 404)


async def test_what_was_not_offered_is_refused_and_the_question_stays_open(tmp_path: Path) -> None:
    async with seated(tmp_path / "d") as seat:
        question = await asked(seat)
        path = f"permissions/{question.request_id}"
        other = {"outcome": {"outcome": "selected", "optionId": "always"}}
        for rest in (path, f"permission/{question.request_id}"):
            problem = await seat.post(rest, other, 400)
            assert (problem["code"], problem["options"]) == ("invalid_option_id", "yes, no")
        wrong: list[dict[str, Any]] = [{}, {"outcome": {}}, {"outcome": "yes"}, {"answer": other}]
        wrong.append({**YES, "answer": {}})
        for body in wrong:
            assert (await seat.post(path, body, 400))["code"] == "bad_request"
        assert len((await seat.get("permissions"))["permissions"]) == 1
        assert (await seat.post(path, CANCELLED))["outcome"] == CANCELLED["outcome"]


async def test_an_elicitation_is_answered_with_what_the_agent_asked_for(tmp_path: Path) -> None:
    async with seated(tmp_path / "d") as seat:
        question = await asked(seat, "elicit your name")
        [shown] = (await seat.get("permissions"))["permissions"]
        assert shown["method"] == "elicitation/create"
        assert shown["params"]["message"] == "your name"
        given = {"action": "accept", "content": {"text": "Ann"}}
        path = f"permissions/{question.request_id}"
        assert (await seat.post(path, YES, 400))["code"] == "invalid_option_id"
        wrong: list[dict[str, Any]] = [
            {},
            {"action": "bogus"},
            {"action": ["accept"]},
            {"content": {"text": "Ann"}},
        ]
        for each in (*wrong, {"action": "accept", "content": "Ann"}):
            assert (await seat.post(path, {"answer": each}, 400))["code"] == "bad_request"
        assert len((await seat.get("permissions"))["permissions"]) == 1
        assert await seat.post(path, {"answer": given}) == {"won": True, "answer": given}
        assert question.prompt_id is not None
        await seat.end(question.prompt_id)
        other = await asked(seat, "elicit your name")
        assert (await seat.post(f"permissions/{other.request_id}", CANCELLED))["answer"] == {"action": "cancel"}


async def test_of_ten_clients_with_ten_answers_each_one_wins_and_all_learn_who(tmp_path: Path) -> None:
    options = [f"o{number}" for number in range(10)]
    async with seated(tmp_path / "d") as seat:
        clients = [await seat.attach(f"client {number}") for number in range(10)]
        async with reading(seat.client, seat.path("events")) as watching:
            question = await asked(seat, f"ask t1 {','.join(options)}")
            receipts: list[tuple[str, str, dict[str, Any]]] = []

            async def vote(client_id: str, option: str) -> None:
                body = {"outcome": {"outcome": "selected", "optionId": option}}
                path = f"permissions/{question.request_id}"
                receipt = await seat.post(path, body, 200, **{"Turnwire-Client-Id": client_id})
                receipts.append((client_id, option, receipt))

            async with anyio.create_task_group() as tasks:
                for option in options:
                    for client_id in clients:
                        tasks.start_soon(vote, client_id, option)
            assert len(receipts) == 100
            won = [(client_id, option) for client_id, option, receipt in receipts if receipt["won"]]
            assert len(won) == 1
            winner, chosen = won[0]
            for _, _, receipt in receipts:
                assert (receipt["by"], receipt["outcome"]["optionId"]) == (winner, chosen)
            shown = (await watching.until(lambda event: event.type == "permission_resolved"))[-1]
        assert shown.data["voterClientId"] == winner
        events = await seat.events()
        [resolved] = of(events, ev.PermissionResolved)
        assert msgspec.json.decode(resolved.answer)["outcome"]["optionId"] == chosen
        assert len(of(events, ev.PermissionAnsweredLate)) == 99


async def test_a_token_for_one_session_answers_only_there(tmp_path: Path) -> None:
    async with seated(tmp_path / "d") as seat:
        other = await open_session(seat.running)
        _, secret = await seat.running.daemon.tokens.issue("guest", Role.CONTROLLER, other)
        _, observing = await seat.running.daemon.tokens.issue("eve", Role.OBSERVER)
        question = await asked(seat)
        paths = (f"/permission/{question.request_id}", seat.path(f"permissions/{question.request_id}"))
        async with seat.running.client(headers={"Authorization": f"Bearer {secret}"}) as guest:
            assert answer(await guest.post(paths[0], json=YES), 404)["code"] == "permission_not_found"
            assert answer(await guest.post(paths[1], json=YES), 403)["code"] == "forbidden"
        async with seat.running.client(headers={"Authorization": f"Bearer {observing}"}) as observer:
            for path in paths:
                assert answer(await observer.post(path, json=YES), 403)["code"] == "forbidden"
            assert len(answer(await observer.get(seat.path("permissions")), 200)["permissions"]) == 1
        assert of(await seat.events(), ev.PermissionResolved) == []
