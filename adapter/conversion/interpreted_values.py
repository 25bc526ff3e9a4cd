"""Values in plain Python: source fields, the functions without state, comparisons, and the output's bytes."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation

import numpy as np

from adapter.conversion.function_checks import UNITS_NS
from adapter.conversion.function_use import Comparison, ValueMap
from adapter.conversion.reasons import Reason
from adapter.conversion.table import Conversion, Guard, Literal, Operand, Operation, PacketValue, type_of
from adapter.conversion.values import INT64_MAX, NULL, null_bits, null_of
from adapter.time_zones import offset_at_midnight_s
from feedcore.message_model import PREFIX_SIZE, ModelField
from feedcore.source_format import SourceField, SourceGroup

BLANKS = b" \0"
Value = int | bytes  # a number, NULL for none; a text with its blanks; floating point as its bytes


class Refused(Exception):
    """A source message that is counted and passed over."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.name)
        self.reason = reason


def used_fields(conversion: Conversion) -> set[int]:
    """Identities of all source fields a conversion looks at."""
    found: set[int] = set()

    def visit(operand: Operand) -> None:
        if isinstance(operand, SourceField):
            found.add(id(operand))
        elif isinstance(operand, Operation):
            for each in (*operand.operands.values(), *operand.keys):
                visit(each)

    for guard in (*conversion.guards, *conversion.output_guards):
        visit(guard.operand)
    for operand in (*conversion.pure, *conversion.stateful, *(value for _, value in conversion.writes)):
        visit(operand)
    for action in conversion.orders:
        for operand in (action.key, *action.operands.values(), *([action.guard.operand] if action.guard else ())):
            visit(operand)
    for _, key in conversion.book_reads:
        visit(key)
    return found


