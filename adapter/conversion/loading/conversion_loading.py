"""Loads one <convert>. Names are resolved when they are needed, so elements may come in any order. The operations come
out in the order of computation. Circular definitions are found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count

from tandemfeed.adapter.conversion.kernel.packet_calls import checked_use
from tandemfeed.adapter.conversion.loading.order_loading import OrderLoader
from tandemfeed.adapter.conversion.loading.state_cells import Cells, cell_name, function_of
from tandemfeed.adapter.conversion.state.state_kernels import KEY_WORDS_MAX
from tandemfeed.adapter.conversion.table.function_use import Use, ValueMap, comparison_of
from tandemfeed.adapter.conversion.table.functions import ConverterFunction
from tandemfeed.adapter.conversion.table.table import (
    Book,
    Conversion,
    DataWrite,
    GroupWrite,
    Guard,
    IndexValue,
    Literal,
    Operand,
    Operation,
    OrderAction,
    PacketValue,
    least_size,
    type_of,
)
from tandemfeed.adapter.conversion.table.values import INT64_MAX, INT64_MIN, ValueType, why_not_fit
from tandemfeed.feedcore.documents.message_model import MessageModel, frame_size
from tandemfeed.feedcore.documents.source_layout import SourceField, SourceFormat, SourceGroup, SourceMessageType
from tandemfeed.feedcore.documents.xml_document import Node
from tandemfeed.feedcore.sbe.messages import Column, Group, MessageType

ELEMENTS = ("when", "let", "order", "field", "keep", "group", "data")
NESTED_VALUES_MAX = 64  # values that depend on each other: each takes a few calls, and Python allows a thousand


@dataclass(slots=True)
class Shared:
    """What all <convert>s of a table share.

    Attributes:
        load_parts: loads groups and variable data. It is passed in because group_loading imports this module.
    """

    source_format: SourceFormat
    model: MessageModel
    functions: Mapping[str, ConverterFunction]
    cells: Cells
    maps: dict[str, ValueMap]
    books: dict[str, Book]
    room: int
    load_parts: Callable[[ConversionLoader], tuple[tuple[GroupWrite, ...], tuple[DataWrite, ...]]]
    loaders: list[ConversionLoader] = field(default_factory=list)


class ConversionLoader:
    """Loads one <convert>."""

    def __init__(self, node: Node, shared: Shared) -> None:
        node.only("message", "to", "each")
        source = shared.source_format.messages.get(node.need("message"))
        if source is None:
            raise node.error(f"{shared.source_format.document} has no message {node.need('message')!r}")
        self._begin(node, shared, source, self._find_target(node, shared))
        self.passed = self._find_each()
        self.each = self.passed[-1] if self.passed else None
        for child in node.children:
            if child.tag not in ELEMENTS:
                raise child.error(
                    f"<{child.tag}> is not allowed in <convert>; it takes {', '.join(f'<{tag}>' for tag in ELEMENTS)}"
                )
        self._lets = self._named_lets()
        self._under_way: list[Node] = []
        self._numbers, self._group_numbers = count(), count()
        self._book_reads: list[tuple[int, Operand]] = []
        self._orders: list[OrderAction] = []

    def _begin(self, node: Node, shared: Shared, source: SourceMessageType, target: MessageType | Group | None) -> None:
        """Set what a <convert> and a <group> each have of their own."""
        self.node, self.shared, self.source, self.target = node, shared, source, target
        self._done: dict[int, Operand] = {}
        self._pure: list[Operation] = []
        self._stateful: list[Operation] = []

    def _share(self, outer: ConversionLoader) -> None:
        """Set what a <group> shares with its enclosing element."""
        self._under_way = outer._under_way
        self._numbers, self._group_numbers = outer._numbers, outer._group_numbers
        self._book_reads, self._orders = outer._book_reads, outer._orders

    @staticmethod
    def _find_target(node: Node, shared: Shared) -> MessageType | None:
        if "to" not in node.attributes:
            return None
        target = shared.model.schema.messages.get(node.need("to"))
        if target is None:
            raise node.error(f"{shared.model.schema.document} has no message {node.need('to')!r}")
        return target

    def _find_each(self) -> list[SourceGroup]:
        """The groups that each= iterates over, outermost first."""
        found: list[SourceGroup] = []
        path = self.node.attributes.get("each", "")
        for name in path.split(".") if "each" in self.node.attributes else ():
            group = (found[-1] if found else self.source).groups.get(name)
            if group is None:
                where = f"group {found[-1].name!r}" if found else f"source message {self.source.name!r}"
                raise self.node.error(f"{where} has no group {name!r}")
            found.append(group)
        return found

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

    def load(self) -> Conversion:
        """Load the conversion."""
        orders = OrderLoader(self)
        self._orders += [orders.load(node) for node in self.node.all("order")]
        guards, output_guards = self._guards()  # after the orders, because a guard may depend on an order
        for node in self.node.children:
            if node.tag in ("let", "keep"):
                if node.tag == "keep" and not function_of(node, self.shared.functions).keeps_state:
                    raise node.error(f"{node.need('function')} keeps no state; use <field>")
                self.resolve_node(node)
        writes = tuple(self._write(node) for node in self.node.all("field"))
        self._check_complete(writes)
        groups, data = self.shared.load_parts(self)
        assert not isinstance(self.target, Group)
        size = frame_size(self.target) + least_size(groups, data) if self.target else 0
        if self.target and size > self.shared.room:
            raise self.node.error(
                f"{self.target.name} takes {size} bytes; an output datagram has room for {self.shared.room}"
            )
        if self.target is None and not self._stateful and not self._orders:
            raise self.node.error("a <convert> without to= must keep some state")
        return Conversion(
            self.source,
            self.target,
            self.each,
            guards,
            output_guards,
            tuple(self._pure),
            tuple(self._stateful),
            writes,
            tuple(self._orders),
            tuple(self._book_reads),
            self.node.line,
            groups,
            data,
            tuple(self.passed[:-1]),
        )

    def _guards(self) -> tuple[tuple[Guard, ...], tuple[Guard, ...]]:
        guards: list[Guard] = []
        output_guards: list[Guard] = []
        for node in self.node.all("when"):
            node.only("of", "is", "isNot", "above", "below", "atLeast", "atMost", "isNull")
            operand = self.resolve_name(node.need("of"), node)
            if isinstance(operand, Literal):
                raise node.error(f"{node.need('of')!r} is a constant, so the comparison is always true or always false")
            if isinstance(operand, Operation) and operand.type.text_size:
                raise node.error(f"{node.need('of')!r} is a text made for the output; compare a field")
            guard = Guard(operand, comparison_of(node, type_of(operand)))
            is_stateful = isinstance(operand, Operation) and operand.is_stateful
            (output_guards if is_stateful else guards).append(guard)
        if output_guards and self.target is None:
            raise self.node.error("a <when> on state needs an output, but this <convert> has none")
        return tuple(guards), tuple(output_guards)

    def _write(self, node: Node) -> tuple[Column, Operand]:
        if self.target is None:
            raise node.error("a <field> is not allowed in a <convert> without to=")
        target = self.target.columns.get(node.need("name"))
        if target is None:
            raise node.error(f"{self.target.name} has no field {node.need('name')!r}")
        operand = self.resolve_node(node)
        reason = why_not_fit(type_of(operand), target)
        if reason is not None:
            raise node.error(reason)
        return target, operand

    def _check_complete(self, writes: tuple[tuple[Column, Operand], ...]) -> None:
        written = [target.name for target, _ in writes]
        for name, target in self.target.columns.items() if self.target else ():
            may_miss = target.null is not None
            if written.count(name) != 1 and not (may_miss and name not in written):
                times = f"is written {written.count(name)} times; it must be written once"
                raise self.node.error(f"field {name!r} of {self.target.name if self.target else ''} {times}")

    def resolve_name(self, name: str, node: Node) -> Operand:
        """Resolve a name: a <let>, a field of the entry or of the message, or a value of the packet header."""
        if name in self._lets:
            return self.resolve_node(self._lets[name])
        if name in ("packet.session", "packet.sent_at_ns"):
            return PacketValue(name.removeprefix("packet."))
        for group in reversed(self.passed):
            if name in group.fields:
                return self._field_operand(group.fields[name])
            if name in group.data:
                return group.data[name].text
        if name in self.source.fields:
            return self._field_operand(self.source.fields[name])
        if name in self.source.data:
            return self.source.data[name].text
        raise node.error(f"source message {self.source.name!r} has no field {name!r}, and no <let> has that name")

    @staticmethod
    def _field_operand(found: SourceField) -> Operand:
        if found.constant is not None:
            return Literal(found.constant, ValueType(found.constant, found.constant, found.exponent))
        return found

    def resolve_node(self, node: Node) -> Operand:
        """Resolve the value of a <let>, <field> or <keep>."""
        if id(node) in self._done:
            return self._done[id(node)]
        if any(node is other for other in self._under_way):
            circle = " → ".join(self._label(each) for each in [*self._under_way, node])
            raise node.error(f"circular definition: {circle}")
        if len(self._under_way) >= NESTED_VALUES_MAX:
            raise node.error(f"more than {NESTED_VALUES_MAX} values depend on each other")
        self._under_way.append(node)
        try:
            found = self._resolve(node)
        finally:
            self._under_way.pop()
        self._done[id(node)] = found
        return found

    def _label(self, node: Node) -> str:
        return node.attributes.get("name") or (cell_name(node) if node.tag == "keep" else node.need("function"))

    def _resolve(self, node: Node) -> Operand:
        function = function_of(node, self.shared.functions)
        extra = ("by", "cell", "reset") if function.keeps_state else ("by", "cell") if function.shape == "peek" else ()
        own = ("name",) if node.tag != "keep" else ()
        node.only(
            *own,
            "function",
            *extra,
            *(("by",) if function.shape == "book" else ()),
            *function.values,
            *function.parameters,
        )
        operands = self._operands(node, function)
        use = Use(node, {name: type_of(operand) for name, operand in operands.items()}, self.shared.maps)
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
            space = self.shared.cells.space(node, by, self._words(node, keys))
            columns = self.shared.cells.columns(by, cell_name(node))
        depends = any(isinstance(operand, Operation) and operand.is_stateful for operand in operands.values())
        is_stateful = depends or space is not None or book is not None
        checked = checked_use(node, function, operands, checked, len(self.passed))
        if checked.fails and is_stateful:
            raise node.error(
                f"{function.name} could refuse a message after state was changed; use otherwise='null' or 'clamp'"
            )
        operation = Operation(
            next(self._numbers),
            self._label(node),
            function,
            operands,
            checked.constants,
            checked.result,
            is_stateful,
            node.line,
            space,
            columns,
            keys,
            keeper,
            book,
        )
        (self._stateful if is_stateful else self._pure).append(operation)
        return operation

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
                is_text_literal = isinstance(found, Literal) and isinstance(found.value, bytes)
                if is_text_literal and function.name not in ("concatenate", "copy"):
                    raise node.error(f"{name!r} is a constant text; {function.name} needs a field")
                if is_made_text and function.name not in ("concatenate", "copy"):
                    raise node.error(f"{name!r} is a text made for the output; {function.name} needs a field")
        return operands

    def key(self, name: str, node: Node) -> Operand:
        """Resolve a part of a key, which must not depend on state."""
        operand = self.resolve_name(name, node)
        found = type_of(operand)
        is_made_text = isinstance(operand, Operation | Literal) and bool(found.text_size)
        if found.bits is not None or is_made_text or (isinstance(operand, Operation) and operand.is_stateful):
            raise node.error(
                f"{name!r} cannot be a key; a key must consist of fields, and of numbers that do not depend on state"
            )
        return operand

    def _words(self, node: Node, keys: tuple[Operand, ...]) -> int:
        words = sum(-(-type_of(key).text_size // 8) or 1 for key in keys)
        if words > KEY_WORDS_MAX:
            raise node.error(f"the key has {8 * words} bytes; at most {8 * KEY_WORDS_MAX} are allowed")
        return words

    def _keeper(self, node: Node, use: Use) -> Operation | None:
        """Resolve the element that keeps the peeked cell first, so that the cell is read after it is updated."""
        cell = self.shared.cells.find(node)
        found: list[Operand] = []
        for convert, keeper in cell.keepers:
            loader = next(loader for loader in self.shared.loaders if loader.node is convert)
            if loader is self or not any(keeper is other for other in loader._under_way):
                found.append(loader.resolve_node(keeper))
        types = [type_of(operand) for operand in found]
        if len(types) < len(cell.keepers) or not types:
            use.peeked = ValueType(INT64_MIN, INT64_MAX, None, True)
        else:
            low, high = min(each.minimum for each in types), max(each.maximum for each in types)
            exponents = {each.exponent for each in types}
            if len(exponents) > 1:
                raise node.error(f"cell {node.need('cell')!r} is kept with different exponents")
            use.peeked = ValueType(low, high, exponents.pop(), any(each.is_nullable for each in types))
        keeper_found = next((each for each in found if isinstance(each, Operation)), None)
        return keeper_found or Operation(
            0, "", cell.function, {}, {"sources": len(cell.initial)}, use.peeked, True, node.line
        )

    def _book(self, node: Node, use: Use, function: ConverterFunction) -> int:
        name = node.need("book")
        if not function.name.startswith("order_"):
            number = self.book_of(node)
        elif name not in self.shared.books:
            raise node.error(f"there is no <book> {name!r}")
        else:
            number = list(self.shared.books).index(name)
            if not any("id" in action.operands for action in self._orders if action.book == number):
                raise node.error(f"{function.name} needs an <order> with an id in the same <convert>")
            if "by" in node.attributes:
                raise node.error(f"{function.name} must not have by=; the <order> gives the key")
        use.book_exponent = self.shared.books[name].exponent
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

    def book_of(self, node: Node) -> int:
        """The book whose levels an element reads: the one that an <order> changed, or the one that by= selects."""
        name = node.need("book")
        if name not in self.shared.books:
            raise node.error(f"there is no <book> {name!r}")
        number = list(self.shared.books).index(name)
        if not any(action.book == number for action in self._orders):
            key = self.key(node.need("by"), node)
            if type_of(key).text_size > 8:
                raise node.error(f"by is {node.need('by')!r}; a book's key must be a number or a text up to 8 bytes")
            if (number, key) not in self._book_reads:
                if any(other == number for other, _ in self._book_reads):
                    raise node.error(f"book {name!r} has a different key in the same <convert>")
                self._book_reads.append((number, key))
        return number
