"""axe in a page: its serious and critical findings against WCAG 2.1 AA.

Its script comes from `web/node_modules` and is evaluated outside of the page's policy, like a browser's tools.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from playwright.async_api import Page
from tests.interop.peers import absent

SCRIPT = Path(__file__).parents[2] / "web" / "node_modules" / "axe-core" / "axe.min.js"
RUN = """async runOnly => {
    const found = await axe.run(document, {runOnly, resultTypes: ["violations"]});
    return found.violations.map(({id, impact, nodes}) => [impact, id, nodes.map(each => each.html).slice(0, 3)]);
}"""
BAD = ("serious", "critical")


def need_axe() -> str:
    """axe's script. Without it the test is skipped, or fails where everything must be there."""
    if not SCRIPT.exists():
        absent("web/node_modules/axe-core is not there; run: make web")
    return SCRIPT.read_text(encoding="utf-8")


WCAG_AA = {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]}
CONTRAST = {"type": "rule", "values": ["color-contrast"]}


async def findings(page: Page, script: str, rules: Mapping[str, object] = WCAG_AA) -> list[str]:
    """Return the violations in the page's current state."""
    await page.evaluate(script)
    found: list[tuple[str, str, list[str]]] = await page.evaluate(RUN, rules)
    return [f"{impact} {rule}: {'; '.join(elements)}" for impact, rule, elements in found if impact in BAD]
