"""Kernel lines of an <order>: the call that changes the book, and the values of its order that other elements read."""

from __future__ import annotations

from collections.abc import Sequence

from tandemfeed.adapter.conversion.kernel.kernel_operations import ValueWriter, indented
from tandemfeed.adapter.conversion.table.table import Book, Conversion, OrderAction


def order_lines(
    values: ValueWriter, books: Sequence[Book], conversion: Conversion, action: OrderAction, *, is_first: bool
) -> list[str]:
    """Lines that do what an <order> says, and set the values of its order that other elements read.

    Args:
        is_first: it is the first <order> of its conversion, so that nothing is known about the order before it.
    """
    spaces = books[action.book].spaces
    both = f"arena, SPACE_{spaces.orders}, SPACE_{spaces.books}"
    key = values.variable(action.key)
    known_by = key if spaces.words == 2 else 0  # a unique id needs no book key
    kind = f"{spaces.words}, {spaces.is_chained}"
    given = {name: values.variable(operand) for name, operand in action.operands.items()}
    asked = any(operation.book == action.book for operation in conversion.all_stateful)
    variables = [f"order_{what}_{action.book}" for what in ("price", "size", "side")]
    lines: list[str] = []
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
    may_be_unset = action.guard is not None or "id" not in given
    before = (
        [f"{variables[0]}, {variables[1]}, {variables[2]} = NULL, 0, NULL"]
        if asked and is_first and may_be_unset
        else []
    )
    return [*before, *lines]


def _change(action: OrderAction, where: str, given: dict[str, str], variables: list[str]) -> list[str]:
    """Lines of a change to an order that must already be known.

    Args:
        where: the first arguments of all calls.
        variables: the variables of the order's price, size and side; empty if no element reads them.
    """
    name = {"reduce": "reduce_order", "delete": "drop_order", "replace": "replace_order"}[action.action]
    lines = [f"if not {name}({where}, {', '.join(given.values())}):", "    arena[UNKNOWN_ORDER] += 1"]
    if not variables:
        return lines
    left = {"reduce": f"max(0, {variables[1]} - {given.get('size')})", "delete": "0", "replace": given.get("size", "")}
    price = [f"    {variables[0]} = {given['price']}"] if action.action == "replace" else []
    return [*lines, "else:", f"    {variables[1]} = {left[action.action]}", *price]
