"""turnwire: the runtime for agent turns. One durable log per session, exactly one end per accepted prompt."""

from turnwire.api import connect

__version__ = "0.1.0"
__all__ = ["__version__", "connect"]
