"""Values in plain Python: source fields, the functions without state, comparisons, and the output's bytes."""

from __future__ import annotations

import dataclasses
import math
import operator
import struct
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from copy import copy
from decimal import Decimal, InvalidOperation

import numpy as np

from tandemfeed.adapter.conversion.table.function_checks import UNITS_NS
from tandemfeed.adapter.conversion.table.function_use import Comparison, ValueMap
from tandemfeed.adapter.conversion.table.functions import Calling
from tandemfeed.adapter.conversion.table.reasons import Reason
from tandemfeed.adapter.conversion.table.table import (
    Conversion,
    Guard,
    IndexValue,
    Literal,
    Operand,
    Operation,
    PacketValue,
    type_of,
)
from tandemfeed.adapter.conversion.table.values import INT64_MAX, NULL, null_bits, null_of
from tandemfeed.adapter.time_zones import offset_at_midnight_s
from tandemfeed.feedcore.documents.source_layout import SourceField, SourceGroup
from tandemfeed.feedcore.sbe.messages import Column

BLANKS = b" \0"
_NAN = {4: bytes.fromhex("0000c07f"), 8: bytes.fromhex("000000000000f87f")}  # SBE's null of floating-point numbers
Value = int | bytes  # a number, or NULL; a text with its blanks; a floating-point number as its bytes


class Refused(Exception):
    """A source message is counted as refused, and skipped."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.name)
        self.reason = reason


@dataclasses.dataclass(slots=True)
class Walked:
    """Where the entries of groups and the texts of a message or entry are, by name.

    Attributes:
        texts: (position, size).
    """

    entries: dict[str, list[Entry]] = dataclasses.field(default_factory=dict)
    texts: dict[str, tuple[int, int]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a source group: the position and length of its fields, and the parts that follow them."""

    at: int
    size: int
    inside: Walked


