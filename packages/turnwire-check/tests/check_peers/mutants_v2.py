"""Agents of v2 that break one rule each, and the case that must say so. Each departs from one sound agent."""
# They take JSON of which nothing is known, as programs without any library do.
# pyright: basic

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from check_peers.raw_agent import RawAgent, Refused, Session, Turn
from check_peers.raw_agent_v2 import RawAgentV2

MUTANTS_V2: dict[str, type[RawAgentV2]] = {}
"""The agent that breaks the rule of a case, by the id of the case."""


def breaks(case: str) -> Callable[[type[RawAgentV2]], type[RawAgentV2]]:
    def register(agent: type[RawAgentV2]) -> type[RawAgentV2]:
        assert case not in MUTANTS_V2, case
        MUTANTS_V2[case] = agent
        return agent

    return register


def changed(case: str, name: str, instead: Callable[..., Any]) -> None:
    """A mutant that differs by one method. `instead` gets the agent, the method that was, and its arguments."""
    was = getattr(RawAgentV2, name)

    def method(self: RawAgentV2, *args: Any, **kwargs: Any) -> Any:
        return instead(self, lambda *given, **more: was(self, *given, **more), *args, **kwargs)

    breaks(case)(type(f"Mutant_{case}", (RawAgentV2,), {name: method}))


# -- the handshake --------------------------------------------------------------------------------------

changed("v2.init.name", "initialize", lambda agent, was, params: {**was(params), "info": {"name": "x"}})
changed(
    "v2.init.capabilities",
    "initialize",
    lambda agent, was, params: {**was(params), "capabilities": {"session": {"delete": True}}},
)


changed(
    "v2.init.words",
    "initialize",
    lambda agent, was, params: {"protocolVersion": 2, "agentCapabilities": {}, "authMethods": []},
)


@breaks("v2.init.no-version")
class AnyVersion(RawAgentV2):
    def initialize(self, params: dict[str, Any]) -> dict[str, Any]:
        return super().initialize({**params, "protocolVersion": max(params["protocolVersion"], 2)})


@breaks("v2.init.baseline")
class NoList(RawAgentV2):
    def receive(self, message: dict[str, Any]) -> None:
        if message.get("method") == "session/list":
            self.unknown(message["id"], "session/list")
        else:
            super().receive(message)


changed("v2.new.id", "new_id", lambda agent, was: "session-1")
changed("v2.new.lists", "settings", lambda agent, was, session: {**was(session), "configOptions": None})

# -- prompts --------------------------------------------------------------------------------------------


@breaks("v2.prompt.message-id")
class EmptyAnswer(RawAgentV2):
    def accept(self, turn: Turn, identity: Any) -> None:
        self.answer(turn.request, {})


@breaks("v2.prompt.answered")
class PromptsAreRefused(RawAgentV2):
    def prompt(self, request: Any, params: Any) -> None:
        raise Refused(-32602)


@breaks("v2.prompt.at-once")
class AnswersAtTheEnd(RawAgentV2):
    def accept(self, turn: Turn, identity: Any) -> None:
        turn.call = identity

    def state(self, session: Session, state: str, **members: Any) -> None:
        turn = session.turn
        super().state(session, state, **members)
        if state == "idle" and turn is not None:
            self.answer(turn.request, {"messageId": self.accepted})

    def insert(self, turn: Turn, identity: Any) -> None:
        self.accepted = identity
        super().insert(turn, identity)


@breaks("v2.prompt.told")
class OtherId(RawAgentV2):
    def accept(self, turn: Turn, identity: Any) -> None:
        super().accept(turn, f"{identity}-other")

    def replay(self, session: Session) -> None:
        for update in list(session.history):
            other = (
                {"messageId": f"{update['messageId']}-other"} if update["sessionUpdate"] == "user_message" else {}
            )
            self.tell(session, {**update, **other}, kept=False)


changed(
    "v2.prompt.empty",
    "prompt",
    lambda agent, was, request, params: (
        agent.answer(request, {"messageId": "none"}) if params.get("prompt") == [] else was(request, params)
    ),
)


@breaks("v2.prompt.malformed")
class SilentAboutNonsense(RawAgentV2):
    def prompt(self, request: Any, params: Any) -> None:
        if params.get("prompt") != [{"type": "text"}]:
            super().prompt(request, params)


