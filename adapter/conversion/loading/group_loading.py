"""Loads the variable-size parts of an output message. A <group> writes the entries of a group, and a <data> writes a
text of variable length. A <group> can use the names of its <convert>, and its own."""

from __future__ import annotations

from dataclasses import replace

from tandemfeed.adapter.conversion.loading.conversion_loading import ConversionLoader
from tandemfeed.adapter.conversion.loading.state_cells import function_of
from tandemfeed.adapter.conversion.table.table import DataWrite, GroupWrite, IndexValue, Literal, Operand, type_of
from tandemfeed.adapter.conversion.table.values import why_not_data
from tandemfeed.feedcore.documents.source_layout import SourceField, SourceGroup, SourceMessageType
from tandemfeed.feedcore.documents.xml_document import Node
from tandemfeed.feedcore.sbe.messages import Group, MessageType, VarData

ELEMENTS = ("when", "let", "field", "group", "data")
BOOK_ATTRIBUTES = ("book", "side", "by")
COUNT_MAX = 1_000  # entries of a counted group; far more than fit in a datagram


def load_parts(loader: ConversionLoader) -> tuple[tuple[GroupWrite, ...], tuple[DataWrite, ...]]:
    """Load the groups and variable data of a loader's target; those that the table does not name are empty."""
    nodes = [node for node in loader.node.children if node.tag in ("group", "data")]
    target = loader.target
    if target is None:
        if nodes:
            raise nodes[0].error(f"a <{nodes[0].tag}> is not allowed in a <convert> without to=")
        return (), ()
    named: dict[str, Node] = {}
    for node in nodes:
        name = node.need("name")
        if name not in (target.groups if node.tag == "group" else target.data):
            raise node.error(f"{target.name} has no {node.tag} {name!r}")
        if name in named:
            raise node.error(f"{node.tag} {name!r} of {target.name} is written twice")
        named[name] = node
    groups = tuple(_group(loader, part, named.get(part.name)) for part in target.groups.values())
    return groups, tuple(_data(loader, part, named.get(part.name)) for part in target.data.values())


def _group(loader: ConversionLoader, target: Group, node: Node | None) -> GroupWrite:
    blamed = node or loader.node
    if target.block_length > target.length.kind.maximum:
        raise blamed.error(
            f"an entry of {target.name} takes {target.block_length} bytes; its blockLength is {target.length.kind.name}"
        )
    write = GroupWrite(target, line=loader.node.line) if node is None else GroupLoader(node, loader, target).entries()
    certain = write.count if write.levels is None and not write.guards and not write.output_guards else 0
    if certain < target.count.minimum:
        raise blamed.error(
            f"{target.name} needs at least {target.count.minimum} entries; this <group> cannot guarantee them"
        )
    return write


def _data(loader: ConversionLoader, target: VarData, node: Node | None) -> DataWrite:
    operand = None if node is None else loader.resolve_node(node)
    size = len(operand.value) if isinstance(operand, Literal) and isinstance(operand.value, bytes) else 0
    if size < target.minimum:
        raise (node or loader.node).error(f"{target.name} needs at least {target.minimum} bytes; it may get {size}")
    if node is not None and operand is not None:
        is_copy = isinstance(operand, SourceField) and operand.is_variable
        reason = why_not_data(type_of(operand), target, is_copy=is_copy)
        if reason is not None:
            raise node.error(reason)
    return DataWrite(target, operand)


