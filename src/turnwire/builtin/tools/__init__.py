"""What the built-in agent can do: files, folders, commands, pages of the web, and the plan.

Start reading at `tool.py`. Nothing in here knows of ACP's messages or of a model.
"""

from turnwire.builtin.tools.offered import offered_tools
from turnwire.builtin.tools.tool import Call, Ran, Tool, Workplace
from turnwire.builtin.tools.workplace import LocalWorkplace

__all__ = ["Call", "LocalWorkplace", "Ran", "Tool", "Workplace", "offered_tools"]
