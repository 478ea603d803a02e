"""Redaction of recordings and exports: rules, each with a pattern and the text that replaces its matches.

A line of JSON without a match stays byte for byte. Texts are decoded before they are searched, so a JSON escape
hides nothing. A secret that was found once is removed from every later line. A secret that is split over several
lines, such as the chunks of a message, is not found.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple, cast

import msgspec

from turnwire.hosting.environment import SHORTEST_SECRET, secrets
from turnwire.server.telemetry.logs import MASK, Redaction
from turnwire.wire.jsonrpc import UNREADABLE

HOME: Final = "/home/user"
"""Replaces every home folder: a path stays a path."""
EMAIL: Final = "user@example.org"
LONGEST_LEARNED: Final = 512
"""Longest secret, in characters, that is searched for in later lines; a longer one is found by its form."""


class Rule(StrEnum):
    """A kind of text that is removed."""

    TOKEN = "token"
    """Credentials by their form: bearer tokens, keys of model providers and code hosts."""
    SECRET = "secret"
    """Values named like a secret: members (`apiKey`), arguments (`--api-key x`), variables and queries in texts."""
    ENV = "env"
    """Environment values: the agent's anywhere, those of MCP servers and terminals in `env` and `headers`."""
    HOME = "home"
    """Home folders, replaced by `/home/user`."""
    EMAIL = "email"
    """E-mail addresses, replaced by `user@example.org`."""


TOKEN_FORMS: Final[Mapping[str, str]] = {
    # Models.
    "OpenAI, Anthropic, OpenRouter, DeepSeek": r"\b(?:sk|pk|rk)-[A-Za-z0-9_-]{16,}",
    "Groq": r"\bgsk_[A-Za-z0-9]{16,}",
    "xAI": r"\bxai-[A-Za-z0-9_-]{16,}",
    "Perplexity": r"\bpplx-[A-Za-z0-9]{16,}",
    "Replicate": r"\br8_[A-Za-z0-9]{16,}",
    "Together": r"\btgp_v1_[A-Za-z0-9_-]{16,}",
    "Fireworks": r"\bfw_[A-Za-z0-9]{16,}",
    "Hugging Face": r"\bhf_[A-Za-z0-9]{16,}",
    "Google": r"\b(?:AIza[A-Za-z0-9_-]{16,}|ya29\.[A-Za-z0-9_-]{16,})",
    # Code and packages.
    "GitHub": r"\b(?:gh[pousr]_|github_pat_)[A-Za-z0-9_]{16,}",
    "GitLab": r"\bgl(?:pat|cbt|dt|ft|oas|rt|soat)-[A-Za-z0-9_.-]{16,}",
    "Bitbucket, Atlassian": r"\bAT(?:BB|ATT|CTT)[A-Za-z0-9_=-]{16,}",
    "npm": r"\bnpm_[A-Za-z0-9]{16,}",
    "PyPI": r"\bpypi-[A-Za-z0-9_-]{16,}",
    "Docker": r"\bdckr_(?:pat|oat)_[A-Za-z0-9_-]{16,}",
    # Services.
    "AWS": r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b",
    "Slack": r"\bxox[abeoprs]-[A-Za-z0-9-]{16,}",
    "Stripe": r"\b(?:[spr]k_(?:live|test)_|whsec_)[A-Za-z0-9+/=]{16,}",
    "Vault": r"\bhv[bsr]\.[A-Za-z0-9_-]{16,}",
    # Formats.
    "JSON Web Token": r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]{8,}",
    "private key": r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    "user and password of an address": r"(?<=://)[^\s/:@]+:[^\s/@]+(?=@)",
}
"""Forms of credentials by their issuer. A new provider is a line here."""
_TOKENS: Final = re.compile("|".join(TOKEN_FORMS.values()), re.DOTALL)
_ASSIGNMENT: Final = re.compile(
    r"""(?P<flag>(?<![\w-])--[\w-]+(?:=|\s+(?!-)))(?P<of_flag>"[^"]*"|'[^']*'|[^\s"']+)"""
    r"""|(?P<name>(?:[?&]|(?<![\w.-]))[A-Za-z_][\w-]*=)(?P<of_name>"[^"]*"|'[^']*'|[^\s"'&;#]+)"""
)
"""Forms `--api-key x`, `--api-key=x`, `NAME_PASSWORD=x`, `?api_key=x`."""
_QUERY_KEYS: Final = frozenset({"?key=", "&key=", "?sig=", "&sig=", "?token=", "&token="})
_SECRET_NAME: Final = re.compile(
    r"(api|access|private|secret|auth)[_-]?key|passw(or)?d|passphrase|secret|credential|(^|[_-])token$"
    r"|(access|auth|refresh|bearer|id|session)[_-]?token$|authorization|^(set-)?cookie$",
    re.IGNORECASE,
)
_EMAIL: Final = re.compile(r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)*\.[A-Za-z]{2,}\b")
_HOMES: Final = re.compile(r"(?<![\w.-])(?:(?:/home|/Users)/(?!user\b)[\w.-]+|/root\b)")
_NAMED: Final = frozenset({"env", "headers", "http_headers"})
"""Members that map names to values, as a list of pairs or as an object."""
_UNTOUCHED: Final = frozenset({"jsonrpc", "id", "method", "sessionUpdate", "type", "optionId", "kind"})
"""Members that define the meaning of a frame. They are never redacted."""


