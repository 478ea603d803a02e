"""Options, modes and models over HTTP: validated, set at the agent, and sent to every client."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from tests.server.reading import WAIT_S, reading
from tests.server.seats import answer, seated
from tests.support.agents import HandAgent, HandSource
from tests.support.daemons import SCRIPTED, TOKEN

from turnwire.limits import Limits
from turnwire.server.app import create_app
from turnwire.server.daemon import open_daemon
from turnwire.server.settings.declared import Settings
from turnwire.session import events as ev
from turnwire.wire.jsonrpc import Request

pytestmark = pytest.mark.anyio
PROFILES = pytest.mark.parametrize("profile", ["v1", "v2"])


@PROFILES
async def test_an_option_is_chosen_and_everybody_sees_all_options(tmp_path: Path, profile: str) -> None:
    agent = (*SCRIPTED, "--profile", profile)
    async with seated(tmp_path / "d", "s1", agent=agent) as seat:
        async with reading(seat.client, seat.path("events")) as reader:
            told = await seat.post("config", {"configId": "model", "value": "large"})
            assert [each["currentValue"] for each in told["configOptions"]] == ["ask", "large"]
            event = (await reader.until(lambda each: each.type == "session_update"))[-1]
        assert event.data["update"] == {"sessionUpdate": "config_option_update", **told}
        resumed = await seat.post("resume")
        assert resumed["state"]["configOptions"] == told["configOptions"]


@PROFILES
async def test_a_mode_is_chosen_under_both_of_its_names(tmp_path: Path, profile: str) -> None:
    agent = (*SCRIPTED, "--profile", profile)
    async with seated(tmp_path / "d", "s1", agent=agent) as seat:
        client_id = await seat.attach()
        async with reading(seat.client, seat.path("events")) as reader:
            headers = {"Turnwire-Client-Id": client_id}
            told = await seat.post("mode", {"modeId": "code"}, 200, **headers)
            assert told["previous"] == "ask"
            assert told["modeId"] == told["mode"] == "code"
            event = (await reader.until(lambda each: each.type == "approval_mode_changed"))[-1]
            assert (event.data["next"], event.data["previous"]) == ("code", "ask")
            assert event.envelope["originatorClientId"] == client_id
        back = await seat.post("approval-mode", {"mode": "ask"})
        assert (back["sessionId"], back["mode"], back["previous"]) == ("s1", "ask", "code")
        assert back["persisted"] is False
        assert (await seat.running.daemon.node.view(seat.session_id)).latest.mode == "ask"


async def test_a_mode_or_model_that_is_not_offered_is_refused_with_those_that_are(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", "s1") as seat:
        head = (await seat.running.daemon.node.head(seat.session_id)).head
        refused = await seat.post("approval-mode", {"mode": "yolo"}, 400)
        assert (refused["code"], refused["allowed"]) == ("invalid_approval_mode", ["ask", "code"])
        refused = await seat.post("model", {"modelId": "huge"}, 400)
        assert (refused["code"], refused["allowed"]) == ("invalid_option_id", ["small", "large"])
        for body in ({"configId": "odd", "value": "x"}, {"configId": "model", "value": True}):
            assert (await seat.post("config", body, 400))["code"] == "invalid_option_id"
        assert (await seat.post("config", {"configId": "model"}, 400))["code"] == "bad_request"
        unknown = {"X-Qwen-Client-Id": "c_nobody"}
        assert (await seat.post("mode", {"modeId": "code"}, 400, **unknown))["code"] == "invalid_client_id"
        assert (await seat.running.daemon.node.head(seat.session_id)).head == head, "nothing was recorded"


@PROFILES
async def test_a_model_is_switched_while_a_turn_runs(tmp_path: Path, profile: str) -> None:
    agent = (*SCRIPTED, "--profile", profile)
    async with seated(tmp_path / "d", "s1", agent=agent) as seat:
        await seat.prompt("never")
        await seat.until(ev.PromptSent)
        told = await seat.post("model", {"modelId": "large"})
        assert told == {"sessionId": "s1", "modelId": "large", "previous": "small"}
        switched = await seat.until(ev.ModelSwitched)
        assert (switched.model_id, switched.previous) == ("large", "small")


async def test_without_an_agent_nothing_can_be_set(tmp_path: Path) -> None:
    async with seated(tmp_path / "d", "s1"):
        pass
    async with seated(tmp_path / "d", "s1") as seat:
        assert (await seat.post("mode", {"modeId": "code"}, 409))["code"] == "not_legal_now"
        await seat.run("say 1 there")
        await seat.post("mode", {"modeId": "code"})
        await seat.client.delete("/session/s1")
        assert (await seat.client.post(seat.path("mode"), json={"modeId": "ask"})).status_code in {409, 410}


# -- agents with other offers, played by hand ----------------------------------------------------------------


@asynccontextmanager
async def played(offers: dict[str, Any]) -> AsyncGenerator[tuple[httpx.AsyncClient, HandAgent]]:
    """Return a session `s1` at an agent with these options that the test plays."""
    source = HandSource()
    settings = Settings(token=TOKEN, log="memory", cwd=(Path("/"),))
    limits = Limits(initialize_s=2)
    async with open_daemon(settings, limits, source) as daemon, anyio.create_task_group() as tasks:
        transport = httpx.ASGITransport(create_app(daemon))
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=headers) as client:
            tasks.start_soon(_greet, source, offers)
            with anyio.fail_after(WAIT_S):
                answer(await client.post("/session", json={"sessionId": "s1"}), 200)
                yield client, await source.agent()


async def _greet(source: HandSource, offers: dict[str, Any]) -> None:
    agent = await source.agent()
    await agent.answer("initialize", {"protocolVersion": 1, "agentCapabilities": {}})
    await agent.answer("session/new", {"sessionId": "a1", **offers})


MODES = {"currentModeId": "plan", "availableModes": [{"id": "plan", "name": "Plan"}, {"id": "do", "name": "Do"}]}
MODELS = {
    "currentModelId": "m1",
    "availableModels": [{"modelId": "m1", "name": "One"}, {"modelId": "m2", "name": "Two"}],
}


async def ask(client: httpx.AsyncClient, agent: HandAgent, path: str, body: Any, reply: dict[str, Any]) -> Any:
    """Set a value while the agent answers with `reply`; return the params it got and the answer."""
    answers: list[httpx.Response] = []
    method = "session/set_config_option" if path == "config" else f"session/set_{path}"
    params: Any = None

    async def post() -> None:
        answers.append(await client.post(f"/session/s1/{path}", json=body))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(post)
        params = await _asked(agent, method, reply)
    return params, answers[0]


async def _asked(agent: HandAgent, method: str, reply: dict[str, Any]) -> Any:
    request = await agent.next(method)
    assert isinstance(request, Request)
    agent.send({"id": request.id, **reply})
    return json.loads(bytes(request.params))


async def test_an_agent_with_modes_and_models_of_the_old_kind_is_asked_in_the_old_way() -> None:
    async with played({"modes": MODES, "models": MODELS}) as (client, agent):
        params, told = await ask(client, agent, "mode", {"modeId": "do"}, {"result": {}})
        assert params == {"sessionId": "a1", "modeId": "do"}
        assert answer(told, 200)["previous"] == "plan"
        params, told = await ask(client, agent, "model", {"modelId": "m2"}, {"result": {}})
        assert params == {"sessionId": "a1", "modelId": "m2"}
        assert answer(told, 200) == {"sessionId": "s1", "modelId": "m2", "previous": "m1"}
        _, told = await ask(client, agent, "model", {"modelId": "m1"}, {"result": {}})
        assert answer(told, 200)["previous"] == "m2"


async def test_an_agent_that_refuses_a_choice_is_heard_and_nothing_is_recorded() -> None:
    async with played({"modes": MODES}) as (client, agent):
        failure = {"error": {"code": -32603, "message": "secret reason"}}
        _, told = await ask(client, agent, "mode", {"modeId": "do"}, failure)
        refused = answer(told, 502)
        assert refused["code"] == "peer_broke_protocol"
        assert "secret reason" not in told.text
        shown = answer(await client.get("/session/s1"), 200)
        assert shown["mode"] == "plan"


async def test_a_switch_and_values_in_groups_are_understood() -> None:
    grouped = [{"group": "g", "name": "G", "options": [{"value": "a", "name": "A"}, {"value": "b", "name": "B"}]}]
    options: list[dict[str, Any]] = [
        {"id": "deep", "name": "Deep", "type": "select", "currentValue": "a", "options": grouped},
        {"id": "loud", "name": "Loud", "type": "boolean", "currentValue": False},
        {"name": "without an id"},
    ]
    async with played({"configOptions": options}) as (client, agent):
        taken = {"result": {"configOptions": [*options[:1], options[1] | {"currentValue": True}]}}
        params, told = await ask(client, agent, "config", {"configId": "loud", "value": True}, taken)
        assert params == {"sessionId": "a1", "configId": "loud", "value": True, "type": "boolean"}
        assert answer(told, 200)["configOptions"][1]["currentValue"] is True
        params, told = await ask(client, agent, "config", {"configId": "deep", "value": "b"}, taken)
        assert params == {"sessionId": "a1", "configId": "deep", "value": "b"}
        refused = answer(await client.post("/session/s1/config", json={"configId": "deep", "value": "c"}), 400)
        assert refused["allowed"] == ["a", "b"]
        assert answer(await client.post("/session/s1/mode", json={"modeId": "x"}), 400)["allowed"] == []


async def test_an_agent_that_never_answers_a_choice_does_not_hold_the_caller_for_ever() -> None:
    async with played({"modes": MODES}) as (client, _):
        told = await client.post("/session/s1/mode", json={"modeId": "do"})
        assert answer(told, 502)["code"] == "peer_broke_protocol"