class Scope:
    """One conversion of one message or of one entry of its group; or, inside that, one entry of an output group.

    Attributes:
        results: the results of operations, by their number.
        indices: the entry numbers of counted groups, by the group's number.
        of_book, level_count: functions that read the books, set after state has changed.
    """

    def __init__(
        self,
        conversion: Conversion,
        datagram: bytes,
        body: int,
        block: int | None,
        walked: Walked,
        packet: dict[str, int],
        index: int,
        version: int = 0,
    ) -> None:
        self._conversion = conversion
        self._datagram = datagram
        self._body, self._block = body, block
        self._entries: list[tuple[SourceGroup, int, int]] = []
        self._walked = walked
        self._packet = packet
        self._version = version
        self.index = index
        self.results: MutableMapping[int, Value] = {}
        self.indices: dict[int, int] = {}
        self.of_book: Callable[[Operation, Scope], Value] = lambda _operation, _scope: NULL
        self.level_count: Callable[[int, int], int] = lambda _book, _side: 0

    def entries(self, group: SourceGroup) -> Iterator[Scope]:
        """A scope inside this one for each entry of a source group."""
        for entry in self._walked.entries[group.name]:
            inner = self._inner()
            inner._entries = [*self._entries, (group, entry.at, entry.size)]
            inner._walked = Walked(
                {**self._walked.entries, **entry.inside.entries}, {**self._walked.texts, **entry.inside.texts}
            )
            yield inner

    def numbered(self, group: int, number: int) -> Scope:
        """A scope inside this one for an entry of a counted group."""
        inner = self._inner()
        inner.indices = {**self.indices, group: number}
        return inner

    def _inner(self) -> Scope:
        inner = copy(self)
        inner.results = ChainMap({}, self.results)
        return inner

    def evaluate(self) -> bool:
        """Compute everything that needs no state; False if a guard is not satisfied."""
        return self.evaluate_with(self._conversion.guards, self._conversion.pure)

    def evaluate_with(self, guards: Sequence[Guard], pure: Sequence[Operation]) -> bool:
        """`evaluate` for a conversion, or for an entry that it writes."""
        wanted: set[int] = set()

        def note(operand: Operand) -> None:
            if isinstance(operand, Operation):
                wanted.add(operand.number)
                for each in operand.operands.values():
                    note(each)

        for guard in guards:
            note(guard.operand)
        for operation in pure:
            if operation.number in wanted:
                self.results[operation.number] = compute(self, operation)
        if not all(self.holds(guard) for guard in guards):
            return False
        for operation in pure:
            if operation.number not in wanted:
                self.results[operation.number] = compute(self, operation)
        return True

    def value(self, operand: Operand) -> Value:
        """The value of any operand."""
        if isinstance(operand, SourceField):
            return self._field(operand)
        if isinstance(operand, PacketValue):
            return self._packet[operand.name]
        if isinstance(operand, IndexValue):
            return self.indices[operand.group]
        return operand.value if isinstance(operand, Literal) else self.results[operand.number]

    def number(self, operand: Operand) -> int:
        """As the kernel's int64: a text of at most 8 bytes is a word; a number of more than 63 bits is negative."""
        value = self.value(operand)
        if isinstance(value, bytes):
            return int.from_bytes(value.rstrip(BLANKS).ljust(8, b"\0")[:8], "little", signed=True)
        return value - (1 << 64) if value > INT64_MAX else value

    def _field(self, field: SourceField) -> Value:
        if field.is_variable and not field.since_version:
            at, length = self._walked.texts[field.name]
            return self._datagram[at : at + length]
        base, size = self._body, self._block
        for group, at, entry_size in self._entries:
            if group.fields.get(field.name) is field:
                base, size = at, entry_size
        is_short = self._block is not None and size is not None and size < field.offset + field.size
        if field.is_nullable and (is_short or field.since_version > self._version):
            return b"" if field.is_text else _NAN[field.size] if field.kind.is_float else NULL
        raw = self._datagram[base + field.offset : base + field.offset + field.size]
        if field.is_text:
            return raw.rstrip(BLANKS) if field.since_version else raw
        if field.kind.is_float:
            return raw[::-1] if field.is_big_endian else raw
        value = int.from_bytes(raw, "big" if field.is_big_endian else "little", signed=field.kind.minimum < 0)
        return NULL if value == field.null else value

    def holds(self, guard: Guard) -> bool:
        """True if a guard is satisfied."""
        return self.compare(guard.operand, guard.comparison)

    def compare(self, operand: Operand, comparison: Comparison) -> bool:
        """True if a comparison is true."""
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

    def of_entry(self, operation: Operation) -> Value:
        """The value of an `entry`: of a field in the entry that a number names."""
        group, field = operation.constants["group"], operation.operands["of"]
        assert isinstance(group, SourceGroup)
        assert isinstance(field, SourceField)
        number, entries = self.value(operation.operands["number"]), self._walked.entries[group.name]
        assert isinstance(number, int)
        if not 1 <= number <= len(entries):
            return NULL
        inner = self._inner()
        entry = entries[number - 1]
        inner._entries = [(group, entry.at, entry.size)]
        if entry.size < field.offset + field.size:
            return NULL
        found = inner.value(field)
        return found[0] if isinstance(found, bytes) else found

    def compute_late(self, operation: Operation, of_book: Callable[[Operation, Scope], Value]) -> None:
        """Compute an operation of an entry that depends on state; entries keep no state themselves."""
        value = of_book(operation, self) if operation.book is not None else compute(self, operation)
        self.results[operation.number] = value

    def write_block(
        self,
        frame: bytearray,
        base: int,
        fields: Mapping[str, Column],
        writes: Sequence[tuple[Column, Operand]],
    ) -> None:
        """Write the fixed part of a message or an entry, `base` bytes after the frame's start."""
        written = {field.name: operand for field, operand in writes}
        for name, field in fields.items():
            at = base + field.offset
            data = self._encoded(field, written[name]) if name in written else self._null(field)
            frame[at : at + field.size] = data.ljust(field.size, b"\0")

    @staticmethod
    def _null(field: Column) -> bytes:
        if field.kind.name == "char":
            return b""
        return null_bits(field).to_bytes(field.kind.size, "little") * field.length

    def _encoded(self, field: Column, operand: Operand) -> bytes:
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
        """A text as it is written: a field's text with its blanks, any other without."""
        if not isinstance(operand, Operation):
            value = self.value(operand)
            assert isinstance(value, bytes)
            return value
        name, of = operand.function.name, operand.operands.get("of")
        if name in ("last_text", "peek", "order_by"):
            kept = self.results[operand.number]
            assert isinstance(kept, bytes)
            return kept
        if name == "concatenate":
            separator = operand.constants["separator"]
            assert isinstance(separator, bytes)
            return separator.join(self.appended(part) for part in operand.operands.values())
        assert of is not None
        if name in ("text", "cut"):
            return self.text(of).rstrip(BLANKS)[: int(str(operand.constants["length"]))]
        if name == "digits":
            return self.digits(of)
        found = self.results[operand.number]
        assert isinstance(found, bytes)
        return found

    def appended(self, operand: Operand) -> bytes:
        """A text as a part of another: a field's text loses its trailing blanks."""
        if not type_of(operand).text_size:
            return self.digits(operand)
        text = self.text(operand)
        return text.rstrip(BLANKS) if isinstance(operand, SourceField) else text

    def digits(self, operand: Operand) -> bytes:
        """A number as text; null is empty."""
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
    """The value of an operation without state; a text that is made when it is written is only checked."""
    name, constants = operation.function.name, operation.constants
    if name == "entry":
        return scope.of_entry(operation)
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
    if name == "decimal":
        settings = {key: value for key, value in constants.items() if isinstance(value, int)}
        try:
            return _decimal(values["of"], settings)
        except Refused:
            if "NULL" in str(constants["failed_as"]):
                return NULL
            raise
    if name == "double":
        return _double(numbers["of"], int(str(constants["factor"])), int(str(constants["divisor"])))
    if name == "choose":
        comparison = constants["comparison"]
        assert isinstance(comparison, Comparison)
        return numbers["then" if scope.compare(operation.operands["of"], comparison) else "otherwise"]
    if operation.function.python is not None:
        return _of_user(operation, [numbers[argument] for argument in operation.function.values])
    of = numbers["of"]
    settings = {key: value for key, value in constants.items() if isinstance(value, int)}
    if name == "scale":
        return _scaled(of, settings)
    if name == "cast":
        return _cast(of, settings, str(constants["otherwise"]))
    if name == "increase":
        return of + settings["amount"]
    if name == "plus":
        return of + numbers["addend"]
    if name == "default":
        return settings["value"] if of == NULL else of
    if name == "null_if":
        return NULL if of == settings["value"] else of
    if name == "bits":
        return (of >> settings["shift"]) & settings["mask"]
    if of < 0 or of > settings["high"]:
        raise Refused(Reason.OUT_OF_RANGE)
    if name == "timestamp":
        return of * settings["factor"]
    if name == "since_midnight":
        return _midnight(scope.number(PacketValue("session")), str(constants["zone"])) + of * settings["factor"]
    raise AssertionError(f"the interpreter does not know {name}")


