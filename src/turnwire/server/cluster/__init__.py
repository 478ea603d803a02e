"""Communication between nodes that share one log."""
