"""A converter table after loading: names resolved, types proven, everything in the order it is computed in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tandemfeed.adapter.conversion.function_use import Comparison
from tandemfeed.adapter.conversion.functions import ConverterFunction
from tandemfeed.adapter.conversion.order_book import BookSpaces
from tandemfeed.adapter.conversion.state_store import KeySpace
from tandemfeed.adapter.conversion.values import ValueType, type_of_field
from tandemfeed.feedcore.documents.source_layout import SourceField, SourceFormat, SourceGroup, SourceMessageType
from tandemfeed.feedcore.documents.xml_document import DocumentError
from tandemfeed.feedcore.sbe.messages import Column, Group, MessageType, VarData


@dataclass(frozen=True, slots=True)
class Literal:
    """A number or text of the table itself."""

    value: int | bytes
    type: ValueType


@dataclass(frozen=True, slots=True)
class PacketValue:
    """A value of the source packet's header: "session" (YYYYMMDD) or "sent_at_ns"."""

    name: str

    @property
    def type(self) -> ValueType:
        """Of a session 32 bits; the time has 63."""
        return ValueType(0, 0xFFFF_FFFF if self.name == "session" else (1 << 63) - 1)


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """One use of a converter function.

    Attributes:
        number: unique in its conversion.
        label: the name it is known by in the table.
        operands: its values by argument.
        constants: what `check` answered.
        space: the key space of its cells; None: it keeps none.
        columns: its cells in the space's rows.
        keys: what its key is made of.
        is_stateful: its value depends on state, so it is computed after all is judged.
        peeks: the function whose cells it reads, of a peek.
        book: which <book> it reads.
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


@dataclass(frozen=True, slots=True)
class IndexValue:
    """The number of an entry of a counted group or of a book's level: from 1 on."""

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


@dataclass(frozen=True, slots=True)
class Guard:
    """A comparison that must hold."""

    operand: Operand
    comparison: Comparison


@dataclass(frozen=True, slots=True)
class OrderAction:
    """An <order>: what a message does to a book.

    Attributes:
        action: add, reduce, delete, replace, modify or clear.
        bid: the number of the side's value that means bid.
    """

    book: int
    action: str
    key: Operand
    operands: dict[str, Operand]
    bid: int
    guard: Guard | None
    line: int


@dataclass(frozen=True, slots=True)
class DataWrite:
    """Variable data of an output message; without a value it is empty."""

    target: VarData
    operand: Operand | None


@dataclass(frozen=True, slots=True, eq=False)
class GroupWrite:
    """How a group of an output message is filled; one that the table does not name has no entries.

    Attributes:
        number: unique in its conversion; -1: the table does not name it.
        source: an entry per entry of this source group.
        count: without it: so many entries, or with `levels` at most.
        levels: (book, side) of whose levels there is an entry each.
        guards, output_guards: which entries are left out; the latter depend on state.
        pure, stateful: operations per entry in the order they are computed in.
        writes, groups, data: what an entry holds.
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
    """Groups, each before those inside it."""
    for group in groups:
        yield group
        yield from all_groups(group.groups)


def all_operations(conversion: Conversion) -> Iterator[Operation]:
    """Every use of a function, those in groups of the output included."""
    yield from (*conversion.pure, *conversion.stateful)
    for group in all_groups(conversion.groups):
        yield from (*group.pure, *group.stateful)


def least_size(groups: tuple[GroupWrite, ...], data: tuple[DataWrite, ...]) -> int:
    """Bytes that groups and data take whatever the message says, lengths and dimensions included."""
    size = sum(each.target.length_kind.size for each in data)
    for group in groups:
        size += group.target.dimension.size
        if not group.guards:
            size += group.count * entry_size(group)
    return size


def entry_size(group: GroupWrite) -> int:
    """Bytes that an entry takes whatever it says."""
    return group.target.block_length + least_size(group.groups, group.data)


def dimension_of(group: Group) -> bytes:
    """What stands before a group's entries, with the count 0."""
    written = bytearray(group.dimension.size)
    told = {"blockLength": group.block_length, "numGroups": len(group.groups), "numVarDataFields": len(group.data)}
    for name in told.keys() & group.dimension.parts.keys():
        part = group.dimension.parts[name]
        written[part.offset : part.end] = (told[name] & ((1 << (8 * part.size)) - 1)).to_bytes(part.size, "little")
    return bytes(written)


@dataclass(frozen=True, slots=True)
class Conversion:
    """How one source message becomes one output message, or one per entry of a group.

    Attributes:
        target: None: it changes state and writes nothing.
        guards: without them nothing at all happens.
        output_guards: they depend on state, and decide on the output alone.
        pure, stateful: operations in the order they are computed in.
        writes: output fields and their values.
        book_reads: (book, key) whose levels are read.
        groups, data: of the output message, if it has any.
        within: the groups around `each`, outermost first.
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
        """Operations on state, those of groups included."""
        inside = (operation for group in all_groups(self.groups) for operation in group.stateful)
        return (*self.stateful, *inside)

    @property
    def books_with_levels(self) -> set[int | None]:
        """Books whose levels are read."""
        found = {operation.book for operation in self.all_stateful if "level" in operation.function.value}
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
        spaces: key spaces; those of the books after the table's own.
        room: bytes that all outputs of one source message may take.
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
