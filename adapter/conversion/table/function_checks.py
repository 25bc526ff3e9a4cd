"""Checks of the arguments of each converter function; they return the result's type and the function's constants."""

from __future__ import annotations

from collections.abc import Sequence

from tandemfeed.adapter.conversion.table.function_use import Checked, Use, comparison_of
from tandemfeed.adapter.conversion.table.values import INT64_MAX, INT64_MIN, ValueType
from tandemfeed.adapter.time_zones import is_time_zone
from tandemfeed.feedcore.documents.primitive_types import PRIMITIVES

UNITS_NS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
FACTOR_EXPONENT_MAX = 18
SOURCES_MAX = 16
TEXT_KEPT_MAX = 128
DECIMAL_MAX = 1 << 62  # of a float as a decimal; well within what a double and an int64 both have
DOUBLE = ValueType(bits=PRIMITIVES["double"])  # NaN is null
DAY_NS = 86_400_000_000_000
CUT_BELOW = ("if {of} < {low}:", "    {too_low}")
CUT_ABOVE = ("if {of} > {high}:", "    {too_high}")
CUT_WIDE = ("if {of} > {high} or {of} < 0:", "    {too_high}")  # a value of more than 63 bits is negative as an int64
MIDNIGHT_MAX = 4_102_444_800_000_000_000  # 2100-01-01


def _checked_first(tests: Sequence[str], *lines: str) -> tuple[str, ...]:
    """Kernel lines after the tests that refuse a message; each line takes time to compile, and most need no test."""
    return (f"if {' or '.join(tests)}:", "    reason = reason or OUT_OF_RANGE", *lines) if tests else lines


def check_copy(use: Use) -> Checked:
    """Takes any value; the result has the same type."""
    return Checked(use.types["of"], {})


def check_entry(use: Use) -> Checked:
    """Takes the number of an entry, and a number or single character in the entries of another group."""
    use.number("number")
    found = use.types["of"]
    if found.text_size == 1:
        found = ValueType(0, 255)
    if not found.is_number:
        raise use.node.error(f"of={use.node.need('of')!r} is {found}; entry needs a number or a single character")
    return Checked(found.nullable(), {})


def check_constant(use: Use) -> Checked:
    """Takes a number, with an exponent if it stands for a decimal, or a text."""
    if "text" in use.node.attributes:
        text = use.node.need("text").encode()
        if not text or "value" in use.node.attributes:
            raise use.node.error("constant needs a value or a text that is not empty")
        return Checked(ValueType(text_size=len(text)), {"literal": text})
    value = use.node.need_int("value")
    if not INT64_MIN <= value <= (1 << 64) - 1:
        raise use.node.error(f"{value} has more than 64 bits")
    exponent = use.node.need_int("exponent") if "exponent" in use.node.attributes else None
    return Checked(ValueType(value, value, exponent), {"literal": value})