@breaks("v2.prompt.refused")
class TellsRefused(RawAgentV2):
    def prompt(self, request: Any, params: Any) -> None:
        if params.get("prompt") == [{"type": "text"}]:
            self.insert(Turn(request, self.sessions[params["sessionId"]], ""), self.message_id())
        super().prompt(request, params)


@breaks("v2.prompt.link")
class NoLinks(RawAgentV2):
    def check_block(self, block: Any) -> None:
        super().check_block(block)
        if block["type"] == "resource_link":
            raise Refused(-32602)


@breaks("v2.prompt.unknown-session")
class AnySession(RawAgentV2):
    def prompt(self, request: Any, params: Any) -> None:
        if params.get("sessionId") == "no such session":
            self.answer(request, {"messageId": "none"})
        else:
            super().prompt(request, params)


@breaks("v2.prompt.all-answered")
class ForgetsPrompts(RawAgentV2):
    def stop(self, turn: Turn) -> None:
        turn.session.waiting.clear()
        super().stop(turn)


# -- states and updates ---------------------------------------------------------------------------------


@breaks("v2.state.idle")
class NeverIdle(RawAgentV2):
    def finish(self, turn: Turn, reason: str = "end_turn") -> None:
        if reason == "end_turn" and turn.words.startswith("hello"):
            self.over(turn)
        else:
            super().finish(turn, reason)


@breaks("v2.state.running")
class NeverRunning(RawAgentV2):
    def state(self, session: Session, state: str, **members: Any) -> None:
        if state != "running" or session.turn is None or session.turn.question is not None:
            super().state(session, state, **members)


@breaks("v2.state.reason")
class NoReason(RawAgentV2):
    def finish(self, turn: Turn, reason: str = "end_turn") -> None:
        if reason == "end_turn":
            self.state(turn.session, "idle")
            self.over(turn)
        else:
            super().finish(turn, reason)


changed(
    "v2.state.reason-word",
    "finish",
    lambda agent, was, turn, reason="end_turn": was(turn, "done" if reason == "end_turn" else reason),
)


@breaks("v2.state.nothing-after")
class SpeaksLate(RawAgentV2):
    def finish(self, turn: Turn, reason: str = "end_turn") -> None:
        super().finish(turn, reason)
        if reason == "end_turn":
            self.tell(turn.session, self.piece("and one thing more", self.message_id()), kept=False)


@breaks("v2.state.words")
class OwnState(RawAgentV2):
    def play_plain(self, turn: Turn) -> None:
        self.state(turn.session, "thinking")
        super().play_plain(turn)


@breaks("v2.update.kind")
class OldKind(RawAgentV2):
    def play_plain(self, turn: Turn) -> None:
        self.tell(turn.session, {"sessionUpdate": "plan", "entries": []}, kept=False)
        super().play_plain(turn)


@breaks("v2.update.message-ids")
class ThoughtWithoutId(RawAgentV2):
    def play_plain(self, turn: Turn) -> None:
        thought = {"sessionUpdate": "agent_thought_chunk", "content": {"type": "text", "text": "hm"}}
        self.tell(turn.session, thought, kept=False)
        super().play_plain(turn)


@breaks("v2.update.own-ids")
class OneMessage(RawAgentV2):
    def piece(self, words: str, identity: Any) -> dict[str, Any]:
        return super().piece(words, "message-x")


@breaks("v2.update.tool-title")
class NoTitle(RawAgentV2):
    def announcement(self, turn: Turn) -> dict[str, Any]:
        return {**super().announcement(turn), "title": None}


# -- cancelling and failing -----------------------------------------------------------------------------


@breaks("v2.cancel.heard")
class DeafToCancels(RawAgentV2):
    def hear(self, method: str, params: dict[str, Any]) -> None:
        session = self.sessions.get(params.get("sessionId"))
        if method != "session/cancel" or session is None or session.turn is None:
            super().hear(method, params)
            return
        for each in session.waiting:
            self.refuse(each.request, -32800)


def stopping(case: str, stop: Callable[[RawAgentV2, Turn], None]) -> None:
    class Stops(RawAgentV2):
        is_closing = False

        def stop(self, turn: Turn) -> None:
            if self.is_closing or turn.session.waiting:
                super().stop(turn)
            else:
                stop(self, turn)

        def close(self, params: dict[str, Any]) -> dict[str, Any]:
            self.is_closing = True
            return super().close(params)

    breaks(case)(Stops)


def with_late_words(agent: RawAgentV2, turn: Turn) -> None:
    agent.finish(turn, "cancelled")
    agent.say(turn, "stopped")


