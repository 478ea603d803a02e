"""Message ids: adjacent chunks share one, and no id is used in two turns."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Final

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.agent.kit import CWD, V1, V2, Driver, Json, say_nothing, served

from turnwire.agent import Agent, MemoryStore, Session, Turn

SAY, THINK, UPDATE, NOTIFY, NOTIFY_V2, LATE, LATE_UPDATE = WAYS = (
    *("say", "think", "update", "notify", "notify in v2", "late", "late update"),
)
"""Every way to send a chunk of a message without an id. The late ones use a turn that is over."""
TOOL, BEGIN, END, RELOAD = "tool", "begin", "end", "reload"
STEPS = st.lists(st.sampled_from([*WAYS, *WAYS, TOOL, BEGIN, END, RELOAD]), max_size=30)
KIND: Final = "agent_message_chunk"


class Conversation:
    """One session of an agent that sends messages, and the time of each."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.said: list[tuple[str, int]] = []
        """The way each chunk was sent, and its period: a turn, or the time between two. Its index is its text."""
        self.stretch = 0
        self._sessions: list[Session] = []
        self._running = AsyncExitStack()
        self._turn: Turn | None = None
        self._over: Turn | None = None

    def agent(self) -> Agent:
        agent = Agent("naming", store=self.store)
        agent.prompt(say_nothing)
        agent.opened(self._sessions.append)
        return agent

    async def play(self, agent: Agent, steps: list[str]) -> None:
        for step in steps:
            await self._step(agent, step)
        await self._end()

    async def _step(self, agent: Agent, step: str) -> None:
        if step == BEGIN and self._turn is None:
            self._turn = await self._running.enter_async_context(agent.turn(self._sessions[-1]))
            self.stretch += 1
        elif step == END:
            await self._end()
        elif step == TOOL and self._turn is not None:
            self._turn.tool("A tool").start()
        elif step in WAYS:
            self._say(step)

    async def _end(self) -> None:
        if self._turn is not None:
            await self._running.aclose()
            self._over, self._turn = self._turn, None
            self.stretch += 1

    def _say(self, way: str) -> None:
        turn = self._over if way in {LATE, LATE_UPDATE} else self._turn
        text = str(len(self.said))
        piece: Json = {"sessionUpdate": KIND, "content": {"type": "text", "text": text}}
        if way in {NOTIFY, NOTIFY_V2}:
            self._sessions[-1].notify(piece, 2 if way == NOTIFY_V2 else 1)
        elif turn is None:
            return
        elif way in {UPDATE, LATE_UPDATE}:
            turn.update(piece, 1)
        elif way == THINK:
            turn.think(text)
        else:
            turn.say(text)
        self.said.append((way, self.stretch))

    def reload(self) -> None:
        """Continue the session in another process: only the store remains."""
        self._over = None
        self.stretch += 1


def named(updates: list[Json]) -> dict[int, str]:
    """Return the message id of each chunk, by its text."""
    return {
        int(each["content"]["text"]): each["messageId"]
        for each in updates
        if each["sessionUpdate"] in {KIND, "agent_thought_chunk"}
    }


async def played(hello: Json, lives: list[list[str]]) -> tuple[Conversation, dict[int, str]]:
    """Play some steps in each process, one after the other; return the ids that the client received."""
    conversation, session, names = Conversation(), "", dict[int, str]()
    for steps in lives:
        session, heard = await lived(conversation, hello, session, steps)
        names |= heard
    return conversation, names


async def lived(
    conversation: Conversation, hello: Json, session: str, steps: list[str]
) -> tuple[str, dict[int, str]]:
    agent, before = conversation.agent(), len(conversation.said)
    async with served(agent, hello) as driver:
        session = await opened(driver, session)
        await conversation.play(agent, steps)
        await driver.until(lambda _: len(named(driver.updates())) == len(conversation.said) - before)
    conversation.reload()
    return session, named(driver.updates())


async def opened(driver: Driver, session: str) -> str:
    if not session:
        return await driver.new()
    await driver.call("session/resume", sessionId=session, cwd=CWD, mcpServers=[])
    await driver.notify("session/ready", sessionId=session)
    return session


def lives_of(steps: list[str]) -> list[list[str]]:
    lives: list[list[str]] = [[]]
    for step in steps:
        if step == RELOAD:
            lives.append([])
        else:
            lives[-1].append(step)
    return lives


@pytest.mark.parametrize("hello", [V1, V2], ids=["v1", "v2"])
@given(steps=STEPS)
@settings(max_examples=60, deadline=None)
def test_no_name_of_a_message_is_used_in_two_turns_and_pieces_that_follow_each_other_share_theirs(
    hello: Json, steps: list[str]
) -> None:
    conversation, names = anyio.run(played, hello, lives_of(steps))
    assert len(names) == len(conversation.said), "every piece has a name"
    stretches: dict[str, set[int]] = {}
    for number, name in names.items():
        stretches.setdefault(name, set()).add(conversation.said[number][1])
    assert all(len(each) == 1 for each in stretches.values())
    neighbours = zip(conversation.said, conversation.said[1:], strict=False)
    for number, (one, other) in enumerate(neighbours):
        if one == other and TOOL not in steps:
            assert names[number] == names[number + 1]


def test_a_background_speaker_that_goes_on_over_turns_says_a_message_in_each() -> None:
    steps = [NOTIFY, NOTIFY, BEGIN, NOTIFY, NOTIFY, END, NOTIFY, NOTIFY, RELOAD, NOTIFY]
    _, names = anyio.run(played, V2, lives_of(steps))
    assert len(set(names.values())) == 4
    assert [names[each] == names[each + 1] for each in (0, 2, 4)] == [True, True, True]
