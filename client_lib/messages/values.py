"""How the values of messages look to an application, and back: enumerations, decimals, times, composites, groups.

`SbeReader` and `SbeWriter` use plain values (docs/sbe.md). This module turns them into the values of `Message`
attributes and back. A type of the schema becomes one Python class, whatever fields use it.
"""

from __future__ import annotations

import keyword
import re
from collections import namedtuple
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np

from tandemfeed.client_lib.messages.sbe_reading import Unlisted, as_decimal
from tandemfeed.feedcore.sbe.messages import Block
from tandemfeed.feedcore.sbe.types import (
    CompositeType,
    EncodingType,
    EnumType,
    Presence,
    SetType,
    SimpleType,
    time_unit,
)

RESERVED = frozenset({"raw", "origin", "to_dict", "from_bytes", "is_same_as"})  # what every message has
DECIMAL_MEMBERS = {"mantissa", "exponent"}
TIME_MEMBERS = {"time", "unit"}
_UNITS: dict[Any, str] = {0: "s", 3: "ms", 6: "us", 9: "ns"}
_UNITS |= {"second": "s", "millisecond": "ms", "microsecond": "us", "nanosecond": "ns"}
_WORD_BEGINS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")  # as in eventAt and MDEntryPx
_TIME_END = 1 << 63  # numpy's times are int64
_new_time: Any = np.datetime64
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Convert = Callable[[Any], Any]


class ValueType(NamedTuple):
    """One type of value.

    Attributes:
        annotation: as a stub names it, without `| None`.
        typed: from a plain value that is not None to the application's; None: they are the same.
        plain: the way back, which also accepts what is equivalent.
    """

    annotation: str
    typed: Convert | None = None
    plain: Convert | None = None


def attribute_name(name: str) -> str:
    """The Python name of a field, as `event_at` of `eventAt`; with `_` at the end if Python or `Message` uses that."""
    name = _WORD_BEGINS.sub("_", name).lower()
    taken = keyword.iskeyword(name) or name in RESERVED
    name = f"{name}_" if taken else name
    return f"x{name}" if name.startswith("_") else name


def attribute_names(names: Iterable[str]) -> dict[str, str]:
    """The Python name of each name; no two are equal."""
    found: dict[str, str] = {}
    for name in names:
        attribute = attribute_name(name)
        while attribute in found.values():
            attribute += "_"
        found[name] = attribute
    return found


class SchemaTypes:
    """The Python classes of one schema's enumerations, composites and groups.

    Attributes:
        enums: by the name of the type.
        records: composites and the entries of groups, by the names of their classes; the values are the members'
            names and annotations.
    """

    def __init__(self) -> None:
        self.enums: dict[str, type[StrEnum]] = {}
        self.records: dict[str, dict[str, str]] = {}
        self._known: dict[str, ValueType] = {}

    def of(self, kind: EncodingType, semantic_type: str = "") -> ValueType:
        """The type of a field's or a member's values."""
        if isinstance(kind, SimpleType):
            return _simple(kind, semantic_type or kind.semantic_type)
        if isinstance(kind, SetType):
            return ValueType("frozenset[str | int]")
        if kind.name not in self._known:
            self._known[kind.name] = self._enum(kind) if isinstance(kind, EnumType) else self._composite(kind)
        return self._known[kind.name]

    def of_group(self, path: str, block: Block) -> ValueType:
        """The type of a group: a tuple of entries."""
        members = {field.name: self.of(field.type, field.semantic_type) for field in block.fields.values()}
        members |= {group.name: self.of_group(f"{path}_{group.name}", group) for group in block.groups.values()}
        members |= {data.name: ValueType("str" if data.character_encoding else "bytes") for data in block.data.values()}
        entry = self._record(path, members, {name: may_be_none(block, name) for name in members})
        typed, plain = entry.typed, entry.plain
        assert typed is not None
        assert plain is not None
        return ValueType(
            f"tuple[{path}, ...]",
            lambda entries: tuple(map(typed, entries)),
            lambda entries: list(map(plain, entries)),
        )

    def _enum(self, kind: EnumType) -> ValueType:
        names: dict[str, str] = {}
        for label in kind.values:
            name = re.sub(r"\W", "_", label)
            name = f"{name}_" if keyword.iskeyword(name) or name in ("mro", "name", "value") else name
            name = f"V{name}" if name[0] == "_" or name[0].isdigit() else name
            while name in names:
                name += "_"
            names[name] = label
        make: Any = StrEnum
        enum: type[StrEnum] = make(kind.name, list(names.items()))
        self.enums[kind.name] = enum
        members: dict[str, Any] = {member.value: member for member in enum}
        return ValueType(f"{kind.name} | Unlisted", lambda value: members.get(value, value))

    def _composite(self, kind: CompositeType) -> ValueType:
        if kind.members.keys() == DECIMAL_MEMBERS:
            return ValueType("Decimal", as_decimal)
        if kind.members.keys() == TIME_MEMBERS:
            return ValueType("np.datetime64", _time_of_composite, _composite_of_time(kind))
        members = {member.name: self.of(member.type) for member in kind.members.values()}
        optional = {each.name: may_be_null(each.type, each.type.presence) for each in kind.members.values()}
        return self._record(kind.name, members, optional)

    def _record(self, name: str, members: Mapping[str, ValueType], is_optional: Mapping[str, bool]) -> ValueType:
        attributes = attribute_names(members)
        self.records[name] = {
            attributes[each]: kind.annotation + (" | None" if is_optional[each] else "")
            for each, kind in members.items()
        }
        names = {attribute: each for each, attribute in attributes.items()}
        base: Any = namedtuple(name, attributes.values())  # type: ignore[misc]  # the schema's names
        record: Any = type(name, (base,), {"__slots__": (), "model_names": tuple(members)})

        def typed(values: Mapping[str, Any]) -> Any:
            return record._make(to_typed(kind, values[each]) for each, kind in members.items())

        def plain(value: Any) -> dict[str, Any]:
            given: Any = value._asdict() if hasattr(value, "_asdict") else value
            if not isinstance(given, Mapping):
                raise ValueError(f"{value!r} must be a dict or {name} of {', '.join(attributes.values())}")
            found = {names.get(str(attribute), str(attribute)): each for attribute, each in given.items()}
            return {each: to_plain(members[each], part) if each in members else part for each, part in found.items()}

        return ValueType(name, typed, plain)