stopping("v2.cancel.reason", lambda agent, turn: agent.fail(turn))
stopping("v2.cancel.nothing-after", with_late_words)


@breaks("v2.cancel.goes-on")
class StaysCancelled(RawAgentV2):
    cancelled: frozenset[Any] = frozenset()

    def stop(self, turn: Turn) -> None:
        super().stop(turn)
        self.cancelled |= {turn.session.id}

    def finish(self, turn: Turn, reason: str = "end_turn") -> None:
        super().finish(turn, "cancelled" if turn.session.id in self.cancelled else reason)


@breaks("v2.cancel.idle")
class KeepsCancels(RawAgentV2):
    kept: frozenset[Any] = frozenset()

    def cancel(self, identity: Any) -> None:
        session = self.sessions.get(identity)
        if session is not None and session.turn is None:
            self.kept |= {identity}
        super().cancel(identity)

    def finish(self, turn: Turn, reason: str = "end_turn") -> None:
        super().finish(turn, "cancelled" if turn.session.id in self.kept else reason)


@breaks("v2.fail.idle")
class FailsAsIfWell(RawAgentV2):
    def fail(self, turn: Turn) -> None:
        self.finish(turn)


@breaks("v2.fail.once")
class FailsTwice(RawAgentV2):
    def fail(self, turn: Turn) -> None:
        super().fail(turn)
        self.refuse(turn.request, -32603)


# -- sessions -------------------------------------------------------------------------------------------


@breaks("v2.resume.no-history")
class ResumeTells(RawAgentV2):
    def resume(self, params: dict[str, Any]) -> dict[str, Any]:
        if params.get("replayFrom") is None:
            self.replay(self.entered(params))
        return super().resume(params)


@breaks("v2.resume.state")
class ResumeWithoutState(RawAgentV2):
    def resume(self, params: dict[str, Any]) -> dict[str, Any]:
        return super().resume(params) if params.get("replayFrom") else self.settings(self.entered(params))


@breaks("v2.resume.replay")
class ForgetsTheUser(RawAgentV2):
    def replay(self, session: Session) -> None:
        for update in session.history:
            if update["sessionUpdate"] != "user_message":
                self.tell(session, update, kept=False)


@breaks("v2.resume.replay-then-state")
class StateFirst(RawAgentV2):
    def replay(self, session: Session) -> None:
        super().state(session, "idle")
        super().replay(session)

    def resume(self, params: dict[str, Any]) -> dict[str, Any]:
        if params.get("replayFrom") != {"type": "start"}:
            return super().resume(params)
        self.replay(self.entered(params))
        return self.settings(self.found(params))


@breaks("v2.resume.replay-ids")
class NewIds(RawAgentV2):
    def replay(self, session: Session) -> None:
        for update in list(session.history):
            other = {"messageId": self.message_id()} if update["sessionUpdate"] == "user_message" else {}
            self.tell(session, {**update, **other}, kept=False)


changed("v2.resume.cursor", "check_cursor", lambda agent, was, wanted: None)


@breaks("v2.resume.unknown")
class ResumesAnything(RawAgentV2):
    def resume(self, params: dict[str, Any]) -> dict[str, Any]:
        return super().resume(params) if params["sessionId"] in self.home.sessions else {}


@breaks("v2.close.idle-first")
class ClosesFirst(RawAgentV2):
    def receive(self, message: dict[str, Any]) -> None:
        if message.get("method") != "session/close":
            super().receive(message)
            return
        self.answer(message["id"], {})
        session = self.sessions.get(message["params"]["sessionId"])
        if session is not None and session.turn is not None:
            self.finish(session.turn, "cancelled")


@breaks("v2.close.silence")
class SpeaksAfterClose(RawAgentV2):
    def receive(self, message: dict[str, Any]) -> None:
        super().receive(message)
        if message.get("method") == "session/close" and message["params"]["sessionId"] in self.sessions:
            session = self.sessions[message["params"]["sessionId"]]
            self.tell(session, {"sessionUpdate": "session_info_update", "title": "closed"}, kept=False)


@breaks("v2.close.unknown")
class ClosesKnownOnly(RawAgentV2):
    def close(self, params: dict[str, Any]) -> dict[str, Any]:
        if params["sessionId"] not in self.sessions:
            raise Refused(-32603)
        return super().close(params)


