"""Kernel lines of an <order>: the call that changes the book, and the values of its order that other elements read."""

from __future__ import annotations

from collections.abc import Sequence

from tandemfeed.adapter.conversion.kernel.lines.kernel_operations import ValueWriter, indented
from tandemfeed.adapter.conversion.state.order_book import BookSpaces
from tandemfeed.adapter.conversion.table.table import Book, Conversion, Operand, OrderAction


def order_lines(values: ValueWriter, books: Sequence[Book], conversion: Conversion, action: OrderAction) -> list[str]:
    """Lines that do what an <order> says, and set the values of its order that other elements read."""
    spaces = books[action.book].spaces
    header = f"SPACE_{spaces.books}"
    both = f"arena, SPACE_{spaces.orders}, {header}"
    shape = f"{spaces.id_words}, {spaces.key_words}, {spaces.ids_are_unique}"
    kind = f"{shape}, {spaces.is_chained}"
    given = {name: values.variable(operand) for name, operand in action.operands.items()}  # of long texts: unused
    asked = any(operation.book == action.book for operation in conversion.all_stateful)
    asked |= any(each.action == "resize" for each in conversion.orders if each.book == action.book)
    variables = [f"order_{what}_{action.book}" for what in ("price", "size", "side")]
    lines = _given_keys(values, action, spaces)
    if conversion.finds_book(action.book):
        lines += [f"find_book_key({both}, {spaces.id_words}, {spaces.key_words})"]
    if "id" in given and asked:
        lines += [f"{variables[0]}, {variables[1]}, {variables[2]} = known_order({both}, {shape})"]
    if action.action in ("add", "modify"):
        side = f"0 if {given['side']} == {action.bid} else 1"
        call = f"add_order({both}, {kind}, {side}, {given['price']}, {given['size']})"
        lines += [f"if not {call}:", "    reason = TOO_MANY_KEYS"]
        if asked:
            lines += [f"{variables[0]}, {variables[1]} = {given['price']}, {given['size']}"]
            lines += [f"{variables[2]} = 66 if {given['side']} == {action.bid} else 83"]
    elif action.action == "clear":
        lines += [f"clear_book({both}, {shape})"]
    else:
        lines += _change(action, f"{both}, {kind}", given, variables if asked else [])
    if action.guard is not None:
        lines = [f"if {values.guard(action.guard)}:", *indented(lines)]
    return [*_before(conversion, action, spaces, variables if asked else []), *lines]


def _given_keys(values: ValueWriter, action: OrderAction, spaces: BookSpaces) -> list[str]:
    """Lines that put the ids and the book key of an <order> where the book's functions expect them."""
    header = f"SPACE_{spaces.books}"
    needs_key = not spaces.ids_are_unique or action.action in ("add", "modify", "clear")
    lines: list[str] = []
    if action.key is not None and needs_key:
        lines += values.key_words(action.key, f"{header} + BOOK_KEY", spaces.key_words)
    for name, place in (("id", "ORDER_ID"), ("newId", "NEW_ID")):
        if name in action.operands:
            lines += values.key_words(action.operands[name], f"{header} + {place}", spaces.id_words)
    return lines


def _before(conversion: Conversion, action: OrderAction, spaces: BookSpaces, variables: list[str]) -> list[str]:
    """Lines that say that nothing is known, before the first <order> of a book that may set no variables."""
    is_first = next(each for each in conversion.orders if each.book == action.book) is action
    if not is_first or (action.guard is None and "id" in action.operands):
        return []
    lines = [f"{variables[0]}, {variables[1]}, {variables[2]} = NULL, 0, NULL"] if variables else []
    if conversion.finds_book(action.book):
        lines += [f"forget_book_key(arena, SPACE_{spaces.books}, {spaces.key_words})"]
    return lines


def _change(action: OrderAction, where: str, given: dict[str, str], variables: list[str]) -> list[str]:
    """Lines of a change to an order that must already be known.

    Args:
        where: the first arguments of all calls.
        variables: the variables of the order's price, size and side; empty if no element reads them.
    """
    names = {"reduce": "reduce_order", "resize": "reduce_order", "delete": "drop_order", "replace": "replace_order"}
    changed = given | ({"size": f"{variables[1]} - {given['size']}"} if action.action == "resize" else {})
    numbers = [value for name, value in changed.items() if name not in ("id", "newId")]
    lines = [f"if not {names[action.action]}({', '.join([where, *numbers])}):", "    arena[UNKNOWN_ORDER] += 1"]
    if not variables:
        return lines
    left = {"reduce": f"max(0, {variables[1]} - {given.get('size')})", "delete": "0"}
    left |= {action: given.get("size", "") for action in ("replace", "resize")}
    price = [f"    {variables[0]} = {given['price']}"] if action.action == "replace" else []
    return [*lines, "else:", f"    {variables[1]} = {left[action.action]}", *price]


def book_lines(
    values: ValueWriter, spaces: BookSpaces, conversion: Conversion, book: int, key: Operand | None
) -> list[str]:
    """Lines after the <order>s that find the book whose levels or key are read; None as key: the <order>s found it."""
    header, lines = f"SPACE_{spaces.books}", []
    reads = [each for each in conversion.all_stateful if each.book == book and each.function.name == "order_by"]
    reads_levels = book in conversion.books_with_levels
    if key is not None and (reads or reads_levels):
        lines += values.key_words(key, f"{header} + BOOK_KEY", spaces.key_words)
    if reads_levels:
        lines += [f"book_{book} = seek_book(arena, {header}, {spaces.key_words})"]
    if reads:
        place = f"{header} + BOOK_KEY"
        if key is None and any(each.type.text_size for each in reads):  # of an unknown order, it is blank
            lines += [f"if arena[{place}] == NULL:", f"    arena[{place}] = 0"]
        # A text of several words is read from its place.
        lines += [f"order_by_{book} = {place if spaces.key_words > 1 else f'arena[{place}]'}"]
    return lines
