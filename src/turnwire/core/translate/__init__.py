"""ACP v1 and v2 in each other's words. Pure."""
