"""Agents that break one rule each, and the case that must say so.

Each departs from `RawAgent` in one place. `python mutants.py NAME` runs one as a program.
"""
# It takes JSON of which nothing is known, as a program without any library does.
# pyright: basic

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from check_peers.raw_agent import RawAgent, Refused, Session, Turn, main
from check_peers.raw_agent_v2 import RawAgentV2

MUTANTS: dict[str, type[RawAgent]] = {}
"""The agent that breaks the rule of a case, by the id of the case."""

A = TypeVar("A", bound=type[RawAgent])


def breaks(case: str) -> Callable[[A], A]:
    def register(agent: A) -> A:
        assert case not in MUTANTS, case
        MUTANTS[case] = agent
        return agent

    return register


def changed(case: str, name: str, instead: Callable[..., Any]) -> None:
    """A mutant that differs by one method. `instead` gets the agent, the method that was, and its arguments."""
    was = getattr(RawAgent, name)

    def method(self: RawAgent, *args: Any, **kwargs: Any) -> Any:
        return instead(self, lambda *given, **more: was(self, *given, **more), *args, **kwargs)

    breaks(case)(type(f"Mutant_{case}", (RawAgent,), {name: method}))


class WithoutStates(RawAgent):
    """Does not offer the draft of the lifecycle: this fault would break a rule of the draft as well."""

    def capabilities(self) -> dict[str, Any]:
        found = super().capabilities()
        del found["sessionCapabilities"]["lifecycle"]
        return found


def refuse_if(condition: Any) -> None:
    if condition:
        raise Refused(-32602)


# -- the handshake --------------------------------------------------------------------------------------


def without(name: str) -> Callable[..., Any]:
    """The method's result without a member."""

    def instead(agent: RawAgent, was: Callable[..., Any], *args: Any) -> Any:
        return {key: value for key, value in was(*args).items() if key != name}

    return instead


def plus(**members: Any) -> Callable[..., Any]:
    """The method's result with other members."""
    return lambda agent, was, *args: {**was(*args), **members}


def always(value: Any) -> Callable[..., Any]:
    return lambda agent, was, *args, **kwargs: value


def refusing(code: int) -> Callable[..., Any]:
    def instead(agent: RawAgent, was: Callable[..., Any], *args: Any) -> Any:
        raise Refused(code)

    return instead


@breaks("v1.init.version")
class VersionInWords(RawAgent):
    def version(self, asked: Any) -> Any:
        return 1.0


changed("v1.init.newer-version", "version", lambda agent, was, asked: asked)
changed("v1.init.same-version", "version", lambda agent, was, asked: 1 if asked == 65535 else 3)
changed("v1.init.capabilities", "capabilities", plus(mcpCapabilities={"http": "yes"}))
changed("v1.init.agent-name", "initialize", without("agentInfo"))
changed("v1.auth.methods", "logins", always([{"id": "key"}]))
changed(
    "v1.auth.terminal", "logins", always([{"id": "key", "name": "K"}, {"id": "t", "name": "T", "type": "terminal"}])
)
changed("v1.auth.unknown-method", "authenticate", always({}))


@breaks("v1.auth.required")
class LoginWithAnotherCode(RawAgent):
    is_known = False

    def authenticate(self, params: dict[str, Any]) -> dict[str, Any]:
        found = super().authenticate(params)
        self.is_known = True
        return found

    def new(self, params: dict[str, Any]) -> dict[str, Any]:
        if not self.is_known:
            raise Refused(-32603)
        return super().new(params)


@breaks("v1.init.no-capabilities")
class NeedsCapabilities(RawAgent):
    def initialize(self, params: dict[str, Any]) -> dict[str, Any]:
        if "clientCapabilities" not in params:
            raise Refused(-32602)
        return super().initialize(params)


@breaks("v1.init.unknown-capabilities")
class StrictCapabilities(RawAgent):
    def initialize(self, params: dict[str, Any]) -> dict[str, Any]:
        known = {"fs", "terminal", "auth", "session", "elicitation"}
        if set(params.get("clientCapabilities", {})) - known:
            raise Refused(-32602)
        return super().initialize(params)


# -- lines and messages ---------------------------------------------------------------------------------


class LogsToStdout(RawAgent):
    def begin(self, turn: Turn) -> None:
        self.emit(b"INFO a turn begins")
        super().begin(turn)


class Latin(RawAgent):
    def send(self, message: dict[str, Any]) -> None:
        words = json.dumps({"jsonrpc": "2.0", **message}, ensure_ascii=False)
        self.emit(words.encode("latin-1", "replace") if "ü" in words else words.encode())


class HalfPairs(RawAgent):
    def piece(self, words: str, identity: Any) -> dict[str, Any]:
        return super().piece(f"{words}\ud83c", identity)

    def send(self, message: dict[str, Any]) -> None:
        self.emit(json.dumps({"jsonrpc": "2.0", **message}).encode())


class NoVersion(RawAgent):
    def send(self, message: dict[str, Any]) -> None:
        self.emit(json.dumps(message).encode())


class BothOutcomes(RawAgent):
    def answer(self, request: Any, result: dict[str, Any]) -> None:
        self.send({"id": request, "result": result, "error": None})


class ErrorWithoutMessage(RawAgent):
    def refuse(self, request: Any, code: int, message: str = "refused") -> None:
        self.send({"id": request, "error": {"code": code}})


for _case, _kind in {
    "wire.only-messages": LogsToStdout,
    "wire.utf-8": Latin,
    "wire.surrogates": HalfPairs,
    "rpc.version-member": NoVersion,
    "rpc.one-outcome": BothOutcomes,
    "rpc.error-shape": ErrorWithoutMessage,
}.items():
    breaks(f"v1.{_case}")(_kind)
    breaks(f"v2.{_case}")(type(f"{_kind.__name__}V2", (_kind, RawAgentV2), {}))


def unclaimed_if_unknown(agent: RawAgent, was: Callable[..., Any], params: dict[str, Any]) -> Any:
    if params.get("sessionId") not in agent.home.sessions:
        raise Refused(-32601)
    return was(params)


changed("v1.rpc.claimed", "resume", unclaimed_if_unknown)


