"""Released agents by short names: how each is started, and its known quirks.

A row is a released agent. Its data is from a run of `make agents`, or from the package's documentation if the agent
could not be run; `evidence` records which. `docs/agents.md` shows the table, `docs/interop.md` the results of each.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias


class Evidence(StrEnum):
    """The evidence for a row."""

    RUN = "run"
    """`make agents` ran it at that version."""
    STARTED = "started"
    """It was started and answered; a turn needs a login that was not available."""
    TOLD = "told"
    """It was not run here; the command is the one that its maker publishes."""


class Quirk(NamedTuple):
    """A peculiarity that users of this agent should know."""

    text: str
    test: str
    """The test that shows turnwire's handling of it, or the step of `make agents` that shows it."""


class KnownAgent(NamedTuple):
    """One released agent."""

    name: str
    """Its short name for users: `turnwire serve --agent NAME`."""
    label: str
    program: str
    """Its own program."""
    arguments: tuple[str, ...]
    """Arguments that make the program speak ACP."""
    keys: tuple[str, ...]
    """Environment variables that may hold its key; it may also have its own login."""
    version: str
    date: str
    """Date of the evidence."""
    evidence: Evidence
    npm: str | None = None
    pypi: str | None = None
    quirks: tuple[Quirk, ...] = ()


class Start(NamedTuple):
    """A way to start an agent now."""

    command: tuple[str, ...]
    by: str
    """Description of the starter: its own program, npx or uvx."""
    is_fetched: bool = True
    """True if it is not installed and a start downloads it first."""


class NoStart(NamedTuple):
    """Why an agent cannot be started now, and what to do."""

    why: str


Which: TypeAlias = Callable[[str], str | None]


def how_to_start(agent: KnownAgent, which: Which = shutil.which) -> Start | NoStart:
    """Return the command that starts `agent` on this machine: its own program if installed, else by its package."""
    if found := which(agent.program):
        return Start((found, *agent.arguments), "its own program", is_fetched=False)
    if agent.npm is not None and (npx := which("npx")):
        package = f"{agent.npm}@{agent.version}"
        return Start((npx, "-y", f"--package={package}", "--", agent.program, *agent.arguments), "npx")
    if agent.pypi is not None and (uvx := which("uvx")):
        package = f"{agent.pypi}=={agent.version}"
        return Start((uvx, "--from", package, agent.program, *agent.arguments), "uvx")
    return NoStart(_missing(agent))


def _missing(agent: KnownAgent) -> str:
    ways: list[str] = []
    if agent.npm is not None:
        ways.append("install Node, which brings npx")
    if agent.pypi is not None:
        ways.append("install uv, which brings uvx")
    sought = {"npx": agent.npm, "uvx": agent.pypi}
    absent = " and ".join(
        [f"`{agent.program}`", *(each for each, package in sought.items() if package is not None)]
    )
    verb = "are" if ways else "is"
    return f"{absent} {verb} not on PATH; " + ", or ".join([*ways, f"put `{agent.program}` on PATH"])


def known(name: str) -> KnownAgent | None:
    """Return the row of an agent by its short name, or `None` for an unknown name."""
    return _BY_NAME.get(name)


_DATE: Final = "2026-11-17"
_RERUN: Final = "2026-11-19"

