"""ACP v1: typed views of requests and their answers, where they differ from v2.

Takes and gives typed views of JSON; never holds a rule.
"""

from __future__ import annotations

from msgspec import UNSET, UnsetType, field

from turnwire.wire.schema.common import (
    Draft,
    Implementation,
    Marker,
    NamedValue,
    PermissionOption,
    TerminalExit,
    Usage,
)
from turnwire.wire.schema.reading import Loose, Strict, Wire
from turnwire.wire.schema.v1_update import ConfigOption, ToolCallPatch


class FileSystemCapabilities(Wire):
    read_text_file: bool = False
    write_text_file: bool = False


class ConfigOptionsCapabilities(Wire):
    boolean: Marker = None


class ClientSessionCapabilities(Wire):
    config_options: ConfigOptionsCapabilities | None = None
    compaction: Marker = None
    notices: Marker = None
    turn_complete: Draft = None


class ClientAuthCapabilities(Wire):
    terminal: bool = False


class ElicitationCapabilities(Wire):
    form: Marker = None
    url: Marker = None


class ClientCapabilities(Wire):
    fs: FileSystemCapabilities = FileSystemCapabilities()
    terminal: bool = False
    auth: ClientAuthCapabilities = ClientAuthCapabilities()
    session: ClientSessionCapabilities | None = None
    elicitation: ElicitationCapabilities | None = None
    plan: Marker = None
    subagents: Marker = None


class InitializeRequest(Wire):
    protocol_version: int
    client_capabilities: ClientCapabilities = ClientCapabilities()
    client_info: Implementation | None = None


class PromptCapabilities(Wire):
    image: bool = False
    audio: bool = False
    embedded_context: bool = False


class McpCapabilities(Wire):
    http: bool = False
    sse: bool = False
    acp: bool = False


class SessionCapabilities(Wire):
    list: Marker = None
    delete: Marker = None
    resume: Marker = None
    close: Marker = None
    additional_directories: Marker = None
    fork: Marker = None
    status: Marker = None
    archive: Marker = None
    title: Marker = None
    turn_complete: Draft = None
    ready: Draft = None


class AgentAuthCapabilities(Wire):
    logout: Marker = None
    status: Marker = None


class AgentCapabilities(Wire):
    load_session: bool = False
    prompt_capabilities: PromptCapabilities = PromptCapabilities()
    mcp_capabilities: McpCapabilities = McpCapabilities()
    session_capabilities: SessionCapabilities = SessionCapabilities()
    auth: AgentAuthCapabilities = AgentAuthCapabilities()
    providers: Marker = None


class AuthMethod(Wire):
    """A way to log in. `type` is `terminal`, or else the agent does it by itself."""

    id: str
    name: str
    description: str | None = None
    type: str = "agent"
    args: Strict[list[str]] = field(default_factory=list[str])
    env: Strict[dict[str, str]] = field(default_factory=dict[str, str])


class InitializeResponse(Wire):
    protocol_version: int
    agent_capabilities: AgentCapabilities = AgentCapabilities()
    auth_methods: list[AuthMethod] = field(default_factory=list[AuthMethod])
    agent_info: Implementation | None = None


class AuthenticateRequest(Wire):
    method_id: str


class McpServer(Wire):
    """A stdio server has no `type` on the wire; `http`, `sse` and `acp` have theirs."""

    name: str
    type: str = "stdio"
    command: str | UnsetType = UNSET
    args: Strict[list[str] | UnsetType] = UNSET
    env: Strict[list[NamedValue] | UnsetType] = UNSET
    url: str | UnsetType = UNSET
    headers: Strict[list[NamedValue] | UnsetType] = UNSET
    server_id: str | UnsetType = UNSET


class SessionMode(Wire):
    id: str
    name: str
    description: str | None = None


class SessionModeState(Wire):
    current_mode_id: str
    available_modes: Loose[list[SessionMode]]


class NewSessionRequest(Wire):
    cwd: str
    mcp_servers: Strict[list[McpServer]]
    additional_directories: Strict[list[str]] = field(default_factory=list[str])


class NewSessionResponse(Wire):
    """Also the answer to `session/fork`."""

    session_id: str
    modes: SessionModeState | None = None
    config_options: list[ConfigOption] | None = None


class LoadSessionRequest(Wire):
    session_id: str
    cwd: str
    mcp_servers: Strict[list[McpServer]]
    additional_directories: Strict[list[str]] = field(default_factory=list[str])


class ResumeSessionRequest(Wire):
    """Also the params of `session/fork`."""

    session_id: str
    cwd: str
    mcp_servers: Strict[list[McpServer]] = field(default_factory=list[McpServer])
    additional_directories: Strict[list[str]] = field(default_factory=list[str])


class LoadSessionResponse(Wire):
    """Also the answer to `session/resume`."""

    modes: SessionModeState | None = None
    config_options: list[ConfigOption] | None = None


class SetModeRequest(Wire):
    session_id: str
    mode_id: str


class SetConfigOptionResponse(Wire):
    config_options: Loose[list[ConfigOption]]


class PromptResponse(Wire):
    stop_reason: str
    usage: Usage | None = None


class RequestPermissionRequest(Wire):
    session_id: str
    tool_call: ToolCallPatch
    options: Strict[list[PermissionOption]]


class ReadTextFileRequest(Wire):
    session_id: str
    path: str
    line: Strict[int | None] = None
    limit: Strict[int | None] = None


class ReadTextFileResponse(Wire):
    content: str


class WriteTextFileRequest(Wire):
    session_id: str
    path: str
    content: str


class CreateTerminalRequest(Wire):
    session_id: str
    command: str
    args: Strict[list[str]] = field(default_factory=list[str])
    env: Strict[list[NamedValue]] = field(default_factory=list[NamedValue])
    cwd: Strict[str | None] = None
    output_byte_limit: Strict[int | None] = None


class CreateTerminalResponse(Wire):
    terminal_id: str


class TerminalRequest(Wire):
    """Params of `terminal/output`, `wait_for_exit`, `kill` and `release`."""

    session_id: str
    terminal_id: str


class TerminalOutputResponse(Wire):
    output: str
    truncated: bool
    exit_status: TerminalExit | None = None
