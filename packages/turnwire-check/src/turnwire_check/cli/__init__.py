"""The command `turnwire check`: an entry point in the group `turnwire.commands`."""
