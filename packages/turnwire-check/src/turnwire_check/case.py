"""A case: one rule of the protocol, its source, its preconditions, and the code that checks it.

A case fails for its own rule alone. Any other failure on the way leaves it unscored, with the reason: so a peer
with one fault has one red row, which names the fault.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Literal, NoReturn, TypeAlias

from turnwire.errors import NotScored, RuleBroken
from turnwire_check.tape import Frame

Severity: TypeAlias = Literal["must", "should", "draft"]
"""`draft`: of a proposal that is not in the protocol, and judged only where the peer claims it."""

AgentScene: TypeAlias = Literal[
    "plain", "wait", "tool", "ask", "fail", "plan", "usage", "read", "terminal", "elicit", "background", "child"
]
Scene: TypeAlias = AgentScene | Literal["visit", "again", "load", "stop", "stop-asked", "hold"]
"""Precondition that a peer must be brought into: an agent by a prompt, a client by its user."""

SCENES: dict[Scene, str] = {
    "plain": "say something and end the turn",
    "wait": "begin a turn, say something, and go on until it is cancelled",
    "tool": "run a tool that needs no permission",
    "ask": "run a tool for which it asks permission",
    "fail": "fail in the middle of a turn",
    "plan": "show a plan",
    "usage": "tell its usage",
    "read": "read a file, through the client if that offers it",
    "terminal": "run a command, through the client's terminals if that offers them",
    "elicit": "ask its user to fill in a form",
    "background": "leave work behind that goes on after the end of a turn",
    "child": "have a child session say something",
}

CLIENT_SCENES: dict[Scene, str] = {
    "visit": "open a session, prompt once, and leave when the turn has ended",
    "again": "prompt a second time in the session when the turn has ended",
    "load": "open the session `session-1` with `session/load` instead of a new one, and prompt",
    "stop": "cancel the turn when the agent has said something",
    "stop-asked": "cancel the turn when the agent asks for permission, without a choice",
    "hold": "leave a permission request open",
}

Carrier: TypeAlias = Literal["stdio", "websocket", "http"]
"""Transports of the frames."""
ANY_CARRIER: tuple[Carrier, ...] = ("stdio", "websocket", "http")
IN_ORDER: tuple[Carrier, ...] = ("stdio", "websocket")
"""Transports on which all frames have one order, and any line can be sent. Over HTTP each session has its own
stream.
"""
SHARED: tuple[Carrier, ...] = ("websocket", "http")
"""Transports over which one agent has several clients: a process has one at its pipes."""

Judge: TypeAlias = Callable[[Any], Any]
"""A coroutine function of the raw client, or for a client of the agent that checks it. For a rule about every
message: a plain function of a recorded conversation.
"""


@dataclass(frozen=True)
class Case:
    """One rule and its check."""

    id: str
    """`v1.cancel.answered`: version, part, rule."""
    rule: str
    """The rule in our words."""
    source: str
    """The page and section of the protocol with this rule."""
    severity: Severity
    capability: str
    """The capability that the peer must have claimed in `initialize`: a path into its answer; empty for none."""
    scenes: tuple[Scene, ...]
    judge: Judge
    carriers: tuple[Carrier, ...] = ANY_CARRIER
    """Over which it can be judged."""
    is_watch: bool = False
    """True for a rule about every message, checked on all connections of a run: see `watch`."""

    @property
    def version(self) -> int:
        """The ACP version that the case uses."""
        return 2 if self.id.startswith(("v2.", "client.v2.")) else 1

    def digest(self) -> str:
        """Return a digest that changes with the case: its texts, or its code without comments and layout."""
        facts = [self.id, self.rule, self.source, self.severity, self.capability, self.scenes]
        row: object = getattr(self.judge, "__defaults__", None)
        code = bare(inspect.getsource(self.judge))
        return sha256(json.dumps([*facts, self.carriers, row, code]).encode()).hexdigest()[:16]


def bare(source: str) -> str:
    """Code but for comments and layout: the same on every version of Python, and after a formatter."""
    code = re.sub(r"^\s*#.*$", "", source, flags=re.MULTILINE)
    return re.sub(r",(?=[)\]}])", "", "".join(code.split()))


class Part:
    """The cases of one part of the protocol, in the order in which they are written."""

    def __init__(self, prefix: str, source: str) -> None:
        self._prefix = prefix
        self._source = source
        self.cases: list[Case] = []

    def case(
        self,
        name: str,
        rule: str,
        *,
        severity: Severity = "must",
        capability: str = "",
        scenes: tuple[Scene, ...] = (),
        section: str = "",
        carriers: tuple[Carrier, ...] = ANY_CARRIER,
    ) -> Callable[[Judge], Judge]:
        """Make the function below the judge of a case."""

        def register(judge: Judge) -> Judge:
            source = f"{self._source}: {section}" if section else self._source
            self.cases.append(
                Case(f"{self._prefix}.{name}", rule, source, severity, capability, scenes, judge, carriers)
            )
            return judge

        return register

    def watch(
        self,
        name: str,
        rule: str,
        *,
        severity: Severity = "must",
        section: str = "",
        carriers: tuple[Carrier, ...] = ANY_CARRIER,
    ) -> Callable[[Judge], Judge]:
        """Make the function below the judge of every recorded conversation."""

        def register(judge: Judge) -> Judge:
            self.case(name, rule, severity=severity, section=section, carriers=carriers)(judge)
            self.cases[-1] = replace(self.cases[-1], is_watch=True)
            return judge

        return register


def broken(words: str, *frames: Frame | None) -> NoReturn:
    """The rule is broken; these frames prove it."""
    raise RuleBroken(words, frames=tuple(each for each in frames if each is not None))


def holds(condition: object, words: str, *frames: Frame | None) -> None:
    """The rule is broken unless the condition is true."""
    if not condition:
        broken(words, *frames)


class NoAnswer(Exception):
    """A request or prompt without an answer in time. It fails the run, regardless of the tested rule."""


def unscored(reason: str) -> NoReturn:
    """End the case: the rule does not apply to this peer, or a step that another case judges did not work."""
    raise NotScored(reason)