@breaks("v1.wire.split")
class OneReadIsOneMessage(RawAgent):
    def feed(self, piece: bytes) -> None:
        for line in piece.split(b"\n"):
            if line.strip():
                self.line(line)


@breaks("v1.wire.joined")
class FirstLineOnly(RawAgent):
    def feed(self, piece: bytes) -> None:
        whole = self.rest + piece
        if b"\n" not in whole:
            self.rest = whole
            return
        self.rest = b""
        self.line(whole.partition(b"\n")[0])


@breaks("v1.wire.large")
class ShortLines(RawAgent):
    def line(self, line: bytes) -> None:
        if len(line) > 65536:
            raise SystemExit(1)
        super().line(line)


@breaks("v1.wire.no-json")
class DiesOfNoJson(RawAgent):
    def line(self, line: bytes) -> None:
        try:
            json.loads(line)
        except ValueError:
            raise SystemExit(1) from None
        super().line(line)


@breaks("v1.wire.batch")
class DiesOfLists(RawAgent):
    def line(self, line: bytes) -> None:
        if line.startswith(b"["):
            raise SystemExit(1)
        super().line(line)


@breaks("v1.rpc.id-text")
class AsciiIds(RawAgent):
    def answer(self, request: Any, result: dict[str, Any]) -> None:
        super().answer(request.encode("ascii", "ignore").decode() if isinstance(request, str) else request, result)


@breaks("v1.rpc.id-digits")
class NumberIds(RawAgent):
    def answer(self, request: Any, result: dict[str, Any]) -> None:
        super().answer(int(request) if isinstance(request, str) and request.isdigit() else request, result)


@breaks("v1.rpc.id-zero")
class ZeroIsNothing(RawAgent):
    def receive(self, message: dict[str, Any]) -> None:
        if message.get("id") == 0:
            message.pop("id")
        super().receive(message)


@breaks("v1.rpc.id-number")
class ShortIds(RawAgent):
    def answer(self, request: Any, result: dict[str, Any]) -> None:
        super().answer(request & 0x7FFFFFFF if isinstance(request, int) else request, result)


@breaks("v1.rpc.same-id")
class OneSpaceOfIds(RawAgent):
    def answered(self, message: dict[str, Any]) -> None:
        turns = [each.turn for each in self.sessions.values() if each.turn is not None]
        if not any(each.request == message.get("id") for each in turns):
            super().answered(message)


@breaks("v1.rpc.notification")
class AnswersCancels(RawAgent):
    def cancel(self, identity: Any) -> None:
        super().cancel(identity)
        if identity in self.sessions:
            self.send({"id": None, "result": {}})


changed(
    "v1.rpc.unknown-method",
    "unknown",
    lambda agent, was, request, method: (
        agent.refuse(request, -32603) if method.startswith("session/") else was(request, method)
    ),
)
changed(
    "v1.extension.unknown-request",
    "unknown",
    lambda agent, was, request, method: (
        agent.answer(request, {}) if method.startswith("_example") else was(request, method)
    ),
)


@breaks("v1.rpc.stray-answer")
class DiesOfAnswers(RawAgent):
    def answered(self, message: dict[str, Any]) -> None:
        if message.get("id") not in self.asked:
            raise SystemExit(1)
        super().answered(message)


@breaks("v1.extension.unknown-notification")
class DiesOfNotifications(RawAgent):
    def unheard(self, method: str) -> None:
        raise SystemExit(1)


@breaks("v1.extension.meta")
class NoMeta(RawAgent):
    def new(self, params: dict[str, Any]) -> dict[str, Any]:
        if "_meta" in params:
            raise Refused(-32602)
        return super().new(params)


# -- params ---------------------------------------------------------------------------------------------


def lenient(case: str, method: str, condition: Callable[[dict[str, Any]], bool], **instead: Any) -> None:
    """A request that should be refused for its params is corrected instead."""

    class Lenient(RawAgent):
        def receive(self, message: dict[str, Any]) -> None:
            params = message.get("params")
            if message.get("method") == method and isinstance(params, dict) and condition(params):
                known = next(iter(self.sessions), None)
                mended = {**params, **instead}
                if mended.get("sessionId") is None and method != "session/new":
                    mended["sessionId"] = known
                message = {**message, "params": mended}
            super().receive(message)

    breaks(case)(Lenient)


HELLO = [{"type": "text", "text": "hello"}]
lenient("v1.params.new-no-cwd", "session/new", lambda given: "cwd" not in given, cwd="/")
lenient("v1.params.new-cwd-number", "session/new", lambda given: given.get("cwd") == 5, cwd="/")
lenient("v1.params.prompt-no-session", "session/prompt", lambda given: "sessionId" not in given)
lenient("v1.params.prompt-no-prompt", "session/prompt", lambda given: "prompt" not in given, prompt=HELLO)
lenient("v1.params.prompt-no-list", "session/prompt", lambda given: given.get("prompt") == "hello", prompt=HELLO)
lenient(
    "v1.params.prompt-bad-block",
    "session/prompt",
    lambda given: len(given.get("prompt", [])) == 2 and given["prompt"][1]["type"] == "no such type",
    prompt=HELLO,
)
lenient(
    "v1.params.prompt-half-block",
    "session/prompt",
    lambda given: given.get("prompt") == [{"type": "text"}],
    prompt=HELLO,
)


@breaks("v1.params.prompt-unknown-session")
class AnySession(RawAgent):
    def prompt(self, request: Any, params: Any) -> None:
        if params.get("sessionId") == "no such session" and params["prompt"][0]["text"] == "x":
            turn = Turn(request, Session("no such session", "/"), "x")
            self.sessions[turn.session.id] = turn.session
            self.answer(request, {"stopReason": "end_turn"})
            return
        super().prompt(request, params)


lenient(
    "v1.params.directories-relative",
    "session/new",
    lambda given: given.get("additionalDirectories") == ["relative/path"],
    additionalDirectories=[],
)
lenient(
    "v1.params.directories-empty",
    "session/new",
    lambda given: given.get("additionalDirectories") == [""],
    additionalDirectories=[],
)
lenient(
    "v1.params.directories-no-list",
    "session/new",
    lambda given: given.get("additionalDirectories") == "/",
    additionalDirectories=[],
)
lenient(
    "v1.params.directories-number",
    "session/new",
    lambda given: given.get("additionalDirectories") == [5],
    additionalDirectories=[],
)
lenient("v1.params.list-cursor", "session/list", lambda given: given.get("cursor") == "no such cursor", cursor=None)
lenient("v1.params.list-cursor-number", "session/list", lambda given: given.get("cursor") == 5, cursor=None)


