"""Whether a table reads a value of a packet's header: then packets with different values are not converted together."""

from __future__ import annotations

from tandemfeed.adapter.conversion.table.table import (
    Conversion,
    ConverterTable,
    DataWrite,
    GroupWrite,
    Guard,
    Operation,
    OrderAction,
    PacketValue,
)


def reads_packet(table: ConverterTable, name: str) -> bool:
    """True if an output of this table depends on this value of the packet's header."""
    return _depends_on(name, table.conversions, set())


def _depends_on(name: str, part: object, seen: set[int]) -> bool:
    if isinstance(part, PacketValue):
        return part.name == name
    if isinstance(part, tuple):
        return any(_depends_on(name, each, seen) for each in part)
    if isinstance(part, dict):
        return any(_depends_on(name, each, seen) for each in part.values())
    if not isinstance(part, Conversion | GroupWrite | DataWrite | Guard | Operation | OrderAction) or id(part) in seen:
        return False
    seen.add(id(part))
    return any(_depends_on(name, getattr(part, each), seen) for each in type(part).__dataclass_fields__)
