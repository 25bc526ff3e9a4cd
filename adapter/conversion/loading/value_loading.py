"""Resolves names and values in a <convert> and in its <group>s.

A name is resolved when it is needed, so elements may come in any order. The operations come out in the order of
computation. Circular definitions are found.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count

from tandemfeed.adapter.conversion.kernel.calls.packet_calls import checked_use
from tandemfeed.adapter.conversion.loading.state_cells import Cells, cell_name, function_of
from tandemfeed.adapter.conversion.state.state_kernels import KEY_WORDS_MAX
from tandemfeed.adapter.conversion.table.function_use import Use, ValueMap
from tandemfeed.adapter.conversion.table.functions import ConverterFunction
from tandemfeed.adapter.conversion.table.table import (
    PACKET_VALUES,
    Book,
    IndexValue,
    Literal,
    Operand,
    Operation,
    OrderAction,
    PacketValue,
    key_words,
    type_of,
)
from tandemfeed.adapter.conversion.table.values import INT64_MAX, INT64_MIN, ValueType
from tandemfeed.feedcore.documents.source_layout import SourceBlock, SourceField, SourceGroup, SourceMessageType
from tandemfeed.feedcore.documents.xml_document import Node

BOOK_ATTRIBUTES = ("book", "side", "by")
PARTS_OF_FIELDS = ("text", "cut")  # functions whose text is the beginning of a field; it may be kept
NESTED_VALUES_MAX = 64  # values that depend on each other: each takes a few calls, and Python allows a thousand


@dataclass(slots=True)
class Definitions:
    """What the values of all <convert>s of a table refer to.

    Attributes:
        scopes: those of the <convert>s; an element may peek at a cell that another <convert> keeps.
        book_keys, order_ids: by number of a book, the type of its keys and of its order ids, from all <order>s.
    """

    functions: Mapping[str, ConverterFunction]
    cells: Cells
    maps: Mapping[str, ValueMap]
    books: Mapping[str, Book]
    scopes: list[Scope] = field(default_factory=list)
    book_keys: dict[int, ValueType] = field(default_factory=dict)
    order_ids: dict[int, ValueType] = field(default_factory=dict)

    def book_number(self, node: Node) -> int:
        """The index of the <book> that an element names."""
        if node.need("book") not in self.books:
            raise node.error(f"there is no <book> {node.need('book')!r}")
        return list(self.books).index(node.need("book"))


@dataclass(slots=True)
class Shared:
    """What a <convert> and its <group>s share.

    Attributes:
        orders: what its <order>s do; a value may depend on an order.
        book_reads: (book, key) of the books whose levels are read, except those that an <order> changes.
        under_way: the elements that are being resolved, outermost first.
        numbers, group_numbers: the numbers of operations and groups.
    """

    orders: list[OrderAction] = field(default_factory=list)
    book_reads: list[tuple[int, Operand]] = field(default_factory=list)
    under_way: list[Node] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=count)
    group_numbers: Iterator[int] = field(default_factory=count)


class Scope:
    """The names that the elements of a <convert> can use, and the values that they have.

    Args:
        passed: the source groups that it iterates over, outermost first.

    Attributes:
        pure, stateful: the operations resolved so far, in the order of computation.
    """

    def __init__(
        self,
        node: Node,
        definitions: Definitions,
        source: SourceMessageType,
        passed: list[SourceGroup],
        shared: Shared | None = None,
    ) -> None:
        self.node, self.definitions, self.source, self.passed = node, definitions, source, passed
        self.shared = shared or Shared()
        self.pure: list[Operation] = []
        self.stateful: list[Operation] = []
        self._lets = self._named_lets()
        self._resolved: dict[int, Operand] = {}  # by the identity of the element

    def _named_lets(self) -> dict[str, Node]:
        lets: dict[str, Node] = {}
        for node in self.node.all("let"):
            name = node.name()
            taken = {*lets, *self.source.fields, *self.source.data}
            taken.update(*(each for group in self.passed for each in (group.fields, group.data)))
            if name in taken:
                raise node.error(f"the name {name!r} is already in use")
            lets[name] = node
        return lets

    def resolve_name(self, name: str, node: Node) -> Operand:
        """Resolve a name: a <let>, a field of the entry or of the message, or a value of the packet header."""
        if name in self._lets:
            return self.resolve(self._lets[name])
        if name.startswith("packet.") and name.removeprefix("packet.") in PACKET_VALUES:
            return PacketValue(name.removeprefix("packet."))
        for part in (*reversed(self.passed), self.source):
            if (found := _source_value(part, name)) is not None:
                return found
        raise node.error(f"source message {self.source.name!r} has no field {name!r}, and no <let> has that name")

    def resolve(self, node: Node) -> Operand:
        """Resolve the value of a <let>, <field>, <keep> or <data>."""
        if id(node) in self._resolved:
            return self._resolved[id(node)]
        under_way = self.shared.under_way
        if any(node is other for other in under_way):
            circle = " → ".join(_label(each) for each in [*under_way, node])
            raise node.error(f"circular definition: {circle}")
        if len(under_way) >= NESTED_VALUES_MAX:
            raise node.error(f"more than {NESTED_VALUES_MAX} values depend on each other")
        under_way.append(node)
        try:
            found = self._resolve(node, function_of(node, self.definitions.functions))
        finally:
            under_way.pop()
        self._resolved[id(node)] = found
        return found

    def _resolve(self, node: Node, function: ConverterFunction) -> Operand:
        _check_attributes(node, function)
        operands = self._operands(node, function)
        use = Use(node, {name: type_of(operand) for name, operand in operands.items()}, self.definitions.maps)
        constants: dict[str, object] = {}
        if function.shape == "entry":
            group, of = self._entry_field(node)
            operands["of"], use.types["of"], constants["group"] = of, type_of(of), group
        level = self._level(node) if "level" in function.parameters else None
        if level is not None:
            operands["level"], use.types["level"] = level, type_of(level)
        keeper = self._keeper(node, use) if function.shape == "peek" else None
        book = self._book(node, use, function) if function.shape == "book" else None
        checked = function.check(use)
        if function.name == "copy":
            return operands["of"]
        if function.name == "constant":
            literal = checked.constants["literal"]
            assert isinstance(literal, int | bytes)
            return Literal(literal, checked.result)
        keys: tuple[Operand, ...] = ()
        space: int | None = None
        columns: tuple[int, ...] = ()
        if function.keeps_state or function.shape == "peek":
            by = " ".join(node.need("by").split())
            keys = tuple(self.key(name, node) for name in by.split())
            space = self.definitions.cells.space(node, by, _words(node, keys))
            columns = self.definitions.cells.columns(by, cell_name(node))
            self.definitions.cells.check_kind(node, by, is_double=checked.result.bits is not None)
        if function.of_doubles is not None and checked.result.bits is not None:
            function = function.of_doubles
        depends = any(isinstance(operand, Operation) and operand.is_stateful for operand in operands.values())
        is_stateful = depends or space is not None or book is not None
        checked = checked_use(node, function, operands, checked, len(self.passed))
        if checked.fails and is_stateful:
            raise node.error(
                f"{function.name} could refuse a message after state was changed; use otherwise='null' or 'clamp'"
            )
        operation = Operation(
            next(self.shared.numbers),
            _label(node),
            function,
            operands,
            checked.constants | constants,
            checked.result,
            is_stateful,
            node.line,
            space,
            columns,
            keys,
            keeper,
            book,
            function.lines if checked.lines is None else checked.lines,
        )
        (self.stateful if is_stateful else self.pure).append(operation)
        return operation

    def _entry_field(self, node: Node) -> tuple[SourceGroup, SourceField]:
        """The group and the field of it that an `entry` reads."""
        group = self.source.groups.get(node.need("group"))
        if group is None or group.parts:
            raise node.error(
                f"source message {self.source.name!r} has no group {node.need('group')!r} of fixed entries"
            )
        field = group.fields.get(node.need("of"))
        if field is None or field.constant is not None:
            raise node.error(f"the entries of {group.name!r} have no field {node.need('of')!r}")
        return group, field

    def _operands(self, node: Node, function: ConverterFunction) -> dict[str, Operand]:
        operands: dict[str, Operand] = {}
        for argument in function.values:
            names = node.need(argument).split() if function.name == "concatenate" else [node.need(argument)]
            if not names:
                raise node.error(f"{argument} is empty")
            for place, name in enumerate(names):
                key = f"{argument}{place}" if function.name == "concatenate" else argument
                operands[key] = found = self.resolve_name(name, node)
                is_made_text = isinstance(found, Operation) and bool(found.type.text_size)
                is_part = isinstance(found, Operation) and found.function.name in PARTS_OF_FIELDS
                is_kept_part = is_part and function.shape == "kept text"
                is_text_literal = isinstance(found, Literal) and isinstance(found.value, bytes)
                if is_text_literal and function.name not in ("concatenate", "copy"):
                    raise node.error(f"{name!r} is a constant text; {function.name} needs a field")
                if is_made_text and not is_kept_part and function.name not in ("concatenate", "copy"):
                    raise node.error(f"{name!r} is a text made for the output; {function.name} needs a field")
        return operands

    def key(self, name: str, node: Node) -> Operand:
        """Resolve a part of a key, which must not depend on state."""
        if (text := self.text_key(name, node)) is not None:
            return text
        operand = self.resolve_name(name, node)
        found = type_of(operand)
        is_made_text = isinstance(operand, Operation | Literal) and bool(found.text_size)
        if found.bits is not None or is_made_text or (isinstance(operand, Operation) and operand.is_stateful):
            raise node.error(
                f"{name!r} cannot be a key; a key must consist of fields or their beginnings (text, cut), "
                f"and of numbers that do not depend on state"
            )
        return operand

    def text_key(self, name: str, node: Node) -> SourceField | Operation | None:
        """Resolve a text as a part of a key: a field, or the beginning of one; None if it is anything else."""
        operand = self.resolve_name(name, node)
        size = type_of(operand).text_size
        is_part = isinstance(operand, Operation) and operand.function.name in PARTS_OF_FIELDS
        if not size or not (is_part or isinstance(operand, SourceField)):
            return None
        if size > 8 * KEY_WORDS_MAX:
            most = 8 * KEY_WORDS_MAX
            raise node.error(
                f"{name!r} is {type_of(operand)}; a key has at most {most} bytes, so use text with a length"
            )
        assert isinstance(operand, SourceField | Operation)
        return operand

    def _keeper(self, node: Node, use: Use) -> Operation | None:
        """Resolve the element that keeps the peeked cell first, so that the cell is read after it is updated."""
        cell = self.definitions.cells.find(node)
        found: list[Operand] = []
        for convert, keeper in cell.keepers:
            scope = next(scope for scope in self.definitions.scopes if scope.node is convert)
            if scope is self or not any(keeper is other for other in scope.shared.under_way):
                found.append(scope.resolve(keeper))
        types = [type_of(operand) for operand in found]
        if any(each.bits is not None for each in types):
            use.peeked = next(each for each in types if each.bits is not None)
        elif cell.function.shape == "kept text":
            use.peeked = ValueType(text_size=max(keeper.need_int("length") for _, keeper in cell.keepers))
        elif len(types) < len(cell.keepers) or not types:
            use.peeked = ValueType(INT64_MIN, INT64_MAX, None, True)
        else:
            low, high = min(each.minimum for each in types), max(each.maximum for each in types)
            exponents = {each.exponent for each in types}
            if len(exponents) > 1:
                raise node.error(f"cell {node.need('cell')!r} is kept with different exponents")
            use.peeked = ValueType(low, high, exponents.pop(), any(each.is_nullable for each in types))
        keeper_found = next((each for each in found if isinstance(each, Operation)), None)
        return keeper_found or Operation(
            0,
            "",
            cell.function,
            {},
            {"sources": len(cell.initial), "words": len(cell.initial)},
            use.peeked,
            True,
            node.line,
        )

    def _book(self, node: Node, use: Use, function: ConverterFunction) -> int:
        if function.name.startswith("order_"):
            number = self.definitions.book_number(node)
            if not any("id" in action.operands for action in self.shared.orders if action.book == number):
                raise node.error(f"{function.name} needs an <order> with an id in the same <convert>")
            if "by" in node.attributes:
                raise node.error(f"{function.name} must not have by=; the <order> gives the key")
        else:
            number = self.book_of(node)
        use.book_exponent = self.definitions.books[node.need("book")].exponent
        use.book_key = self.definitions.book_keys.get(number, ValueType(INT64_MIN, INT64_MAX))
        return number

    def book_of(self, node: Node) -> int:
        """The book whose levels an element reads: the one that an <order> changed, or the one that by= selects."""
        number, reads = self.definitions.book_number(node), self.shared.book_reads
        if not any(action.book == number for action in self.shared.orders):
            key = self.key(node.need("by"), node)
            known = self.definitions.book_keys.get(number, type_of(key))
            if key_words(type_of(key)) > key_words(known):
                raise node.error(f"by={node.need('by')!r} is {type_of(key)}, but the keys of the book are {known}")
            if (number, key) not in reads:
                if any(other == number for other, _ in reads):
                    raise node.error(f"book {node.need('book')!r} has a different key in the same <convert>")
                reads.append((number, key))
        return number

    def _level(self, node: Node) -> Operand | None:
        """The index of the group that level= names; None if level= is a number."""
        name = node.need("level")
        if name.lstrip("-").isdigit():
            return None
        operand = self.resolve_name(name, node)
        if not isinstance(operand, IndexValue):
            raise node.error(f"level is {name!r}; it must be a number or the index of a <group>")
        return operand


class GroupScope(Scope):
    """The names that the elements of a <group> can use: its own, then those of the enclosing element.

    Args:
        outer: the scope of the enclosing <convert> or <group>.
        each: the source group that it iterates over.
        index: the number of the entry or level, in a group with count= or levels=.
    """

    def __init__(self, node: Node, outer: Scope, each: SourceGroup | None, index: IndexValue | None) -> None:
        super().__init__(
            node, outer.definitions, outer.source, [*outer.passed, *([each] if each else [])], outer.shared
        )
        self._outer, self._each, self._index = outer, each, index
        self._index_name = self._named_index()

    def _named_index(self) -> str | None:
        if "index" not in self.node.attributes:
            return None
        name = self.node.name("index")
        if self._index is None:
            raise self.node.error("index= of <group> needs count= or levels=")
        if name in self._lets or name in (*self.source.fields, *self.source.data):
            raise self.node.error(f"index={name!r}: the name is already in use")
        return name

    def resolve_name(self, name: str, node: Node) -> Operand:
        """Resolve a name."""
        if name in self._lets:
            return self.resolve(self._lets[name])
        if self._index is not None and name == self._index_name:
            return self._index
        own = None if self._each is None else _source_value(self._each, name)
        return self._outer.resolve_name(name, node) if own is None else own

    def key(self, name: str, node: Node) -> Operand:
        """Resolve a key in the enclosing element, because a book is looked up once, before the entries."""
        return self._outer.key(name, node)

    def _resolve(self, node: Node, function: ConverterFunction) -> Operand:
        if function.keeps_state or function.shape == "peek":
            raise node.error(
                f"{function.name} is not allowed in a <group>; use state in the <convert>, or in one with each="
            )
        if function.is_per_packet:
            raise node.error(
                f"{function.name} is called in Python before a packet is converted ({function.why_called}); "
                f"use it in a <let> of the <convert>, or in a <convert> with each="
            )
        if function.shape == "book" and "levels" in self.node.attributes:
            is_level = "level" in function.parameters
            names = BOOK_ATTRIBUTES if is_level else ("book",)
            given = {name: self.node.attributes[name] for name in names if name in self.node.attributes}
            node = replace(node, attributes={**given, **({"level": ""} if is_level else {}), **node.attributes})
        return super()._resolve(node, function)

    def _level(self, node: Node) -> Operand | None:
        """The level of the entry, unless the element names another."""
        return super()._level(node) if node.attributes.get("level") else self._index


def _source_value(part: SourceBlock, name: str) -> Operand | None:
    """A field or a variable text of a message or of a group's entry; None if it has none of that name."""
    if name in part.data:
        return part.data[name].text
    found = part.fields.get(name)
    if found is None or found.constant is None:
        return found
    return Literal(found.constant, ValueType(found.constant, found.constant, found.exponent))


def _label(node: Node) -> str:
    return node.attributes.get("name") or (cell_name(node) if node.tag == "keep" else node.need("function"))


def _check_attributes(node: Node, function: ConverterFunction) -> None:
    """Refuse attributes that the function does not take."""
    name = () if node.tag == "keep" else ("name",)
    state: tuple[str, ...] = ()
    if function.keeps_state:
        state = "by", "cell", "reset"
    elif function.shape == "peek":
        state = "by", "cell"
    elif function.shape == "book":
        state = ("by",)
    node.only(*name, "function", *state, *function.values, *function.parameters)


def _words(node: Node, keys: tuple[Operand, ...]) -> int:
    """The number of words of a key."""
    words = sum(key_words(type_of(key)) for key in keys)
    if words > KEY_WORDS_MAX:
        raise node.error(f"the key has {8 * words} bytes; at most {8 * KEY_WORDS_MAX} are allowed")
    return words
