"""Client services for an agent, provided by the daemon: files and terminals inside a session's directories."""

from turnwire.hosting.services.roots import Roots
from turnwire.hosting.services.workspace import Workspace

__all__ = ["Roots", "Workspace"]