KNOWN_AGENTS: Final[tuple[KnownAgent, ...]] = (
    KnownAgent(
        name="claude",
        label="Claude Agent",
        program="claude-agent-acp",
        arguments=(),
        keys=("ANTHROPIC_API_KEY",),
        version="0.100.0",
        date=_RERUN,
        evidence=Evidence.RUN,
        npm="@agentclientprotocol/claude-agent-acp",
    ),
    KnownAgent(
        name="codex",
        label="Codex",
        program="codex-acp",
        arguments=(),
        keys=("OPENAI_API_KEY", "CODEX_API_KEY"),
        version="2.6.0",
        date=_RERUN,
        evidence=Evidence.RUN,
        npm="@agentclientprotocol/codex-acp",
        quirks=(
            Quirk(
                "begins in a mode in which a model reviews its tool calls; it asks its user in `workspace-write`",
                "make agents, permission allowed",
            ),
        ),
    ),
    KnownAgent(
        name="gemini",
        label="Gemini CLI",
        program="gemini",
        arguments=("--acp",),
        keys=("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        version="0.61.0",
        date=_RERUN,
        evidence=Evidence.RUN,
        npm="@google/gemini-cli",
        quirks=(
            Quirk(
                "answers `session/load` before it tells the history; it is compared all the same",
                "tests/process/test_repeats.py::test_a_replay_behind_the_answer_to_a_load_is_not_stored_again_either",
            ),
            Quirk(
                "cleans up when it starts and may delete the session of a process that was killed: it is `lost`",
                "make agents, agent killed",
            ),
            Quirk(
                "says a new mode in words, as a message: `[MODE_UPDATE] plan`",
                "make agents, mode kept",
            ),
        ),
    ),
    KnownAgent(
        name="opencode",
        label="OpenCode",
        program="opencode",
        arguments=("acp",),
        keys=("ANTHROPIC_API_KEY", "OPENAI_API_KEY"),
        version="1.18.33",
        date=_RERUN,
        evidence=Evidence.RUN,
        npm="opencode-ai",
    ),
    KnownAgent(
        name="qwen",
        label="Qwen Code",
        program="qwen",
        arguments=("--acp",),
        keys=("OPENAI_API_KEY", "DASHSCOPE_API_KEY"),
        version="0.24.4",
        date=_RERUN,
        evidence=Evidence.RUN,
        npm="@qwen-code/qwen-code",
    ),
    KnownAgent(
        name="kimi",
        label="Kimi Code",
        program="kimi",
        arguments=("acp",),
        keys=("KIMI_API_KEY",),
        version="2.1.0",
        date=_RERUN,
        evidence=Evidence.RUN,
        npm="@moonshot-ai/kimi-code",
        quirks=(
            Quirk(
                "comes back in `plan`, says `default` and refuses to be told `plan`: prompts end as `choices_lost`",
                "tests/cli/test_choices.py::test_an_agent_that_does_not_take_them_holds_the_queue_until_a_user_chooses",
            ),
        ),
    ),
    KnownAgent(
        name="vibe",
        label="Mistral Vibe",
        program="vibe-acp",
        arguments=(),
        keys=("MISTRAL_API_KEY",),
        version="3.0.2",
        date=_DATE,
        evidence=Evidence.RUN,
        pypi="mistral-vibe",
    ),
    KnownAgent(
        name="copilot",
        label="GitHub Copilot",
        program="copilot",
        arguments=("--acp",),
        keys=("COPILOT_GITHUB_TOKEN", "GH_TOKEN", "GITHUB_TOKEN"),
        version="1.0.102",
        date=_DATE,
        evidence=Evidence.STARTED,
        npm="@github/copilot",
    ),
    KnownAgent(
        name="cline",
        label="Cline",
        program="cline",
        arguments=("--acp",),
        keys=("CLINE_API_KEY",),
        version="3.0.65",
        date=_DATE,
        evidence=Evidence.STARTED,
        npm="cline",
    ),
    KnownAgent(
        name="auggie",
        label="Auggie CLI",
        program="auggie",
        arguments=("--acp",),
        keys=("AUGMENT_SESSION_AUTH",),
        version="0.36.0",
        date=_DATE,
        evidence=Evidence.STARTED,
        npm="@augmentcode/auggie",
    ),
    KnownAgent(
        name="qoder",
        label="Qoder CLI",
        program="qodercli",
        arguments=("--acp",),
        keys=("QODER_PERSONAL_ACCESS_TOKEN",),
        version="1.1.52",
        date=_DATE,
        evidence=Evidence.STARTED,
        npm="@qoder-ai/qodercli",
    ),
    KnownAgent(
        name="droid",
        label="Factory Droid",
        program="droid",
        arguments=("exec", "--output-format", "acp"),
        keys=("FACTORY_API_KEY",),
        version="0.225.1",
        date=_DATE,
        evidence=Evidence.TOLD,
        npm="@factory/cli",
    ),
    KnownAgent(
        name="kilo",
        label="Kilo",
        program="kilo",
        arguments=("acp",),
        keys=("ANTHROPIC_API_KEY", "OPENAI_API_KEY"),
        version="7.7.7",
        date=_DATE,
        evidence=Evidence.RUN,
        npm="@kilocode/cli",
        quirks=(
            Quirk(
                "may ask something after a turn that was broken off, but not over ACP: the prompt then has no end",
                "make agents, daemon killed",
            ),
        ),
    ),
    KnownAgent(
        name="hermes",
        label="Hermes Agent",
        program="hermes-acp",
        arguments=(),
        keys=("OPENROUTER_API_KEY", "ANTHROPIC_API_KEY", "OPENAI_API_KEY"),
        version="0.19.0",
        date=_DATE,
        evidence=Evidence.RUN,
        pypi="hermes-agent[acp]",
        quirks=(
            Quirk(
                "tells the history at `session/resume`; it is compared",
                "tests/process/test_repeats.py::test_a_replay_on_resume_is_compared_and_not_stored_again",
            ),
        ),
    ),
    KnownAgent(
        name="fast-agent",
        label="fast-agent",
        program="fast-agent-acp",
        arguments=("-x",),
        keys=("ANTHROPIC_API_KEY", "OPENAI_API_KEY"),
        version="0.10.48",
        date=_DATE,
        evidence=Evidence.TOLD,
        pypi="fast-agent-acp",
    ),
    KnownAgent(
        name="goose",
        label="goose",
        program="goose",
        arguments=("acp",),
        keys=("ANTHROPIC_API_KEY", "OPENAI_API_KEY"),
        version="1.50.1",
        date=_DATE,
        evidence=Evidence.TOLD,
    ),
    KnownAgent(
        name="cursor",
        label="Cursor",
        program="cursor-agent",
        arguments=("acp",),
        keys=("CURSOR_API_KEY",),
        version="2026.10.01",
        date=_DATE,
        evidence=Evidence.TOLD,
    ),
)

_BY_NAME: Final[Mapping[str, KnownAgent]] = {each.name: each for each in KNOWN_AGENTS}
