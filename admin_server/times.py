"""Times as commands of `tandemfeed admin` print them."""

from __future__ import annotations

import time


def clock(unix_ns: int) -> str:
    """The local time of day, with the date unless it is today."""
    at = time.localtime(unix_ns // 1_000_000_000)
    is_today = time.strftime("%F", at) == time.strftime("%F")
    return time.strftime("%H:%M:%S" if is_today else "%F %H:%M:%S", at)


def duration(time_ns: int) -> str:
    """A length of time in its largest unit."""
    seconds = time_ns / 1e9
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.0f} h"
