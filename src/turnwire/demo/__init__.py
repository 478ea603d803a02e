"""The offline agent: it needs no model and no network, and `/demo` shows what an agent can do.

`turnwire serve` runs it when no other agent is configured. The agent with a language model is turnwire-agent.
"""
