"""Child sessions as clients read them: announcer, title and state of each.

An announcement is a patch: an omitted member stays, null clears. The updates of a child are in a separate view,
next to its record. A child is never removed: its state is unknown once its agent is gone.
"""

from __future__ import annotations

from msgspec import UNSET, Raw, Struct, UnsetType

from turnwire.ids import ChildId, PromptId
from turnwire.projections.view.patch import Patch
from turnwire.session.child_names import read_announcement
from turnwire.session.events import SessionUpdated
from turnwire.session.json_members import read_members
from turnwire.session.state import ChildState


class ChildRecord(Struct, kw_only=True, omit_defaults=True, rename="camel"):
    """A child session."""

    child_id: ChildId
    parent_id: ChildId | None = None
    """The child that announced it; `None` for the session itself."""
    prompt_id: PromptId | None = None
    """The turn in which it was announced."""
    announced_at: int = 0
    title: str | None = None
    description: str | None = None
    state: ChildState = ChildState.UNKNOWN
    can_cancel: bool = False
    cwd: str | None = None
    """The child's directory; `None` for its parent's."""
    additional_directories: Raw | UnsetType = UNSET
    meta: dict[str, Raw] = {}

    def announce(self, event: SessionUpdated) -> None:
        """Apply a `subagent_update` about it."""
        said, patch = read_announcement(event.update), Patch(read_members(event.update) or {}, null_clears=True)
        self.title = patch.text("title", self.title)
        self.description = patch.text("description", self.description)
        self.cwd = patch.text("cwd", self.cwd)
        self.additional_directories = patch.raw("additionalDirectories", self.additional_directories)
        self.meta = patch.meta(self.meta)
        self.state = said.state_after(self.state)
        self.can_cancel = said.can_cancel_after(self.can_cancel)

    def announcement(self) -> dict[str, object]:
        """Return the complete record as one `subagent_update` with our id."""
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
