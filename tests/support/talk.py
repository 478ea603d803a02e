"""One session with an agent, through our client: short functions for a test's actions. Waits are bounded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import anyio
import msgspec
import pytest

from turnwire.client.client import Client
from turnwire.client.permission import Answer, PermissionRequest
from turnwire.client.session import Session
from turnwire.client.update import Update
from turnwire.errors import TurnError
from turnwire_testing.patience import WAIT_S


class Told(NamedTuple):
    """A completed turn."""

    stop_reason: str
    text: str
    updates: list[dict[str, Any]]
    usage: dict[str, Any]

    def kinds(self, kind: str) -> list[dict[str, Any]]:
        return [each for each in self.updates if each["sessionUpdate"] == kind]

    def thoughts(self) -> str:
        return "".join(each["content"]["text"] for each in self.kinds("agent_thought_chunk"))

    def statuses(self) -> list[tuple[str, str]]:
        """Return tool calls and their statuses, in order; each call by its number."""
        numbers: dict[str, str] = {}
        told: list[tuple[str, str]] = []
        for each in self.updates:
            if "toolCallId" in each and "status" in each:
                name = numbers.setdefault(each["toolCallId"], str(len(numbers) + 1))
                if (name, each["status"]) not in told:
                    told.append((name, each["status"]))
        return told


class Talk:
    """One session with the agent."""

    def __init__(self, client: Client, session: Session, answers: Sequence[str]) -> None:
        self.client = client
        self.session = session
        self.answers = list(answers)
        """Answers to permission requests, in order; later requests are rejected."""
        self.asked: list[dict[str, Any]] = []
        """Permission requests so far."""
        self.forms: list[dict[str, Any]] = []
        """Answers to forms, in order."""
        self.leaves_open = False
        """Permission requests are not answered at all."""
        self.background: list[dict[str, Any]] = []
        """Updates outside of turns."""
        self._told: list[tuple[str | None, dict[str, Any]]] = []
        self._heard = anyio.Event()
        session.on_permission(self._answer)
        session.on_update(self._hear)

    def _answer(self, question: PermissionRequest) -> Answer:
        if question.method == "elicitation/create":
            return self.forms.pop(0)
        self.asked.append(msgspec.json.decode(question.params))
        self._wake()
        if self.leaves_open:
            return None
        return self.answers.pop(0) if self.answers else "reject"

    def _hear(self, update: Update) -> None:
        told = msgspec.json.decode(update.raw)
        self._told.append((update.prompt_id, told))
        if update.prompt_id is None:
            self.background.append(told)
        self._wake()

    def _wake(self) -> None:
        self._heard.set()
        self._heard = anyio.Event()

    async def until_asked(self) -> None:
        """Wait until a permission was asked for."""
        with anyio.fail_after(WAIT_S):
            while not self.asked:
                await self._heard.wait()

    async def until(self, found: Callable[[dict[str, Any]], bool]) -> None:
        """Wait until an update matches, in any turn or in none."""
        with anyio.fail_after(WAIT_S):
            while not any(found(each) for _, each in self._told):
                await self._heard.wait()

    async def turn(self, prompt: Any) -> Told:
        """Run a whole turn. Raises `TurnError` if it ended with an error."""
        turn = self.session.prompt(prompt)
        with anyio.fail_after(WAIT_S):
            result = await turn
        return self.told(result.prompt_id, result.stop_reason, result.usage)

    async def failure(self, prompt: Any) -> str:
        """Run a whole turn that ends with an error, and return the agent's error text."""
        with pytest.raises(TurnError) as failed:
            await self.turn(prompt)
        return str(msgspec.json.decode(failed.value.agent_error or b"{}").get("message"))

    def told(self, prompt_id: str | None, stop_reason: str = "", usage: dict[str, Any] | None = None) -> Told:
        """Return the updates of a turn so far."""
        updates = [each for of, each in self._told if of == prompt_id]
        words = [each["content"] for each in updates if each["sessionUpdate"] == "agent_message_chunk"]
        text = "".join(each.get("text", "") for each in words)
        return Told(stop_reason, text, updates, usage or {})