class Scope:
    """One conversion of one message, or of one entry of its group."""

    def __init__(
        self,
        conversion: Conversion,
        datagram: bytes,
        body: int,
        block: int | None,
        entry: int,
        entry_size: int,
        texts: dict[str, tuple[int, int]],
        packet: dict[str, int],
        index: int,
    ) -> None:
        self._conversion = conversion
        self._datagram = datagram
        self._body, self._block = body, block
        self._entry, self._entry_size = entry, entry_size
        self._texts = texts
        self._packet = packet
        self.index = index
        self.results: dict[int, Value] = {}

    @staticmethod
    def needed_end(conversion: Conversion, group: SourceGroup | None) -> int:
        """Bytes that the fixed part, or the group's entries, must have for the fields used that cannot be null."""
        if group is not None and conversion.each is not group:
            return 0
        fields = conversion.source.fields if group is None else group.fields
        used = used_fields(conversion)
        ends = [field.offset + field.size for field in fields.values() if id(field) in used and field.null is None]
        return max(ends, default=0)

    def judge(self) -> bool:
        """Compute what needs no state; False if a guard does not hold."""
        wanted: set[int] = set()

        def note(operand: Operand) -> None:
            if isinstance(operand, Operation):
                wanted.add(operand.number)
                for each in operand.operands.values():
                    note(each)

        for guard in self._conversion.guards:
            note(guard.operand)
        for operation in self._conversion.pure:
            if operation.number in wanted:
                self.results[operation.number] = compute(self, operation)
        if not all(self.holds(guard) for guard in self._conversion.guards):
            return False
        for operation in self._conversion.pure:
            if operation.number not in wanted:
                self.results[operation.number] = compute(self, operation)
        return True

    def value(self, operand: Operand) -> Value:
        """The value of anything."""
        if isinstance(operand, SourceField):
            return self._field(operand)
        if isinstance(operand, PacketValue):
            return self._packet[operand.name]
        return operand.value if isinstance(operand, Literal) else self.results[operand.number]

    def number(self, operand: Operand) -> int:
        """As the kernel's int64: a text of at most 8 bytes as a word, a number beyond 63 bits negative."""
        value = self.value(operand)
        if isinstance(value, bytes):
            return int.from_bytes(value.rstrip(BLANKS).ljust(8, b"\0")[:8], "little", signed=True)
        return value - (1 << 64) if value > INT64_MAX else value

    def _field(self, field: SourceField) -> Value:
        if field.is_variable:
            at, length = self._texts[field.name]
            return self._datagram[at : at + length]
        each = self._conversion.each
        is_entry = each is not None and each.fields.get(field.name) is field
        base, size = (self._entry, self._entry_size) if is_entry else (self._body, self._block)
        if field.null is not None and self._block is not None and size is not None and size < field.offset + field.size:
            return NULL
        raw = self._datagram[base + field.offset : base + field.offset + field.size]
        if field.is_text:
            return raw
        if field.is_float:
            return raw[::-1] if field.is_big_endian else raw
        value = int.from_bytes(raw, "big" if field.is_big_endian else "little", signed=field.kind.minimum < 0)
        return NULL if value == field.null else value

    def holds(self, guard: Guard) -> bool:
        """True if a guard does."""
        return self.compare(guard.operand, guard.comparison)

    def compare(self, operand: Operand, comparison: Comparison) -> bool:
        """True if a comparison holds."""
        value, literal = self.value(operand), comparison.literal
        if isinstance(value, bytes):
            assert isinstance(literal, bytes)
            return (value.rstrip(BLANKS) == literal.rstrip(BLANKS)) == (comparison.how == "is")
        assert isinstance(literal, int)
        if comparison.how == "isNull":
            return (value == NULL) == bool(literal)
        if comparison.how in ("is", "isNot"):
            return (value == literal) == (comparison.how == "is")
        if type_of(operand).is_nullable and value == NULL:
            return False
        return {
            "above": value > literal,
            "below": value < literal,
            "atLeast": value >= literal,
            "atMost": value <= literal,
        }[comparison.how]

    def write(self, frame: bytearray) -> None:
        """The output's fields."""
        target = self._conversion.target
        assert target is not None
        written = {field.name: operand for field, operand in self._conversion.writes}
        for name, field in target.fields.items():
            at = PREFIX_SIZE + field.offset
            data = self._encoded(field, written[name]) if name in written else self._null(field)
            frame[at : at + field.size] = data.ljust(field.size, b"\0")

    @staticmethod
    def _null(field: ModelField) -> bytes:
        if field.kind.name == "char":
            return b""
        return null_bits(field).to_bytes(field.kind.size, "little") * field.length

    def _encoded(self, field: ModelField, operand: Operand) -> bytes:
        found = type_of(operand)
        if found.text_size:
            return self.text(operand)
        value = self.value(operand)
        if isinstance(value, bytes):
            return value
        null = null_of(field)
        if found.is_nullable and value == NULL and null is not None:
            value = null
        return (value & ((1 << (8 * field.kind.size)) - 1)).to_bytes(field.kind.size, "little")

    def text(self, operand: Operand) -> bytes:
        """A text as it is written: a field's with its blanks, any other without."""
        if not isinstance(operand, Operation):
            value = self.value(operand)
            assert isinstance(value, bytes)
            return value
        name, of = operand.function.name, operand.operands.get("of")
        if name == "concatenate":
            separator = operand.constants["separator"]
            assert isinstance(separator, bytes)
            return separator.join(self._part(part) for part in operand.operands.values())
        assert of is not None
        if name in ("text", "cut"):
            return self.text(of).rstrip(BLANKS)[: int(str(operand.constants["length"]))]
        if name == "digits":
            return self.digits(of)
        found = self.results[operand.number]
        assert isinstance(found, bytes)
        return found

    def _part(self, operand: Operand) -> bytes:
        if not type_of(operand).text_size:
            return self.digits(operand)
        of_table = isinstance(operand, Literal) or (isinstance(operand, Operation) and operand.function.name == "map")
        return self.text(operand) if of_table else self.text(operand).rstrip(BLANKS)

    def digits(self, operand: Operand) -> bytes:
        """A number as text; null is nothing."""
        value = self.value(operand)
        assert isinstance(value, int)
        if value == NULL:
            return b""
        decimals = -(type_of(operand).exponent or 0)
        text = f"{abs(value):0{decimals + 1}d}"
        if decimals:
            text = f"{text[:-decimals]}.{text[-decimals:]}"
        return (("-" if value < 0 else "") + text).encode()