class Span(NamedTuple):
    """A part of a text, and the text that replaces it."""

    start: int
    end: int
    new: str


class Redactor:
    """Applies rules to lines, with the environment of the agent."""

    def __init__(self, rules: Collection[Rule], environment: Mapping[str, str]) -> None:
        self.rules = tuple(each for each in Rule if each in rules)
        self.learned: set[str] = set()
        """Secrets found so far by their form or their name."""
        self._finders: list[Callable[[str], Iterable[Span]]] = [lambda text: _values(text, self.learned)]
        if Rule.HOME in rules:
            self._finders.append(_homes(environment.get("HOME", "")))
        known = [os.fsdecode(each) for each in secrets(environment)] if Rule.ENV in rules else []
        # A path is not a secret.
        values = [each for each in known if not each.startswith("/")]
        if values:
            self._finders.append(lambda text: _values(text, values))
        if Rule.TOKEN in rules:
            self._finders.append(self._tokens)
        if Rule.SECRET in rules:
            self._finders.append(_assigned)
        if Rule.EMAIL in rules:
            self._finders.append(lambda text: (Span(*each.span(), EMAIL) for each in _EMAIL.finditer(text)))

    def line(self, line: bytes) -> bytes:
        """Return a line, passed without its line end, redacted."""
        try:
            found: Any = msgspec.json.decode(line)
        except UNREADABLE:
            plain = line.decode(errors="replace")
            text = self._text(plain)
            return line if text == plain else text.encode()
        value = self._value(found, "")
        return line if value == found else msgspec.json.encode(value)

    def _text(self, text: str) -> str:
        parts: list[str] = []
        at = 0
        for span in _merged(each for find in self._finders for each in find(text)):
            parts += text[at : span.start], span.new
            at = span.end
        return "".join([*parts, text[at:]])

    def _tokens(self, text: str) -> Iterator[Span]:
        for start, end, new in Redaction.found(text):
            yield Span(start, end, new)
        for match in _TOKENS.finditer(text):
            self._learn(match.group())
            yield Span(*match.span(), MASK)

    def _learn(self, secret: str) -> None:
        # A short value is likely to be an ordinary word elsewhere. Paths are handled by Rule.HOME.
        if SHORTEST_SECRET <= len(secret) <= LONGEST_LEARNED and not secret.startswith("/") and MASK not in secret:
            self.learned.add(secret)

    def _value(self, value: Any, name: str) -> Any:
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, list):
            return self._items(cast("list[Any]", value), name)
        if isinstance(value, dict):
            return self._members(cast("dict[str, Any]", value), name)
        return value

    def _items(self, items: list[Any], name: str) -> list[Any]:
        redacted: list[Any] = []
        for before, each in zip([None, *items], items, strict=False):
            # The arguments of an MCP server: a flag, and its value after it.
            flag = before if isinstance(before, str) and before.startswith("-") and "=" not in before else ""
            if flag and isinstance(each, str) and self._is_secret(flag) and not each.startswith("-"):
                self._learn(each)
                redacted.append(MASK)
            else:
                redacted.append(self._pair(each, name))
        return redacted

    def _members(self, members: dict[str, Any], name: str) -> dict[str, Any]:
        is_named = Rule.ENV in self.rules and name in _NAMED
        return {self._text(key): self._member(key, each, is_named) for key, each in members.items()}

    def _member(self, key: str, value: Any, is_named: bool) -> Any:
        if isinstance(value, str) and (is_named or self._is_secret(key)):
            self._learn_value(key, value)
            return MASK
        return value if key in _UNTOUCHED and isinstance(value, str) else self._value(value, key)

    def _pair(self, value: Any, name: str) -> Any:
        """Redact an item of a list, which may be an object with `name` and `value`."""
        if not (isinstance(value, dict) and {"name", "value"} <= cast("dict[str, Any]", value).keys()):
            return self._value(value, name)
        pair = cast("dict[str, Any]", value)
        is_hidden = (Rule.ENV in self.rules and name in _NAMED) or self._is_secret(str(pair["name"]))
        if is_hidden:
            self._learn_value(str(pair["name"]), str(pair["value"]))
        return {**self._members(pair, ""), **({"value": MASK} if is_hidden else {})}

    def _learn_value(self, name: str, value: str) -> None:
        """Remember the value of a named item, unless it is harmless in an environment (`LANG`)."""
        if self._is_secret(name) or secrets({name: value}):
            # A header may have a scheme before its secret: `Bearer`.
            self._learn(value.split()[-1] if value.split() else "")

    def _is_secret(self, name: str) -> bool:
        return Rule.SECRET in self.rules and _SECRET_NAME.search(name) is not None


