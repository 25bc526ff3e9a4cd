"""Loads an <order>: what a message does to an order book."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tandemfeed.adapter.conversion.table.function_use import COMPARISONS, comparison_of
from tandemfeed.adapter.conversion.table.table import Guard, Operand, Operation, OrderAction, type_of
from tandemfeed.adapter.conversion.table.values import INT64_MAX, INT64_MIN
from tandemfeed.feedcore.documents.source_layout import SourceField
from tandemfeed.feedcore.documents.xml_document import Node

if TYPE_CHECKING:
    from tandemfeed.adapter.conversion.loading.conversion_loading import ConversionLoader

SIZE_MAX = (1 << 48) - 1  # so that the sum over a level fits in 64 bits
NEEDED = {
    "add": ("id", "side", "price", "size"),
    "modify": ("id", "side", "price", "size"),
    "reduce": ("id", "size"),
    "delete": ("id",),
    "replace": ("id", "newId", "price", "size"),
    "clear": (),
}


class OrderLoader:
    """The <order>s of one <convert>."""

    def __init__(self, loader: ConversionLoader) -> None:
        self._loader = loader
        self._keys: dict[int, Operand] = {}

    def load(self, node: Node) -> OrderAction:
        """Load one <order>."""
        action = node.need("action")
        if action not in NEEDED:
            raise node.error(f"action is {action!r}; it must be one of {', '.join(NEEDED)}")
        node.only(
            "book", "action", "by", "bid", "if", *NEEDED[action], *(COMPARISONS if "if" in node.attributes else ())
        )
        books = self._loader.shared.books
        if node.need("book") not in books:
            raise node.error(f"there is no <book> {node.need('book')!r}")
        book = list(books).index(node.need("book"))
        key = self._number(node, "by")
        if self._keys.setdefault(book, key) is not key:
            raise node.error("all <order>s of a <convert> that change one book must have the same by")
        operands = {name: self._number(node, name) for name in NEEDED[action]}
        price = type_of(operands["price"]) if "price" in operands else None
        exponent = books[node.need("book")].exponent
        if price is not None and price.exponent not in (None, exponent):
            raise node.error(f"price has the exponent {price.exponent}, but the book has {exponent}; use scale")
        size = type_of(operands["size"]) if "size" in operands else None
        if size is not None and (size.minimum < 0 or size.maximum > SIZE_MAX or size.is_nullable):
            raise node.error(
                f"size is {size}; it must be neither negative nor null, with at most 48 bits; use cast and default"
            )
        return OrderAction(book, action, key, operands, self._bid(node), self._guard(node), node.line)

    def _number(self, node: Node, name: str) -> Operand:
        operand = self._loader.resolve_name(node.need(name), node)
        found = type_of(operand)
        if isinstance(operand, Operation) and operand.is_stateful:
            raise node.error(
                f"{name}={node.need(name)!r} depends on state; only the message's own values may change a book"
            )
        may_be_text = (
            name in ("by", "side", "id", "newId") and 0 < found.text_size <= 8 and not isinstance(operand, Operation)
        )
        is_key = name in ("by", "id", "newId") and found.is_integer
        if not (found.is_number or may_be_text or is_key):
            raise node.error(
                f"{name}={node.need(name)!r} is {found}; it must be a number, or for keys and sides a text of at most 8"
            )
        return operand

    def _bid(self, node: Node) -> int:
        text = node.attributes.get("bid", "B")
        if text.isascii() and text.removeprefix("-").isdigit():
            number = node.need_int("bid")
            if not INT64_MIN <= number <= INT64_MAX:
                raise node.error(f"bid is {number}, which has more than 64 bits")
            return number
        data = text.encode()
        if not 0 < len(data) <= 8:
            raise node.error(f"bid is {text!r}; it must be a number or a text of 1 to 8 bytes")
        return int.from_bytes(data, "little", signed=True)

    def _guard(self, node: Node) -> Guard | None:
        if "if" not in node.attributes:
            return None
        operand = self._loader.resolve_name(node.need("if"), node)
        if isinstance(operand, Operation) and operand.is_stateful:
            raise node.error("if= depends on state; only the message's own values may change a book")
        if not isinstance(operand, SourceField) and type_of(operand).text_size:
            raise node.error(f"if={node.need('if')!r} is a text made for the output; compare a field")
        return Guard(operand, comparison_of(node, type_of(operand)))
