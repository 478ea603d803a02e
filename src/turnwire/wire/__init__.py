"""Bytes and shapes: JSON-RPC frames, ndjson, SSE, the method table, peeking. Pure: no clock, no I/O, no logging."""
