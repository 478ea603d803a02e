"""Fuzzing of what reads bytes from a peer. `make fuzz` runs it; nothing of turnwire imports it."""