def check_scale(use: Use) -> Checked:
    """Range and remainder are checked at run time, unless the types prove that the check cannot fail."""
    of = use.number()
    exponent, rounding = use.bounded("exponent", -18, 18), use.one_of("rounding", "exact", "exact", "floor", "half_up")
    difference = use.known_exponent(of) - exponent
    if abs(difference) > FACTOR_EXPONENT_MAX:
        raise use.node.error(
            f"scaling from exponent {of.exponent} to {exponent} takes more than {FACTOR_EXPONENT_MAX} digits"
        )
    factor, divisor = 10 ** max(difference, 0), 10 ** max(-difference, 0)
    half = divisor // 2 if rounding == "half_up" else 0
    low, high = -((1 << 63) // factor), (INT64_MAX - 1 - half) // factor
    exact = rounding == "exact" and divisor > 1
    result = ValueType(
        (max(of.minimum, low) * factor + half) // divisor,
        (min(of.maximum, high) * factor + half) // divisor,
        exponent,
        of.is_nullable,
    )
    constants = {"factor": factor, "divisor": divisor, "half": half, "low": low, "high": high, "exact": exact}
    tests = [
        *(["{of} < {low}"] if of.minimum < low else []),
        *(["{of} > {high}"] if of.maximum > high else []),
        *(["{of} % {divisor} != 0"] if exact else []),
    ]
    scaled = "{of}" if factor == 1 else "{of} * {factor}"
    if divisor > 1:
        scaled = f"({scaled} + {{half}}) // {{divisor}}" if half else f"{scaled} // {{divisor}}"
    return Checked(result, constants, fails=bool(tests), lines=_checked_first(tests, f"{{r}} = {scaled}"))


def check_decimal(use: Use) -> Checked:
    """Takes a float or double. What does not fit in 63 bits is refused at run time, and so is what rounding forbids."""
    of = use.types["of"]
    if of.bits is None:
        raise use.node.error(f"of={use.node.need('of')!r} is {of}; decimal needs a float or double")
    exponent, rounding = use.bounded("exponent", -18, 18), use.one_of("rounding", "exact", "exact", "floor", "half_up")
    constants: dict[str, object] = {
        "bits": 8 * of.bits.size,
        "factor": 10 ** max(-exponent, 0),
        "divisor": 10 ** max(exponent, 0),
        "rounding": ("exact", "floor", "half_up").index(rounding),
    }
    otherwise = use.one_of("otherwise", "refuse", "refuse", "null")
    constants["failed_as"] = "reason = reason or OUT_OF_RANGE" if otherwise == "refuse" else "{r} = NULL"
    return Checked(ValueType(-DECIMAL_MAX, DECIMAL_MAX, exponent, True), constants, fails=otherwise == "refuse")


def check_double(use: Use) -> Checked:
    """Takes any number; digits beyond a double's 53 bits are rounded."""
    exponent = use.known_exponent(use.number())
    constants: dict[str, object] = {"factor": 10 ** max(exponent, 0), "divisor": 10 ** max(-exponent, 0)}
    return Checked(ValueType(bits=PRIMITIVES["double"]), constants)


def check_cast(use: Use) -> Checked:
    """The only way to a narrower type."""
    of, kind = use.integer(), PRIMITIVES.get(use.node.need("type"))
    if kind is None or kind.name == "char" or kind.maximum == 0:
        known = ", ".join(name for name, each in PRIMITIVES.items() if each.maximum and name != "char")
        raise use.node.error(f"type is {use.node.need('type')!r}; it must be one of {known}")
    otherwise = use.one_of("otherwise", "refuse", "refuse", "null", "clamp")
    high = min(kind.maximum, INT64_MAX)
    low, high = max(of.minimum, kind.minimum), min(of.maximum, high)
    if low > high:
        raise use.node.error(f"no value of {of} fits in {kind.name}")
    what = {
        "refuse": ("reason = reason or OUT_OF_RANGE",) * 2,
        "null": ("{r} = NULL",) * 2,
        "clamp": (f"{{r}} = {low}", f"{{r}} = {high}"),
    }
    too_low, too_high = what[otherwise]
    wide = of.maximum > INT64_MAX
    cut = low > of.minimum or high < of.maximum
    tests = CUT_WIDE if wide else (CUT_BELOW if low > of.minimum else ()) + (CUT_ABOVE if high < of.maximum else ())
    constants: dict[str, object] = {"low": low, "high": high, "otherwise": otherwise}
    constants |= {"too_low": too_low, "too_high": too_high}
    result = ValueType(low, high, of.exponent, of.is_nullable or (otherwise == "null" and cut))
    return Checked(result, constants, fails=otherwise == "refuse" and cut, lines=("{r} = {of}", *tests))


def check_increase(use: Use) -> Checked:
    """The sum must fit in 64 bits for every value of the type."""
    of, amount = use.number(), use.bounded("amount", INT64_MIN, INT64_MAX)
    low, high = of.minimum + amount, of.maximum + amount
    if low < INT64_MIN or high > INT64_MAX - (1 if of.is_nullable else 0):
        raise use.node.error(f"{of} plus {amount} does not fit in 64 bits; cast it to a narrower type first")
    return Checked(of.within(low, high), {"amount": amount})


def check_plus(use: Use) -> Checked:
    """Takes two numbers of one exponent, whose sum must fit in 64 bits for all values of their types."""
    of, addend = use.number(), use.number("addend")
    if use.known_exponent(of) != use.known_exponent(addend):
        raise use.node.error(f"{of} and {addend} have different exponents; use scale")
    low, high = of.minimum + addend.minimum, of.maximum + addend.maximum
    if low < INT64_MIN or high >= INT64_MAX:
        raise use.node.error(f"{of} plus {addend} does not fit in 64 bits; cast them to narrower types first")
    return Checked(of.within(low, high).nullable(of.is_nullable or addend.is_nullable), {})


def check_default(use: Use) -> Checked:
    """The result is not null."""
    of, value = use.integer(), use.bounded("value", INT64_MIN, INT64_MAX)
    return Checked(of.within(min(of.minimum, value), max(of.maximum, value)).nullable(False), {"value": value})


def check_null_if(use: Use) -> Checked:
    """The result may be null."""
    of = use.number()
    return Checked(of.nullable(), {"value": use.bounded("value", INT64_MIN, INT64_MAX)})


def check_bits(use: Use) -> Checked:
    """Takes a number that is never negative; the result is some of its bits."""
    of, mask = use.number(), use.bounded("mask", 1, INT64_MAX)
    if of.minimum < 0:
        raise use.node.error("bits needs a number that is never negative")
    shift = use.bounded("shift", 0, 62) if "shift" in use.node.attributes else 0
    lines = ("{r} = ({of} >> {shift}) & {mask}" if shift else "{r} = {of} & {mask}",)
    return Checked(ValueType(0, mask, 0, of.is_nullable), {"shift": shift, "mask": mask}, lines=lines)


def _time(use: Use, most_ns: int) -> tuple[ValueType, dict[str, object], list[str], str]:
    """(type of the value, constants, tests that refuse it, expression of its nanoseconds)."""
    of, factor = use.number(), UNITS_NS[use.one_of("unit", "ns", *UNITS_NS)]
    high = most_ns // factor
    tests = [*(["{of} < 0"] if of.minimum < 0 else []), *(["{of} > {high}"] if of.maximum > high else [])]
    return of, {"factor": factor, "high": high}, tests, "{of} * {factor}" if factor > 1 else "{of}"


def check_timestamp(use: Use) -> Checked:
    """Takes any time that fits in an int64 of nanoseconds."""
    of, constants, tests, time_ns = _time(use, INT64_MAX - 1)
    high = min(of.maximum, int(str(constants["high"]))) * int(str(constants["factor"]))
    lines = _checked_first(tests, f"{{r}} = {time_ns}")
    return Checked(ValueType(0, high, 0, of.is_nullable), constants, fails=bool(tests), lines=lines)


def check_since_midnight(use: Use) -> Checked:
    """Takes up to two days, because sessions can end after midnight."""
    of, constants, tests, time_ns = _time(use, 2 * DAY_NS)
    zone = use.node.attributes.get("zone", "UTC")
    if not is_time_zone(zone):
        raise use.node.error(f"unknown time zone {zone!r}")
    lines = _checked_first([*tests, "{midnight} == NULL"], f"{{r}} = {{midnight}} + {time_ns}")
    return Checked(ValueType(0, MIDNIGHT_MAX, 0, of.is_nullable), constants | {"zone": zone}, fails=True, lines=lines)


def check_number(use: Use) -> Checked:
    """The result has at most eighteen digits."""
    use.text()
    exponent = use.bounded("exponent", -18, 0) if "exponent" in use.node.attributes else 0
    most = 10**18 - 1
    return Checked(ValueType(-most, most, exponent, True), {"exponent": exponent}, fails=True)


def check_choose(use: Use) -> Checked:
    """`then` and `otherwise` must have the same exponent."""
    one, other = use.number("then"), use.number("otherwise")
    if one.exponent is not None and other.exponent is not None and one.exponent != other.exponent:
        raise use.node.error(f"then has the exponent {one.exponent}, but otherwise has {other.exponent}")
    exponent = other.exponent if one.exponent is None else one.exponent
    low, high = min(one.minimum, other.minimum), max(one.maximum, other.maximum)
    result = ValueType(low, high, exponent, one.is_nullable or other.is_nullable)
    return Checked(result, {"comparison": comparison_of(use.node, use.types["of"])})


def check_map(use: Use) -> Checked:
    """The keys of the map must be of the value's kind."""
    value_map = use.maps.get(use.node.need("map"))
    if value_map is None:
        raise use.node.error(f"there is no <map> {use.node.need('map')!r}")
    of = use.types["of"]
    if value_map.has_text_keys:
        use.text()
    else:
        use.number()
    refuses = value_map.default is None
    constants: dict[str, object] = {"map": value_map}
    values = [*value_map.entries.values(), *([] if refuses else [value_map.default])]
    texts = [value for value in values if isinstance(value, bytes)]
    if texts:
        return Checked(ValueType(text_size=max(map(len, texts))), constants, fails=refuses)
    numbers = [value for value in values if isinstance(value, int)]
    return Checked(ValueType(min(numbers), max(numbers), None, of.is_nullable), constants, fails=refuses)


def check_text(use: Use) -> Checked:
    """Takes a text field. A `length` shorter than the field is checked at run time."""
    of = use.text()
    length = use.bounded("length", 1, of.text_size) if "length" in use.node.attributes else of.text_size
    may_be_longer = length < of.text_size
    lines = _checked_first(["text_size(datagram, {of_at}, {of_size}) > {length}"]) if may_be_longer else ()
    return Checked(ValueType(text_size=length), {"length": length}, fails=may_be_longer, lines=lines)


def check_cut(use: Use) -> Checked:
    """Takes a text field."""
    length = use.bounded("length", 1, use.text().text_size)
    return Checked(ValueType(text_size=length), {"length": length})


def digits_size(of: ValueType) -> int:
    """The length of the longest number of a type, in characters."""
    point = 1 if (of.exponent or 0) < 0 else 0
    least = 1 - min(of.exponent or 0, 0)  # 0.05 has a digit before the point
    return max(max(len(str(abs(value))), least) + (value < 0) for value in (of.minimum, of.maximum)) + point


def check_digits(use: Use) -> Checked:
    """The result has room for the longest number of the type; an exponent above 0 is refused."""
    of = use.number()
    if use.known_exponent(of) > 0:
        raise use.node.error("digits needs an exponent of at most 0; scale the number first")
    return Checked(ValueType(text_size=digits_size(of)), {})


def check_concatenate(use: Use) -> Checked:
    """Takes texts and whole numbers."""
    separator = use.node.attributes.get("separator", "").encode()
    size = len(separator) * (len(use.types) - 1)
    for name, of in use.types.items():
        if not of.text_size and not (of.is_number and of.exponent == 0):
            raise use.node.error(f"{name[2:]}: concatenate takes texts and whole numbers, not {of}; use digits")
        size += of.text_size or digits_size(of)
    return Checked(ValueType(text_size=size), {"separator": separator})


def check_sum(use: Use) -> Checked:
    """Integers must be small enough that a day's sum fits in 64 bits."""
    if use.types["of"].bits is not None:
        return Checked(DOUBLE, {})
    of = use.integer()
    if of.minimum < -(1 << 31) or of.maximum > 0xFFFF_FFFF:
        raise use.node.error(f"{use.node.need('of')} is summed and must have at most 32 bits; use wide_sum, or cast it")
    return Checked(ValueType(INT64_MIN if of.minimum < 0 else 0, INT64_MAX, of.exponent), {})


def check_wide_sum(use: Use) -> Checked:
    """The sum is exact; the result is null while it has more than 64 bits."""
    return Checked(use.number().within(INT64_MIN, INT64_MAX).nullable(), {})


def check_wide_vwap(use: Use) -> Checked:
    """The turnover has 160 bits, the sum of weights 96."""
    if use.number("weight").minimum < 0:
        raise use.node.error(f"{use.node.need('weight')} is a weight and must not be negative")
    return Checked(use.number().nullable(), {})


def check_kept(use: Use) -> Checked:
    """The result is null before the first value."""
    if use.types["of"].bits is not None:
        return Checked(DOUBLE, {})
    return Checked(use.number().nullable(), {})


def check_last_text(use: Use) -> Checked:
    """The cells have room for `length` bytes, so the text must not be longer."""
    of, length = use.text(), use.bounded("length", 1, TEXT_KEPT_MAX)
    if of.text_size > length:
        raise use.node.error(f"{use.node.need('of')} is {of}; length is {length}, and must be at least {of.text_size}")
    words = -(-length // 8)
    return Checked(ValueType(text_size=length), {"words": words}, cells=(0,) * words)


def check_count(use: Use) -> Checked:
    """The result is never null."""
    return Checked(ValueType(0, INT64_MAX), {})


def check_vwap(use: Use) -> Checked:
    """The turnover has 96 bits, the weight 64. Of doubles, both are doubles."""
    floating = [use.types[name].bits is not None for name in ("of", "weight")]
    if all(floating):
        return Checked(DOUBLE, {})
    if any(floating):
        raise use.node.error("of and weight must both be integers, or both be floats or doubles; use decimal or double")
    weight = use.integer("weight")
    if weight.minimum < 0 or weight.maximum > 0xFFFF_FFFF:
        raise use.node.error(
            f"{use.node.need('weight')} is summed and must be unsigned, with at most 32 bits; use wide_vwap, or cast it"
        )
    return Checked(use.number().nullable(), {})


def check_best(use: Use) -> Checked:
    """Keeps one cell per source."""
    source, sources = use.number("source"), use.bounded("sources", 1, SOURCES_MAX)
    if source.is_nullable:
        raise use.node.error(f"source={use.node.need('source')!r} may be null; use default")
    result = DOUBLE if use.types["of"].bits is not None else use.number().nullable()
    return Checked(result, {"sources": sources}, cells=((1 << 63) - 1,) * sources)


def check_peek(use: Use) -> Checked:
    """The result has the type of the cell that it reads."""
    assert use.peeked is not None
    return Checked(use.peeked, {})


def _book(use: Use) -> dict[str, object]:
    side = use.one_of("side", "", "bid", "ask")
    depth = 0 if "level" in use.types else use.bounded("level", 1, 1_000) - 1
    return {"side": int(side == "ask"), "depth": depth}


def check_book_price(use: Use) -> Checked:
    """The result is null if there is no such level."""
    return Checked(ValueType(INT64_MIN, INT64_MAX, use.book_exponent, True), _book(use))


def check_book_number(use: Use) -> Checked:
    """The result is 0 if there is no such level."""
    return Checked(ValueType(0, INT64_MAX), _book(use))


def check_order_price(use: Use) -> Checked:
    """The result is null if the order is unknown."""
    return Checked(ValueType(INT64_MIN, INT64_MAX, use.book_exponent, True), {})


def check_order_number(use: Use) -> Checked:
    """The result is 0 if the order is unknown."""
    return Checked(ValueType(0, INT64_MAX), {})


def check_order_by(use: Use) -> Checked:
    """The result has the type of the keys of the book."""
    assert use.book_key is not None
    return Checked(use.book_key if use.book_key.text_size else use.book_key.nullable(), {})


def check_order_side(use: Use) -> Checked:
    """The result is the character code B or S, or null."""
    return Checked(ValueType(66, 83, None, True), {})
