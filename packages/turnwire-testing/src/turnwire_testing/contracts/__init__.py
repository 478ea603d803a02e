"""Contract checks that any implementation of an engine can run."""
