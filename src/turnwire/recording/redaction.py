"""What a file that is given away must not hold: rules, each with what it looks for and what stands there instead.

Takes lines of JSON and gives them back; a line in which nothing is found stays byte for byte. Texts are looked at
as they are read, so that no escape of JSON hides one. A secret that was found once is taken out of every later
line, wherever it stands. `second_look` finds what was said before that, and what is spelt over several lines.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any, Final, cast

import msgspec

from turnwire.link.environment import SHORTEST_SECRET, secrets
from turnwire.recording.spans import Span, merged, shown
from turnwire.server.telemetry.logs import MASK, Redaction
from turnwire.wire.jsonrpc import UNREADABLE

HOME: Final = "/home/user"
"""Where every home folder is afterwards: a path stays a path."""
EMAIL: Final = "user@example.org"
LONGEST_LEARNED: Final = 512
"""Characters of a secret that is looked for elsewhere; what is longer is found by its form."""


class Rule(StrEnum):
    """What is taken out."""

    TOKEN = "token"
    """What looks like a credential, wherever it stands: bearer tokens, keys of model providers and code hosts."""
    SECRET = "secret"
    """Members that are named as secrets are: `apiKey`, `password`, `authorization`."""
    ENV = "env"
    """Values of environment variables: those of the agent's own, wherever they stand, and what is given to MCP
    servers and terminals in `env` and `headers`."""
    HOME = "home"
    """The home folder: `/home/user` instead."""
    EMAIL = "email"
    """Addresses of e-mail: `user@example.org` instead."""


_TOKENS: Final = re.compile(
    r"""
    \b(?:sk|pk|rk)-[A-Za-z0-9_-]{16,}                   # keys of model providers
    | \b(?:gh[pousr]_|github_pat_|glpat-|xox[abprs]-|hf_|npm_|AIza)[A-Za-z0-9_-]{16,}
    | \b(?:AKIA|ASIA)[A-Z0-9]{16}\b
    | \beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]{8,}               # a JSON Web Token
    | -----BEGIN\ [A-Z ]*PRIVATE\ KEY-----.*?(?:-----END\ [A-Z ]*PRIVATE\ KEY-----|\Z)
    | (?<=://)[^\s/:@]+:[^\s/@]+(?=@)                    # user and password of an address
    """,
    re.VERBOSE | re.DOTALL,
)
_SECRET_NAME: Final = re.compile(
    r"(api|access|private|secret|auth)[_-]?key|passw(or)?d|passphrase|secret|credential|(^|[_-])token$"
    r"|(access|auth|refresh|bearer|id|session)[_-]?token$|authorization|^(set-)?cookie$",
    re.IGNORECASE,
)
_EMAIL: Final = re.compile(r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)*\.[A-Za-z]{2,}\b")
_HOMES: Final = re.compile(r"(?<![\w.-])(?:(?:/home|/Users)/(?!user\b)[\w.-]+|/root\b)")
_NAMED: Final = frozenset({"env", "headers", "http_headers"})
"""Members that hold names with values, as a list of pairs or as an object."""
_UNTOUCHED: Final = frozenset({"jsonrpc", "id", "method", "sessionUpdate", "type", "optionId", "kind"})
"""Members by which a frame is understood; nobody's secrets are there, and one that is changed is another frame."""


class Redactor:
    """Takes out what the rules say, with the environment in which the agent runs."""

    def __init__(self, rules: Collection[Rule], environment: Mapping[str, str]) -> None:
        self.rules = tuple(each for each in Rule if each in rules)
        self.learned: set[str] = set()
        """Secrets that were found so far by what they look like or by the name that they have."""
        self._finders: list[Callable[[str], Iterable[Span]]] = [lambda text: _values(text, self.learned)]
        if Rule.HOME in rules:
            self._finders.append(_homes(environment.get("HOME", "")))
        known = [os.fsdecode(each) for each in secrets(environment)] if Rule.ENV in rules else []
        # A path is no secret, and a folder without its path is none.
        values = [each for each in known if not each.startswith("/")]
        if values:
            self._finders.append(lambda text: _values(text, values))
        if Rule.TOKEN in rules:
            self._finders.append(self._tokens)
        if Rule.EMAIL in rules:
            self._finders.append(lambda text: (Span(*each.span(), EMAIL) for each in _EMAIL.finditer(text)))

    def line(self, line: bytes) -> bytes:
        """A line without its end, as it may be given away."""
        try:
            found: Any = msgspec.json.decode(line)
        except UNREADABLE:
            plain = line.decode(errors="replace")
            text = self._text(plain)
            return line if text == plain else text.encode()
        value = self._value(found, "")
        return line if value == found else msgspec.json.encode(value)

    def spans(self, text: str) -> list[Span]:
        """What of a text is taken out, and what stands there instead."""
        return merged(each for find in self._finders for each in find(text))

    def _text(self, text: str) -> str:
        spans = self.spans(text)
        return shown(text, spans) if spans else text

    def _tokens(self, text: str) -> Iterator[Span]:
        for start, end, new in Redaction.found(text):
            yield Span(start, end, new)
        for match in _TOKENS.finditer(text):
            self._learn(match.group())
            yield Span(*match.span(), MASK)

    def _learn(self, secret: str) -> None:
        # What is short is a word that stands elsewhere for something else; a path is no secret.
        if SHORTEST_SECRET <= len(secret) <= LONGEST_LEARNED and not secret.startswith("/") and MASK not in secret:
            self.learned.add(secret)

    def _value(self, value: Any, name: str) -> Any:
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, list):
            return [self._pair(each, name) for each in cast("list[Any]", value)]
        if isinstance(value, dict):
            return self._members(cast("dict[str, Any]", value), name)
        return value

    def _members(self, members: dict[str, Any], name: str) -> dict[str, Any]:
        is_named = Rule.ENV in self.rules and name in _NAMED
        return {self._text(key): self._member(key, each, is_named) for key, each in members.items()}

    def _member(self, key: str, value: Any, is_named: bool) -> Any:
        if isinstance(value, str) and (is_named or self._is_secret(key)):
            self._learn_value(key, value)
            return MASK
        return value if key in _UNTOUCHED and isinstance(value, str) else self._value(value, key)

    def _pair(self, value: Any, name: str) -> Any:
        """An item of a list: a name with a value, if the list is of those."""
        if not (isinstance(value, dict) and {"name", "value"} <= cast("dict[str, Any]", value).keys()):
            return self._value(value, name)
        pair = cast("dict[str, Any]", value)
        is_hidden = (Rule.ENV in self.rules and name in _NAMED) or self._is_secret(str(pair["name"]))
        if is_hidden:
            self._learn_value(str(pair["name"]), str(pair["value"]))
        return {**self._members(pair, ""), **({"value": MASK} if is_hidden else {})}

    def _learn_value(self, name: str, value: str) -> None:
        """The value of something that is named. What is harmless in an agent's environment is so here."""
        if self._is_secret(name) or secrets({name: value}):
            # A header's secret has a word before it: `Bearer`.
            self._learn(value.split()[-1] if value.split() else "")

    def _is_secret(self, name: str) -> bool:
        return Rule.SECRET in self.rules and _SECRET_NAME.search(name) is not None


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
