"""Recipes that point an agent at a fake model: the API it speaks, the files in its home, and its tools.

The URL of a fake model becomes variables and files. Nothing here reaches a network: keys are made up, and telemetry
of the agent is disabled where it has a setting for it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, TypeAlias

from turnwire_testing.models.anthropic import FakeAnthropic
from turnwire_testing.models.gemini import FakeGemini
from turnwire_testing.models.openai import FakeOpenAI
from turnwire_testing.models.responses import FakeResponses
from turnwire_testing.models.server import CallTool, FakeServer, Script

KEY = "sk-fake"
MODEL = "fake-model"


Texts: TypeAlias = Mapping[str, str]


def nothing(url: str) -> Texts:
    """The settings of an agent that needs none."""
    return {}


class Recipe(NamedTuple):
    """The requirements of one agent, or those shared by all agents of one API."""

    server: Callable[[Script], FakeServer]
    tool: str = ""
    """The agent's tool that runs a command and needs permission; empty if unknown."""
    command: str = ""
    """The argument of the tool that is the command."""
    more: Mapping[str, object] = {}
    """Further arguments of the tool."""
    env: Callable[[str], Texts] = nothing
    """Variables, by the URL of the fake model."""
    files: Callable[[str], Texts] = nothing
    """Files in its home, by the URL of the fake model."""
    asks_in: str | None = None
    """The mode in which it asks its user, if it begins in another."""
    script: str = "touch {}"
    """The command that makes a file, and for which the agent asks."""

    def call(self, name: str) -> CallTool:
        """The tool call that makes a file of this name."""
        return CallTool(self.tool, {self.command: self.script.format(name), **self.more})


def _claude_env(url: str) -> Texts:
    return {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": KEY,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_AUTOUPDATER": "1",
        "DISABLE_ERROR_REPORTING": "1",
    }


def _codex_files(url: str) -> Texts:
    lines = [
        f'model = "{MODEL}"',
        'model_provider = "fake"',
        'approval_policy = "on-request"',
        'approvals_reviewer = "user"',
        "check_for_update_on_startup = false",
        "[model_providers.fake]",
        'name = "fake"',
        f'base_url = "{url}"',
        'env_key = "CODEX_API_KEY"',
        'wire_api = "responses"',
        "request_max_retries = 0",
        "[analytics]",
        "enabled = false",
        "[otel]",
        'exporter = "none"',
    ]
    return {".codex/config.toml": "\n".join(lines) + "\n"}


def _gemini_env(url: str) -> Texts:
    # Name the model explicitly: otherwise the agent first asks another model which one to use, without streaming.
    model = {"GEMINI_MODEL": "gemini-2.5-flash"}
    return {**model, "GEMINI_API_KEY": KEY, "GOOGLE_GEMINI_BASE_URL": url, "GEMINI_CLI_TRUST_WORKSPACE": "true"}


def _gemini_files(url: str) -> Texts:
    settings = {
        "security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": False}},
        "general": {"disableAutoUpdate": True, "enableAutoUpdate": False},
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
    }
    return {".gemini/settings.json": json.dumps(settings)}


def _qwen_files(url: str) -> Texts:
    settings = {
        "security": {"auth": {"selectedType": "openai"}, "folderTrust": {"enabled": False}},
        "general": {"disableAutoUpdate": True, "enableAutoUpdate": False},
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
    }
    return {".qwen/settings.json": json.dumps(settings)}


def _opencode_files(url: str) -> Texts:
    return {".config/opencode/opencode.json": _opencode_settings(url)}


def _kilo_files(url: str) -> Texts:
    return {".config/kilo/kilo.json": _opencode_settings(url)}


def _opencode_settings(url: str) -> str:
    """Return OpenCode's settings, which Kilo reads as well."""
    model = {"name": MODEL, "tool_call": True, "limit": {"context": 200000, "output": 8000}}
    settings = {
        "model": f"fake/{MODEL}",
        "small_model": f"fake/{MODEL}",
        "autoupdate": False,
        "share": "disabled",
        "permission": {"bash": "ask"},
        "provider": {
            "fake": {
                "npm": "@ai-sdk/openai-compatible",
                "name": "fake",
                "options": {"baseURL": url, "apiKey": KEY},
                "models": {MODEL: model},
            }
        },
    }
    return json.dumps(settings)