class GroupLoader(ConversionLoader):
    """Loads one <group>, which may be inside another.

    Args:
        outer: the loader of the enclosing <convert> or <group>.
        target: the group of the output message that it writes.
    """

    target: MessageType | Group | None

    def __init__(self, node: Node, outer: ConversionLoader, target: Group) -> None:
        node.only("name", "of", "count", "levels", "index", *BOOK_ATTRIBUTES)
        for child in node.children:
            if child.tag not in ELEMENTS:
                raise child.error(
                    f"<{child.tag}> is not allowed in <group>; it takes {', '.join(f'<{tag}>' for tag in ELEMENTS)}"
                )
        self._outer = outer
        self._group = target
        self._begin(node, outer.shared, outer.source, target)
        self.each = self._find_source()
        self.passed = [*outer.passed, *([self.each] if self.each else [])]
        self._lets = self._named_lets()
        self._share(outer)
        self._number = next(self._group_numbers)
        self._count = self._find_count()
        index = "levels" in node.attributes or "count" in node.attributes
        self._index = IndexValue(self._number, self._count) if index else None
        self._index_name = self._named_index()

    def _find_source(self) -> SourceGroup | None:
        kinds = [name for name in ("of", "count", "levels") if name in self.node.attributes]
        if len(kinds) != 1:
            raise self.node.error("<group> takes exactly one of of=, count= and levels=")
        if kinds[0] != "of":
            return None
        name = self.node.need("of")
        around: list[SourceGroup | SourceMessageType] = [*reversed(self._outer.passed), self.source]
        group = next((each.groups[name] for each in around if name in each.groups), None)
        if group is None:
            raise self.node.error(f"source message {self.source.name!r} has no group {self.node.need('of')!r}")
        if any(group is other for other in self._outer.passed):
            raise self.node.error(f"an enclosing element already iterates over {group.name!r}")
        return group

    def _find_count(self) -> int:
        """The number of entries of a counted group, or the largest number of levels."""
        node = self.node
        for attribute in BOOK_ATTRIBUTES:
            if attribute in node.attributes and "levels" not in node.attributes:
                raise node.error(f"{attribute}= of <group> needs levels=")
        if self.each is not None:
            return 0
        name = "count" if "count" in node.attributes else "levels"
        count, most = node.need_int(name), min(COUNT_MAX, self._group.count.maximum)
        if not 1 <= count <= most:
            raise node.error(f"{name} is {count}; it must be from 1 to {most}")
        return count

    def _named_index(self) -> str | None:
        if "index" not in self.node.attributes:
            return None
        name = self.node.name("index")
        if self._index is None:
            raise self.node.error("index= of <group> needs count= or levels=")
        if name in self._lets or name in (*self.source.fields, *self.source.data):
            raise self.node.error(f"index={name!r}: the name is already in use")
        return name

    def entries(self) -> GroupWrite:
        """Load what the group writes."""
        levels: tuple[int, int] | None = None
        if "levels" in self.node.attributes:
            if self.node.need("side") not in ("bid", "ask"):
                raise self.node.error(f"side is {self.node.need('side')!r}; it must be bid or ask")
            levels = self.book_of(self.node), int(self.node.need("side") == "ask")
        guards, output_guards = self._guards()
        for node in self.node.all("let"):
            self.resolve_node(node)
        writes = tuple(self._write(node) for node in self.node.all("field"))
        self._check_complete(writes)
        groups, data = load_parts(self)
        return GroupWrite(
            self._group,
            self._number,
            self.each,
            self._count,
            levels,
            guards,
            output_guards,
            tuple(self._pure),
            tuple(self._stateful),
            writes,
            groups,
            data,
            self.node.line,
        )

    def resolve_name(self, name: str, node: Node) -> Operand:
        """Resolve a name: the group's own names come first, then those of the enclosing element."""
        if name in self._lets:
            return self.resolve_node(self._lets[name])
        if self._index is not None and name == self._index_name:
            return self._index
        if self.each is not None and name in self.each.fields:
            return self._field_operand(self.each.fields[name])
        if self.each is not None and name in self.each.data:
            return self.each.data[name].text
        return self._outer.resolve_name(name, node)

    def key(self, name: str, node: Node) -> Operand:
        """Resolve a key in the enclosing element, because a book is looked up once, before the entries."""
        return self._outer.key(name, node)

    def _resolve(self, node: Node) -> Operand:
        function = function_of(node, self.shared.functions)
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
        return super()._resolve(node)

    def _level(self, node: Node) -> Operand | None:
        """The level of the entry, unless the element names another."""
        return super()._level(node) if node.attributes.get("level") else self._index
