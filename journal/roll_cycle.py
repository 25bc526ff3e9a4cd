"""When a journal begins its next file, and how a record's index is made of the file's cycle and a sequence.

A `RollCycle` is a length of time with a split of the index; a `RollSchedule` places it in a time zone. Both are pure:
no clock, no file. Never yields a cycle that an index cannot hold. Invariant, for every time and every cycle::

    start_ns(cycle) <= now_ns < end_ns(cycle)   if and only if   cycle_at(now_ns) == cycle
    end_ns(cycle) == start_ns(cycle + 1) >= start_ns(cycle)

How the zone counts:

- Daily and weekly cycles count local calendar days and weeks (weeks begin on Monday). Cycle n begins when the local
  clock shows midnight plus the offset of day n, on days of 23 and of 25 hours too. If the clock shows that twice, the
  first time counts; if it skips it, the cycle begins when it would have without the change. A calendar day that a zone
  left out (Samoa, 2011-12-30) is a cycle without time: it has a number, and `cycle_at` never gives it.
- Shorter cycles all have their exact length, and begin on the full hour, minute, ... of the zone's standard time, in
  summer too. Counting the summer's wall clock would go back by an hour each autumn.
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
# Standard time is taken from a year that is over, so that no later law of a country moves the cycles of a journal.
STANDARD_TIME_YEAR = 2020
# Local midnight of a day is at most this many numbers away from what the local date says (a clock set back over it).
CORRECTIONS_MAX = 3
INDEX_TEXT = re.compile(r"0[xX][0-9a-fA-F]{1,16}|[0-9]{1,19}")


@dataclass(frozen=True, slots=True)
class RollCycle:
    """How long a cycle is, and how an index is split.

    Attributes:
        name: in capitals, as configured.
        length_s: nominal; a daily or weekly cycle in a zone with summer time is an hour shorter or longer twice a year.
        sequence_bits: the index is `cycle << sequence_bits | sequence`.
        label_format: of `datetime.strftime`, fine enough that two cycles never share a label.
    """

    name: str
    length_s: int
    sequence_bits: int
    label_format: str

    @property
    def cycle_max(self) -> int:
        """The last cycle that an index, and a time in signed 64-bit nanoseconds, can hold."""
        return min((1 << INDEX_BITS - self.sequence_bits) - 1, TIME_NS_END // (self.length_s * NS_PER_S) - 1)

    @property
    def sequence_max(self) -> int:
        """The last sequence of a cycle."""
        return (1 << self.sequence_bits) - 1

    @property
    def is_calendar(self) -> bool:
        """True if the cycle counts calendar days: its length then depends on the zone's clock."""
        return self.length_s >= DAY_S

    @classmethod
    def named(cls, name: str) -> RollCycle:
        """The cycle of this name, in any case.

        Raises:
            ValueError: there is none; the text lists them.
        """
        try:
            return ROLL_CYCLES[name.upper()]
        except KeyError:
            raise ValueError(f"no roll cycle {name!r}: choose one of {', '.join(ROLL_CYCLES)}") from None

    def index_of(self, cycle: int, sequence: int) -> int:
        """The index of a record.

        Raises:
            ValueError: cycle or sequence do not fit.
        """
        if not 0 <= cycle <= self.cycle_max:
            raise ValueError(f"cycle {cycle}: {self.name} has cycles 0 to {self.cycle_max}")
        if not 0 <= sequence <= self.sequence_max:
            raise ValueError(f"sequence {sequence}: {self.name} has sequences 0 to {self.sequence_max}")
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


# The bits. Until the year 2200 there are 7.26e9 seconds: 33 bits, which leaves 30 for the sequence of a secondly cycle
# (32 would end in 2038). 121e6 minutes need 27 bits and leave 36; 2.02e6 hours need 21 and leave up to 42; 84,000 days
# need 17 and leave up to 46. Within that, the sequence has room for 29 million records in every second of a week and
# for over 200 million of every shorter cycle, far more than a journal can append; the rest goes to the cycle.
SECONDLY = RollCycle("SECONDLY", 1, 30, "%Y%m%d-%H%M%S")  # for tests of rolling, and for the impatient
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
"""Every roll cycle by its name, from the shortest to the longest."""


def _standard_offset_s(zone: zoneinfo.ZoneInfo) -> int:
    """Seconds the zone's standard time is ahead of UTC: the smaller of its offsets in January and July.

    Not `datetime.dst()`: where the law calls winter time the exception (Dublin), that would give summer time.
    """
    moments = (datetime(STANDARD_TIME_YEAR, month, 1, tzinfo=UTC).astimezone(zone) for month in (1, 7))
    return min(int((moment.utcoffset() or timedelta()).total_seconds()) for moment in moments)


