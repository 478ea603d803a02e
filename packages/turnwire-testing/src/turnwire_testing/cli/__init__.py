"""Commands that this distribution adds to `turnwire`: the entry points `turnwire.commands`."""
