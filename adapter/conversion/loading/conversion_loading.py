"""Loads one <convert>."""

from __future__ import annotations

from tandemfeed.adapter.conversion.loading.order_loading import load_orders
from tandemfeed.adapter.conversion.loading.output_loading import load_guards, load_parts, load_writes
from tandemfeed.adapter.conversion.loading.state_cells import function_of
from tandemfeed.adapter.conversion.loading.value_loading import Definitions, Scope
from tandemfeed.adapter.conversion.table.table import Conversion, least_size
from tandemfeed.feedcore.documents.message_model import MessageModel, frame_size
from tandemfeed.feedcore.documents.source_layout import SourceFormat, SourceGroup, SourceMessageType
from tandemfeed.feedcore.documents.xml_document import Node
from tandemfeed.feedcore.sbe.messages import MessageType

ELEMENTS = ("when", "let", "order", "field", "keep", "group", "data")


class ConversionLoader:
    """Loads one <convert>.

    All loaders of a table exist, and have loaded their <order>s, before one loads the rest, because a value may
    peek at a cell that another <convert> keeps.

    Args:
        room: the space for the output message in bytes.
    """

    def __init__(
        self, node: Node, source_format: SourceFormat, model: MessageModel, room: int, definitions: Definitions
    ) -> None:
        node.only("message", "to", "each")
        source = source_format.messages.get(node.need("message"))
        if source is None:
            raise node.error(f"{source_format.document} has no message {node.need('message')!r}")
        self._node, self._room, self._definitions = node, room, definitions
        self._target = _find_target(node, model)
        passed = _find_each(node, source)
        for child in node.children:
            if child.tag not in ELEMENTS:
                raise child.error(
                    f"<{child.tag}> is not allowed in <convert>; it takes {', '.join(f'<{tag}>' for tag in ELEMENTS)}"
                )
        self._scope = Scope(node, definitions, source, passed)
        definitions.scopes.append(self._scope)

    def load_orders(self) -> None:
        """Load the <order>s; values and conditions may depend on them."""
        self._scope.shared.orders += load_orders(self._scope)

    def load(self) -> Conversion:
        """Load the rest; returns the whole conversion."""
        scope, node, target = self._scope, self._node, self._target
        orders = scope.shared.orders
        guards, output_guards = load_guards(scope)
        if output_guards and target is None:
            raise node.error("a <when> on state needs an output, but this <convert> has none")
        for child in node.children:
            if child.tag in ("let", "keep"):
                if child.tag == "keep" and not function_of(child, self._definitions.functions).keeps_state:
                    raise child.error(f"{child.need('function')} keeps no state; use <field>")
                scope.resolve(child)
        writes = load_writes(scope, target)
        groups, data = load_parts(scope, target)
        size = frame_size(target) + least_size(groups, data) if target else 0
        if target and size > self._room:
            raise node.error(f"{target.name} takes {size} bytes; an output datagram has room for {self._room}")
        if target is None and not scope.stateful and not orders:
            raise node.error("a <convert> without to= must keep some state")
        return Conversion(
            scope.source,
            target,
            scope.passed[-1] if scope.passed else None,
            guards,
            output_guards,
            tuple(scope.pure),
            tuple(scope.stateful),
            writes,
            tuple(orders),
            tuple(scope.shared.book_reads),
            node.line,
            groups,
            data,
            tuple(scope.passed[:-1]),
        )


def _find_target(node: Node, model: MessageModel) -> MessageType | None:
    if "to" not in node.attributes:
        return None
    target = model.schema.messages.get(node.need("to"))
    if target is None:
        raise node.error(f"{model.schema.document} has no message {node.need('to')!r}")
    return target


def _find_each(node: Node, source: SourceMessageType) -> list[SourceGroup]:
    """The groups that each= iterates over, outermost first."""
    found: list[SourceGroup] = []
    path = node.attributes.get("each", "")
    for name in path.split(".") if "each" in node.attributes else ():
        group = (found[-1] if found else source).groups.get(name)
        if group is None:
            where = f"group {found[-1].name!r}" if found else f"source message {source.name!r}"
            raise node.error(f"{where} has no group {name!r}")
        found.append(group)
    return found
