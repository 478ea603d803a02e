"""Table of released clients, by their `initialize` names, with the drafts of ACP that they lack.

Drafts are offered to every client that may know them. A client of this table does not: it would log updates that it
cannot decode, or turnwire would wait for it in vain. A row is removed as soon as its client supports the draft.
`docs/interop.md` shows the table as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple


class Evidence(StrEnum):
    """The source of a row."""

    SEEN = "seen"
    """The client was run at that version, or its source of that day was read."""
    ASSUMED = "assumed"
    """The client is closed; the row follows from its SDK and from reports of agents."""


class KnownClient(NamedTuple):
    """A released client."""

    name: str
    """`clientInfo.name`, as the client writes it."""
    product: str
    version: str
    date: str
    """The date of that version, or of the source that was read."""
    evidence: Evidence
    why: str
    turn_complete: bool = False
    """True if it accepts the `turn_complete` update."""
    ready: bool = False
    """True if it sends `session/ready`."""


_SEEN, _ASSUMED = Evidence.SEEN, Evidence.ASSUMED
_LOGS = "its SDK knows a closed set of updates and logs others"
_IGNORES = "passes over updates that it does not know"
_NEITHER = "its source has neither word"

KNOWN_CLIENTS: Final[tuple[KnownClient, ...]] = (
    KnownClient("zed", "Zed", "1.18.0", "2026-08-22", _SEEN, _LOGS),
    KnownClient("JetBrains.IntelliJ IDEA", "IntelliJ IDEA", "2026.1", "2026-04-30", _ASSUMED, _LOGS),
    KnownClient("JetBrains.PyCharm", "PyCharm", "2026.1", "2026-04-30", _ASSUMED, "as IntelliJ IDEA"),
    KnownClient("JetBrains.WebStorm", "WebStorm", "2026.1", "2026-04-30", _ASSUMED, "as IntelliJ IDEA"),
    KnownClient("JetBrains.GoLand", "GoLand", "2026.1", "2026-04-30", _ASSUMED, "as IntelliJ IDEA"),
    KnownClient("JetBrains.CLion", "CLion", "2026.1", "2026-04-30", _ASSUMED, "as IntelliJ IDEA"),
    KnownClient("JetBrains.PhpStorm", "PhpStorm", "2026.1", "2026-04-30", _ASSUMED, "as IntelliJ IDEA"),
    KnownClient("JetBrains.RubyMine", "RubyMine", "2026.1", "2026-04-30", _ASSUMED, "as IntelliJ IDEA"),
    KnownClient("JetBrains.RustRover", "RustRover", "2026.1", "2026-04-30", _ASSUMED, "as IntelliJ IDEA"),
    KnownClient("acpx", "acpx", "0.19.1", "2026-11-15", _SEEN, "prints an error for each update of another kind"),
    KnownClient("toad", "Toad", "0.6.18", "2026-05-17", _SEEN, _IGNORES),
    KnownClient("CodeCompanion.nvim", "CodeCompanion for Neovim", "19.22.0", "2026-08-08", _SEEN, _IGNORES),
    KnownClient("hermes", "hermes.nvim", "0.3.0", "2026-04-23", _SEEN, _LOGS),
    KnownClient("agent-shell", "agent-shell for Emacs", "0.40.1", "2026", _SEEN, _NEITHER),
    KnownClient("QtCreator", "Qt Creator", "20.0.1", "2026-08-21", _SEEN, _NEITHER),
    KnownClient("obsidian-agent-client", "Agent Client for Obsidian", "0.10.6", "2026-06-13", _SEEN, _LOGS),
    KnownClient("agent-console", "Agent Console for Obsidian", "2.3.0", "2026-08-15", _SEEN, _LOGS),
    KnownClient("obsidian-copilot", "Copilot for Obsidian", "4.0.2", "2026-08-22", _SEEN, _LOGS),
    KnownClient("vscode-acp-client", "ACP Client for VS Code", "0.2.0", "2026-05-16", _SEEN, _LOGS),
    KnownClient("vscode-acp", "VSCode ACP", "1.3.0", "2025-12-29", _SEEN, _LOGS),
    KnownClient("acp-ui", "ACP UI", "0.1.15", "2026-05-10", _SEEN, _LOGS),
    KnownClient("DeepChat", "DeepChat", "1.1.0-beta.12", "2026-08-08", _SEEN, _LOGS),
    KnownClient("mitto", "Mitto", "0.2.1", "2026-06-18", _SEEN, _LOGS),
    KnownClient("ngent", "Ngent", "0.4.0", "2026-06-21", _SEEN, _NEITHER),
)

_BY_NAME: Final[Mapping[str, KnownClient]] = {each.name.casefold(): each for each in KNOWN_CLIENTS}


def find_client(name: str | None) -> KnownClient | None:
    """Return the row of a client by its name, ignoring case; `None` for an unknown or unnamed client."""
    return None if name is None else _BY_NAME.get(name.casefold())
