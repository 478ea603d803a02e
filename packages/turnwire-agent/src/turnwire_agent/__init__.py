"""An ACP agent with a language model, and an adapter for agents of the official Python SDK.

`turnwire agent --model PROVIDER:NAME` runs it, as does `turnwire serve` when TURNWIRE_AGENT_MODEL is set. No model
library is imported before a model is configured.
"""

from turnwire_agent.adapter import adapt

__all__ = ["adapt"]
