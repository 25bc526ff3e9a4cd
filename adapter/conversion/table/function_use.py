"""One use of a converter function in a table: its element, the types of its arguments, and the result of its check."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tandemfeed.adapter.conversion.table.values import INT64_MAX, INT64_MIN, ValueType
from tandemfeed.feedcore.documents.xml_document import Node

COMPARISONS = ("is", "isNot", "above", "below", "atLeast", "atMost", "isNull")


class Checked(NamedTuple):
    """The result of checking one use of a function.

    Attributes:
        result: the type of its value.
        constants: the constants of the function's templates.
        cells: the initial cells, if their number depends on the arguments.
        fails: it may refuse a message at run time.
        lines: the function's kernel lines, if they depend on the arguments.
    """

    result: ValueType
    constants: dict[str, object]
    cells: tuple[int, ...] | None = None
    fails: bool = False
    lines: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class ValueMap:
    """A <map>: the result for each value. `default` is the result for all others; None: they are refused."""

    name: str
    entries: dict[int | bytes, int | bytes]
    default: int | bytes | None
    line: int

    @property
    def has_text_keys(self) -> bool:
        """True if its keys are texts."""
        return any(isinstance(key, bytes) for key in self.entries)

    @property
    def has_text_values(self) -> bool:
        """True if its values are texts."""
        return any(isinstance(value, bytes) for value in self.entries.values())


@dataclass(frozen=True, slots=True)
class Comparison:
    """A value compared with a literal; `how` is one of COMPARISONS."""

    how: str
    literal: int | bytes


@dataclass(slots=True)
class Use:
    """One element that uses a function.

    Attributes:
        types: the types of its values, by argument; `of0`, `of1` … for a list of values.
        peeked: the type of the cell that it reads.
        book_exponent, book_key: the exponent of the book that it names, and the type of its keys.
    """

    node: Node
    types: dict[str, ValueType]
    maps: Mapping[str, ValueMap] = field(default_factory=dict)
    peeked: ValueType | None = None
    book_exponent: int | None = None
    book_key: ValueType | None = None

    def integer(self, name: str = "of") -> ValueType:
        """The type of an argument that must be an integer of any size."""
        found = self.types[name]
        if not found.is_integer:
            raise self.node.error(
                f"{name}={self.node.need(name)!r} is {found}; {self.node.need('function')} needs a number"
            )
        return found

    def number(self, name: str = "of") -> ValueType:
        """The type of an argument that must be a number of at most 63 bits and a sign."""
        found = self.integer(name)
        if not found.is_number:
            raise self.node.error(f"{name}={self.node.need(name)!r} can be {found.maximum}; cast it to int64 first")
        return found

    def text(self, name: str = "of") -> ValueType:
        """The type of an argument that must be a text."""
        found = self.types[name]
        if not found.text_size:
            raise self.node.error(
                f"{name}={self.node.need(name)!r} is {found}; {self.node.need('function')} needs a text"
            )
        return found

    def known_exponent(self, found: ValueType) -> int:
        """The exponent of a type; raises if it is unknown."""
        if found.exponent is None:
            raise self.node.error("the exponent of this value is unknown")
        return found.exponent

    def one_of(self, name: str, default: str, *allowed: str) -> str:
        """An attribute that has one of a few possible values."""
        value = self.node.attributes.get(name, default)
        if value not in allowed:
            raise self.node.error(f"{name} is {value!r}; it must be one of {', '.join(allowed)}")
        return value

    def bounded(self, name: str, minimum: int, maximum: int) -> int:
        """A required integer attribute with a range."""
        value = self.node.need_int(name)
        if not minimum <= value <= maximum:
            raise self.node.error(f"{name} is {value}; it must be from {minimum} to {maximum}")
        return value


def comparison_of(node: Node, of: ValueType) -> Comparison:
    """The one comparison among the attributes of an element."""
    found = [name for name in COMPARISONS if name in node.attributes]
    if len(found) != 1:
        raise node.error(f"<{node.tag}> takes exactly one of {', '.join(COMPARISONS)}")
    how = found[0]
    if how == "isNull":
        if node.need(how) not in ("true", "false") or not of.is_number:
            raise node.error("isNull must be true or false, and compares a number")
        return Comparison(how, int(node.need(how) == "true"))
    if of.text_size:
        if how not in ("is", "isNot"):
            raise node.error(f"{how} cannot compare a text; use is or isNot")
        literal = node.need(how).encode()
        if len(literal) > of.text_size:
            raise node.error(f"{node.need(how)!r} is longer than the {of}")
        return Comparison(how, literal)
    if not of.is_number:
        how_else = "cast it to int64" if of.bits is None else "make it a decimal"
        raise node.error(f"{of} cannot be compared; {how_else} first")
    value = node.need_int(how)
    if not INT64_MIN <= value <= INT64_MAX:
        raise node.error(f"{value} has more than 64 bits")
    return Comparison(how, value)