def _of_user(operation: Operation, given: list[int]) -> int:
    """The result of a user's function. If it depends on state, it is null where it would refuse the message."""
    function = operation.function
    assert function.python is not None
    reason, value = Reason.FUNCTION_FAILED, 0
    try:
        if function.calling is Calling.PER_ARRAY:
            answer = function.python(*(np.array([value], np.int64) for value in given))
            is_right = isinstance(answer, np.ndarray) and answer.shape == (1,) and answer.dtype.kind in "biu"
            value = int(answer[0]) if is_right else value
        else:
            value, is_right = operator.index(function.python(*given)), True
    except Exception:  # noqa: BLE001  any exception counts as a failure
        is_right = False
    if is_right:
        if function.low <= value <= function.high:
            return value
        reason = Reason.OUT_OF_RANGE
    if operation.is_stateful:
        return NULL
    raise Refused(reason)


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


def _decimal(bits: Value, settings: dict[str, int]) -> int:
    assert isinstance(bits, bytes)
    code, factor, divisor = "<f" if len(bits) == 4 else "<d", settings["factor"], settings["divisor"]
    value: float = struct.unpack(code, bits)[0]
    if math.isnan(value):
        return NULL
    scaled = value * float(factor) / float(divisor)
    if abs(scaled) > 2.0**62:
        raise Refused(Reason.OUT_OF_RANGE)
    found = math.floor(scaled)
    if settings["rounding"] != 1 and scaled - found >= 0.5:
        found += 1
    (back,) = struct.unpack(code, struct.pack(code, float(found) * float(divisor) / float(factor)))
    if settings["rounding"] == 0 and back != value:
        raise Refused(Reason.OUT_OF_RANGE)
    return found


def _double(of: int, factor: int, divisor: int) -> bytes:
    return _NAN[8] if of == NULL else struct.pack("<d", float(of) * float(factor) / float(divisor))


def _scaled(of: int, settings: dict[str, int]) -> int:
    if not settings["low"] <= of <= settings["high"] or (settings["exact"] and of % settings["divisor"]):
        raise Refused(Reason.OUT_OF_RANGE)
    return (of * settings["factor"] + settings["half"]) // settings["divisor"]


def _cast(of: int, settings: dict[str, int], otherwise: str) -> int:
    low, high = settings["low"], settings["high"]
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
