"""Kernel lines that walk over a source message.

They find its groups' entries and variable texts, and check that it ends where its parts end. A kernel reads an entry or
a text only after these checks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from tandemfeed.adapter.conversion.kernel.kernel_names import in_variable, shown
from tandemfeed.adapter.conversion.kernel.unaligned import load_expression
from tandemfeed.feedcore.documents.source_layout import SourceData, SourceField, SourceGroup, SourceMessageType

PLACED_MAX = 65_535  # of a group: entries, and bytes of each; no position that follows from them overflows


def walk(source: SourceMessageType, needed: Collection[int]) -> list[str]:
    """The lines; they set `reason` if the message is not whole.

    Args:
        needed: identities of the fields and texts that are read.
    """
    framing, lines = source.framing, []
    if framing.version is not None:
        at = f"position + {framing.version.offset}"
        load = load_expression(framing.version.size, at, is_big_endian=framing.is_big_endian)
        lines += [f"version = {load}"]
    if framing.block_length is not None:
        at = f"position + {framing.block_length.offset}"
        load = load_expression(framing.block_length.size, at, is_big_endian=framing.is_big_endian)
        lines += [
            f"block = {load}",
            "at = body + block",
            f"if block < {_least(source.fields.values(), needed)} or block > {PLACED_MAX} or at > limit:",
        ]
        lines += ["    reason = WRONG_LENGTH"]
    else:
        lines += [f"at = body + {source.size}"]
    lines += _parts(source.parts, numbers_of(source), needed)
    if not source.longer:
        lines += ["if reason == 0 and at != limit:", "    reason = WRONG_LENGTH"]
    return lines


def numbers_of(source: SourceMessageType) -> dict[int, int]:
    """The numbers in the names of groups' variables, by the groups' identity; a message's own groups come first."""
    numbers = {id(part): number for number, part in enumerate(source.parts) if isinstance(part, SourceGroup)}
    for group in source.groups.values():
        for inner in _inside(group):
            numbers[id(inner)] = len(source.parts) + len(numbers)
    return numbers


def _inside(group: SourceGroup) -> Iterator[SourceGroup]:
    for inner in group.groups.values():
        yield inner
        yield from _inside(inner)


def entry_steps(
    group: SourceGroup, numbers: Mapping[int, int], needed: Collection[int], entry: str, size: str, counter: str
) -> tuple[list[str], list[str]]:
    """Lines before a loop over a group's entries, and the first lines in it, which find the entry.

    Args:
        entry, size, counter: variables of the entry's position, its length and its number.
    """
    number = numbers[id(group)]
    if not group.parts:
        return [], [f"{entry} = first_{number} + {counter} * size_{number}", f"{size} = size_{number}"]
    return [f"next_{number} = first_{number}"], [
        f"{entry} = next_{number}",
        f"{size} = size_{number}",
        f"at = {entry} + size_{number}",
        *_parts(group.parts, numbers, needed),
        f"next_{number} = at",
    ]


def _parts(parts: Iterable[SourceGroup | SourceData], numbers: Mapping[int, int], needed: Collection[int]) -> list[str]:
    lines: list[str] = []
    for part in parts:
        lines += _group(part, numbers, needed) if isinstance(part, SourceGroup) else _data(part, needed)
    return lines


def _least(fields: Iterable[SourceField], needed: Collection[int]) -> int:
    """The smallest size of a fixed part in bytes: up to the last field that is read and cannot be null."""
    read = (field for field in fields if id(field) in needed and field.constant is None and not field.is_nullable)
    return max((field.offset + field.size for field in read), default=0)


def _is_there(part: SourceGroup | SourceData) -> str:
    """The condition for a part: the message is whole so far, and of a version that has the part."""
    return f"reason == 0 and version >= {part.since_version}" if part.since_version else "reason == 0"


def _entries(group: SourceGroup, numbers: Mapping[int, int], needed: Collection[int]) -> list[str]:
    """Lines that walk over entries of different lengths, one by one."""
    number = numbers[id(group)]
    inner = _parts(group.parts, numbers, needed)
    return [
        "if reason == 0:",
        f"    for _ in range(count_{number}):",
        f"        at += size_{number}",
        "        if at > limit:",
        "            reason = WRONG_LENGTH",
        *(f"        {line}" for line in inner),
    ]


def _group(group: SourceGroup, numbers: Mapping[int, int], needed: Collection[int]) -> list[str]:
    number = numbers[id(group)]
    if isinstance(group.count, int):
        head = [
            f"first_{number} = at  # {shown(group.name)}",
            f"count_{number} = {group.count}",
            f"size_{number} = {group.size}",
        ]
        if group.parts:
            return [*head, *_entries(group, numbers, needed)]
        return [
            *head,
            f"at += {group.count * group.size}",
            "if at > limit:",
            "    reason = WRONG_LENGTH",
        ]
    count = load_expression(group.count.size, f"at + {group.count.offset}", is_big_endian=group.is_big_endian)
    size, least, entry_size = str(group.size), group.size, group.entry_size
    if entry_size is not None:
        size = load_expression(entry_size.size, f"at + {entry_size.offset}", is_big_endian=group.is_big_endian)
        least = _least(group.fields.values(), needed)
    too_short = f" or (count_{number} > 0 and size_{number} < {least})" if least else ""
    head = [
        f"first_{number} = at  # {shown(group.name)}",
        f"count_{number} = 0",
        f"size_{number} = 0",
        f"if {_is_there(group)}:",
        f"    if at + {group.header_size} > limit:",
        "        reason = WRONG_LENGTH",
        "    else:",
        f"        count_{number} = {count}",
        f"        size_{number} = {size}",
        f"        first_{number} = at + {group.header_size}",
        f"        if count_{number} > {PLACED_MAX} or size_{number} > {PLACED_MAX}{too_short}:",
        "            reason = WRONG_LENGTH",
    ]
    if group.parts:
        return [*head, "        else:", f"            at = first_{number}", *_entries(group, numbers, needed)]
    return [
        *head,
        "        else:",
        f"            at = first_{number} + count_{number} * size_{number}",
        "            if at > limit:",
        "                reason = WRONG_LENGTH",
    ]


def _data(data: SourceData, needed: Collection[int]) -> list[str]:
    length = load_expression(data.length_kind.size, "at", is_big_endian=data.is_big_endian)
    head = [
        f"if {_is_there(data)}:  # {shown(data.name)}",
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
    name = in_variable(data.name)
    too_long = f" or length_{name} > {data.maximum}" if data.maximum < data.length_kind.maximum else ""
    return [
        f"data_{name} = at",
        f"length_{name} = 0",
        *head,
        f"        length_{name} = {length}",
        f"        data_{name} = at + {data.header_size}",
        f"        at = data_{name} + length_{name}",
        f"        if at > limit{too_long}:",
        "            reason = WRONG_LENGTH",
    ]
