"""Whether a table reads the time at which a packet was sent: then packets cannot be converted together."""

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


def reads_send_time(table: ConverterTable) -> bool:
    """True if an output of this table depends on the time at which a packet was sent."""
    return _depends_on_send_time(table.conversions, set())


def _depends_on_send_time(part: object, seen: set[int]) -> bool:
    if isinstance(part, PacketValue):
        return part.name == "sent_at_ns"
    if isinstance(part, tuple):
        return any(_depends_on_send_time(each, seen) for each in part)
    if isinstance(part, dict):
        return any(_depends_on_send_time(each, seen) for each in part.values())
    if not isinstance(part, Conversion | GroupWrite | DataWrite | Guard | Operation | OrderAction) or id(part) in seen:
        return False
    seen.add(id(part))
    return any(_depends_on_send_time(getattr(part, name), seen) for name in type(part).__dataclass_fields__)
