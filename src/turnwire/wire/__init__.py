"""JSON-RPC frames, ndjson, SSE and the ACP method table. Pure: no clock, no I/O, no logging."""
