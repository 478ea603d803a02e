"""Sockets and the two HTTP servers on them. Never knows what is served."""
