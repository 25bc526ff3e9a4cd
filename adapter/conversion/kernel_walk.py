"""Kernel lines that walk over a source message: where its groups' entries and variable texts lie, and whether it ends
where its parts do. Everything a kernel reads lies behind these comparisons."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from adapter.conversion.unaligned import load_expression
from feedcore.source_format import SourceData, SourceField, SourceGroup, SourceMessageType

PLACED_MAX = 65_535


def walk(source: SourceMessageType, needed: Collection[int]) -> list[str]:
    """The lines; after them `reason` says whether the message is whole.

    Args:
        needed: identities of the fields and texts that are read.
    """
    framing, lines = source.framing, []
    if framing.block_length is not None:
        at = f"position + {framing.block_length_offset}"
        load = load_expression(framing.block_length.size, at, is_big_endian=framing.is_big_endian)
        lines += [
            f"block = {load}",
            "at = body + block",
            f"if block < {_least(source.fields.values(), needed)} or block > {PLACED_MAX} or at > limit:",
        ]
        lines += ["    reason = WRONG_LENGTH"]
    else:
        lines += [f"at = body + {source.size}"]
    for number, part in enumerate(source.parts):
        lines += _group(number, part, needed) if isinstance(part, SourceGroup) else _data(part, needed)
    if not source.longer:
        lines += ["if reason == 0 and at != limit:", "    reason = WRONG_LENGTH"]
    return lines


def _least(fields: Iterable[SourceField], needed: Collection[int]) -> int:
    """Bytes a fixed part must have: up to the last field that is read and cannot be null."""
    read = (field for field in fields if id(field) in needed and field.constant is None and field.null is None)
    return max((field.offset + field.size for field in read), default=0)


def _group(number: int, group: SourceGroup, needed: Collection[int]) -> list[str]:
    if group.count is not None:
        return [
            f"first_{number} = at  # {group.name}",
            f"count_{number} = {group.count}",
            f"size_{number} = {group.size}",
            f"at += {group.count * group.size}",
            "if at > limit:",
            "    reason = WRONG_LENGTH",
        ]
    count = load_expression(group.count_kind.size, f"at + {group.count_offset}", is_big_endian=group.is_big_endian)
    kind = group.entry_size_kind
    at = f"at + {group.entry_size_offset}"
    size = str(group.size) if kind is None else load_expression(kind.size, at, is_big_endian=group.is_big_endian)
    least = group.size if kind is None else _least(group.fields.values(), needed)
    too_short = f" or (count_{number} > 0 and size_{number} < {least})" if least else ""
    return [
        f"first_{number} = at  # {group.name}",
        f"count_{number} = 0",
        f"size_{number} = 0",
        "if reason == 0 and at < limit:" if group.is_later else "if reason == 0:",
        f"    if at + {group.header_size} > limit:",
        "        reason = WRONG_LENGTH",
        "    else:",
        f"        count_{number} = {count}",
        f"        size_{number} = {size}",
        f"        first_{number} = at + {group.header_size}",
        f"        if count_{number} > {PLACED_MAX} or size_{number} > {PLACED_MAX}{too_short}:",
        "            reason = WRONG_LENGTH",
        "        else:",
        f"            at = first_{number} + count_{number} * size_{number}",
        "            if at > limit:",
        "                reason = WRONG_LENGTH",
    ]


def _data(data: SourceData, needed: Collection[int]) -> list[str]:
    length = load_expression(data.length_kind.size, "at", is_big_endian=data.is_big_endian)
    head = [
        f"if reason == 0{' and at < limit' if data.is_later else ''}:  # {data.name}",
        f"    if at + {data.header_size} > limit:",
        "        reason = WRONG_LENGTH",
        "    else:",
    ]
    if id(data.text) not in needed:
        return [
            *head,
            f"        at = at + {data.header_size} + {length}",
            "        if at > limit:",
            "            reason = WRONG_LENGTH",
        ]
    too_long = f" or length_{data.name} > {data.maximum}" if data.maximum < data.length_kind.maximum else ""
    return [
        f"data_{data.name} = at",
        f"length_{data.name} = 0",
        *head,
        f"        length_{data.name} = {length}",
        f"        data_{data.name} = at + {data.header_size}",
        f"        at = data_{data.name} + length_{data.name}",
        f"        if at > limit{too_long}:",
        "            reason = WRONG_LENGTH",
    ]
