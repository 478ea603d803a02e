"""The ACP server side: turnwire as the agent of its clients, over any transport."""
