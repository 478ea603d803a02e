"""Events of every kind at random, generated from the types of their fields.

A kind of event becomes a strategy for it, including kinds that are added later. Payloads are any JSON, except where
the rest of turnwire relies on more: an update names its kind, and a message is a list of blocks.
"""

from __future__ import annotations

import types
from enum import Enum
from functools import cache
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from hypothesis import strategies as st
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import fields
from tests.unit.session.driving import raw

from turnwire.session import events as ev

KINDS: tuple[type[ev.Event], ...] = get_args(ev.AnyEvent)

_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
_objects = st.dictionaries(st.text(max_size=5), _json, max_size=3)
_blocks = st.lists(_objects, max_size=3).map(raw)
_questions = st.fixed_dictionaries({}, optional={"sessionId": _json, "toolCall": _json, "options": _json}).map(raw)

_BY_TYPE: dict[object, st.SearchStrategy[Any]] = {
    int: st.integers(-(2**63), 2**63 - 1),
    str: st.text(max_size=12),
    bool: st.booleans(),
    type(None): st.none(),
    UnsetType: st.just(UNSET),
    Raw: _json.map(raw),
}


@cache
def events_of(kind: type[ev.Event]) -> st.SearchStrategy[ev.AnyEvent]:
    """Events of one kind."""
    hints = get_type_hints(kind)
    parts = {each.name: _values(hints[each.name]) for each in fields(kind)}
    if kind is ev.UserMessage:
        parts["content"] = _blocks
    if kind is ev.PermissionRequested:
        parts["params"] |= _questions
    if kind is ev.SessionUpdated:
        del parts["kind"]
        parts["update"] = _objects
        return st.builds(_update, name=st.text(max_size=12), **parts)
    return cast("st.SearchStrategy[ev.AnyEvent]", st.builds(kind, **parts))


def _update(name: str, update: dict[str, Any], **others: Any) -> ev.SessionUpdated:
    return ev.SessionUpdated(kind=name, update=raw({**update, "sessionUpdate": name}), **others)


def _values(given: Any) -> st.SearchStrategy[Any]:
    """Values of a field's type."""
    given = getattr(given, "__supertype__", given)
    if given in _BY_TYPE:
        return _BY_TYPE[given]
    if get_origin(given) in (Union, types.UnionType):
        return st.one_of([_values(each) for each in get_args(given)])
    if get_origin(given) is tuple:
        return st.lists(_values(get_args(given)[0]), max_size=3).map(tuple)
    if get_origin(given) is dict:
        return st.dictionaries(*map(_values, get_args(given)), max_size=2)
    if issubclass(given, Struct):
        hints = get_type_hints(given)
        return st.builds(given, **{each.name: _values(hints[each.name]) for each in fields(given)})
    assert issubclass(given, Enum), f"say in `_BY_TYPE` what values {given} has"
    return st.sampled_from(given)
