"""ACP clients: turnwire as their agent, over whatever carries frames."""
