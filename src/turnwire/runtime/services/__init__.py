"""What a client does for an agent, done by the daemon: files and terminals inside a session's directories."""

from turnwire.runtime.services.roots import Roots
from turnwire.runtime.services.workspace import Workspace

__all__ = ["Roots", "Workspace"]
