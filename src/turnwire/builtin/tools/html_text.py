"""A web page as text for a model.

Takes HTML, however broken; gives its headings, paragraphs, lists, links and code roughly as Markdown. Leaves out
scripts, styles and what is not shown. Never fetches anything.
"""

from __future__ import annotations

import re
from html.parser import HTMLParser
from urllib.parse import urljoin

UNSEEN = {"script", "style", "noscript", "template", "svg", "head", "iframe", "object"}
BLOCKS = {
    *("p", "div", "section", "article", "header", "footer", "main", "nav", "aside", "ul", "ol", "table", "tr"),
    *("blockquote", "pre", "h1", "h2", "h3", "h4", "h5", "h6", "form", "figure", "dl", "dt", "dd", "hr", "li"),
}


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


def html_text(page: str, address: str) -> str:
    """The page as text; links as they lead from `address`."""
    reader = _Reader(address)
    reader.feed(page)
    reader.close()
    text = "".join(reader.parts).replace("\xa0", " ")
    text = re.sub(r"[ \t]+\n", "\n", text)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def _joined(address: str, link: str) -> str | None:
    """Where a link leads; none for one that leads nowhere outside its page."""
    try:
        target = urljoin(address, link.strip())
    except ValueError:
        return None
    return target if target.startswith(("http://", "https://")) and not link.startswith("#") else None