@breaks("v1.params.code")
class InternalErrors(RawAgent):
    def receive(self, message: dict[str, Any]) -> None:
        params = message.get("params")
        self.is_malformed = message.get("method") == "session/prompt" and "sessionId" not in (params or {})
        super().receive(message)

    def refuse(self, request: Any, code: int, message: str = "refused") -> None:
        super().refuse(request, -32603 if self.is_malformed else code, message)


@breaks("v1.params.load-unknown")
class LoadsAnything(RawAgent):
    def load(self, params: dict[str, Any]) -> dict[str, Any]:
        return super().load(params) if params["sessionId"] in self.home.sessions else {}


@breaks("v1.params.resume-unknown")
class ResumesAnything(RawAgent):
    def resume(self, params: dict[str, Any]) -> dict[str, Any]:
        return super().resume(params) if params["sessionId"] in self.home.sessions else {}


# -- sessions -------------------------------------------------------------------------------------------


@breaks("v1.new.id")
class NumbersAreSessions(RawAgent):
    def new_id(self) -> Any:
        return self.count()

    def found(self, params: dict[str, Any]) -> Session:
        if params.get("sessionId") in self.sessions:
            return self.sessions[params["sessionId"]]
        return super().found(params)

    def listed(self, params: dict[str, Any]) -> dict[str, Any]:
        found = super().listed(params)
        return {**found, "sessions": [{**each, "sessionId": str(each["sessionId"])} for each in found["sessions"]]}


@breaks("v1.new.works")
class NoSessions(RawAgent):
    def logins(self) -> list[dict[str, Any]]:
        return []

    def new(self, params: dict[str, Any]) -> dict[str, Any]:
        raise Refused(-32603)


@breaks("v1.new.unique")
class OneSession(RawAgent):
    def new_id(self) -> Any:
        return "session-1"


@breaks("v1.new.modes")
class ModeThatIsNone(RawAgent):
    def settings(self, session: Session) -> dict[str, Any]:
        found = super().settings(session)
        return {**found, "modes": {**found["modes"], "currentModeId": "other"}}


@breaks("v1.new.options")
class ValueThatIsNone(RawAgent):
    def new(self, params: dict[str, Any]) -> dict[str, Any]:
        found = super().new(params)
        first, *others = found["configOptions"]
        return {**found, "configOptions": [{**first, "currentValue": "medium"}, *others]}


@breaks("v1.new.no-switches")
class Switch(RawAgent):
    def options(self, session: Session) -> list[dict[str, Any]]:
        return [*super().options(session), {"id": "fast", "name": "Fast", "type": "boolean", "currentValue": True}]


@breaks("v1.new.apart")
class FirstSessionSpeaks(RawAgent):
    def tell(self, session: Session, update: dict[str, Any], *, kept: bool = True) -> None:
        first = next(iter(self.sessions.values()))
        is_late = len(self.sessions) > 1 and update["sessionUpdate"] == "agent_message_chunk"
        super().tell(
            first if is_late and session.turn and session.turn.words != "wait" else session, update, kept=kept
        )


@breaks("v1.new.at-once")
class SpeaksInThePromptedSession(RawAgent):
    """Both answers name the first session if two prompts come one after the other."""

    previous: Any = None

    def receive(self, message: dict[str, Any]) -> None:
        super().receive(message)
        is_prompt = message.get("method") == "session/prompt" and isinstance(message.get("params"), dict)
        self.previous = self.sessions.get(message["params"].get("sessionId")) if is_prompt else None

    def piece_in(self, turn: Turn) -> Session:
        return self.previous if self.previous and turn.words == "hello" else turn.session

    def say(self, turn: Turn, *pieces: str) -> None:
        named, turn.session = turn.session, self.piece_in(turn)
        super().say(turn, *pieces)
        turn.session = named


@breaks("v1.new.side-by-side")
class OneTurnAtATime(RawAgent):
    def begin(self, turn: Turn) -> None:
        busy = [each for each in self.sessions.values() if each.turn is not None]
        if busy and turn.words.split()[0] != "wait":
            busy[0].waiting.append(turn)
        else:
            super().begin(turn)


@breaks("v1.load.known")
class NoLoad(RawAgent):
    def load(self, params: dict[str, Any]) -> dict[str, Any]:
        raise Refused(-32603)


def replaying(case: str, keeps: Callable[[dict[str, Any]], bool]) -> None:
    class Forgets(RawAgent):
        def replay(self, session: Session) -> None:
            for update in [each for each in session.history if keeps(each)]:
                self.tell(session, update, kept=False)

    breaks(case)(Forgets)


replaying("v1.load.tools", lambda update: not update["sessionUpdate"].startswith("tool_call"))
replaying("v1.load.user", lambda update: update["sessionUpdate"] != "user_message_chunk")
replaying("v1.load.agent", lambda update: update.get("content", {}).get("text") != ".")


@breaks("v1.load.answer-last")
class AnswersFirst(RawAgent):
    def receive(self, message: dict[str, Any]) -> None:
        super().receive(message)
        if message.get("method") == "session/load" and message["params"]["sessionId"] in self.sessions:
            super().replay(self.sessions[message["params"]["sessionId"]])

    def replay(self, session: Session) -> None:
        """Later."""


@breaks("v1.load.order")
class TellsBackwards(RawAgent):
    def replay(self, session: Session) -> None:
        for kind in ("user_message_chunk", "agent_message_chunk", "tool_call", "tool_call_update"):
            for update in [each for each in session.history if each["sessionUpdate"] == kind]:
                self.tell(session, update, kept=False)


@breaks("v1.load.session")
class TellsUnderAnotherId(RawAgent):
    def replay(self, session: Session) -> None:
        other = Session("session-0", session.cwd)
        for update in list(session.history):
            self.tell(other, update, kept=False)


