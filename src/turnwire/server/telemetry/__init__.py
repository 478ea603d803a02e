"""What the daemon tells its operator: log lines, numbers, traces. Never a secret."""
