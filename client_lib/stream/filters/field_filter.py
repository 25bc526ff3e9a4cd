"""Delivers only messages whose fields have wanted values. Runs after the merge, so numbers, gaps and positions are
unaffected.

Values are compared as they are on the wire, a run of messages of one type at a time; no message is decoded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tandemfeed.client_lib.items import Batch
from tandemfeed.client_lib.messages.decoding import Decoder
from tandemfeed.client_lib.messages.values import SchemaTypes, attribute_name, to_plain
from tandemfeed.feedcore.documents.message_model import PREFIX_SIZE
from tandemfeed.feedcore.sbe.messages import Column, MessageType
from tandemfeed.feedcore.sbe.types import EnumType
from tandemfeed.feedcore.wire.refusal import PacketRefused

Mask: TypeAlias = NDArray[np.bool_]
Test: TypeAlias = tuple[Column, Callable[[NDArray[Any]], Mask]]


class FieldFilter:
    """The filter of one subscription.

    Args:
        where: by the name of a field: a value, a collection of values, or a tuple (lowest, highest), of which either
            may be None. All fields must match; messages without one of them do not.
        former: the filter that this one replaces; its counts continue.

    Attributes:
        filtered_counts: by channel, messages that were not delivered.

    Raises:
        ValueError: no message has a field, or a value cannot be one of it.
    """

    def __init__(self, decoder: Decoder, where: Mapping[str, Any], former: FieldFilter | None = None) -> None:
        self.filtered_counts: Counter[int] = Counter() if former is None else former.filtered_counts
        self._tests: dict[int, list[Test]] = {}
        known: set[str] = set()
        for message in decoder.model.schema.messages.values():
            names = {attribute_name(name): name for name in message.columns} | {name: name for name in message.columns}
            known |= where.keys() & names.keys()
            if where.keys() <= names.keys():
                tests = [_test(message, names[name], wanted) for name, wanted in where.items()]
                self._tests[message.template_id] = tests
        unknown = sorted(where.keys() - known)
        if unknown or not self._tests:
            what = f"no message has the field {unknown[0]}" if unknown else "no message has all of these fields"
            raise ValueError(f"where is {dict(where)!r}; {what}")

    def select(self, batch: Batch) -> Batch:
        """The batch with only the wanted messages, at its place in the stream."""
        mask = self._mask(batch)
        if mask.all():
            return batch
        with suppress(PacketRefused):  # a batch that cannot be cut stays whole
            chosen = batch.chosen(mask)
            self.filtered_counts[batch.channel_id] += batch.message_count - chosen.message_count
            return chosen
        return batch

    def _mask(self, batch: Batch) -> Mask:
        parts: list[Mask] = []
        for message, length, run in batch.model.stretches(batch.payload):
            count = max(len(run) // length, 1) if length else 1
            mask = np.ones(count, np.bool_)
            tests = None if message is None else self._tests.get(message.template_id)
            if tests is None:
                mask[:] = message is None  # of other schemas are tandemfeed's own, which are kept
            for column, test in tests or ():
                if length < PREFIX_SIZE + column.offset + column.size:  # an older version, without the field
                    mask[:] = False
                else:
                    code = column.numpy_code("<")
                    mask &= test(np.ndarray((count,), code, run, PREFIX_SIZE + column.offset, (length,)))
            parts.append(mask)
        whole: Mask = np.concatenate(parts) if parts else np.ones(0, np.bool_)
        return whole if len(whole) == batch.message_count else np.ones(batch.message_count, np.bool_)


def _test(message: MessageType, name: str, wanted: Any) -> Test:
    column = message.columns[name]
    if column.length > 1 and column.kind.name != "char":
        raise ValueError(f"{message.name}.{name} is an array; filter by fields of one value")
    encode = _encoder(message, name, column)
    try:
        if isinstance(wanted, tuple):
            low, high = wanted
            return column, _in_range(column, low, high, encode)
        values: Collection[Any] = wanted if isinstance(wanted, set | frozenset | list) else (wanted,)
        found = np.unique(np.array([each for value in values for each in _on_wire(encode, value)]))
    except (ValueError, TypeError, KeyError, ArithmeticError, AttributeError) as wrong:
        raise ValueError(f"where has {name}: {wanted!r}, which cannot be a value of {message.name}: {wrong}") from wrong
    return column, lambda present: np.isin(present, found)


def _in_range(
    column: Column, low: Any, high: Any, encode: Callable[[Any, str | None], Any]
) -> Callable[[NDArray[Any]], Mask]:
    if column.kind.name == "char":
        raise ValueError("a range needs numbers or times")
    lowest = None if low is None else encode(low, ROUND_CEILING)
    highest = None if high is None else encode(high, ROUND_FLOOR)

    def test(present: NDArray[Any]) -> Mask:
        mask: Mask = np.ones(len(present), np.bool_) if column.null is None else present != column.null
        if lowest is not None:
            mask &= present >= lowest
        if highest is not None:
            mask &= present <= highest
        return mask

    return test


def _on_wire(encode: Callable[[Any, str | None], Any], value: Any) -> list[Any]:
    encoded = encode(value, None)
    return encoded if isinstance(encoded, list) else [encoded]


def _encoder(message: MessageType, name: str, column: Column) -> Callable[[Any, str | None], Any]:
    """A function from an application's value to that on the wire; a text has several, by its padding."""
    field = message.fields.get(name)
    if field is not None and isinstance(field.type, EnumType):
        labels = field.type.values
        is_char = column.kind.name == "char"
        return lambda value, _: bytes([labels[value]]) if is_char else labels[value]
    if column.kind.name == "char":
        return lambda value, _: _padded(value, column.length)
    if column.exponent:
        return lambda value, rounding: _mantissa(value, column.exponent, rounding)
    kind = None if field is None else SchemaTypes().of(field.type, field.semantic_type)
    number: Callable[[Any], Any] = float if column.kind.is_float else int
    return lambda value, _: number(value if kind is None else to_plain(kind, value))


def _padded(value: Any, length: int) -> list[bytes]:
    text: bytes = value.encode("latin-1")
    if len(text) > length:
        raise ValueError(f"it is longer than {length}")
    return [text, text.ljust(length)]


def _mantissa(value: Any, exponent: int, rounding: str | None) -> int:
    scaled = Decimal(str(value)).scaleb(-exponent)
    whole = scaled.to_integral_value(rounding or ROUND_FLOOR)
    if rounding is None and whole != scaled:
        raise ValueError(f"it has more than {-exponent} decimal places")
    return int(whole)
