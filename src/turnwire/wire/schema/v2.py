"""ACP v2: typed views of requests and their answers, where they differ from v1.

Takes and gives typed views of JSON; never holds a rule.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import field

from turnwire.wire.schema.common import Draft, Implementation, Marker, NamedValue, PermissionOption
from turnwire.wire.schema.reading import Open, Strict, Wire
from turnwire.wire.schema.v2_update import AvailableCommand, ConfigOption, State, ToolCallPatch


class ClientAuthCapabilities(Wire):
    terminal: Marker = None


class ElicitationCapabilities(Wire):
    form: Marker = None
    url: Marker = None


class ClientCapabilities(Wire):
    auth: ClientAuthCapabilities | None = None
    elicitation: ElicitationCapabilities | None = None


class InitializeRequest(Wire):
    protocol_version: int
    info: Implementation
    capabilities: ClientCapabilities = ClientCapabilities()


class PromptCapabilities(Wire):
    image: Marker = None
    audio: Marker = None
    embedded_context: Marker = None


class McpCapabilities(Wire):
    stdio: Marker = None
    http: Marker = None
    acp: Marker = None


class SessionCapabilities(Wire):
    prompt: PromptCapabilities | None = None
    mcp: McpCapabilities | None = None
    delete: Marker = None
    additional_directories: Marker = None
    fork: Marker = None
    status: Marker = None
    archive: Marker = None
    title: Marker = None
    ready: Draft = None


class AgentAuthCapabilities(Wire):
    status: Marker = None


class AgentCapabilities(Wire):
    session: SessionCapabilities | None = None
    auth: AgentAuthCapabilities | None = None
    providers: Marker = None


class AgentAuthMethod(Wire, tag_field="type", tag="agent"):
    method_id: str
    name: str
    description: str | None = None


class TerminalAuthMethod(Wire, tag_field="type", tag="terminal"):
    method_id: str
    name: str
    description: str | None = None
    args: Strict[list[str]] = field(default_factory=list[str])
    env: Strict[list[NamedValue]] = field(default_factory=list[NamedValue])


AuthMethod: TypeAlias = Open[AgentAuthMethod | TerminalAuthMethod]


class InitializeResponse(Wire):
    protocol_version: int
    info: Implementation
    capabilities: AgentCapabilities = AgentCapabilities()
    auth_methods: list[AuthMethod] = field(default_factory=list[AuthMethod])


class LoginRequest(Wire):
    method_id: str


class StdioServer(Wire, tag_field="type", tag="stdio"):
    name: str
    command: str
    args: Strict[list[str]] = field(default_factory=list[str])
    env: Strict[list[NamedValue]] = field(default_factory=list[NamedValue])


class HttpServer(Wire, tag_field="type", tag="http"):
    name: str
    url: str
    headers: Strict[list[NamedValue]] = field(default_factory=list[NamedValue])


class AcpServer(Wire, tag_field="type", tag="acp"):
    name: str
    server_id: str


McpServer: TypeAlias = Open[StdioServer | HttpServer | AcpServer]


class ReplayFromStart(Wire, tag_field="type", tag="start"):
    pass


ReplayFrom: TypeAlias = Open[ReplayFromStart]


class NewSessionRequest(Wire):
    cwd: str
    mcp_servers: Strict[list[McpServer]] = field(default_factory=list[McpServer])
    additional_directories: Strict[list[str]] = field(default_factory=list[str])


class NewSessionResponse(Wire):
    """Also the answer to `session/fork`."""

    session_id: str
    config_options: list[ConfigOption] = field(default_factory=list[ConfigOption])
    available_commands: list[AvailableCommand] = field(default_factory=list[AvailableCommand])


class ResumeSessionRequest(Wire):
    """Also the params of `session/fork`, without `replay_from`."""

    session_id: str
    cwd: str
    mcp_servers: Strict[list[McpServer]] = field(default_factory=list[McpServer])
    additional_directories: Strict[list[str]] = field(default_factory=list[str])
    replay_from: Strict[ReplayFrom | None] = None


class ResumeSessionResponse(Wire):
    config_options: list[ConfigOption] = field(default_factory=list[ConfigOption])
    available_commands: list[AvailableCommand] = field(default_factory=list[AvailableCommand])


class SetConfigOptionResponse(Wire):
    config_options: list[ConfigOption]


class PromptResponse(Wire):
    """Says that the prompt is in the conversation. Agents of the first draft leave the id out."""

    message_id: str | None = None


class CancelToolCallRequest(Wire):
    session_id: str
    tool_call_id: str


class CancelTerminalRequest(Wire):
    session_id: str
    terminal_id: str


class ToolCallSubject(Wire, tag_field="type", tag="tool_call"):
    tool_call: ToolCallPatch


class CommandSubject(Wire, tag_field="type", tag="command"):
    command: str
    cwd: str
    tool_call_id: str | None = None
    terminal_id: str | None = None


PermissionSubject: TypeAlias = Open[ToolCallSubject | CommandSubject]


class RequestPermissionRequest(Wire):
    session_id: str
    title: str
    options: Strict[list[PermissionOption]]
    description: str | None = None
    subject: Strict[PermissionSubject | None] = None


class SessionStatusResponse(Wire):
    status: str
    state: State | None = None
