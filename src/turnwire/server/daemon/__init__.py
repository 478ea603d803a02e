"""The daemon object behind every interface, and session operations shared by REST and ACP."""

from turnwire.server.daemon.daemon import Daemon, open_daemon

__all__ = ["Daemon", "open_daemon"]