@breaks("v1.load.goes-on")
class LoadedIsOver(RawAgent):
    over_and_out: frozenset[Any] = frozenset()

    def load(self, params: dict[str, Any]) -> dict[str, Any]:
        found = super().load(params)
        self.over_and_out |= {params["sessionId"]}
        return found

    def prompt(self, request: Any, params: Any) -> None:
        if params.get("sessionId") in self.over_and_out:
            raise Refused(-32002)
        super().prompt(request, params)


changed("v1.resume.known", "resume", refusing(-32603))


@breaks("v1.resume.no-history")
class ResumeTells(RawAgent):
    def resume(self, params: dict[str, Any]) -> dict[str, Any]:
        self.replay(self.entered(params))
        return super().resume(params)


@breaks("v1.resume.goes-on")
class ResumedIsOver(RawAgent):
    over_and_out: frozenset[Any] = frozenset()

    def resume(self, params: dict[str, Any]) -> dict[str, Any]:
        self.over_and_out |= {params["sessionId"]}
        return super().resume(params)

    def prompt(self, request: Any, params: Any) -> None:
        if params.get("sessionId") in self.over_and_out:
            raise Refused(-32002)
        super().prompt(request, params)


@breaks("v1.list.shape")
class ListWithoutDirectories(RawAgent):
    def listed(self, params: dict[str, Any]) -> dict[str, Any]:
        found = super().listed(params)
        return {**found, "sessions": [{"sessionId": each["sessionId"]} for each in found["sessions"]]}


@breaks("v1.list.empty")
class NothingIsNull(RawAgent):
    def listed(self, params: dict[str, Any]) -> dict[str, Any]:
        found = super().listed(params)
        return found if found["sessions"] else {"sessions": None}


@breaks("v1.list.ends")
class ListsForEver(RawAgent):
    def listed(self, params: dict[str, Any]) -> dict[str, Any]:
        found = super().listed(params)
        return {**found, "nextCursor": "0"} if found["sessions"] else found


@breaks("v1.delete.gone")
class DeletesNothing(RawAgent):
    def delete(self, params: dict[str, Any]) -> dict[str, Any]:
        return {}


@breaks("v1.delete.known")
class DeletesNoneThatIs(RawAgent):
    def delete(self, params: dict[str, Any]) -> dict[str, Any]:
        if params["sessionId"] in self.sessions:
            raise Refused(-32603)
        return {}


@breaks("v1.delete.unknown")
class DeletesKnownOnly(RawAgent):
    def delete(self, params: dict[str, Any]) -> dict[str, Any]:
        self.found(params)
        return super().delete(params)


@breaks("v1.close.known")
class ClosesNothing(RawAgent):
    def close(self, params: dict[str, Any]) -> dict[str, Any]:
        self.cancel(params["sessionId"])
        raise Refused(-32603)


@breaks("v1.close.cancels")
class CloseLeavesTurns(RawAgent):
    def close(self, params: dict[str, Any]) -> dict[str, Any]:
        self.found(params)
        return {}


# -- turns ----------------------------------------------------------------------------------------------


@breaks("v1.turn.ends")
class NeverEnds(WithoutStates):
    def play_plain(self, turn: Turn) -> None:
        self.say(turn, "You said: ", turn.words, ".")


@breaks("v1.turn.result")
class EndsWithAnError(RawAgent):
    def play_plain(self, turn: Turn) -> None:
        self.fail(turn)


@breaks("v1.turn.stop-reason")
class OtherReason(RawAgent):
    def finish(self, turn: Turn, reason: str = "end_turn") -> None:
        super().finish(turn, "stop" if reason == "end_turn" else reason)


@breaks("v1.turn.not-cancelled")
class CancelledByItself(RawAgent):
    is_first = True

    def finish(self, turn: Turn, reason: str = "end_turn") -> None:
        is_plain, self.is_first = self.is_first and turn.words.startswith("hello"), False
        super().finish(turn, "cancelled" if is_plain else reason)


@breaks("v1.turn.once")
class AnswersTwice(WithoutStates):
    def finish(self, turn: Turn, reason: str = "end_turn") -> None:
        super().finish(turn, reason)
        if reason == "end_turn":
            self.answer(turn.request, {"stopReason": reason})


@breaks("v1.turn.nothing-after")
class SpeaksLate(WithoutStates):
    def finish(self, turn: Turn, reason: str = "end_turn") -> None:
        super().finish(turn, reason)
        if reason == "end_turn":
            self.tell(turn.session, self.piece("and one thing more", self.message_id()), kept=False)


@breaks("v1.turn.again")
class OneTurn(WithoutStates):
    def prompt(self, request: Any, params: Any) -> None:
        session = self.sessions.get(params.get("sessionId"))
        plain = (
            [each for each in session.history if each["sessionUpdate"] == "agent_message_chunk"] if session else []
        )
        words = params["prompt"][0].get("text", "") if isinstance(params.get("prompt"), list) else ""
        if words == "hello" and len(plain) == 3 and plain[1]["content"]["text"] == "hello":
            raise Refused(-32603)
        super().prompt(request, params)


@breaks("v1.turn.every-prompt")
class ForgetsPrompts(RawAgent):
    def over(self, turn: Turn) -> None:
        turn.session.waiting.clear()
        super().over(turn)


def not_taking(case: str, kind: str) -> None:
    class Picky(RawAgent):
        def check_block(self, block: Any) -> None:
            super().check_block(block)
            if block["type"] == kind:
                raise Refused(-32602)

    breaks(case)(Picky)


not_taking("v1.turn.link", "resource_link")
not_taking("v1.turn.image", "image")
not_taking("v1.turn.audio", "audio")
not_taking("v1.turn.embedded", "resource")


def telling(case: str, update: dict[str, Any]) -> None:
    """One update more in each plain turn."""

    class Tells(RawAgent):
        def play_plain(self, turn: Turn) -> None:
            self.tell(turn.session, update, kept=False)
            super().play_plain(turn)

    breaks(case)(Tells)