def to_typed(kind: ValueType, value: Any) -> Any:
    """The application's value."""
    return value if value is None or kind.typed is None else kind.typed(value)


def to_plain(kind: ValueType, value: Any) -> Any:
    """What `SbeWriter` writes."""
    return value if value is None or kind.plain is None else kind.plain(value)


def as_time(value: int, unit: str) -> Any:
    """A `numpy.datetime64`; NaT if it is beyond the year 2262, which numpy cannot represent."""
    return _new_time(value if value < _TIME_END else "NaT", unit)


def _simple(kind: SimpleType, semantic_type: str) -> ValueType:
    unit = time_unit(kind, semantic_type)
    if unit is not None:
        return ValueType("np.datetime64", lambda value: as_time(value, unit), lambda value: _integer_time(value, unit))
    if kind.primitive.name == "char":
        return ValueType("str")
    name = "float" if kind.primitive.is_float else "int"
    if kind.length == 1:
        return ValueType(name)
    return ValueType("bytes") if kind.primitive.name == "uint8" else ValueType(f"tuple[{name}, ...]", tuple)


def _integer_time(value: Any, unit: str) -> int:
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ValueError(f"{value!r} has no time zone; give one with UTC, a numpy.datetime64 or an integer")
        since = value - _EPOCH
        value = np.datetime64(((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds) * 1_000, "ns")
    if isinstance(value, np.datetime64):
        whole = value.astype(f"datetime64[{unit}]")
        if whole != value:
            raise ValueError(f"{value} is more precise than the field's unit, {unit}")
        return int(whole.astype(np.int64))
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise ValueError(f"{value!r} is not a time; give a numpy.datetime64, a datetime with time zone or an integer")


def _time_of_composite(value: Mapping[str, Any]) -> Any:
    unit = value["unit"]
    return as_time(value["time"], _UNITS[unit] if not isinstance(unit, Unlisted) and unit in _UNITS else "ns")


def _composite_of_time(kind: CompositeType) -> Convert:
    unit = kind.members["unit"].type
    constant = unit.constant if isinstance(unit, SimpleType) else None
    labels = [label for label in unit.values if label in _UNITS] if isinstance(unit, EnumType) else []
    finest: Any = constant if constant in _UNITS else next((each for each in reversed(labels)), 9)

    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return value
        return {"time": _integer_time(value, _UNITS[finest]), "unit": None if constant is not None else finest}

    return plain


def may_be_none(block: Block, name: str) -> bool:
    """True if the value of a field, group or variable data can be None."""
    field = block.fields.get(name)
    if field is None:
        return name in block.data and block.data[name].since_version > 0
    return field.since_version > 0 or may_be_null(field.type, field.presence)


def may_be_null(kind: EncodingType, presence: Presence) -> bool:
    """True if a value that is present can be null; a composite is null if its first member is."""
    if isinstance(kind, CompositeType):
        first = next((member for member in kind.members.values() if member.is_first), None)
        return presence is Presence.OPTIONAL or (first is not None and may_be_null(first.type, first.type.presence))
    return presence is not Presence.CONSTANT and Presence.OPTIONAL in (presence, kind.presence)


def shown(value: Any) -> str:
    """A value in a `repr`: a decimal without its trailing zeros, a time as ISO 8601, an enumeration's name."""
    if isinstance(value, Decimal):
        text = f"{value:f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    if isinstance(value, np.datetime64):
        return str(value)
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, frozenset):
        return "{" + ", ".join(sorted(map(str, value))) + "}"
    if hasattr(value, "_asdict"):
        return f"{type(value).__name__}({', '.join(f'{name}={shown(part)}' for name, part in value._asdict().items())})"
    if isinstance(value, tuple):
        return "(" + ", ".join(map(shown, value)) + ")"
    return repr(value)
