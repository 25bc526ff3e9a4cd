"""Kernel lines of an <order>: the call that changes the book, and the values of its order that other elements read."""

from __future__ import annotations

from collections.abc import Sequence

from tandemfeed.adapter.conversion.kernel.kernel_operations import ValueWriter, indented
from tandemfeed.adapter.conversion.table.table import Book, Conversion, OrderAction


def order_lines(values: ValueWriter, books: Sequence[Book], conversion: Conversion, action: OrderAction) -> list[str]:
    """Lines that do what an <order> says, and set the values of its order that other elements read."""
    spaces = books[action.book].spaces
    both = f"arena, SPACE_{spaces.orders}, SPACE_{spaces.books}"
    key = "0" if action.key is None else values.variable(action.key)
    known_by = key if spaces.words == 2 else 0  # a unique id needs no book key
    kind = f"{spaces.words}, {spaces.is_chained}"
    given = {name: values.variable(operand) for name, operand in action.operands.items()}
    asked = any(operation.book == action.book for operation in conversion.all_stateful)
    asked |= any(each.action == "resize" for each in conversion.orders if each.book == action.book)
    variables = [f"order_{what}_{action.book}" for what in ("price", "size", "side")]
    lines: list[str] = []
    if conversion.finds_book(action.book):
        unknown = _unknown_key(conversion, action.book)
        found = f"book_key_of_order(arena, SPACE_{spaces.orders}, {given['id']}, {unknown})"
        lines += [f"order_by_{action.book} = {found}"]
    if "id" in given and asked:
        known = f"known_order(arena, SPACE_{spaces.orders}, {spaces.words}, {known_by}, {given['id']})"
        lines += [f"{variables[0]}, {variables[1]}, {variables[2]} = {known}"]
    if action.action in ("add", "modify"):
        side = f"0 if {given['side']} == {action.bid} else 1"
        call = f"add_order({both}, {kind}, {key}, {given['id']}, {side}, {given['price']}, {given['size']})"
        lines += [f"if not {call}:", "    reason = TOO_MANY_KEYS"]
        if asked:
            lines += [f"{variables[0]}, {variables[1]} = {given['price']}, {given['size']}"]
            lines += [f"{variables[2]} = 66 if {given['side']} == {action.bid} else 83"]
    elif action.action == "clear":
        lines += [f"clear_book({both}, {spaces.words}, {key})"]
    else:
        lines += _change(action, f"{both}, {kind}, {known_by}", given, variables if asked else [])
    if action.guard is not None:
        lines = [f"if {values.guard(action.guard)}:", *indented(lines)]
    return [*_before(conversion, action, variables if asked else []), *lines]


def _before(conversion: Conversion, action: OrderAction, variables: list[str]) -> list[str]:
    """Lines that say that nothing is known, before the first <order> of a book that may set no variables."""
    is_first = next(each for each in conversion.orders if each.book == action.book) is action
    if not is_first or (action.guard is None and "id" in action.operands):
        return []
    lines = [f"{variables[0]}, {variables[1]}, {variables[2]} = NULL, 0, NULL"] if variables else []
    if conversion.finds_book(action.book):
        lines += [f"order_by_{action.book} = {_unknown_key(conversion, action.book)}"]
    return lines


def _unknown_key(conversion: Conversion, book: int) -> str:
    """What `order_by` is for an order that is unknown: a blank text, or null."""
    names = (each for each in conversion.all_stateful if each.book == book and each.function.name == "order_by")
    return "0" if any(each.type.text_size for each in names) else "NULL"


def _change(action: OrderAction, where: str, given: dict[str, str], variables: list[str]) -> list[str]:
    """Lines of a change to an order that must already be known.

    Args:
        where: the first arguments of all calls.
        variables: the variables of the order's price, size and side; empty if no element reads them.
    """
    names = {"reduce": "reduce_order", "resize": "reduce_order", "delete": "drop_order", "replace": "replace_order"}
    changed = given | ({"size": f"{variables[1]} - {given['size']}"} if action.action == "resize" else {})
    lines = [f"if not {names[action.action]}({where}, {', '.join(changed.values())}):", "    arena[UNKNOWN_ORDER] += 1"]
    if not variables:
        return lines
    left = {"reduce": f"max(0, {variables[1]} - {given.get('size')})", "delete": "0"}
    left |= {action: given.get("size", "") for action in ("replace", "resize")}
    price = [f"    {variables[0]} = {given['price']}"] if action.action == "replace" else []
    return [*lines, "else:", f"    {variables[1]} = {left[action.action]}", *price]