@breaks("v2.list.shape")
class ListWithoutDirectories(RawAgentV2):
    def listed(self, params: dict[str, Any]) -> dict[str, Any]:
        found = super().listed(params)
        return {**found, "sessions": [{"sessionId": each["sessionId"]} for each in found["sessions"]]}


# -- permission -----------------------------------------------------------------------------------------


@breaks("v2.permission.shape")
class OneOption(RawAgentV2):
    def question(self, turn: Turn) -> dict[str, Any]:
        found = super().question(turn)
        return {**found, "options": [*found["options"], found["options"][0]]}


@breaks("v2.permission.waiting")
class NeverRequiresAction(RawAgentV2):
    def state(self, session: Session, state: str, **members: Any) -> None:
        if state != "requires_action":
            super().state(session, state, **members)


@breaks("v2.permission.resumes")
class StaysWaiting(RawAgentV2):
    """Never reports that it continues after a permission."""

    def decide(self, turn: Turn, found: dict[str, Any]) -> None:
        outcome = (found.get("result") or {}).get("outcome") or {}
        if self.allows(outcome, found):
            self.run(turn)
            self.over(turn)
        else:
            super().decide(turn, found)


def allowing(case: str, condition: Callable[[dict[str, Any]], bool]) -> None:
    class Allows(RawAgentV2):
        def allows(self, outcome: dict[str, Any], found: dict[str, Any]) -> bool:
            return condition(outcome) or super().allows(outcome, found)

    breaks(case)(Allows)


allowing("v2.permission.rejected", lambda outcome: outcome.get("optionId") == "no")
allowing("v2.permission.not-offered", lambda outcome: outcome.get("optionId") == "no-such-option")
allowing("v2.permission.unknown-outcome", lambda outcome: outcome.get("outcome") == "_maybe")
allowing("v2.permission.dismissed", lambda outcome: outcome.get("outcome") == "cancelled")


# -- work in the background -----------------------------------------------------------------------------

changed("v2.resume.running", "state_of", lambda agent, was, session: "idle")


@breaks("v2.background.every-state")
class ForgetsTheBackground(RawAgentV2):
    def tell(self, session: Session, update: dict[str, Any], *, kept: bool = True) -> None:
        if update.get("state") == "running":
            del update["background"]
        super().tell(session, update, kept=kept)


@breaks("v2.background.items")
class WorkWithoutAKind(RawAgentV2):
    def listed_work(self, session: Session) -> Any:
        return [*super().listed_work(session), *([{"id": "x"}] if session.background else [])]


@breaks("v2.background.announced")
class ListsBeforeItTells(RawAgentV2):
    def terminal(self, session: Session, terminal: str, **members: Any) -> None:
        if "command" not in members:
            super().terminal(session, terminal, **members)


@breaks("v2.background.over")
class LeavesOutWithoutAnEnd(RawAgentV2):
    def end_background(self, session: Session) -> None:
        session.background.clear()


# -- more than one connection ---------------------------------------------------------------------------


class KnowsItsOwn(RawAgentV2):
    """Distinguishes its connection's sessions from others."""

    came: str | None = None
    """The session of another connection that it was asked for."""

    def resume(self, params: dict[str, Any]) -> dict[str, Any]:
        if params.get("sessionId") not in self.sessions:
            self.came = params.get("sessionId")
        return super().resume(params)

    def others(self, session: Session) -> list[RawAgent]:
        """The other clients that have it now."""
        return [each for each in self.home.connections if each is not self and session.id in each.sessions]


@breaks("v2.again.resume")
class ResumesItsOwnOnly(KnowsItsOwn):
    def enter(self, session: Session) -> None:
        raise Refused(-32002)


@breaks("v2.again.state")
class NoStateForWhoComesBack(KnowsItsOwn):
    def state(self, session: Session, state: str, **members: Any) -> None:
        if session.id != self.came or session.turn is not None:
            super().state(session, state, **members)


@breaks("v2.again.replay-ids")
class OtherIdsInHistory(KnowsItsOwn):
    def replay(self, session: Session) -> None:
        for each in session.history:
            is_ours = each["sessionUpdate"] == "user_message" and session.id == self.came
            self.tell(session, {**each, "messageId": self.message_id()} if is_ours else each, kept=False)


@breaks("v2.again.goes-on")
class ResumedToRead(KnowsItsOwn):
    def prompt(self, request: Any, params: Any) -> None:
        if isinstance(params, dict) and self.came is not None and params.get("sessionId") == self.came:
            raise Refused(-32603)
        super().prompt(request, params)


