"""Log lines, metrics and traces for the operator. Never a secret."""
