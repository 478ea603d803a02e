"""The tools of the built-in agent, in the order in which a model is told of them."""

from __future__ import annotations

from turnwire.builtin.tools.files import Edit, Read, Write
from turnwire.builtin.tools.folders import List, Search
from turnwire.builtin.tools.plan import UpdatePlan
from turnwire.builtin.tools.run import Run
from turnwire.builtin.tools.tool import Tool


def offered_tools(*, fetch: bool = False, private_hosts: tuple[str, ...] = ()) -> dict[str, Tool]:
    """By name. `fetch` is there only if it is allowed; see `turnwire.builtin.tools.fetch` for `private_hosts`."""
    tools: list[Tool] = [Read(), List(), Search(), Write(), Edit(), Run(), UpdatePlan()]
    if fetch:
        # It brings an HTTP client with it, which most sessions do without.
        from turnwire.builtin.tools.fetch import Fetch

        tools.append(Fetch(private_hosts))
    return {tool.spec.name: tool for tool in tools}
