"""The information that one version of ACP cannot express, with its replacement in that version.

A translator counts losses by these codes and loses nothing that is not on the list.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple


class Direction(StrEnum):
    """The direction of a translation."""

    TO_V2 = "v1 to v2"
    TO_V1 = "v2 to v1"


class Loss(NamedTuple):
    """Information that the other version cannot express."""

    code: str
    direction: Direction
    what: str
    instead: str


_V2, _V1 = Direction.TO_V2, Direction.TO_V1

LOSSES: Final[tuple[Loss, ...]] = (
    # -- from v1 to v2
    Loss(
        "terminal_of_client", _V2, "a tool call that shows a terminal of the client", "a line of text in its place"
    ),
    Loss("diff_texts", _V2, "the whole old and new text of a diff", "the change, and a patch that makes it"),
    Loss("line_zero", _V2, "line 0 of a location", "the location without a line"),
    Loss("mode_not_listed", _V2, "a mode that the agent did not list", "it is listed under its id"),
    Loss("option_without_values", _V2, "a select option with no values", "left out"),
    Loss("models", _V2, "`models` in the answer that opens a session", "left out"),
    Loss("mcp_sse", _V2, "an MCP server over SSE, which v2 agents do not take", "left out"),
    Loss(
        "client_files",
        _V2,
        "`fs/*` and `terminal/*`, which v2 clients do not serve",
        "turnwire serves them, or refuses",
    ),
    # -- from v2 to v1
    Loss("scalar_clear", _V1, "title, name, input or output of a tool call cleared", "the old value stays"),
    Loss("meta_clear", _V1, "all of the `_meta` of a tool call cleared", "the old keys stay"),
    Loss(
        "tool_status",
        _V1,
        "tool status `cancelled`, `paused` or one that v1 does not have",
        "`failed` or `in_progress`",
    ),
    Loss("tool_kind", _V1, "a tool kind that v1 does not have", "`other`"),
    Loss("tool_title", _V1, "a tool call without a title", "its name, kind or id is the title"),
    Loss("item_capabilities", _V1, "whether one tool call or terminal can be cancelled", "left out"),
    Loss(
        "terminal_of_agent",
        _V1,
        "a terminal of the agent",
        "its text in the tool call that shows it, as far as one does",
    ),
    Loss("diff_changes", _V1, "a diff as changes and a patch", "the patch, or the list of changes, as text"),
    Loss("content_unknown", _V1, "content of a type that v1 does not have", "a line of text in its place"),
    Loss(
        "message_replaced",
        _V1,
        "a message whose content is replaced or cleared",
        "the content that was sent first stays",
    ),
    Loss("message_meta", _V1, "`_meta` of a whole message", "on the first piece sent of it, if any is sent"),
    Loss("plan_several", _V1, "more than one plan", "one plan with the entries of all"),
    Loss("plan_form", _V1, "a plan that is not a list of entries", "left out"),
    Loss(
        "plan_entry",
        _V1,
        "a cancelled plan entry, or a status or priority that v1 does not have",
        "left out, `in_progress`, `medium`",
    ),
    Loss("option_type", _V1, "an option that is no select, or a boolean for a client that takes none", "left out"),
    Loss("command_type", _V1, "a command, or a command's input, of a type that v1 does not have", "left out"),
    Loss("background", _V1, "what runs in the background", "left out"),
    Loss(
        "permission_words", _V1, "a permission request's own title and description beside a tool call", "in `_meta`"
    ),
    Loss(
        "permission_subject",
        _V1,
        "a permission request about something else than a tool call",
        "a tool call made for it",
    ),
    Loss(
        "permission_option",
        _V1,
        "a kind of permission option that v1 does not have",
        "`reject_once`, so that it never looks like consent",
    ),
    Loss(
        "outcome_unknown",
        _V1,
        "an answer to a permission request that v1 does not have",
        "`cancelled`, which is no consent",
    ),
    Loss("auth_method", _V1, "a login method of a type that v1 does not have", "left out"),
    Loss(
        "stop_reason",
        _V1,
        "a stop reason that v1 does not have",
        "an error for one that begins with `_`, else `end_turn`",
    ),
    Loss(
        "accepted_members",
        _V1,
        "what an agent says beside the id when it takes a prompt, and its `_meta` there",
        "left out",
    ),
    Loss("not_asked_for", _V1, "a kind of update that a v1 client must ask for and did not", "left out"),
    Loss("unknown_update", _V1, "an update of a kind that v1 does not have", "passed on as it is"),
)
"""Every loss, by direction."""
