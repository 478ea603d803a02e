"""Several sessions at once in one program: handlers, permissions and a follow-up prompt.

Each session gets a prompt, a function answers its permission requests, and a handler sends a follow-up prompt. The
scripted agent is the agent.
"""

from __future__ import annotations

import sys

import anyio

import turnwire
from turnwire.client import Client, PermissionRequest, Update
from turnwire.errors import TurnError

AGENT = [sys.executable, "-m", "turnwire_testing.agent"]
SESSIONS = 4


def allow_reads(request: PermissionRequest) -> str:
    """Select the `allow_once` option if there is one; reject otherwise."""
    return next((option.option_id for option in request.options if option.kind == "allow_once"), "reject")


async def work(client: Client, number: int, done: dict[int, list[str]]) -> None:
    session = await client.new_session(".")
    session.on_permission(allow_reads)
    texts = done.setdefault(number, [])

    @session.on_update
    async def collect(update: Update) -> None:
        if update.text:
            texts.append(update.text)
        if update.text == "again":
            await session.prompt("say 1 follow-up")

    await session.prompt("ask tool allow_once,reject_once\nsay 1 again")
    # Awaiting drains the stream: the follow-up turn, which the handler waited for, has been received as well.
    assert texts == ["selected allow_once", "again", "follow-up"], texts
    try:
        await session.prompt("error -32001 no")
    except TurnError as error:
        texts.append(error.reason)


async def main() -> None:
    done: dict[int, list[str]] = {}
    async with turnwire.connect(AGENT) as client, anyio.create_task_group() as tasks:
        for number in range(SESSIONS):
            tasks.start_soon(work, client, number, done)
    assert [texts[-1] for texts in done.values()] == ["agent_error"] * SESSIONS
    sys.stdout.write(f"{SESSIONS} sessions, {sum(map(len, done.values()))} messages received\n")


anyio.run(main)