telling("v1.update.kind", {"sessionUpdate": "progress", "done": 5})
changed("v1.update.usage-size", "usage", plus(size=0))
telling("v1.update.members", {"sessionUpdate": "usage_update", "used": 5, "size": None})
telling("v1.update.content", {"sessionUpdate": "agent_thought_chunk", "content": {"type": "markdown", "text": "x"}})
telling("v1.update.asked-for", {"sessionUpdate": "notice", "severity": "info", "title": "Look"})
telling("v1.update.stable", {"sessionUpdate": "plan_removed", "planId": "main"})


@breaks("v1.update.message-ids")
class OneMessage(RawAgent):
    def message_id(self) -> Any:
        return "message-1"


@breaks("v1.update.no-members-of-its-own")
class OwnMembers(RawAgent):
    def answer(self, request: Any, result: dict[str, Any]) -> None:
        super().answer(request, {**result, "durationMs": 5} if "stopReason" in result else result)


@breaks("v1.update.plan")
class PartialPlan(RawAgent):
    def entries(self, first: str, second: str) -> list[dict[str, Any]]:
        found = super().entries(first, second)
        return found if second == "pending" else found[1:]


@breaks("v1.fail.answered")
class FailsInSilence(WithoutStates):
    def fail(self, turn: Turn) -> None:
        self.mark(turn, None)
        self.over(turn)


@breaks("v1.fail.goes-on")
class FailsForEver(RawAgent):
    has_failed = False

    def fail(self, turn: Turn) -> None:
        super().fail(turn)
        self.has_failed = True

    def prompt(self, request: Any, params: Any) -> None:
        if self.has_failed:
            raise Refused(-32603)
        super().prompt(request, params)


# -- tools ----------------------------------------------------------------------------------------------


@breaks("v1.tool.announced")
class Unannounced(RawAgent):
    def play_tool(self, turn: Turn) -> None:
        turn.call = self.call_id()
        self.run(turn)
        self.finish(turn)


def announcing(case: str, **members: Any) -> None:
    class Announces(RawAgent):
        def announcement(self, turn: Turn) -> dict[str, Any]:
            return {**super().announcement(turn), **members}

    breaks(case)(Announces)


announcing("v1.tool.statuses", status="queued")
announcing("v1.tool.kinds", kind="shell")
announcing("v1.tool.paths", locations=[{"path": "notes.txt"}])


@breaks("v1.tool.over")
class LeavesToolsOpen(RawAgent):
    def play_tool(self, turn: Turn) -> None:
        self.call(turn)
        self.status(turn, "in_progress")
        self.finish(turn)


@breaks("v1.tool.runs")
class NeverRuns(RawAgent):
    def play_tool(self, turn: Turn) -> None:
        self.call(turn)
        self.status(turn, "completed")
        self.finish(turn)


@breaks("v1.tool.ids")
class OneCall(RawAgent):
    def call_id(self) -> str:
        return "call-1"


@breaks("v1.permission.shape")
class OptionsWithoutKind(RawAgent):
    def question(self, turn: Turn) -> dict[str, Any]:
        found = super().question(turn)
        return {
            **found,
            "options": [
                {**each, "kind": "allow"} if each["optionId"] == "yes" else each for each in found["options"]
            ],
        }


def one_id(agent: RawAgent, was: Callable[..., Any], turn: Turn) -> dict[str, Any]:
    found = was(turn)
    return {**found, "options": [*found["options"], {"optionId": "no", "name": "Never", "kind": "reject_always"}]}


changed("v1.permission.option-ids", "question", one_id)


@breaks("v1.permission.request")
class AsksWithNull(RawAgent):
    def ask(self, method: str, params: dict[str, Any], later: Callable[[dict[str, Any]], None]) -> int:
        if method != "session/request_permission":
            return super().ask(method, params, later)
        self.asked[None] = later  # type: ignore[index]
        self.send({"id": None, "method": method, "params": params})
        return 0


@breaks("v1.permission.waits")
class RunsAtOnce(RawAgent):
    def play_ask(self, turn: Turn) -> None:
        super().play_ask(turn)
        self.run(turn)

    def decide(self, turn: Turn, found: dict[str, Any]) -> None:
        if turn.session.turn is turn:
            self.call(turn)
            super().decide(turn, found)


@breaks("v1.permission.allowed")
class AllowedStaysOpen(RawAgent):
    def run(self, turn: Turn) -> None:
        self.status(turn, "in_progress")
        if turn.question is None:
            self.status(turn, "completed")


def allowing(case: str, condition: Callable[[dict[str, Any], dict[str, Any]], bool]) -> None:
    class Allows(RawAgent):
        def allows(self, outcome: dict[str, Any], found: dict[str, Any]) -> bool:
            return condition(outcome, found) or super().allows(outcome, found)

    breaks(case)(Allows)


allowing("v1.permission.rejected", lambda outcome, found: outcome.get("optionId") == "no")
allowing("v1.permission.not-offered", lambda outcome, found: outcome.get("optionId") not in (None, "no"))
allowing("v1.permission.refused", lambda outcome, found: "error" in found)
allowing("v1.permission.dismissed", lambda outcome, found: outcome.get("outcome") == "cancelled")
changed("v1.fs.offered", "may_read", always(True))
changed("v1.fs.read", "wanted_file", plus(path="notes.txt"))
changed("v1.terminal.offered", "may_run", always(True))
changed("v1.terminal.released", "release", lambda agent, was, turn, found: agent.finish(turn))


@breaks("v1.terminal.shown")
class ShowsWhatIsGone(RawAgent):
    def release(self, turn: Turn, found: dict[str, Any]) -> None:
        terminal = (found.get("result") or {}).get("terminalId")
        named = {"sessionId": turn.session.id, "terminalId": terminal}
        self.ask("terminal/release", named, lambda answer: self.shown_late(turn, terminal))

    def shown_late(self, turn: Turn, terminal: Any) -> None:
        self.show(turn, terminal)
        self.finish(turn)


changed("v1.elicit.offered", "may_elicit", always(True))
changed("v1.elicit.own-ids", "elicitation_id", always("elicitation"))
changed("v1.elicit.form", "form", without("requestedSchema"))


@breaks("v1.elicit.declined")
class WantsAForm(RawAgent):
    def elicited(self, turn: Turn, found: dict[str, Any]) -> None:
        if (found.get("result") or {}).get("action") != "decline":
            self.finish(turn)


# -- cancelling -----------------------------------------------------------------------------------------


