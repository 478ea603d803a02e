"""Convert HTML to text: a separate program, so that a page cannot block the agent.

Run as `python -I -S page_program.py ADDRESS` by `turnwire_agent.tools.fetch`, with the page on standard input. Some
markup makes `html.parser` quadratic (a hundred seconds for 60 KB), and a thread cannot be stopped. The program
bounds its own processor time and memory, so it ends even if its parent is gone. Standard library only.
"""

from __future__ import annotations

import re
import resource
import sys
from contextlib import suppress
from html.parser import HTMLParser
from urllib.parse import urljoin

CPU_S, MEMORY_BYTES = 10, 2**30

UNSEEN = {"script", "style", "noscript", "template", "svg", "head", "iframe", "object"}

BLOCKS = {
    *("p", "div", "section", "article", "header", "footer", "main", "nav", "aside", "ul", "ol", "table", "tr"),
    *("blockquote", "pre", "h1", "h2", "h3", "h4", "h5", "h6", "form", "figure", "dl", "dt", "dd", "hr", "li"),
}


def html_text(page: str, address: str) -> str:
    """Return a page, however broken, roughly as Markdown, without scripts, styles and hidden content. Links are
    resolved against `address`.
    """
    reader = _Reader(address)
    # An invalid declaration, such as `<![`, ends the parsing.
    with suppress(AssertionError):
        reader.feed(page)
        reader.close()
    text = "".join(reader.parts).replace("\xa0", " ")
    text = re.sub(r"[ \t]+\n", "\n", text)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def _joined(address: str, link: str) -> str | None:
    """Return the target of a link, or None if it leads nowhere outside its page."""
    try:
        target = urljoin(address, link.strip())
    except ValueError:
        return None
    return target if target.startswith(("http://", "https://")) and not link.startswith("#") else None


class _Reader(HTMLParser):
    def __init__(self, address: str) -> None:
        super().__init__(convert_charrefs=True)
        self._address = address
        self._unseen: list[str] = []
        self._pre = 0
        self._link: str | None = None
        self._link_starts = 0
        self.parts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in UNSEEN:
            # A `head` that is never closed ends where the body begins.
            self._unseen.append(tag)
        elif tag == "body":
            self._unseen.clear()
        elif not self._unseen:
            self._start(tag, dict(attrs))

    def handle_endtag(self, tag: str) -> None:
        if tag in self._unseen:
            while self._unseen.pop() != tag:
                pass
        elif not self._unseen:
            self._end(tag)

    def _take_text(self, data: str) -> None:
        if not self._unseen:
            self.parts.append(data if self._pre else re.sub(r"\s+", " ", data))

    handle_data = _take_text

    def _start(self, tag: str, attributes: dict[str, str | None]) -> None:
        if tag in BLOCKS or tag == "br":
            self.parts.append("\n" if tag in ("br", "li", "tr") else "\n\n")
        if tag == "li":
            self.parts.append("- ")
        elif re.fullmatch(r"h[1-6]", tag):
            self.parts.append("#" * int(tag[1]) + " ")
        elif tag == "pre":
            self._pre += 1
            self.parts.append("```\n")
        elif tag in ("td", "th"):
            self.parts.append(" | ")
        elif tag == "a":
            self._link, self._link_starts = attributes.get("href"), len(self.parts)

    def _end(self, tag: str) -> None:
        if tag == "a" and self._link:
            text = "".join(self.parts[self._link_starts :]).strip()
            target = _joined(self._address, self._link)
            if text and target:
                self.parts[self._link_starts :] = [f"[{text}]({target})"]
            self._link = None
        elif tag == "pre" and self._pre:
            self._pre -= 1
            self.parts.append("\n```\n")
        elif tag in BLOCKS:
            self.parts.append("\n")


def main() -> None:
    """Read a page and write its text."""
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    page = sys.stdin.buffer.read().decode(errors="replace")
    sys.stdout.buffer.write(html_text(page, sys.argv[1]).encode(errors="replace"))


if __name__ == "__main__":
    main()