@dataclass(frozen=True, slots=True)
class RollSchedule:
    """A roll cycle in a time zone.

    Args:
        roll_cycle: how long a cycle is.
        epoch_offset_s: how much later than midnight (or the full hour, ...) cycles begin; negative: earlier. The
            trading week of a venue that opens on Sunday at 17:00 is WEEKLY with -25,200 in the venue's zone.
        time_zone: a name of the IANA time zone database, such as "Europe/London".

    Raises:
        ValueError: no such zone, or an offset of a whole cycle (for cycles below a day: of a day) or more.
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
                f"epoch_offset_s {self.epoch_offset_s}: a {self.roll_cycle.name} schedule takes "
                f"{-offset_end + 1} to {offset_end - 1}"
            )
        zone = _zone_named(self.time_zone)
        object.__setattr__(self, "_zone", zone)
        object.__setattr__(self, "_origin_ns", (self.epoch_offset_s - _standard_offset_s(zone)) * NS_PER_S)

    @classmethod
    def named(cls, name: str, *, epoch_offset_s: int = 0, time_zone: str = "UTC") -> Self:
        """A schedule of the cycle of this name.

        Raises:
            ValueError: as for `RollCycle.named` and the schedule itself.
        """
        return cls(RollCycle.named(name), epoch_offset_s, time_zone)

    def cycle_at(self, now_ns: int) -> int:
        """The cycle a moment belongs to.

        Some 0.3 µs below a day and 5 µs from a day on: an appender keeps `end_ns` of its cycle and asks again only when
        that has come.

        Args:
            now_ns: nanoseconds since 1970-01-01 UTC.

        Raises:
            ValueError: before cycle 0 or after the last cycle an index can hold.
        """
        if not self.roll_cycle.is_calendar:
            return self._checked((now_ns - self._origin_ns) // (self.roll_cycle.length_s * NS_PER_S))
        if not -TIME_NS_END <= now_ns < TIME_NS_END:
            raise ValueError(f"{now_ns} ns since 1970 is no time that 64 bits can hold")
        # What the local date says, and from there to where the invariant holds: `_calendar_start_ns` alone defines it.
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
            ValueError: an index cannot hold this cycle.
        """
        return self._start_ns(self._checked(cycle))

    def end_ns(self, cycle: int) -> int:
        """When a cycle is over: the start of the next one.

        Raises:
            ValueError: an index cannot hold this cycle.
        """
        return self._start_ns(self._checked(cycle) + 1)

    def label(self, cycle: int) -> str:
        """A readable name, such as "20261121-07", "20261121" or "2026W47"; labels sort as their cycles do.

        In the zone's standard time and without the offset, so that no two cycles share one: a daily cycle from 17:00 of
        the day before (offset -25,200) bears the date of the day itself.

        Raises:
            ValueError: an index cannot hold this cycle.
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
                f"cycle {cycle}: a {self.roll_cycle.name} index holds cycles 0 to {self.roll_cycle.cycle_max}; "
                "is the clock right?"
            )
        return cycle

    def _start_ns(self, cycle: int) -> int:
        if self.roll_cycle.is_calendar:
            return self._calendar_start_ns(cycle)
        return self._origin_ns + cycle * self.roll_cycle.length_s * NS_PER_S

    def _calendar_cycle(self, ordinal: int) -> int:
        """The cycle a local date belongs to by its number alone."""
        return ordinal - EPOCH_ORDINAL if self.roll_cycle.length_s == DAY_S else (ordinal - MONDAY_ORDINAL) // 7

    def _midnight(self, cycle: int) -> datetime:
        """The local wall clock at midnight of a cycle's first day."""
        ordinal = EPOCH_ORDINAL + cycle if self.roll_cycle.length_s == DAY_S else MONDAY_ORDINAL + 7 * cycle
        return datetime.fromordinal(ordinal)

    def _calendar_start_ns(self, cycle: int) -> int:
        # fold=0: of a repeated hour the first one, and a skipped hour counts with the offset before the change. As no
        # zone ever moved its clock by more than 24 hours, starts never decrease.
        wall = self._midnight(cycle) + timedelta(seconds=self.epoch_offset_s)
        offset = wall.replace(tzinfo=self._zone, fold=0).utcoffset() or timedelta()
        return (wall - offset - datetime(1970, 1, 1)) // timedelta(seconds=1) * NS_PER_S


def format_index(index: int) -> str:
    """An index as people see it: 0x and 16 hexadecimal digits.

    Raises:
        ValueError: not an index.
    """
    return f"0x{_checked_index(index):016x}"


def parse_index(text: str) -> int:
    """The index somebody typed: hexadecimal with 0x, or decimal.

    Raises:
        ValueError: not an index.
    """
    if INDEX_TEXT.fullmatch(text.strip()) is None:
        raise ValueError(f"{text!r} is no index: write 0x and up to 16 hexadecimal digits, or a decimal number")
    stripped = text.strip().lower()
    return _checked_index(int(stripped, 16 if stripped.startswith("0x") else 10))


def _checked_index(index: int) -> int:
    if not 0 <= index < 1 << INDEX_BITS:
        raise ValueError(f"{index} is no index: an index has {INDEX_BITS} bits and is not negative")
    return index


def _zone_named(name: str) -> zoneinfo.ZoneInfo:
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):  # OSError: "Europe" is a folder of the database
        near = get_close_matches(name, sorted(zoneinfo.available_timezones()), n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else 'use a name such as "Europe/London", or "UTC"'
        raise ValueError(f"no time zone {name!r}: {hint}") from None