def is_waiting(turn: Turn) -> bool:
    return turn.words.startswith("wait")


@breaks("v1.cancel.heard")
class DeafToCancels(WithoutStates):
    def cancel(self, identity: Any) -> None:
        session = self.sessions.get(identity)
        if session is not None and session.turn is not None and not is_waiting(session.turn):
            super().cancel(identity)

    def close(self, params: dict[str, Any]) -> dict[str, Any]:
        super().cancel(self.found(params).id)
        return {}


def stopping(case: str, stop: Callable[[RawAgent, Turn], None]) -> None:
    class Stops(WithoutStates):
        def stop(self, turn: Turn) -> None:
            if is_waiting(turn) and not self.is_closing:
                stop(self, turn)
            else:
                super().stop(turn)

        is_closing = False

        def close(self, params: dict[str, Any]) -> dict[str, Any]:
            self.is_closing = True
            return super().close(params)

    breaks(case)(Stops)


def with_error(agent: RawAgent, turn: Turn) -> None:
    agent.mark(turn, "cancelled")
    agent.refuse(turn.request, -32800, "aborted")
    agent.over(turn)


def with_end_turn(agent: RawAgent, turn: Turn) -> None:
    agent.mark(turn, "cancelled")
    agent.answer(turn.request, {"stopReason": "end_turn"})
    agent.over(turn)


def with_late_words(agent: RawAgent, turn: Turn) -> None:
    agent.finish(turn, "cancelled")
    agent.say(turn, "stopped")


stopping("v1.cancel.no-error", with_error)
stopping("v1.cancel.reason", with_end_turn)
stopping("v1.cancel.nothing-after", with_late_words)


@breaks("v1.cancel.once")
class AnswersEachCancel(RawAgent):
    ended: Turn | None = None

    def cancel(self, identity: Any) -> None:
        session = self.sessions.get(identity)
        if session is not None and session.turn is None and self.ended is not None:
            self.answer(self.ended.request, {"stopReason": "cancelled"})
        super().cancel(identity)

    def stop(self, turn: Turn) -> None:
        super().stop(turn)
        self.ended = turn


@breaks("v1.cancel.goes-on")
class StaysCancelled(RawAgent):
    cancelled: frozenset[Any] = frozenset()

    def stop(self, turn: Turn) -> None:
        if is_waiting(turn) and not turn.session.waiting:
            self.cancelled |= {turn.session.id}
        super().stop(turn)

    def finish(self, turn: Turn, reason: str = "end_turn") -> None:
        super().finish(turn, "cancelled" if turn.session.id in self.cancelled else reason)


@breaks("v1.cancel.idle")
class KeepsCancels(RawAgent):
    kept: frozenset[Any] = frozenset()

    def cancel(self, identity: Any) -> None:
        session = self.sessions.get(identity)
        if session is not None and session.turn is None and not session.history:
            self.kept |= {identity}
        super().cancel(identity)

    def finish(self, turn: Turn, reason: str = "end_turn") -> None:
        super().finish(turn, "cancelled" if turn.session.id in self.kept else reason)


@breaks("v1.cancel.unknown-session")
class DiesOfCancels(RawAgent):
    def cancel(self, identity: Any) -> None:
        if identity not in self.sessions:
            raise SystemExit(1)
        super().cancel(identity)


@breaks("v1.cancel.other-session")
class CancelsAll(RawAgent):
    def cancel(self, identity: Any) -> None:
        for each in list(self.sessions):
            super().cancel(each)


@breaks("v1.cancel.asked")
class AskedIsNotCancelled(RawAgent):
    def cancel(self, identity: Any) -> None:
        session = self.sessions.get(identity)
        if session is None or session.turn is None or session.turn.question is None:
            super().cancel(identity)


@breaks("v1.take-back.answered")
class TakesBackWithAnotherCode(RawAgent):
    def take_back(self, request: Any) -> None:
        for each in self.sessions.values():
            if each.turn is not None and each.turn.request == request:
                self.refuse(request, -32603)
                self.over(each.turn)


@breaks("v1.take-back.unknown")
class RefusesToTakeBack(RawAgent):
    def take_back(self, request: Any) -> None:
        if request == "no such request":
            self.refuse(request, -32602)


# -- modes and options ----------------------------------------------------------------------------------


@breaks("v1.mode.set")
class LastModeIsRefused(RawAgent):
    def set_mode(self, params: dict[str, Any]) -> dict[str, Any]:
        if params["modeId"] == "code":
            raise Refused(-32602)
        return super().set_mode(params)


@breaks("v1.mode.unknown")
class AnyMode(RawAgent):
    def set_mode(self, params: dict[str, Any]) -> dict[str, Any]:
        return {} if params["modeId"] == "no such mode" else super().set_mode(params)


@breaks("v1.option.set")
class OneOptionOnly(RawAgent):
    def set_option(self, params: dict[str, Any]) -> dict[str, Any]:
        found = super().set_option(params)
        return {"configOptions": [each for each in found["configOptions"] if each["id"] == params["configId"]]}


@breaks("v1.option.in-force")
class OptionsThatStay(RawAgent):
    def set_option(self, params: dict[str, Any]) -> dict[str, Any]:
        session = self.found(params)
        before = self.options(session)
        super().set_option(params)
        return {"configOptions": before}


@breaks("v1.option.unknown")
class AnyOption(RawAgent):
    def set_option(self, params: dict[str, Any]) -> dict[str, Any]:
        if params["configId"] == "no such option":
            return {"configOptions": self.options(self.found(params))}
        return super().set_option(params)


@breaks("v1.option.unknown-value")
class AnyValue(RawAgent):
    def set_option(self, params: dict[str, Any]) -> dict[str, Any]:
        if params["value"] == "no such value":
            return {"configOptions": self.options(self.found(params))}
        return super().set_option(params)


# -- drafts ---------------------------------------------------------------------------------------------


changed("v1.turn-complete.asked-for", "wants_marks", always(True))


@breaks("v1.turn-complete.once")
class MarksTwice(RawAgent):
    def mark(self, turn: Turn, reason: str | None) -> None:
        super().mark(turn, reason)
        if turn.words.startswith("hello") and reason == "end_turn":
            super().mark(turn, reason)


