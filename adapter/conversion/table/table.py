"""A loaded converter table: names are resolved, types are checked, and operations are in the order of computation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tandemfeed.adapter.conversion.state.order_book import BookSpaces
from tandemfeed.adapter.conversion.state.state_store import KeySpace
from tandemfeed.adapter.conversion.table.function_use import Comparison
from tandemfeed.adapter.conversion.table.functions import ConverterFunction
from tandemfeed.adapter.conversion.table.values import INT64_MAX, ValueType, type_of_field
from tandemfeed.feedcore.documents.source_layout import SourceField, SourceFormat, SourceGroup, SourceMessageType
from tandemfeed.feedcore.documents.xml_document import DocumentError
from tandemfeed.feedcore.sbe.messages import Column, Group, MessageType, VarData


@dataclass(frozen=True, slots=True)
class Literal:
    """A number or text written in the table."""

    value: int | bytes
    type: ValueType


PACKET_VALUES = {"session": 0xFFFF_FFFF, "sent_at_ns": INT64_MAX, "source_stream_id": 0xFFFF}  # their maximum


@dataclass(frozen=True, slots=True)
class PacketValue:
    """A value of the source packet's header: "session" (YYYYMMDD), "sent_at_ns" or "source_stream_id"."""

    name: str

    @property
    def type(self) -> ValueType:
        """Never null."""
        return ValueType(0, PACKET_VALUES[self.name])


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """One use of a converter function.

    Attributes:
        number: unique in its conversion.
        label: its name in the table.
        operands: its values, by argument.
        constants: the constants that `check` returned.
        space: the key space of its cells; None if it keeps no state.
        columns: the places of its cells in the rows of that space.
        keys: the parts of its key.
        is_stateful: its value depends on state, so it is computed after the message is known to be valid.
        peeks: for a peek, the operation whose cells it reads.
        book: the index of the <book> that it reads.
        lines: the kernel lines that compute it, for a function without state.
    """

    number: int
    label: str
    function: ConverterFunction
    operands: dict[str, Operand]
    constants: dict[str, object]
    type: ValueType
    is_stateful: bool
    line: int
    space: int | None = None
    columns: tuple[int, ...] = ()
    keys: tuple[Operand, ...] = ()
    peeks: Operation | None = None
    book: int | None = None
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class IndexValue:
    """The number of an entry of a counted group, or of a level of a book; the first is 1."""

    group: int
    most: int

    @property
    def type(self) -> ValueType:
        """Never null."""
        return ValueType(1, self.most)


Operand = SourceField | Operation | Literal | PacketValue | IndexValue


def type_of(operand: Operand) -> ValueType:
    """The type of any operand."""
    return type_of_field(operand) if isinstance(operand, SourceField) else operand.type