def _merged(spans: Iterable[Span]) -> list[Span]:
    """Return spans in order without overlaps: the outer of two nested ones, one for secrets that overlap."""
    result: list[Span] = []
    for each in sorted(spans, key=lambda span: (span.start, -span.end)):
        last = result[-1] if result else None
        if last is None or each.start >= last.end:
            result.append(each)
        elif each.end > last.end and MASK in each.new:
            result[-1] = Span(last.start, each.end, MASK)
    return result


def _assigned(text: str) -> Iterator[Span]:
    """Find values that a text assigns to names of secrets."""
    for match in _ASSIGNMENT.finditer(text):
        group = "of_flag" if match["flag"] else "of_name"
        name = match["flag"] or match["name"]
        is_secret = _SECRET_NAME.search(name.strip("-?&= \t\n")) or name in _QUERY_KEYS
        # `KEY=...` in instructions shows where a value goes.
        if is_secret and any(each.isalnum() for each in match[group]):
            yield Span(*match.span(group), MASK)


def _homes(home: str) -> Callable[[str], Iterator[Span]]:
    own = re.compile(rf"{re.escape(home.rstrip('/'))}(?![\w.-])") if len(home) > 1 and home != HOME else None

    def find(text: str) -> Iterator[Span]:
        for pattern in (own, _HOMES) if own is not None else (_HOMES,):
            for match in pattern.finditer(text):
                yield Span(*match.span(), HOME)

    return find


def _values(text: str, values: Iterable[str]) -> Iterator[Span]:
    for each in values:
        at = text.find(each)
        while at >= 0:
            yield Span(at, at + len(each), MASK)
            at = text.find(each, at + len(each))
