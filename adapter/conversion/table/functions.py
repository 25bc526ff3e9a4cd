"""The converter functions: their arguments, their state, and their kernel code.

A function is a text template over local variables of the generated kernel. `{of}` and the other arguments are its
values, `{r}` is its result, `{c0}` … are its cells, and `check` returns its constants.
`tests.conversion.oracle.interpreted_values` implements the same function in plain Python; tests compare the two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any

from tandemfeed.adapter.conversion.table import function_checks as checks
from tandemfeed.adapter.conversion.table.function_use import COMPARISONS, Checked, Use
from tandemfeed.adapter.conversion.table.values import NULL

OF = ("of",)
FAIL = "    reason = reason or OUT_OF_RANGE"  # the first failure is counted
CANONICAL = "NAN_BITS if {found} == NULL else {found}"  # a cell without a double is NULL
LOOK_UP = ("{r} = {look_up}", "if {r} < 0:", "    {missing}")  # the index of a map's entry


class Calling(Enum):
    """How the value of a function is computed."""

    COMPILED = auto()  # in the kernel
    PER_VALUE = auto()  # in Python, between two passes over the packet, one call per value
    PER_ARRAY = auto()  # the same, with one call for all values of the packet


@dataclass(frozen=True, slots=True)
class ConverterFunction:
    """A converter function.

    Attributes:
        summary: its result, in one line.
        values: required attributes of its element that name values.
        parameters: attributes of its element that are literals.
        check: checks its arguments; returns the type of the result and the constants of the templates.
        lines: kernel lines that compute `{r}`, for a function without state; `check` may return others.
        cells: the initial values of the cells that it keeps per key; `check` may return others.
        update: kernel lines that change the cells.
        read: kernel lines that compute from the cells what `value` needs; also run when another element peeks.
        value: kernel expression of the result, after `update` and `read`.
        skips_null: if one of its values is null, the result is null (without state), or nothing changes (with state).
        python, source_digest: for a user's function, the function and the digest of its source.
        of_doubles: the same function of floats and doubles; its templates get doubles.
        calling, why_called: how its value is computed, and why it is not compiled.
        low, high: the range of its result.
        shape: "number"; "text": made when it is written; "book": reads an order book; "peek": reads the cell of another
            element; "entry": reads an entry of a group of the message; "kept text": a text in its cells.
    """

    name: str
    summary: str
    values: tuple[str, ...]
    parameters: tuple[str, ...]
    check: Callable[[Use], Checked]
    lines: tuple[str, ...] = ()
    cells: tuple[int, ...] = ()
    update: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    value: str = ""
    skips_null: bool = True
    shape: str = "number"
    python: Callable[..., Any] | None = None
    source_digest: str = ""
    calling: Calling = Calling.COMPILED
    why_called: str = ""
    low: int = 0
    high: int = 0
    of_doubles: ConverterFunction | None = None

    @property
    def keeps_state(self) -> bool:
        """True if it has cells."""
        return bool(self.cells)

    @property
    def is_per_packet(self) -> bool:
        """True if it is called in Python, once for all messages of a packet that use it."""
        return self.calling is not Calling.COMPILED


def _pure() -> tuple[ConverterFunction, ...]:
    return (
        ConverterFunction("copy", "the unchanged value", OF, (), checks.check_copy),
        ConverterFunction("constant", "a number or a text", (), ("value", "text", "exponent"), checks.check_constant),
        ConverterFunction(
            "scale",
            "the same decimal with another exponent; rounding: exact (default), floor, half_up",
            OF,
            ("exponent", "rounding"),
            checks.check_scale,
        ),
        ConverterFunction(
            "decimal",
            "a float or double as a decimal with `exponent`; rounding: exact (default), floor, half_up; NaN is null; "
            "otherwise: refuse (default), null",
            OF,
            ("exponent", "rounding", "otherwise"),
            checks.check_decimal,
            ("{r}, failed = decimal_of_{bits}({of}, {factor}, {divisor}, {rounding})", "if failed:", "    {failed_as}"),
            skips_null=False,
        ),
        ConverterFunction(
            "double",
            "the nearest double to a number; null is NaN",
            OF,
            (),
            checks.check_double,
            ("{r} = double_of({of}, {factor}, {divisor})",),
            skips_null=False,
        ),
        ConverterFunction(
            "cast",
            "the value if it fits in `type`; otherwise: refuse (default), null, clamp",
            OF,
            ("type", "otherwise"),
            checks.check_cast,
        ),
        ConverterFunction(
            "increase", "plus `by_amount`", OF, ("amount",), checks.check_increase, ("{r} = {of} + {amount}",)
        ),
        ConverterFunction(
            "plus", "the sum of two values", ("of", "addend"), (), checks.check_plus, ("{r} = {of} + {addend}",)
        ),
        ConverterFunction(
            "default",
            "`value` instead of null",
            OF,
            ("value",),
            checks.check_default,
            ("{r} = {value} if {of} == NULL else {of}",),
            skips_null=False,
        ),
        ConverterFunction(
            "null_if",
            "null instead of `value`",
            OF,
            ("value",),
            checks.check_null_if,
            ("{r} = NULL if {of} == {value} else {of}",),
            skips_null=False,
        ),
        ConverterFunction(
            "bits",
            "(of >> shift) & mask",
            OF,
            ("shift", "mask"),
            checks.check_bits,
        ),
        ConverterFunction(
            "timestamp",
            "nanoseconds since 1970 from a time in `unit` (s, ms, us, ns)",
            OF,
            ("unit",),
            checks.check_timestamp,
        ),
        ConverterFunction(
            "since_midnight",
            "nanoseconds since 1970 from a time in `unit` since midnight in `zone` of the session's day",
            OF,
            ("unit", "zone"),
            checks.check_since_midnight,
        ),
        ConverterFunction(
            "number",
            "the decimal number in a text, with `exponent`; blank is null",
            OF,
            ("exponent",),
            checks.check_number,
            (
                "{r}, failed = parse_number(datagram, {of_at}, {of_size}, {exponent})",
                "if failed:",
                "    reason = reason or NOT_A_NUMBER",
            ),
            skips_null=False,
        ),
        ConverterFunction(
            "choose",
            "`then` if the comparison holds, else `otherwise`",
            ("of", "then", "otherwise"),
            COMPARISONS,
            checks.check_choose,
            ("{r} = {then} if {condition} else {otherwise}",),
            skips_null=False,
        ),
        ConverterFunction(
            "map",
            "the entry of `map` for the value; without one, the map's default, or refused",
            OF,
            ("map",),
            checks.check_map,
            (
                *LOOK_UP,
                "else:",
                "    {r} = tables[{map_values} + {r}]",
            ),
        ),
        ConverterFunction(
            "entry",
            "the field `of` in the `number`-th entry of `group`; null if there is no such entry",
            ("number",),
            ("of", "group"),
            checks.check_entry,
            skips_null=False,
            shape="entry",
        ),
        ConverterFunction(
            "text",
            "a text without trailing blanks; refused if longer than `length`",
            OF,
            ("length",),
            checks.check_text,
            shape="text",
        ),
        ConverterFunction("cut", "the first `length` bytes of a text", OF, ("length",), checks.check_cut, shape="text"),
        ConverterFunction(
            "digits", "a number as text, of at most `length`", OF, ("length",), checks.check_digits, shape="text"
        ),
        ConverterFunction(
            "concatenate",
            "texts and numbers joined, with `separator` between them",
            OF,
            ("separator",),
            checks.check_concatenate,
            shape="text",
        ),
    )


def _stateful() -> tuple[ConverterFunction, ...]:
    high = ("if {of} != NULL and ({c0} == NULL or {of} > {c0}):", "    {c0} = {of}")
    low = ("if {of} < {c0}:  # NULL is the largest value", "    {c0} = {of}")
    add = ("if {of} != NULL:", "    {c0} += {of}")
    offer = ("if {source} >= 0 and {source} < {sources}:", "    arena[{cells} + {source}] = {of}")
    offers = ("{best} = NULL", "for place in range({sources}):", "    offer = arena[{cells} + place]")
    both = ("of", "source")
    return (
        ConverterFunction("sum", "sum per key", OF, (), checks.check_sum, cells=(0,), update=add, value="{c0}"),
        ConverterFunction("day_volume", "sum per key", OF, (), checks.check_sum, cells=(0,), update=add, value="{c0}"),
        ConverterFunction(
            "max", "largest per key", OF, (), checks.check_kept, cells=(NULL,), update=high, value="{c0}"
        ),
        ConverterFunction(
            "day_high", "largest per key", OF, (), checks.check_kept, cells=(NULL,), update=high, value="{c0}"
        ),
        ConverterFunction(
            "min", "smallest per key", OF, (), checks.check_kept, cells=(NULL,), update=low, value="{c0}"
        ),
        ConverterFunction(
            "day_low", "smallest per key", OF, (), checks.check_kept, cells=(NULL,), update=low, value="{c0}"
        ),
        ConverterFunction(
            "last",
            "newest per key",
            OF,
            (),
            checks.check_kept,
            cells=(NULL,),
            update=("if {of} != NULL:", "    {c0} = {of}"),
            value="{c0}",
        ),
        ConverterFunction(  # kernel_operations has its code: a text of any size is several cells
            "last_text",
            "newest text per key, of at most `length` bytes; a blank one changes nothing",
            OF,
            ("length",),
            checks.check_last_text,
            cells=(0,),
            value="{cells}",
            shape="kept text",
        ),
        ConverterFunction(
            "first",
            "first per key",
            OF,
            (),
            checks.check_kept,
            cells=(NULL,),
            update=("if {c0} == NULL:", "    {c0} = {of}"),
            value="{c0}",
        ),
        ConverterFunction(
            "count", "messages per key", (), (), checks.check_count, cells=(0,), update=("{c0} += 1",), value="{c0}"
        ),
        ConverterFunction(
            "wide_sum",
            "sum per key of values of more than 32 bits; null while it does not fit in 64 bits",
            OF,
            (),
            checks.check_wide_sum,
            cells=(0, 0),
            update=("if {of} != NULL:", "    add_wide(arena, {cells}, {of})"),
            value="wide_sum(arena, {cells})",
        ),
        ConverterFunction(
            "wide_vwap",
            "as vwap, exact for any `of` and `weight`",
            ("of", "weight"),
            (),
            checks.check_wide_vwap,
            cells=(0,) * 6,
            update=(
                "if {of} != NULL and {weight} != NULL:",
                "    add_weighted(arena, {cells}, {of}, {weight})",
            ),
            value="weighted_average(arena, {cells})",
        ),
        # The turnover needs more than 64 bits: it is c0 * 2**32 + c1 with 0 <= c1 < 2**32. c2 is the sum of weights.
        ConverterFunction(
            "vwap",
            "floor(sum of `of`·`weight` / sum of `weight`) per key, exact beyond 64 bits",
            ("of", "weight"),
            (),
            checks.check_vwap,
            cells=(0, 0, 0),
            update=(
                "if {of} != NULL and {weight} != NULL:",
                "    low = ({of} & MASK32) * {weight} + {c1}",
                "    {c0} += ({of} >> 32) * {weight} + ((low >> 32) & MASK32)",
                "    {c1} = low & MASK32",
                "    {c2} += {weight}",
            ),
            value="wide_floor_divide({c0}, {c1}, {c2})",
        ),
        ConverterFunction(
            "best_bid",
            "highest of the newest bids of `sources` sources per key; a null bid is withdrawn",
            both,
            ("sources",),
            checks.check_best,
            cells=(NULL,),
            update=offer,
            read=(
                *offers,
                "    if offer != NULL and ({best} == NULL or offer > {best}):",
                "        {best} = offer",
            ),
            value="{best}",
        ),
        ConverterFunction(
            "best_ask",
            "lowest of the newest asks of `sources` sources per key; a null ask is withdrawn",
            both,
            ("sources",),
            checks.check_best,
            cells=(NULL,),
            update=offer,
            read=(*offers, "    if offer < {best}:  # NULL is the largest value", "        {best} = offer"),
            value="{best}",
        ),
        ConverterFunction("peek", "a cell that another element keeps", (), (), checks.check_peek, shape="peek"),
    )


def _books() -> tuple[ConverterFunction, ...]:
    at = ("book", "side", "level")
    own = ("book",)

    def level(name: str, summary: str, check: Callable[[Use], Checked]) -> ConverterFunction:
        value = f"level_{name}(arena, {{book_row}}, {{side}}, {{depth}})"
        return ConverterFunction(f"book_{name}", summary, (), at, check, value=value, shape="book")

    def order(name: str, summary: str, check: Callable[[Use], Checked]) -> ConverterFunction:
        return ConverterFunction(f"order_{name}", summary, (), own, check, value=f"{{order_{name}}}", shape="book")

    return (
        level(
            "price", "price at a level of the book's side, best is 1; null if there is none", checks.check_book_price
        ),
        level("size", "size at a level, 0 if there is none", checks.check_book_number),
        level("orders", "orders at a level, 0 if there is none", checks.check_book_number),
        order("price", "price of the <order>'s order, null if it is unknown", checks.check_order_price),
        order("size", "what is left of the <order>'s order, 0 if nothing", checks.check_order_number),
        order("by", "the key of the <order>'s book; null or blank if the order is unknown", checks.check_order_by),
        order(
            "side", "66 (B) or 83 (S), the side of the <order>'s order; null if it is unknown", checks.check_order_side
        ),
    )


def _with_doubles(function: ConverterFunction) -> ConverterFunction:
    """A function that keeps state, with its counterpart for doubles."""

    def combined(how: str) -> tuple[str, ...]:
        return (f"{{c0}} = {how}({{c0}}, {{of}})",)

    def offers(how: str) -> tuple[str, ...]:
        return (
            "{best} = NULL",
            "for place in range({sources}):",
            f"    {{best}} = {how}({{best}}, arena[{{cells}} + place])",
        )

    offer = (
        "if {source} >= 0 and {source} < {sources}:",
        "    arena[{cells} + {source}] = last_double(NULL, {of})",
    )
    weighted = (
        "turnover = product_of_doubles({of}, {weight})",
        "{c0} = sum_of_doubles({c0}, turnover)",
        "{c2} = {c2} if is_nan(turnover) else sum_of_doubles({c2}, {weight})",
    )
    kept = {
        "last": "last_double",
        "first": "first_double",
        "max": "largest_double",
        "day_high": "largest_double",
        "min": "smallest_double",
        "day_low": "smallest_double",
        "sum": "sum_of_doubles",
        "day_volume": "sum_of_doubles",
    }
    if function.name in kept:
        double = replace(function, update=combined(kept[function.name]), value=CANONICAL.format(found="{c0}"))
    elif function.name == "vwap":
        double = replace(function, update=weighted, value="ratio_of_doubles({c0}, {c2})")
    elif function.name in ("best_bid", "best_ask"):
        how = "largest_double" if function.name == "best_bid" else "smallest_double"
        double = replace(function, update=offer, read=offers(how), value=CANONICAL.format(found="{best}"))
    else:
        return function
    return replace(function, of_doubles=double)


FUNCTIONS: Mapping[str, ConverterFunction] = {
    function.name: function for function in (*_pure(), *map(_with_doubles, _stateful()), *_books())
}
