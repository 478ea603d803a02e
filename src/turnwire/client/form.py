"""A form of the agent (`elicitation/create`), read from its JSON schema: the fields and their allowed values.

An invalid value yields a message that names the field and the allowed values. Rules of a schema that are not known
here are left to the agent to check.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

import msgspec
from msgspec import Raw, Struct

from turnwire.session.json_members import entries, members, text_of
from turnwire.wire.jsonrpc import UNREADABLE

YES, NO = ("y", "yes", "true", "1", "on"), ("n", "no", "false", "0", "off")


_TAKES = {
    "boolean": "yes or no",
    "integer": "a whole number",
    "number": "a number",
    "string": "text",
    "array": "a list, with commas between",
}


class Choice(Struct, frozen=True):
    """One of the allowed values of a field."""

    value: str
    title: str = ""


class Bounds(Struct, frozen=True, rename="camel"):
    """Bounds of a value's length, size or number, and its pattern."""

    min_length: int | None = None
    max_length: int | None = None
    minimum: float | None = None
    maximum: float | None = None
    min_items: int | None = None
    max_items: int | None = None
    pattern: str | None = None
    format: str | None = None


class Field(Struct, frozen=True, kw_only=True):
    """One field of a form."""

    name: str
    type: str
    """`string`, `number`, `integer`, `boolean`, `array` of strings, or an unknown type."""
    title: str = ""
    description: str = ""
    is_required: bool = False
    choices: tuple[Choice, ...] = ()
    default: Any = None
    """`None` if there is no default."""
    bounds: Bounds = Bounds()

    @property
    def takes(self) -> str:
        """Return a description of the allowed values."""
        if self.choices:
            among = ", ".join(each.value for each in self.choices)
            return f"any of {among}, with commas between" if self.type == "array" else f"one of {among}"
        words = {"boolean": "yes or no", "integer": "a whole number", "number": "a number", "string": "text"}
        return (
            words.get(self.type, "a list, with commas between" if self.type == "array" else "JSON") + self._within()
        )

    def _within(self) -> str:
        bounds = self.bounds
        low, high, unit = bounds.minimum, bounds.maximum, ""
        if self.type == "string":
            low, high, unit = bounds.min_length, bounds.max_length, " characters"
        elif self.type == "array":
            low, high, unit = bounds.min_items, bounds.max_items, " entries"
        said = [
            "" if low is None else f"at least {low:g}{unit}",
            "" if high is None else f"at most {high:g}{unit}",
            "" if bounds.format is None else f"as {bounds.format}",
            "" if bounds.pattern is None else f"like {bounds.pattern}",
        ]
        joined = ", ".join(each for each in said if each)
        return f" ({joined})" if joined else ""

    def read(self, text: str) -> Any:
        """Return the value of a person's input. Unreadable input stays text, and `problem` reports it."""
        text = text.strip() if self.type != "string" else text
        if self.type == "boolean":
            return True if text.lower() in YES else False if text.lower() in NO else text
        if self.type == "array":
            return [self._chosen(each.strip()) for each in text.split(",") if each.strip()]
        if self.type == "string":
            return self._chosen(text)
        try:
            return msgspec.json.decode(text)
        except UNREADABLE:
            return text

    def _chosen(self, text: str) -> str:
        """Return the value of a choice by its value, its title, or its number."""
        if any(each.value == text for each in self.choices):
            return text
        if text.isdecimal() and 1 <= int(text) <= len(self.choices):
            return self.choices[int(text) - 1].value
        return next((each.value for each in self.choices if each.title.lower() == text.lower()), text)

    def problem(self, value: Any) -> str | None:
        """Return why the form does not accept this value, or `None` if it does."""
        fits = _FITS.get(self.type)
        return None if fits is None or fits(self, value) else f"{self.name} takes {self.takes}"