def _kimi_env(url: str) -> Texts:
    model = {"NAME": MODEL, "PROVIDER_TYPE": "openai", "BASE_URL": url, "API_KEY": KEY}
    quiet = {"KIMI_CODE_NO_AUTO_UPDATE": "1", "KIMI_DISABLE_TELEMETRY": "1"}
    return {**{f"KIMI_MODEL_{name}": value for name, value in model.items()}, **quiet}


def _vibe_files(url: str) -> Texts:
    lines = [
        'active_model = "fake"',
        "enable_update_checks = false",
        "enable_telemetry = false",
        "[[providers]]",
        'name = "fake"',
        f'api_base = "{url}"',
        'api_key_env_var = "MISTRAL_API_KEY"',
        'api_style = "openai"',
        'backend = "generic"',
        "[[models]]",
        f'name = "{MODEL}"',
        'provider = "fake"',
        'alias = "fake"',
    ]
    return {".vibe/config.toml": "\n".join(lines) + "\n", ".vibe/.env": f"MISTRAL_API_KEY={KEY}\n"}


def _opencode_env(url: str) -> Texts:
    return {"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"}


def _kilo_env(url: str) -> Texts:
    return {"KILO_DISABLE_AUTOUPDATE": "1", "KILO_DISABLE_MODELS_FETCH": "1", "KILO_TELEMETRY_LEVEL": "off"}


def _hermes_files(url: str) -> Texts:
    lines = ["model:", f"  default: {MODEL}", "  provider: custom", f"  base_url: {url}", f"  api_key: {KEY}"]
    return {".hermes/config.yaml": "\n".join(lines) + "\n"}


def _codex_env(url: str) -> Texts:
    return {"CODEX_API_KEY": KEY, "OPENAI_API_KEY": KEY}


def _qwen_env(url: str) -> Texts:
    return {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": url, "OPENAI_MODEL": MODEL}


def _vibe_env(url: str) -> Texts:
    return {"MISTRAL_API_KEY": KEY}


def _openai_env(url: str) -> Texts:
    # Both names of the address: libraries differ in which one they read.
    return {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": url, "OPENAI_API_BASE": url, "OPENAI_MODEL": MODEL}


def _anthropic_env(url: str) -> Texts:
    return {"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": url, "ANTHROPIC_MODEL": MODEL}


def _google_env(url: str) -> Texts:
    return {"GEMINI_API_KEY": KEY, "GOOGLE_API_KEY": KEY, "GOOGLE_GEMINI_BASE_URL": url, "GEMINI_MODEL": MODEL}


WHY = {"description": "Make a file"}
ESCALATED = {"sandbox_permissions": "require_escalated", "justification": "May I make a file?"}

RECIPES: Final[Mapping[str, Recipe]] = {
    "claude": Recipe(FakeAnthropic, "Bash", "command", WHY, _claude_env),
    "codex": Recipe(
        FakeResponses, "exec_command", "cmd", ESCALATED, _codex_env, _codex_files, asks_in="workspace-write"
    ),
    "gemini": Recipe(FakeGemini, "run_shell_command", "command", WHY, _gemini_env, _gemini_files),
    "opencode": Recipe(FakeOpenAI, "bash", "command", WHY, _opencode_env, _opencode_files),
    "qwen": Recipe(
        FakeOpenAI, "run_shell_command", "command", {**WHY, "is_background": False}, _qwen_env, _qwen_files
    ),
    "kimi": Recipe(FakeOpenAI, "Bash", "command", WHY, _kimi_env),
    "vibe": Recipe(FakeOpenAI, "bash", "command", {}, _vibe_env, _vibe_files),
    "kilo": Recipe(FakeOpenAI, "bash", "command", WHY, _kilo_env, _kilo_files),
    "hermes": Recipe(
        FakeOpenAI, "terminal", "command", {}, files=_hermes_files, script="rm -rf nothing-there; touch {}"
    ),
}
"""By the short names of known agents."""

APIS: Final[Mapping[str, Recipe]] = {
    "openai": Recipe(FakeOpenAI, env=_openai_env),
    "openai-responses": Recipe(FakeResponses, env=_openai_env),
    "anthropic": Recipe(FakeAnthropic, env=_anthropic_env),
    "google": Recipe(FakeGemini, env=_google_env),
}
"""For any other agent: the variables that libraries of an API read."""