changed("v2.again.list", "stored", lambda agent, was: list(agent.sessions.values()))
changed("v2.again.ids", "new_id", lambda agent, was: f"session-{len(agent.sessions)}")


@breaks("v2.clients.resume")
class OneClientEach(KnowsItsOwn):
    def enter(self, session: Session) -> None:
        if self.others(session):
            raise Refused(-32603)
        super().enter(session)


@breaks("v2.clients.state")
class IdleForOthers(KnowsItsOwn):
    def state_of(self, session: Session) -> str:
        return "idle" if session.id == self.came else super().state_of(session)


@breaks("v2.clients.first")
class TakesSessionsAway(KnowsItsOwn):
    def enter(self, session: Session) -> None:
        for each in self.others(session):
            del each.sessions[session.id]
        super().enter(session)


@breaks("v2.clients.answers")
class AnswersEverybody(KnowsItsOwn):
    def accept(self, turn: Turn, identity: Any) -> None:
        super().accept(turn, identity)
        for each in self.others(turn.session):
            each.answer(turn.request, {"messageId": identity})


# -- child sessions -------------------------------------------------------------------------------------


@breaks("v2.child.announced")
class SpeaksBeforeItsAnnouncement(RawAgentV2):
    def announce(self, turn: Turn, child: Session) -> None:
        self.tell(child, self.piece("early", self.message_id()), kept=False)
        super().announce(turn, child)


@breaks("v2.child.shape")
class ChildWithoutAName(RawAgentV2):
    def announce(self, turn: Turn, child: Session) -> None:
        super().announce(turn, child)
        self.tell(turn.session, {**self.announced(child), "sessionId": None}, kept=False)


changed("v2.child.state", "announced", lambda agent, was, child: {**was(child), "state": {"state": "busy"}})


# -- logins, options, foreign sessions --------------------------------------------------------------------


@breaks("v2.auth.login")
class NamesALoginItDoesNotHave(RawAgentV2):
    def authenticate(self, params: dict[str, Any]) -> dict[str, Any]:
        raise Refused(-32601)


changed("v2.auth.terminal", "logins", lambda agent, was: [*was(), {**was()[0], "type": "terminal"}])


@breaks("v2.option.value")
class OpensWithoutValues(RawAgentV2):
    def settings(self, session: Session) -> dict[str, Any]:
        found = super().settings(session)
        return {**found, "configOptions": [{**each, "currentValue": None} for each in found["configOptions"]]}


@breaks("v2.option.set")
class TellsWhatWasSetAlone(RawAgentV2):
    def set_option(self, params: dict[str, Any]) -> dict[str, Any]:
        found = super().set_option(params)["configOptions"]
        return {"configOptions": [each for each in found if each["configId"] == params["configId"]]}


def setting(case: str, condition: Callable[[dict[str, Any]], bool]) -> None:
    class Takes(RawAgentV2):
        def set_option(self, params: dict[str, Any]) -> dict[str, Any]:
            if condition(params):
                return {"configOptions": self.options(self.found(params))}
            return super().set_option(params)

    breaks(case)(Takes)


setting("v2.option.unknown", lambda params: params["configId"] == "no such option")
setting("v2.option.unknown-value", lambda params: params["value"] == "no such value")


def unless(condition: Callable[..., Any]) -> Callable[..., Any]:
    """It does nothing where this holds."""
    return lambda agent, was, *args: None if condition(*args) else was(*args)


changed("v2.own.request", "unknown", unless(lambda request, method: method.startswith("_example.org/")))
changed("v2.wire.empty-batch", "line", unless(lambda line: line.strip() == b"[]"))
changed("v2.prompt.taken-back", "taken_back", unless(lambda turn: True))

# -- updates, and their positions -------------------------------------------------------------------------

changed("v2.list.cwd", "row", lambda agent, was, session: {**was(session), "cwd": "/"})
changed("v2.update.plan-id", "plan", lambda agent, was: {**was(), "planId": None})
changed(
    "v2.update.paths",
    "announcement",
    lambda agent, was, turn: {**was(turn), "locations": [{"path": "notes.txt"}]},
)
changed("v2.update.terminal-ids", "terminal_id", lambda agent, was: "terminal")
changed("v2.update.terminal-cwd", "where", lambda agent, was, session: ".")
changed(
    "v2.resume.no-notices", "notice", lambda agent, was, session, notice: agent.tell(session, notice, kept=True)
)