def _fits_string(field: Field, value: Any) -> bool:
    bounds = field.bounds
    if not isinstance(value, str) or not _is_within(len(value), bounds.min_length, bounds.max_length):
        return False
    if field.choices:
        return any(each.value == value for each in field.choices)
    try:
        return bounds.pattern is None or re.search(bounds.pattern, value) is not None
    except re.error:
        # A pattern in a regular expression dialect that Python does not read.
        return True


def _fits_number(field: Field, value: Any) -> bool:
    is_number = type(value) is int or (type(value) is float and (field.type == "number" or value.is_integer()))
    return is_number and _is_within(value, field.bounds.minimum, field.bounds.maximum)


def _fits_array(field: Field, value: Any) -> bool:
    if not isinstance(value, list):
        return False
    given, known = cast("list[Any]", value), {each.value for each in field.choices}
    if not _is_within(len(given), field.bounds.min_items, field.bounds.max_items):
        return False
    return all(isinstance(each, str) and (not known or each in known) for each in given)


def _is_within(value: float, low: float | None, high: float | None) -> bool:
    return (low is None or value >= low) and (high is None or value <= high)


def _fits_boolean(field: Field, value: Any) -> bool:
    return isinstance(value, bool)


_FITS = {
    "string": _fits_string,
    "number": _fits_number,
    "integer": _fits_number,
    "boolean": _fits_boolean,
    "array": _fits_array,
}


class Form(Struct, frozen=True):
    """A form to be filled in for the agent."""

    message: str
    fields: tuple[Field, ...]
    title: str = ""
    description: str = ""

    def problems(self, content: Mapping[str, Any]) -> list[str]:
        """Return the reasons why the agent would reject this content; each names its field."""
        known = {each.name: each for each in self.fields}
        names = ", ".join(known) or "none"
        said = [f"there is no field {each}; there are: {names}" for each in content if each not in known]
        for name, field in known.items():
            if name in content:
                problem = field.problem(content[name])
                said += [] if problem is None else [problem]
            elif field.is_required:
                said.append(f"{name} is missing; it takes {field.takes}")
        return said


def read_form(params: Raw) -> Form | None:
    """Return the form of an elicitation, or `None` if it is something else."""
    asked = members(params)
    schema = members(asked.get("requestedSchema"))
    if text_of(asked, "mode") not in (None, "form") or not schema:
        return None
    required = {str(_value(each)) for each in entries(schema.get("required"))}
    properties = members(schema.get("properties"))
    fields = [_field(name, members(each), name in required) for name, each in properties.items()]
    return Form(
        text_of(asked, "message") or "",
        tuple(fields),
        text_of(schema, "title") or "",
        text_of(schema, "description") or "",
    )


def _field(name: str, schema: dict[str, Raw], is_required: bool) -> Field:
    kind = text_of(schema, "type") or "string"
    try:
        bounds = msgspec.convert({each: _value(schema[each]) for each in _BOUNDS if each in schema}, Bounds)
    except msgspec.ValidationError:
        bounds = Bounds()
    return Field(
        name=name,
        type=kind,
        title=text_of(schema, "title") or "",
        description=text_of(schema, "description") or "",
        is_required=is_required,
        choices=tuple(_choices(members(schema.get("items")) if kind == "array" else schema)),
        default=None if "default" not in schema else _value(schema["default"]),
        bounds=bounds,
    )


_BOUNDS = tuple(each.encode_name for each in msgspec.structs.fields(Bounds))


def _choices(schema: dict[str, Raw]) -> list[Choice]:
    titled = [members(each) for name in ("oneOf", "anyOf") for each in entries(schema.get(name))]
    found = [Choice(text_of(each, "const") or "", text_of(each, "title") or "") for each in titled]
    return found or [Choice(str(_value(each))) for each in entries(schema.get("enum"))]


def _value(value: Raw) -> Any:
    try:
        return msgspec.json.decode(value)
    except UNREADABLE:
        return None