@breaks("v1.turn-complete.last")
class MarksTooEarly(RawAgent):
    def play_plain(self, turn: Turn) -> None:
        super().mark(turn, "end_turn")
        super().play_plain(turn)

    def mark(self, turn: Turn, reason: str | None) -> None:
        if reason != "end_turn" or not turn.words.startswith(("hello", "prompt")):
            super().mark(turn, reason)


@breaks("v1.turn-complete.before-answer")
class MarksTooLate(WithoutStates):
    def finish(self, turn: Turn, reason: str = "end_turn") -> None:
        self.answer(turn.request, {"stopReason": reason})
        self.mark(turn, reason)
        self.over(turn)


@breaks("v1.turn-complete.whose")
class MarksNobodys(RawAgent):
    def send_mark(self, turn: Turn, reason: str | None) -> None:
        self.tell(
            turn.session,
            {"sessionUpdate": "turn_complete", "promptRequestId": 0, **({"stopReason": reason} if reason else {})},
            kept=False,
        )


@breaks("v1.turn-complete.reason")
class MarksWithAnotherReason(RawAgent):
    def mark(self, turn: Turn, reason: str | None) -> None:
        super().mark(turn, "refusal" if reason == "end_turn" else reason)


@breaks("v1.turn-complete.cancelled")
class CancelledIsNotMarked(RawAgent):
    def mark(self, turn: Turn, reason: str | None) -> None:
        if reason != "cancelled":
            super().mark(turn, reason)


@breaks("v1.turn-complete.failed")
class FailedIsNotMarked(RawAgent):
    def mark(self, turn: Turn, reason: str | None) -> None:
        if reason is not None:
            super().mark(turn, reason)


@breaks("v1.turn-complete.refused")
class RefusedIsMarked(RawAgent):
    def prompt(self, request: Any, params: Any) -> None:
        if params.get("sessionId") == "no such session":
            self.mark(Turn(request, Session("no such session", "/"), ""), "refusal")
        super().prompt(request, params)


@breaks("v1.ready.held")
class Hasty(RawAgent):
    def new(self, params: dict[str, Any]) -> dict[str, Any]:
        found = super().new(params)
        self.ready(found["sessionId"])
        return found


@breaks("v1.ready.no-answer")
class AnswersReady(RawAgent):
    def hear(self, method: str, params: dict[str, Any]) -> None:
        super().hear(method, params)
        if method == "session/ready" and params["sessionId"] in self.sessions:
            self.send({"id": None, "result": {}})


@breaks("v1.ready.prompt")
class WaitsForReady(RawAgent):
    def prompt(self, request: Any, params: Any) -> None:
        session = self.sessions.get(params.get("sessionId")) if isinstance(params, dict) else None
        if session is None or session.is_ready:
            super().prompt(request, params)


@breaks("v1.ready.twice")
class TellsTwice(RawAgent):
    def hear(self, method: str, params: dict[str, Any]) -> None:
        session = self.sessions.get(params.get("sessionId"))
        if method == "session/ready" and session is not None:
            session.is_ready = False
        super().hear(method, params)


# -- more than one connection ---------------------------------------------------------------------------


class KnowsItsOwn(RawAgent):
    """Distinguishes its connection's sessions from others."""

    def is_own(self, params: dict[str, Any]) -> bool:
        return params.get("sessionId") in self.sessions

    def others(self, session: Session) -> list[RawAgent]:
        """The other clients that have it now."""
        return [each for each in self.home.connections if each is not self and session.id in each.sessions]


@breaks("v1.again.load")
class LoadsItsOwnOnly(KnowsItsOwn):
    def load(self, params: dict[str, Any]) -> dict[str, Any]:
        if not self.is_own(params):
            raise Refused(-32002)
        return super().load(params)


@breaks("v1.again.resume")
class ResumesItsOwnOnly(KnowsItsOwn):
    def resume(self, params: dict[str, Any]) -> dict[str, Any]:
        if not self.is_own(params):
            raise Refused(-32002)
        return super().resume(params)


@breaks("v1.again.history")
class ForgetsWhatWasSaid(RawAgent):
    def enter(self, session: Session) -> None:
        session.history.clear()
        super().enter(session)


class TakesNoPrompts(RawAgent):
    """In sessions that it has come back to in this way."""

    way = ""
    came: str | None = None

    def receive(self, message: dict[str, Any]) -> None:
        params = message.get("params") or {}
        if message.get("method") == self.way and params.get("sessionId") not in self.sessions:
            self.came = params.get("sessionId")
        super().receive(message)

    def prompt(self, request: Any, params: Any) -> None:
        if isinstance(params, dict) and self.came is not None and params.get("sessionId") == self.came:
            raise Refused(-32603)
        super().prompt(request, params)


@breaks("v1.again.goes-on")
class LoadedToRead(TakesNoPrompts):
    way = "session/load"


@breaks("v1.again.resume-goes-on")
class ResumedToRead(TakesNoPrompts):
    way = "session/resume"


changed("v1.again.list", "stored", lambda agent, was: list(agent.sessions.values()))


@breaks("v1.again.deleted")
class DeletesForItself(RawAgent):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.gone: set[Any] = set()

    def delete(self, params: dict[str, Any]) -> dict[str, Any]:
        self.gone.add(params.get("sessionId"))
        return {}

    def stored(self) -> list[Session]:
        return [each for each in super().stored() if each.id not in self.gone]


changed("v1.again.ids", "new_id", lambda agent, was: f"session-{len(agent.sessions)}")


@breaks("v1.clients.load")
class OneClientEach(KnowsItsOwn):
    def enter(self, session: Session) -> None:
        if self.others(session):
            raise Refused(-32603)
        super().enter(session)


@breaks("v1.clients.history")
class HistoryForOne(KnowsItsOwn):
    def replay(self, session: Session) -> None:
        if not self.others(session):
            super().replay(session)


@breaks("v1.clients.first")
class TakesSessionsAway(KnowsItsOwn):
    def enter(self, session: Session) -> None:
        for each in self.others(session):
            del each.sessions[session.id]
        super().enter(session)


