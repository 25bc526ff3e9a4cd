"""When a journal begins its next file, and how a record's index combines the file's cycle and a sequence.

A `RollCycle` has a length of time and a split of the index into bits; a `RollSchedule` places it in a time zone. Both
are pure: no clock, no file. Every cycle returned fits into an index. Invariant, for every time and every cycle::

    start_ns(cycle) <= now_ns < end_ns(cycle)   if and only if   cycle_at(now_ns) == cycle
    end_ns(cycle) == start_ns(cycle + 1) >= start_ns(cycle)

How the time zone matters:

- Daily and weekly cycles are local calendar days and weeks (weeks begin on Monday). Cycle n begins when the local
  clock shows midnight of day n plus the offset, on days of 23 and of 25 hours too. If the clock shows that time twice,
  the first one counts; if the clock skips it, the cycle begins when it would have begun without the change. A calendar
  day that a zone skipped (Samoa, 2011-12-30) is an empty cycle: it has a number, but `cycle_at` never returns it.
- Shorter cycles all have their exact length, and begin on the full hour, minute, ... of the zone's standard time, in
  summer too. With summer time, cycle numbers would go back by an hour each autumn.
"""

from __future__ import annotations

import re
import zoneinfo
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from difflib import get_close_matches
from types import MappingProxyType
from typing import Self

INDEX_BITS = 63  # an index is never negative in a signed 64-bit integer
NS_PER_S = 1_000_000_000
DAY_S = 86_400
WEEK_S = 7 * DAY_S
TIME_NS_END = 1 << 63  # nanoseconds since 1970 in a signed 64-bit integer end in the year 2262
EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
MONDAY_ORDINAL = date(
    1969, 12, 29
).toordinal()  # weekly cycle 0: the Monday before the epoch, so that 1970 has a number
# Standard time is that of a past year, so that no later change of law moves the cycles of a journal.
STANDARD_TIME_YEAR = 2020
# How far, at most, a cycle's number differs from that of the local date (a clock set back over midnight).
CORRECTIONS_MAX = 3
INDEX_TEXT = re.compile(r"0[xX][0-9a-fA-F]{1,16}|[0-9]{1,19}")


