"""What nodes that share one log say to each other."""
