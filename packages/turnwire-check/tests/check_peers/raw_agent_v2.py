"""The raw agent in ACP v2: the same bytes and methods, another life of a prompt."""
# It takes JSON of which nothing is known, as a program without any library does.
# pyright: basic

from __future__ import annotations

from typing import Any

from check_peers.raw_agent import RawAgent, Refused, Session, Turn


class RawAgentV2(RawAgent):
    """Speaks version 2 alone."""

    def initialize(self, params: dict[str, Any]) -> dict[str, Any]:
        asked = params.get("protocolVersion")
        if not isinstance(asked, int) or asked < 2:
            raise Refused(-32022)
        return {
            "protocolVersion": 2,
            "info": {"name": "raw-agent-v2", "version": "1"},
            "capabilities": {"session": {"prompt": {}, "mcp": {"stdio": {}}, "delete": {}}},
            "authMethods": self.logins(),
        }

    def logins(self) -> list[dict[str, Any]]:
        return [{"methodId": "key", "name": "With a key", "type": "agent"}]

    def receive(self, message: dict[str, Any]) -> None:
        old = {"auth/login": "authenticate"}.get(message.get("method", ""))
        super().receive({**message, "method": old} if old else message)

    def settings(self, session: Session) -> dict[str, Any]:
        return {"configOptions": self.options(session), "availableCommands": []}

    def options(self, session: Session) -> list[dict[str, Any]]:
        found = super().options(session)
        return [{"configId": each.pop("id"), **each} for each in found]

    def ready(self, identity: Any) -> None:
        """Not in this version."""

    # -- turns ---------------------------------------------------------------------------------------------------

    def begin(self, turn: Turn) -> None:
        turn.session.turn = turn
        self.end_background(turn.session)
        identity = self.message_id()
        self.insert(turn, identity)
        self.accept(turn, identity)
        self.state(turn.session, "running")
        play = getattr(self, f"play_{turn.words.split(' ', 1)[0]}", self.play_plain)
        play(turn)

    def insert(self, turn: Turn, identity: Any) -> None:
        content = [{"type": "text", "text": turn.words}]
        self.tell(turn.session, {"sessionUpdate": "user_message", "messageId": identity, "content": content})

    def accept(self, turn: Turn, identity: Any) -> None:
        self.answer(turn.request, {"messageId": identity})

    def state(self, session: Session, state: str, **members: Any) -> None:
        background = self.listed_work(session)
        self.tell(
            session,
            {"sessionUpdate": "state_update", "state": state, "background": background, **members},
            kept=False,
        )

    def listed_work(self, session: Session) -> Any:
        return [self.item(each) for each in session.background]

    def item(self, terminal: str) -> dict[str, Any]:
        return {"type": "terminal", "terminalId": terminal}

    def play_background(self, turn: Turn) -> None:
        terminal = self.terminal_id()
        self.terminal(turn.session, terminal, command="sleep", cwd=self.where(turn.session))
        turn.session.background.append(terminal)
        self.say(turn, "it goes on")
        self.finish(turn)

    def where(self, session: Session) -> str:
        return session.cwd

    def terminal_id(self) -> str:
        return f"terminal-{self.count()}"

    def terminal(self, session: Session, terminal: str, **members: Any) -> None:
        self.tell(session, {"sessionUpdate": "terminal_update", "terminalId": terminal, **members})

    def end_background(self, session: Session) -> None:
        while session.background:
            self.terminal(session, session.background.pop(), exitStatus={"exitCode": 0})

    def may_tell_of_children(self) -> bool:
        return True

    def announced(self, child: Session) -> dict[str, Any]:
        return {**super().announced(child), "state": {"state": "running"}}

    def play_plan(self, turn: Turn) -> None:
        self.tell(turn.session, {"sessionUpdate": "plan_update", "plan": self.plan()})
        self.finish(turn)

    def plan(self) -> dict[str, Any]:
        return {"type": "items", "planId": "main", "entries": self.entries("completed", "pending")}

    def play_usage(self, turn: Turn) -> None:
        self.notice(turn.session, {"sessionUpdate": "notice", "severity": "info", "title": "Half is used."})
        super().play_usage(turn)

    def notice(self, session: Session, notice: dict[str, Any]) -> None:
        self.tell(session, notice, kept=False)

    def announcement(self, turn: Turn) -> dict[str, Any]:
        return {**super().announcement(turn), "sessionUpdate": "tool_call_update"}

    def play_ask(self, turn: Turn) -> None:
        super().play_ask(turn)
        self.state(turn.session, "requires_action")

    def question(self, turn: Turn) -> dict[str, Any]:
        found = super().question(turn)
        subject = {"type": "tool_call", "toolCall": found.pop("toolCall")}
        return {**found, "title": "May I look?", "subject": subject}

    def decide(self, turn: Turn, found: dict[str, Any]) -> None:
        if turn.session.turn is turn:
            self.state(turn.session, "running")
        super().decide(turn, found)

    def finish(self, turn: Turn, reason: str = "end_turn") -> None:
        self.state(turn.session, "idle", stopReason=reason)
        self.over(turn)

    def fail(self, turn: Turn) -> None:
        self.state(turn.session, "idle", stopReason="error", error={"code": -32603, "message": "it failed"})
        self.over(turn)

    def take_back(self, request: Any) -> None:
        for session in self.sessions.values():
            for each in [each for each in session.waiting if each.request == request]:
                session.waiting.remove(each)
                self.taken_back(each)

    def taken_back(self, turn: Turn) -> None:
        self.refuse(turn.request, -32800)

    def stop(self, turn: Turn) -> None:
        for each in turn.session.waiting:
            self.refuse(each.request, -32800)
        turn.session.waiting.clear()
        super().stop(turn)

    # -- sessions --------------------------------------------------------------------------------------------------

    def resume(self, params: dict[str, Any]) -> dict[str, Any]:
        session = self.entered(params)
        wanted = params.get("replayFrom")
        if wanted is not None:
            self.check_cursor(wanted)
            self.replay(session)
        self.state(session, self.state_of(session))
        return self.settings(session)

    def state_of(self, session: Session) -> str:
        return "running" if session.turn else "idle"

    def check_cursor(self, wanted: Any) -> None:
        if not isinstance(wanted, dict) or wanted.get("type") != "start":
            raise Refused(-32602)

    def close(self, params: dict[str, Any]) -> dict[str, Any]:
        if params.get("sessionId") in self.sessions:
            self.cancel(params["sessionId"])
        return {}
