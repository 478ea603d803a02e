"""An agent that breaks the rules in one session: another session of the same process does not notice.

Invalid frames, answers without a request and frames without a session are counted: in the link, the peer or the
connection.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
from tests.process.hosted import hosted, scripted
from tests.support.driving import check_ends, of, texts

from turnwire.limits import Limits, MiB
from turnwire.session import events as ev
from turnwire_testing.scripted.actions import GARBAGE

pytestmark = pytest.mark.anyio

TO_NOBODY = '{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"nobody","update":{}}}'
NO_PARAMS = '{"jsonrpc":"2.0","method":"session/update"}'
ASKS = '{"jsonrpc":"2.0","id":"q","method":"fs/delete","params":{"sessionId":"session-1"}}'


class Fault(NamedTuple):
    """One way to break the rules, and its counter."""

    script: str
    breaches: int = 0
    oversized: int = 0
    strays: int = 0


FAULTS = {
    "lines that are no frames": Fault("garbage", breaches=len(GARBAGE)),
    "words on standard output": Fault("repeat 7 raw Starting server...", breaches=7),
    "a line of 60 MB": Fault("bigline 60000000", oversized=1),
    "two answers to one prompt": Fault("duplicate-answer", breaches=1),
    "an answer that nobody asked for": Fault("answer-unknown-id", breaches=1),
    "an update of nobody": Fault(f"raw {TO_NOBODY}", strays=1),
    "an update without params": Fault(f"raw {NO_PARAMS}", strays=1),
    "an extension that nobody knows": Fault("notify _vendor/thing {}", strays=1),
    "a request that nobody knows": Fault(f"raw {ASKS}"),
    "an update of an unknown kind": Fault('update {"sessionUpdate":"dance","steps":[1,2]}'),
}


@pytest.mark.guarantee("G3")
@pytest.mark.parametrize("name", FAULTS)
async def test_a_fault_in_one_session_is_counted_and_disturbs_no_other(name: str, tmp_path: Path) -> None:
    fault = FAULTS[name]
    async with hosted(scripted(), limits=Limits(frame_bytes=MiB)) as host:
        broken, sound = await host.talk(), await host.talk()
        gate = tmp_path / "gate"
        running = await sound.prompt(f"say 3 'before '\ngate {gate}\nsay 3 'after '")
        await sound.until_said("before", running)
        assert await broken.said(f"say 1 'a '\n{fault.script}\nsay 1 b") == "a b"
        assert await broken.said("echo still here") == "still here"
        gate.touch()
        assert isinstance(await sound.end(running), ev.TurnCompleted)
        assert texts(await sound.events(), running) == ["before "] * 3 + ["after "] * 3
        assert await sound.said("echo hello") == "hello"
        agent = (await host.node.agents.explain(broken.session_id)).agent
        assert sum(agent.breaches.values()) == fault.breaches
        assert sum(agent.strays.values()) == fault.strays
        assert host.source.newest.link.breaches.total() == fault.oversized
        assert host.source.tries == 1
        for talk in (broken, sound):
            check_ends(await talk.events())


async def test_an_unknown_request_is_refused_with_its_own_id() -> None:
    async with hosted(scripted()) as host:
        talk = await host.talk()
        await talk.said(f"raw {ASKS}\nsay 1 x")
        [answer] = [
            each for each in (await host.node.agents.explain(talk.session_id)).agent.last_sent if "-32601" in each
        ]
        assert '"id":"q"' in answer


async def test_a_request_with_an_id_that_is_in_use_is_counted_and_asked_once() -> None:
    async with hosted(scripted()) as host:
        talk = await host.talk()
        ask = (
            'raw {"jsonrpc":"2.0","id":"twice","method":"session/request_permission","params":'
            '{"sessionId":"session-1","options":[{"optionId":"yes"}]}}'
        )
        prompt_id = await talk.prompt(f"repeat 2 {ask}\nsay 1 x\nnever")
        await talk.until_said("x", prompt_id)
        assert len(of(await talk.events(), ev.PermissionRequested)) == 1
        assert (await host.node.agents.explain(talk.session_id)).agent.breaches == {"id_in_use": 1}
