"""The daemon: REST, SSE and ACP over one node, access control, settings, telemetry and the cluster."""