def key_words(of: ValueType) -> int:
    """The number of words of a key of this type."""
    return -(-of.text_size // 8) or 1


@dataclass(frozen=True, slots=True)
class Guard:
    """A comparison that must be true."""

    operand: Operand
    comparison: Comparison


@dataclass(frozen=True, slots=True)
class OrderAction:
    """An <order>: what a message does to a book.

    Attributes:
        action: add, reduce, resize, delete, replace, modify or clear.
        key: of the book; None: the book is the one that has the order.
        bid: the value of the side that means bid.
    """

    book: int
    action: str
    key: Operand | None
    operands: dict[str, Operand]
    bid: int
    guard: Guard | None
    line: int


@dataclass(frozen=True, slots=True)
class DataWrite:
    """Variable data of an output message; empty if it has no operand."""

    target: VarData
    operand: Operand | None


@dataclass(frozen=True, slots=True, eq=False)
class GroupWrite:
    """How a group of an output message is filled. A group that the table does not name has no entries.

    Attributes:
        number: unique in its conversion; -1 if the table does not name the group.
        source: a source group; the output group gets one entry per entry of it.
        count: without `source`: the number of entries, or with `levels` the largest number.
        levels: (book, side); the group gets one entry per level of that side.
        guards, output_guards: conditions that an entry must meet to be written; output_guards depend on state.
        pure, stateful: the operations per entry, in the order of computation.
        writes, groups, data: the contents of an entry.
    """

    target: Group
    number: int = -1
    source: SourceGroup | None = None
    count: int = 0
    levels: tuple[int, int] | None = None
    guards: tuple[Guard, ...] = ()
    output_guards: tuple[Guard, ...] = ()
    pure: tuple[Operation, ...] = ()
    stateful: tuple[Operation, ...] = ()
    writes: tuple[tuple[Column, Operand], ...] = ()
    groups: tuple[GroupWrite, ...] = ()
    data: tuple[DataWrite, ...] = ()
    line: int = 0


def all_groups(groups: tuple[GroupWrite, ...]) -> Iterator[GroupWrite]:
    """All groups, nested ones included; each comes before those inside it."""
    for group in groups:
        yield group
        yield from all_groups(group.groups)


def all_operations(conversion: Conversion) -> Iterator[Operation]:
    """Every use of a function, including those in output groups."""
    yield from (*conversion.pure, *conversion.stateful)
    for group in all_groups(conversion.groups):
        yield from (*group.pure, *group.stateful)


def least_size(groups: tuple[GroupWrite, ...], data: tuple[DataWrite, ...]) -> int:
    """The smallest size in bytes of groups and data, including their length fields and dimensions."""
    size = sum(each.target.length_kind.size for each in data)
    for group in groups:
        size += group.target.dimension.size
        if not group.guards:
            size += group.count * entry_size(group)
    return size


def entry_size(group: GroupWrite) -> int:
    """The smallest size of an entry in bytes."""
    return group.target.block_length + least_size(group.groups, group.data)


def dimension_of(group: Group) -> bytes:
    """The dimension of a group, which precedes its entries, with the count 0."""
    written = bytearray(group.dimension.size)
    values = {"blockLength": group.block_length, "numGroups": len(group.groups), "numVarDataFields": len(group.data)}
    for name in values.keys() & group.dimension.parts.keys():
        part = group.dimension.parts[name]
        if part.constant is not None:
            continue
        written[part.offset : part.end] = (values[name] & ((1 << (8 * part.size)) - 1)).to_bytes(part.size, "little")
    return bytes(written)


@dataclass(frozen=True, slots=True)
class Conversion:
    """How one source message becomes one output message, or one per entry of a group.

    Attributes:
        target: the output message; None: the conversion changes state and writes nothing.
        guards: if one of them fails, the conversion does nothing.
        output_guards: they depend on state; if one of them fails, only the output is left out.
        pure, stateful: operations, in the order of computation.
        writes: output fields and their values.
        book_reads: (book, key) of books whose levels are read.
        groups, data: the groups and variable data of the output message.
        within: the groups that contain `each`, outermost first.
    """

    source: SourceMessageType
    target: MessageType | None
    each: SourceGroup | None
    guards: tuple[Guard, ...]
    output_guards: tuple[Guard, ...]
    pure: tuple[Operation, ...]
    stateful: tuple[Operation, ...]
    writes: tuple[tuple[Column, Operand], ...]
    orders: tuple[OrderAction, ...]
    book_reads: tuple[tuple[int, Operand], ...]
    line: int
    groups: tuple[GroupWrite, ...] = ()
    data: tuple[DataWrite, ...] = ()
    within: tuple[SourceGroup, ...] = ()

    @property
    def all_stateful(self) -> tuple[Operation, ...]:
        """The operations on state, including those of output groups."""
        inside = (operation for group in all_groups(self.groups) for operation in group.stateful)
        return (*self.stateful, *inside)

    def finds_book(self, book: int) -> bool:
        """True if the book's key or levels are read, and its <order>s find it by the order, not by a key."""
        is_read = book in self.books_with_levels or any(
            each.book == book and each.function.name == "order_by" for each in self.all_stateful
        )
        return is_read and any(action.book == book and action.key is None for action in self.orders)

    @property
    def books_with_levels(self) -> set[int | None]:
        """The books whose levels are read."""
        found = {operation.book for operation in self.all_stateful if "level" in operation.function.parameters}
        return found | {group.levels[0] for group in all_groups(self.groups) if group.levels}


@dataclass(frozen=True, slots=True)
class Book:
    """A <book>."""

    name: str
    exponent: int
    spaces: BookSpaces
    line: int


@dataclass(frozen=True, slots=True)
class ConverterTable:
    """A checked table.

    Attributes:
        spaces: the key spaces of the table, then those of its books.
        room: the space in bytes for all outputs of one source message.
    """

    name: str
    schema_id: int
    schema_version: int
    source_format: SourceFormat
    conversions: tuple[Conversion, ...]
    spaces: tuple[KeySpace, ...]
    books: tuple[Book, ...]
    room: int
    document: str
    fingerprint: bytes = field(default=bytes(16))


__all__ = [
    "Book",
    "Conversion",
    "ConverterTable",
    "DocumentError",
    "Guard",
    "Literal",
    "Operand",
    "Operation",
    "OrderAction",
    "PacketValue",
    "type_of",
]