@dataclass(frozen=True, slots=True)
class RollCycle:
    """The length of a cycle, and the split of an index.

    Attributes:
        name: in capitals, as in the configuration.
        length_s: nominal length; with summer time a daily or weekly cycle is an hour shorter or longer twice a year.
        sequence_bits: an index is `cycle << sequence_bits | sequence`.
        label_format: for `datetime.strftime`, precise enough that no two cycles share a label.
    """

    name: str
    length_s: int
    sequence_bits: int
    label_format: str

    @property
    def cycle_max(self) -> int:
        """The last cycle that fits into an index, and whose time fits into signed 64-bit nanoseconds."""
        return min((1 << INDEX_BITS - self.sequence_bits) - 1, TIME_NS_END // (self.length_s * NS_PER_S) - 1)

    @property
    def sequence_max(self) -> int:
        """The last sequence of a cycle."""
        return (1 << self.sequence_bits) - 1

    @property
    def is_calendar(self) -> bool:
        """True if cycles are calendar days or weeks, whose length depends on the zone's clock."""
        return self.length_s >= DAY_S

    @classmethod
    def named(cls, name: str) -> RollCycle:
        """The cycle of this name, in any case.

        Raises:
            ValueError: the name is unknown; the text lists all names.
        """
        try:
            return ROLL_CYCLES[name.upper()]
        except (KeyError, AttributeError):
            raise ValueError(f"unknown roll cycle {name!r}; choose one of {', '.join(ROLL_CYCLES)}") from None

    def index_of(self, cycle: int, sequence: int) -> int:
        """The index of a record.

        Raises:
            ValueError: the cycle or the sequence does not fit.
        """
        if not 0 <= cycle <= self.cycle_max:
            raise ValueError(f"cycle is {cycle}; {self.name} has cycles 0 to {self.cycle_max}")
        if not 0 <= sequence <= self.sequence_max:
            raise ValueError(f"sequence is {sequence}; {self.name} has sequences 0 to {self.sequence_max}")
        return cycle << self.sequence_bits | sequence

    def cycle_of(self, index: int) -> int:
        """The cycle in an index.

        Raises:
            ValueError: not an index.
        """
        return _checked_index(index) >> self.sequence_bits

    def sequence_of(self, index: int) -> int:
        """The sequence in an index, counted from 0 in its cycle.

        Raises:
            ValueError: not an index.
        """
        return _checked_index(index) & self.sequence_max


# Why these bits: until the year 2200 there are 7.26e9 seconds, which need 33 bits and leave 30 for the sequence of a
# secondly cycle (32 would end in 2038). 121e6 minutes need 27 bits and leave 36; 2.02e6 hours need 21 and leave up to
# 42; 84,000 days need 17 and leave up to 46. So sequences suffice for 29 million records per second in a weekly cycle,
# and for over 200 million in every shorter one, far more than a journal can append. The cycle has the other bits.
SECONDLY = RollCycle("SECONDLY", 1, 30, "%Y%m%d-%H%M%S")  # for tests of rolling
MINUTELY = RollCycle("MINUTELY", 60, 36, "%Y%m%d-%H%M")
FIVE_MINUTELY = RollCycle("FIVE_MINUTELY", 300, 37, "%Y%m%d-%H%M")
TEN_MINUTELY = RollCycle("TEN_MINUTELY", 600, 38, "%Y%m%d-%H%M")
TWENTY_MINUTELY = RollCycle("TWENTY_MINUTELY", 1_200, 39, "%Y%m%d-%H%M")
HALF_HOURLY = RollCycle("HALF_HOURLY", 1_800, 39, "%Y%m%d-%H%M")
HOURLY = RollCycle("HOURLY", 3_600, 40, "%Y%m%d-%H")
TWO_HOURLY = RollCycle("TWO_HOURLY", 7_200, 41, "%Y%m%d-%H")
FOUR_HOURLY = RollCycle("FOUR_HOURLY", 14_400, 42, "%Y%m%d-%H")
SIX_HOURLY = RollCycle("SIX_HOURLY", 21_600, 43, "%Y%m%d-%H")
DAILY = RollCycle("DAILY", DAY_S, 44, "%Y%m%d")
WEEKLY = RollCycle("WEEKLY", WEEK_S, 44, "%GW%V")

ROLL_CYCLES: Mapping[str, RollCycle] = MappingProxyType(
    {
        cycle.name: cycle
        for cycle in (
            SECONDLY,
            MINUTELY,
            FIVE_MINUTELY,
            TEN_MINUTELY,
            TWENTY_MINUTELY,
            HALF_HOURLY,
            HOURLY,
            TWO_HOURLY,
            FOUR_HOURLY,
            SIX_HOURLY,
            DAILY,
            WEEKLY,
        )
    }
)
"""All roll cycles by name, from the shortest to the longest."""


def _standard_offset_s(zone: zoneinfo.ZoneInfo) -> int:
    """How many seconds the zone's standard time is ahead of UTC: the smaller of its offsets in January and July.

    Not `datetime.dst()`: where winter time is legally the exception (Dublin), that would give summer time.
    """
    moments = (datetime(STANDARD_TIME_YEAR, month, 1, tzinfo=UTC).astimezone(zone) for month in (1, 7))
    return min(int((moment.utcoffset() or timedelta()).total_seconds()) for moment in moments)


@dataclass(frozen=True, slots=True)
class RollSchedule:
    """A roll cycle in a time zone.

    Args:
        roll_cycle: the length of a cycle.
        epoch_offset_s: how many seconds after midnight (or the full hour, ...) cycles begin; negative: before. The
            trading week of a venue that opens on Sunday at 17:00 is WEEKLY with -25,200 in the venue's zone.
        time_zone: a name of the IANA time zone database, such as "Europe/London".

    Raises:
        ValueError: unknown zone, or an offset of a whole cycle or more (of a day or more, for cycles below a day).
    """

    roll_cycle: RollCycle
    epoch_offset_s: int = 0
    time_zone: str = "UTC"
    _zone: zoneinfo.ZoneInfo = field(init=False, repr=False, compare=False)
    _origin_ns: int = field(init=False, repr=False, compare=False)  # start of cycle 0, if cycles have a fixed length

    def __post_init__(self) -> None:
        offset_end = max(self.roll_cycle.length_s, DAY_S)
        if not -offset_end < self.epoch_offset_s < offset_end:
            raise ValueError(
                f"epoch_offset_s is {self.epoch_offset_s}; a {self.roll_cycle.name} schedule takes "
                f"{-offset_end + 1} to {offset_end - 1}"
            )
        zone = _zone_named(self.time_zone)
        object.__setattr__(self, "_zone", zone)
        object.__setattr__(self, "_origin_ns", (self.epoch_offset_s - _standard_offset_s(zone)) * NS_PER_S)

    @classmethod
    def named(cls, name: str, *, epoch_offset_s: int = 0, time_zone: str = "UTC") -> Self:
        """A schedule for the roll cycle of this name.

        Raises:
            ValueError: as for `RollCycle.named` and `RollSchedule`.
        """
        return cls(RollCycle.named(name), epoch_offset_s, time_zone)

    def cycle_at(self, now_ns: int) -> int:
        """The cycle of a time.

        Takes about 0.3 µs for cycles below a day, and 5 µs for longer ones: an appender stores the `end_ns` of its
        cycle, and calls this only once that time has come.

        Args:
            now_ns: nanoseconds since 1970-01-01 UTC.

        Raises:
            ValueError: before cycle 0, or after the last cycle that fits into an index.
        """
        if not self.roll_cycle.is_calendar:
            return self._checked((now_ns - self._origin_ns) // (self.roll_cycle.length_s * NS_PER_S))
        if not -TIME_NS_END <= now_ns < TIME_NS_END:
            raise ValueError(f"{now_ns} ns since 1970 does not fit in 64 bits")
        # Begin with the local date's cycle; correct it until the invariant (see `_calendar_start_ns`) is true.
        local = datetime.fromtimestamp(now_ns // NS_PER_S, self._zone) - timedelta(seconds=self.epoch_offset_s)
        cycle = self._calendar_cycle(local.toordinal())
        for _ in range(CORRECTIONS_MAX):
            if now_ns < self._calendar_start_ns(cycle):
                cycle -= 1
            elif now_ns >= self._calendar_start_ns(cycle + 1):
                cycle += 1
            else:
                return self._checked(cycle)
        raise AssertionError(f"{self}: cycle of {now_ns} not found near {cycle}")

    def start_ns(self, cycle: int) -> int:
        """When a cycle begins, in nanoseconds since 1970-01-01 UTC.

        Raises:
            ValueError: the cycle does not fit into an index.
        """
        return self._start_ns(self._checked(cycle))

    def end_ns(self, cycle: int) -> int:
        """When a cycle ends: the start of the next one.

        Raises:
            ValueError: the cycle does not fit into an index.
        """
        return self._start_ns(self._checked(cycle) + 1)

    def label(self, cycle: int) -> str:
        """A readable name, such as "20261121-07", "20261121" or "2026W47"; labels sort as their cycles do.

        In the zone's standard time and without the offset, so that no two cycles share a label: a daily cycle that
        begins at 17:00 of the day before (offset -25,200) has the date of the day itself.

        Raises:
            ValueError: the cycle does not fit into an index.
        """
        self._checked(cycle)
        if self.roll_cycle.is_calendar:
            nominal = self._midnight(cycle)
        else:
            nominal = datetime(1970, 1, 1) + timedelta(seconds=cycle * self.roll_cycle.length_s)
        return nominal.strftime(self.roll_cycle.label_format)

    def _checked(self, cycle: int) -> int:
        if not 0 <= cycle <= self.roll_cycle.cycle_max:
            raise ValueError(
                f"cycle is {cycle}; a {self.roll_cycle.name} index has cycles 0 to {self.roll_cycle.cycle_max}: "
                "is the clock right?"
            )
        return cycle

    def _start_ns(self, cycle: int) -> int:
        if self.roll_cycle.is_calendar:
            return self._calendar_start_ns(cycle)
        return self._origin_ns + cycle * self.roll_cycle.length_s * NS_PER_S

    def _calendar_cycle(self, ordinal: int) -> int:
        """The cycle of a local date, from its ordinal alone."""
        return ordinal - EPOCH_ORDINAL if self.roll_cycle.length_s == DAY_S else (ordinal - MONDAY_ORDINAL) // 7

    def _midnight(self, cycle: int) -> datetime:
        """The local wall clock at midnight of a cycle's first day."""
        ordinal = EPOCH_ORDINAL + cycle if self.roll_cycle.length_s == DAY_S else MONDAY_ORDINAL + 7 * cycle
        return datetime.fromordinal(ordinal)

    def _calendar_start_ns(self, cycle: int) -> int:
        # fold=0: a repeated hour means the first one, and a skipped hour has the offset before the change. No zone ever
        # moved its clock by more than 24 hours, so starts never decrease.
        wall = self._midnight(cycle) + timedelta(seconds=self.epoch_offset_s)
        offset = wall.replace(tzinfo=self._zone, fold=0).utcoffset() or timedelta()
        return (wall - offset - datetime(1970, 1, 1)) // timedelta(seconds=1) * NS_PER_S


def format_index(index: int) -> str:
    """An index as text: 0x and 16 hexadecimal digits.

    Raises:
        ValueError: not an index.
    """
    return f"0x{_checked_index(index):016x}"


def parse_index(text: str) -> int:
    """Parse an index: hexadecimal with 0x, or decimal.

    Raises:
        ValueError: not an index.
    """
    if INDEX_TEXT.fullmatch(text.strip()) is None:
        raise ValueError(f"{text!r} is not an index; write 0x and up to 16 hexadecimal digits, or a decimal number")
    stripped = text.strip().lower()
    return _checked_index(int(stripped, 16 if stripped.startswith("0x") else 10))


def _checked_index(index: int) -> int:
    if not 0 <= index < 1 << INDEX_BITS:
        raise ValueError(f"{index} is not an index; an index has {INDEX_BITS} bits and is not negative")
    return index


def _zone_named(name: str) -> zoneinfo.ZoneInfo:
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):  # OSError: "Europe" is a folder of the database
        near = get_close_matches(name, sorted(zoneinfo.available_timezones()), n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else 'use a name such as "Europe/London", or "UTC"'
        raise ValueError(f"unknown time zone {name!r}; {hint}") from None
