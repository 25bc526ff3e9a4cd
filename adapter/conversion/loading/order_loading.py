"""Loads the <order>s of a <convert>: what a message does to order books."""

from __future__ import annotations

from dataclasses import replace

from tandemfeed.adapter.conversion.loading.value_loading import Scope
from tandemfeed.adapter.conversion.table.function_use import COMPARISONS, comparison_of
from tandemfeed.adapter.conversion.table.table import Guard, Operand, Operation, OrderAction, type_of
from tandemfeed.adapter.conversion.table.values import INT64_MAX, INT64_MIN, ValueType
from tandemfeed.feedcore.documents.source_layout import SourceField
from tandemfeed.feedcore.documents.xml_document import Node

SIZE_MAX = (1 << 48) - 1  # so that the sum over a level fits in 64 bits
NEEDED = {
    "add": ("id", "side", "price", "size"),
    "modify": ("id", "side", "price", "size"),
    "reduce": ("id", "size"),
    "resize": ("id", "size"),
    "delete": ("id",),
    "replace": ("id", "newId", "price", "size"),
    "clear": (),
}

KEYS = ("by", "id", "newId")

# Actions on an order that is in a book: if its id is unique, the book's key is not needed.
BOOK_IS_KNOWN = ("reduce", "resize", "delete", "replace")


def load_orders(scope: Scope) -> list[OrderAction]:
    """Load the <order>s of a <convert>."""
    keys: dict[int, Operand | None] = {}
    return [_order(scope, node, keys) for node in scope.node.all("order")]


def _order(scope: Scope, node: Node, keys: dict[int, Operand | None]) -> OrderAction:
    """Load one <order>; `keys`: the key of each book, which all <order>s of a <convert> share."""
    action = node.need("action")
    if action not in NEEDED:
        raise node.error(f"action is {action!r}; it must be one of {', '.join(NEEDED)}")
    node.only("book", "action", "by", "bid", "if", *NEEDED[action], *(COMPARISONS if "if" in node.attributes else ()))
    book = scope.definitions.book_number(node)
    key = _book_key(scope, node, action, book)
    if keys.setdefault(book, key) is not key:
        raise node.error("all <order>s of a <convert> that change one book must have the same by")
    operands = {name: _number(scope, node, name) for name in NEEDED[action]}
    for name in operands.keys() & {"id", "newId"}:
        _note_type(scope.definitions.order_ids, book, operands[name], node, name)
    price = type_of(operands["price"]) if "price" in operands else None
    exponent = scope.definitions.books[node.need("book")].exponent
    if price is not None and price.exponent not in (None, exponent):
        raise node.error(f"price has the exponent {price.exponent}, but the book has {exponent}; use scale")
    size = type_of(operands["size"]) if "size" in operands else None
    if size is not None and (size.minimum < 0 or size.maximum > SIZE_MAX or size.is_nullable):
        raise node.error(
            f"size is {size}; it must be neither negative nor null, with at most 48 bits; use cast and default"
        )
    return OrderAction(book, action, key, operands, _bid(node), _guard(scope, node), node.line)


def _book_key(scope: Scope, node: Node, action: str, book: int) -> Operand | None:
    """The key of the book; None: the book is the one that has the order."""
    name = node.need("book")
    if "by" not in node.attributes and action in BOOK_IS_KNOWN:
        if not scope.definitions.books[name].spaces.ids_are_unique:
            raise node.error(f"book {name!r} has ids='perBook', so that an order is found only with by=")
        return None
    key = _number(scope, node, "by")
    _note_type(scope.definitions.book_keys, book, key, node, "by")
    return key


def _note_type(types: dict[int, ValueType], book: int, key: Operand, node: Node, name: str) -> None:
    """Widen the type of a book's keys, or of its order ids, to that of one more."""
    found = type_of(key)
    known = types.setdefault(book, found)
    if bool(known.text_size) != bool(found.text_size):
        others = f"other <order>s of book {node.need('book')!r} have {known}"
        raise node.error(f"{name}={node.need(name)!r} is {found}, but {others}")
    low, high = min(known.minimum, found.minimum), max(known.maximum, found.maximum)
    types[book] = replace(known.within(low, high), text_size=max(known.text_size, found.text_size))


def _number(scope: Scope, node: Node, name: str) -> Operand:
    if name in KEYS and (key := scope.text_key(node.need(name), node)) is not None:
        return key
    operand = scope.resolve_name(node.need(name), node)
    found = type_of(operand)
    if isinstance(operand, Operation) and operand.is_stateful:
        raise node.error(
            f"{name}={node.need(name)!r} depends on state; only the message's own values may change a book"
        )
    is_side = name == "side" and 0 < found.text_size <= 8 and not isinstance(operand, Operation)
    if not (found.is_number or is_side or (name in KEYS and found.is_integer)):
        raise node.error(
            f"{name}={node.need(name)!r} is {found}; it must be a number, or for a side a text of at most 8"
        )
    return operand


def _bid(node: Node) -> int:
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


def _guard(scope: Scope, node: Node) -> Guard | None:
    if "if" not in node.attributes:
        return None
    operand = scope.resolve_name(node.need("if"), node)
    if isinstance(operand, Operation) and operand.is_stateful:
        raise node.error("if= depends on state; only the message's own values may change a book")
    if not isinstance(operand, SourceField) and type_of(operand).text_size:
        raise node.error(f"if={node.need('if')!r} is a text made for the output; compare a field")
    return Guard(operand, comparison_of(node, type_of(operand)))
