"""An agent on the official SDK with everything that its interface has. It is adapted. Runs as a program.

The first word of a prompt decides. The name of each called method is sent, so that a test can read it.
"""
# The SDK is in a separate environment, so the types of its imports are unknown here.
# pyright: basic, reportMissingImports=false

from __future__ import annotations

import asyncio
import sys

import acp
from acp import schema

from turnwire.agent import AgentOptions
from turnwire_agent.adapter import adapt

OPTIONS = [
    schema.PermissionOption(option_id="yes", name="Do it", kind="allow_once"),
    schema.PermissionOption(option_id="no", name="Leave it", kind="reject_once"),
]
USAGE = schema.Usage(total_tokens=9, input_tokens=5, output_tokens=2, thought_tokens=2, cached_write_tokens=1)
KNOWN = {"old": ["before"]}
"""Sessions that it kept from an earlier life."""


class Player(acp.Agent):
    """Follow the prompt's first word, and send every received request."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.stops: dict[str, asyncio.Event] = {}
        self.capabilities: schema.ClientCapabilities = schema.ClientCapabilities()

    def on_connect(self, conn) -> None:
        self.client = conn

    async def initialize(self, protocol_version, client_capabilities=None, client_info=None, **kwargs):
        assert client_capabilities is not None
        assert client_info is not None
        self.capabilities = client_capabilities
        self.calls.append(f"initialize {protocol_version} {client_info.name}")
        return acp.InitializeResponse(
            protocol_version=1,
            agent_info=schema.Implementation(name="player", version="3", title="The player"),
            auth_methods=[schema.AuthMethodAgent(id="door", name="By the door")],
            agent_capabilities=schema.AgentCapabilities(
                load_session=True,
                prompt_capabilities=schema.PromptCapabilities(image=True),
                session_capabilities=schema.SessionCapabilities(
                    list=schema.SessionListCapabilities(), close=schema.SessionCloseCapabilities()
                ),
            ),
        )

    async def authenticate(self, method_id, **kwargs):
        self.calls.append(f"authenticate {method_id}")

    async def new_session(self, cwd, mcp_servers=None, **kwargs):
        # Before its own answer: nothing of it may be lost, and nothing may overtake the answer.
        command = schema.AvailableCommand(name="play", description="Play")
        update = schema.AvailableCommandsUpdate(
            session_update="available_commands_update", available_commands=[command]
        )
        await self.client.session_update("mine", update)
        return acp.NewSessionResponse(
            session_id="mine",
            modes=schema.SessionModeState(
                current_mode_id="slow",
                available_modes=[schema.SessionMode(id=each, name=each.title()) for each in ("fast", "slow")],
            ),
        )

    async def load_session(self, cwd, session_id, mcp_servers=None, **kwargs):
        if session_id not in KNOWN:
            raise acp.RequestError.resource_not_found(session_id)
        for text in KNOWN[session_id]:
            await self.say(session_id, text)
        return acp.LoadSessionResponse()

    async def list_sessions(self, cwd=None, cursor=None, **kwargs):
        listed = [schema.SessionInfo(session_id=each, cwd="/", title=each.title()) for each in KNOWN]
        return schema.ListSessionsResponse(sessions=listed)

    async def close_session(self, session_id, **kwargs):
        self.calls.append(f"close {session_id}")

    async def set_session_mode(self, session_id, mode_id, **kwargs):
        self.calls.append(f"mode {mode_id}")

    async def cancel(self, session_id, **kwargs):
        self.calls.append("cancel")
        self.stops[session_id].set()

    async def ext_method(self, method, params):
        return {"method": method, **params}

    async def ext_notification(self, method, params):
        self.calls.append(f"notified {method}")
        if method == "example/late":
            self.later.set()

    async def prompt(self, session_id, prompt, **kwargs):
        self.stops[session_id] = asyncio.Event()
        word, _, rest = prompt[0].text.partition(" ")
        act = getattr(self, f"play_{word}")
        return await act(session_id, rest) or acp.PromptResponse(stop_reason="end_turn")

    async def say(self, session_id, text):
        # The newer release has no short words for updates.
        block = schema.TextContentBlock(type="text", text=text)
        update = schema.AgentMessageChunk(session_update="agent_message_chunk", content=block)
        await self.client.session_update(session_id, update)

    async def play_calls(self, session_id, rest):
        await self.say(session_id, ", ".join(self.calls))

    async def play_capabilities(self, session_id, rest):
        await self.say(session_id, self.capabilities.model_dump_json(by_alias=True, exclude_none=True))

    async def play_refuse(self, session_id, rest):
        return acp.PromptResponse(stop_reason="refusal")

    async def play_error(self, session_id, rest):
        raise acp.RequestError(-32050, "not today", {"why": rest})

    async def play_crash(self, session_id, rest):
        raise ValueError("a secret of the machine")

    async def play_ask(self, session_id, rest):
        call = acp.start_edit_tool_call("edit-1", "Edit a file", "/tmp/file", "new text")
        await self.client.session_update(session_id, call)
        asked = schema.ToolCallUpdate(tool_call_id="edit-1", title="Edit a file")
        answer = await self.client.request_permission(session_id, asked, OPTIONS)
        chosen = getattr(answer.outcome, "option_id", answer.outcome.outcome)
        await self.client.session_update(session_id, acp.update_tool_call("edit-1", status="completed"))
        await self.say(session_id, chosen)

    async def play_read(self, session_id, rest):
        try:
            found = await self.client.read_text_file(path=rest, session_id=session_id)
        except acp.RequestError as error:
            await self.say(session_id, f"refused {error.code}")
        else:
            await self.say(session_id, found.content)

    async def play_mode(self, session_id, rest):
        update = schema.CurrentModeUpdate(session_update="current_mode_update", current_mode_id=rest)
        await self.client.session_update(session_id, update)

    async def play_extend(self, session_id, rest):
        answer = await self.client.ext_method("example/ask", {"sessionId": session_id})
        await self.client.ext_notification("example/tell", {"sessionId": session_id})
        await self.say(session_id, answer["said"])

    async def play_wait(self, session_id, rest):
        await self.say(session_id, "waiting")
        await self.stops[session_id].wait()
        await self.say(session_id, "stopping")
        return acp.PromptResponse(stop_reason="cancelled", usage=USAGE)

    async def play_spend(self, session_id, rest):
        return acp.PromptResponse(stop_reason="end_turn", usage=USAGE)

    async def play_work(self, session_id, rest):
        await self.client.session_update(
            session_id, acp.start_edit_tool_call("edit-1", "Edit", "/tmp/file", "text")
        )
        return await self.play_wait(session_id, rest)

    async def play_hang(self, session_id, rest):
        await self.say(session_id, "waiting")
        try:
            await asyncio.Event().wait()
        finally:
            self.calls.append("stopped")

    async def play_later(self, session_id, rest):
        self.later = asyncio.Event()

        async def late() -> None:
            await self.later.wait()
            await self.say(session_id, "late")

        self.task = asyncio.ensure_future(late())

    async def play_now(self, session_id, rest):
        # What an earlier prompt started works for this one.
        self.later.set()
        await self.task


if __name__ == "__main__":
    options = AgentOptions(max_cancel_s=1.0)
    adapt(Player() if sys.argv[1] == "object" else lambda conn: Player(), options=options).run()
