"""The tools of the built-in agent: files, folders, commands, web pages, and the plan.

Start reading at `tool.py`. No tool knows of ACP's messages or of a model.
"""

from turnwire_agent.tools.tool import Tool
from turnwire_agent.tools.workplace import ShownCall, Workplace

__all__ = ["ShownCall", "Tool", "Workplace"]
