"""The conformance suite of `turnwire check`: cases that check an agent, a server or a client by its frames."""
