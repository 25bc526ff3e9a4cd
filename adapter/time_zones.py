"""UTC offsets of time zones at midnight, day by day: all that the conversion needs from the time zone database."""

from __future__ import annotations

import datetime
import re
import zoneinfo
from functools import cache

EPOCH_ORDINAL = datetime.date(1970, 1, 1).toordinal()
ZONE_NAME = re.compile(r"[A-Za-z0-9_+/-]{1,64}")  # zones are searched as files of that name
STEP_DAYS = 4  # no zone ever changed twice within this many days
DAYS_END = datetime.date(2100, 1, 1).toordinal() - EPOCH_ORDINAL


def is_time_zone(name: str) -> bool:
    """True if the zone exists, such as "America/New_York"."""
    if ZONE_NAME.fullmatch(name) is None:
        return False
    try:
        zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):  # OSError: "America" is a folder of zones
        return False
    return True


def offset_at_midnight_s(zone: str, day: int) -> int:
    """Seconds that local time is ahead of UTC at the midnight that begins a day.

    Args:
        day: since 1970-01-01.
    """
    date = datetime.date.fromordinal(day + EPOCH_ORDINAL)
    midnight = datetime.datetime(date.year, date.month, date.day, tzinfo=zoneinfo.ZoneInfo(zone))
    offset = midnight.utcoffset()
    assert offset is not None
    return int(offset.total_seconds())


@cache
def zone_changes(zone: str) -> tuple[tuple[int, int], ...]:
    """(day since 1970, offset in seconds) for each day until 2100 on which the offset changed."""
    found = [(0, offset_at_midnight_s(zone, 0))]
    for end in range(STEP_DAYS, DAYS_END + STEP_DAYS, STEP_DAYS):
        low, high = end - STEP_DAYS, min(end, DAYS_END - 1)
        after = offset_at_midnight_s(zone, high)
        if after == found[-1][1]:
            continue
        while high - low > 1:
            middle = (low + high) // 2
            if offset_at_midnight_s(zone, middle) == found[-1][1]:
                low = middle
            else:
                high = middle
        found.append((high, after))
    return tuple(found)
