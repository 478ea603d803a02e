"""The daemon behind every interface: its parts, and what REST and ACP alike do with its sessions."""

from turnwire.server.daemon.daemon import Daemon, open_daemon

__all__ = ["Daemon", "open_daemon"]
