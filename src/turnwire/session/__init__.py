"""The session state machine. Pure: no clock, no I/O, no logging."""
