"""The command line: `turnwire serve` runs the daemon, the other commands talk to it."""
