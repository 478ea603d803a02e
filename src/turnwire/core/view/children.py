"""Child sessions as clients read of them: who announced each, what it is called, what it does.

An announcement is a patch: what it leaves out stays, null clears. What was said in a child is a view of its own,
beside its record. Never removes a child: one whose agent is gone does nothing that anybody knows of.
"""

from __future__ import annotations

from msgspec import UNSET, Raw, Struct, UnsetType

from turnwire.core.child_names import read_announcement
from turnwire.core.events import SessionUpdated
from turnwire.core.json_members import read_members
from turnwire.core.state import ChildState
from turnwire.core.view.patch import Patch
from turnwire.ids import ChildId, PromptId


class ChildRecord(Struct, kw_only=True, omit_defaults=True, rename="camel"):
    """A child session."""

    child_id: ChildId
    parent_id: ChildId | None = None
    """The child that announced it; none if the session itself did."""
    prompt_id: PromptId | None = None
    """The turn in which it was announced."""
    announced_at: int = 0
    title: str | None = None
    description: str | None = None
    state: ChildState = ChildState.UNKNOWN
    can_cancel: bool = False
    cwd: str | None = None
    """Where the agent placed it; none if that is where its parent is."""
    additional_directories: Raw | UnsetType = UNSET
    meta: dict[str, Raw] = {}

    def announce(self, event: SessionUpdated) -> None:
        """A `subagent_update` about it."""
        said, patch = read_announcement(event.update), Patch(read_members(event.update) or {}, null_clears=True)
        self.title = patch.text("title", self.title)
        self.description = patch.text("description", self.description)
        self.cwd = patch.text("cwd", self.cwd)
        self.additional_directories = patch.raw("additionalDirectories", self.additional_directories)
        self.meta = patch.meta(self.meta)
        self.state = said.state_after(self.state)
        self.can_cancel = said.can_cancel_after(self.can_cancel)

    def announcement(self) -> dict[str, object]:
        """All that is known of it, as one `subagent_update` with our id."""
        known: dict[str, object] = {
            "title": self.title,
            "description": self.description,
            "capabilities": {"cancel": {}} if self.can_cancel else None,
            "state": None if self.state is ChildState.UNKNOWN else {"state": self.state.value},
            "cwd": self.cwd,
            "additionalDirectories": self.additional_directories,
            "_meta": self.meta or None,
        }
        told = {name: value for name, value in known.items() if value is not None and value is not UNSET}
        return {"sessionUpdate": "subagent_update", "sessionId": self.child_id, **told}