def compute(scope: Scope, operation: Operation) -> Value:
    """The value of an operation without state; of texts made when they are written it only judges."""
    name, constants = operation.function.name, operation.constants
    values = {argument: scope.value(operand) for argument, operand in operation.operands.items()}
    numbers = {argument: value for argument, value in values.items() if isinstance(value, int)}
    if operation.function.skips_null and any(
        value == NULL and type_of(operation.operands[argument]).is_nullable for argument, value in numbers.items()
    ):
        return NULL
    if name in ("cut", "digits", "concatenate"):
        return 0
    if name == "text":
        text = values["of"]
        assert isinstance(text, bytes)
        if len(text.rstrip(BLANKS)) > int(str(constants["length"])):
            raise Refused(Reason.OUT_OF_RANGE)
        return 0
    if name == "number":
        return _parsed(scope.text(operation.operands["of"]), int(str(constants["exponent"])))
    if name == "map":
        return _mapped(values["of"], constants["map"])
    if name == "choose":
        comparison = constants["comparison"]
        assert isinstance(comparison, Comparison)
        return numbers["then" if scope.compare(operation.operands["of"], comparison) else "otherwise"]
    if operation.function.python is not None:
        given = operation.function.python(*(numbers[argument] for argument in operation.function.values))
        if not int(str(constants["low"])) <= given <= int(str(constants["high"])):
            raise Refused(Reason.OUT_OF_RANGE)
        return given
    of = numbers["of"]
    told = {key: value for key, value in constants.items() if isinstance(value, int)}
    if name == "scale":
        return _scaled(of, told)
    if name == "cast":
        return _cast(of, told, str(constants["otherwise"]))
    if name == "increase":
        return of + told["amount"]
    if name == "default":
        return told["value"] if of == NULL else of
    if name == "null_if":
        return NULL if of == told["value"] else of
    if name == "bits":
        return (of >> told["shift"]) & told["mask"]
    if of < 0 or of > told["high"]:
        raise Refused(Reason.OUT_OF_RANGE)
    if name == "timestamp":
        return of * told["factor"]
    if name == "since_midnight":
        return _midnight(scope.number(PacketValue("session")), str(constants["zone"])) + of * told["factor"]
    raise AssertionError(f"the interpreter does not know {name}")


def _parsed(text: bytes, exponent: int) -> int:
    stripped = text.rstrip(BLANKS).lstrip(b" ")
    if not stripped:
        return NULL
    unsigned = stripped[1:] if stripped[:1] in (b"+", b"-") else stripped
    if not unsigned.replace(b".", b"", 1).isdigit():
        raise Refused(Reason.NOT_A_NUMBER)
    try:
        scaled = Decimal(stripped.decode()).scaleb(-exponent)
    except InvalidOperation:
        raise Refused(Reason.NOT_A_NUMBER) from None
    if scaled != scaled.to_integral_value() or abs(scaled) >= 10**18:
        raise Refused(Reason.NOT_A_NUMBER)
    return int(scaled)


def _mapped(value: Value, value_map: object) -> Value:
    assert isinstance(value_map, ValueMap)
    found = value_map.entries.get(value.rstrip(BLANKS) if isinstance(value, bytes) else value, value_map.default)
    if found is None:
        raise Refused(Reason.UNMAPPED)
    return found


def _scaled(of: int, told: dict[str, int]) -> int:
    if not told["low"] <= of <= told["high"] or (told["exact"] and of % told["divisor"]):
        raise Refused(Reason.OUT_OF_RANGE)
    return (of * told["factor"] + told["half"]) // told["divisor"]


def _cast(of: int, told: dict[str, int], otherwise: str) -> int:
    low, high = told["low"], told["high"]
    if low <= of <= high:
        return of
    if otherwise == "refuse":
        raise Refused(Reason.OUT_OF_RANGE)
    return NULL if otherwise == "null" else low if of < low else high


def _midnight(session: int, zone: str) -> int:
    year, month, day = session // 10_000, session // 100 % 100, session % 100
    if not (1970 <= year <= 2099 and 1 <= month <= 12 and 1 <= day <= 31):
        raise Refused(Reason.OUT_OF_RANGE)
    first = np.datetime64(f"{year:04d}-{month:02d}-01") + np.timedelta64(day - 1, "D")
    days = int((first - np.datetime64("1970-01-01")).astype(int))
    return (days * 86_400 - offset_at_midnight_s(zone, days)) * UNITS_NS["s"]
