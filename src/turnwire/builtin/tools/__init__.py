"""What the built-in agent can do: files, folders, commands, pages of the web, and the plan.

Start reading at `tool.py`. No tool knows of ACP's messages or of a model.
"""

from turnwire.builtin.tools.tool import Tool
from turnwire.builtin.tools.workplace import ShownCall, Workplace

__all__ = ["ShownCall", "Tool", "Workplace"]