@breaks("v1.clients.answers")
class AnswersEverybody(KnowsItsOwn):
    def finish(self, turn: Turn, reason: str = "end_turn") -> None:
        super().finish(turn, reason)
        for each in self.others(turn.session):
            each.answer(turn.request, {"stopReason": reason})


@breaks("v1.clients.ids")
class OneSpaceForAll(RawAgent):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.named: set[Any] = set()

    def prompt(self, request: Any, params: Any) -> None:
        if isinstance(request, str):
            if any(request in getattr(each, "named", ()) for each in self.home.connections if each is not self):
                raise Refused(-32600, "this id is in use")
            self.named.add(request)
        super().prompt(request, params)


@breaks("v1.clients.leaving")
class LeavesWithAll(RawAgent):
    def left(self) -> None:
        super().left()
        for each in self.home.connections:
            each.sessions.clear()


# -- the draft of the lifecycle ---------------------------------------------------------------------------


@breaks("v1.lifecycle.asked-for")
class StatesForEverybody(RawAgent):
    def begin(self, turn: Turn) -> None:
        if not self.tells_states():
            self.change(turn.session, "running")
        super().begin(turn)


changed(
    "v1.lifecycle.answer",
    "accepted",
    lambda agent, was, turn: agent.answer(turn.request, {"stopReason": "end_turn"}),
)


@breaks("v1.lifecycle.at-once")
class AcceptsAtTheEnd(RawAgent):
    def accepted(self, turn: Turn) -> None:
        """Later."""

    def settle(self, turn: Turn, reason: str, **members: Any) -> None:
        super().settle(turn, reason, **members)
        self.answer(turn.request, {})


@breaks("v1.lifecycle.answered-once")
class AcceptsTwice(RawAgent):
    def settle(self, turn: Turn, reason: str, **members: Any) -> None:
        super().settle(turn, reason, **members)
        self.answer(turn.request, {})


changed("v1.lifecycle.message", "user_message", without("content"))


@breaks("v1.lifecycle.refused")
class TellsOfWhatItRefuses(RawAgent):
    def prompt(self, request: Any, params: Any) -> None:
        try:
            super().prompt(request, params)
        except Refused:
            session = self.sessions.get((params or {}).get("sessionId"))
            if self.tells_states() and session is not None:
                self.change(session, "running")
                self.change(session, "idle", stop_reason="refusal")
            raise


@breaks("v1.lifecycle.running")
class RunsUnsaid(RawAgent):
    def take(self, turn: Turn) -> None:
        self.accepted(turn)
        self.tell(turn.session, self.user_message(turn), kept=False)


@breaks("v1.lifecycle.states")
class Thinks(RawAgent):
    def take(self, turn: Turn) -> None:
        super().take(turn)
        self.change(turn.session, "thinking")


@breaks("v1.lifecycle.waits")
class WaitsUnsaid(RawAgent):
    def change(self, session: Session, state: str, **members: Any) -> None:
        if state != "requires_action":
            super().change(session, state, **members)


@breaks("v1.lifecycle.idle")
class EndsUnsaid(RawAgent):
    def settle(self, turn: Turn, reason: str, **members: Any) -> None:
        if turn.words == "hello":
            return
        super().settle(turn, reason, **members)


@breaks("v1.lifecycle.idle-once")
class EndsTwice(RawAgent):
    def settle(self, turn: Turn, reason: str, **members: Any) -> None:
        super().settle(turn, reason, **members)
        super().settle(turn, reason, **members)


@breaks("v1.lifecycle.idle-last")
class SpeaksBehindTheIdle(RawAgent):
    def settle(self, turn: Turn, reason: str, **members: Any) -> None:
        super().settle(turn, reason, **members)
        self.say(turn, "one more thing")


@breaks("v1.lifecycle.reason")
class ReasonOfV2(RawAgent):
    def settle(self, turn: Turn, reason: str, **members: Any) -> None:
        if reason == "end_turn":
            self.change(turn.session, "idle", stopReason=reason)
        else:
            super().settle(turn, reason, **members)


@breaks("v1.lifecycle.cancelled")
class CancelledAsDone(RawAgent):
    def settle(self, turn: Turn, reason: str, **members: Any) -> None:
        super().settle(turn, "end_turn" if reason == "cancelled" else reason, **members)


@breaks("v1.lifecycle.failed")
class FailedAsDone(RawAgent):
    def settle(self, turn: Turn, reason: str, **members: Any) -> None:
        super().settle(turn, "end_turn" if reason == "error" else reason, **members)


@breaks("v1.lifecycle.error")
class ErrorInWords(RawAgent):
    def settle(self, turn: Turn, reason: str, **members: Any) -> None:
        super().settle(turn, reason, **({"error": "it failed"} if members else {}))


@breaks("v1.lifecycle.goes-on")
class OneTurnOnly(RawAgent):
    def prompt(self, request: Any, params: Any) -> None:
        session = self.sessions.get(params.get("sessionId")) if isinstance(params, dict) else None
        if self.tells_states() and session is not None and session.history:
            raise Refused(-32603)
        super().prompt(request, params)


# -- child sessions -------------------------------------------------------------------------------------

changed("v1.child.offered", "may_tell_of_children", always(True))


@breaks("v1.child.announced")
class SpeaksBeforeItsAnnouncement(RawAgent):
    def announce(self, turn: Turn, child: Session) -> None:
        self.tell(child, self.piece("early", self.message_id()), kept=False)
        super().announce(turn, child)


@breaks("v1.child.shape")
class ChildWithoutAName(RawAgent):
    def announce(self, turn: Turn, child: Session) -> None:
        super().announce(turn, child)
        self.tell(turn.session, {**self.announced(child), "sessionId": None}, kept=False)


# -- what a session is opened with ----------------------------------------------------------------------

changed("v1.extension.named", "extras", always({}))
changed("v1.new.mcp-stdio", "check_servers", lambda agent, was, servers: refuse_if(servers))
changed("v1.list.cwd", "directory", always("/"))
changed("v1.resume.directories", "directories_of", lambda agent, was, session, params: session.directories)
changed(
    "v1.mode.agrees",
    "options",
    lambda agent, was, session: [
        {**each, "currentValue": "ask"} if each["id"] == "mode" else each for each in was(session)
    ],
)

if __name__ == "__main__":
    main(MUTANTS[sys.argv[1]])
