"""Roll cycles divide time into numbered files without gap or overlap, whatever a country's clocks do."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandemfeed.journal.format.roll_cycle import (
    DAILY,
    DAY_S,
    FOUR_HOURLY,
    HOURLY,
    INDEX_BITS,
    MINUTELY,
    NS_PER_S,
    ROLL_CYCLES,
    SECONDLY,
    WEEKLY,
    RollCycle,
    RollSchedule,
    format_index,
    parse_index,
)

ZONES = ("UTC", "Europe/London", "America/New_York", "Australia/Lord_Howe")
HOUR_NS = 3_600 * NS_PER_S


def ns(text: str, zone: str = "UTC", fold: int = 0) -> int:
    """A local wall clock time as nanoseconds."""
    moment = datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold)
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * 1_000


def clock_changes_ns(zone: str) -> list[int]:
    """Every change of a zone's offset in 2000 to 2100, to the second."""
    place, found = ZoneInfo(zone), []
    before_s = ns("2000-01-01") // NS_PER_S
    for after_s in range(before_s, ns("2101-01-01") // NS_PER_S, 7 * DAY_S):
        low, high = before_s, after_s
        if offset_s(low, place) != offset_s(high, place):
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if offset_s(middle, place) == offset_s(low, place) else (low, middle)
            found.append(high * NS_PER_S)
        before_s = after_s
    return found


def offset_s(at_s: int, place: ZoneInfo) -> float:
    offset = datetime.fromtimestamp(at_s, place).utcoffset()
    assert offset is not None
    return offset.total_seconds()


CHANGES = {zone: clock_changes_ns(zone) for zone in ZONES}


@st.composite
def schedules(draw: st.DrawFn) -> RollSchedule:
    cycle = draw(st.sampled_from(list(ROLL_CYCLES.values())))
    bound = max(cycle.length_s, DAY_S) - 1
    offset = draw(st.one_of(st.just(0), st.sampled_from([-7 * 3_600, 5_400, 7_200]), st.integers(-bound, bound)))
    return RollSchedule(cycle, offset, draw(st.sampled_from(ZONES)))


@st.composite
def moments_ns(draw: st.DrawFn, zone: str) -> int:
    """Any time in 2000 to 2100, half of them near a change of the zone's clock."""
    if len(CHANGES[zone]) > 0 and draw(st.booleans()):
        change = draw(st.sampled_from(CHANGES[zone]))
        return change + draw(st.one_of(st.integers(-2, 2), st.integers(-30 * HOUR_NS, 30 * HOUR_NS)))
    return draw(st.integers(ns("2000-01-01"), ns("2101-01-01") - 1))


def test_the_zones_of_these_tests_do_change_their_clocks() -> None:
    assert [len(CHANGES[zone]) for zone in ZONES[1:]] == [202, 202, 202]


@given(st.data(), schedules())
@settings(max_examples=400)
def test_a_time_belongs_to_exactly_the_cycle_that_contains_it(data: st.DataObject, schedule: RollSchedule) -> None:
    now = data.draw(moments_ns(schedule.time_zone))
    cycle = schedule.cycle_at(now)
    for near in range(cycle - 2, cycle + 3):
        assert (schedule.start_ns(near) <= now < schedule.end_ns(near)) == (near == cycle)
        assert schedule.cycle_at(schedule.start_ns(near)) == near
        assert schedule.cycle_at(schedule.end_ns(near) - 1) == near


@given(st.data(), schedules())
@settings(max_examples=200)
def test_a_later_time_never_has_an_earlier_cycle(data: st.DataObject, schedule: RollSchedule) -> None:
    times = sorted(data.draw(st.lists(moments_ns(schedule.time_zone), min_size=2, max_size=20)))
    cycles = [schedule.cycle_at(now) for now in times]
    assert cycles == sorted(cycles)
    labels = [schedule.label(cycle) for cycle in dict.fromkeys(cycles)]
    assert labels == sorted(set(labels))


@given(st.data(), schedules())
@settings(max_examples=200)
def test_cycles_cover_time_without_gaps(data: st.DataObject, schedule: RollSchedule) -> None:
    first = schedule.cycle_at(data.draw(moments_ns(schedule.time_zone)))
    for cycle in range(first, first + 20):
        start, end = schedule.start_ns(cycle), schedule.end_ns(cycle)
        assert start < end == schedule.start_ns(cycle + 1)
        if not schedule.roll_cycle.is_calendar:
            assert end - start == schedule.roll_cycle.length_s * NS_PER_S


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("cycle", [DAILY, WEEKLY])
def test_every_day_and_week_of_a_century_begins_at_local_midnight(zone: str, cycle: RollCycle) -> None:
    schedule = RollSchedule(cycle, 0, zone)
    last = schedule.cycle_at(ns("2100-12-31"))
    lengths = set()
    for number in range(schedule.cycle_at(ns("2000-01-15")), last):
        local = datetime.fromtimestamp(schedule.start_ns(number) // NS_PER_S, ZoneInfo(zone))
        assert (local.hour, local.minute, local.second) == (0, 0, 0)
        assert local.strftime(cycle.label_format) == schedule.label(number)
        assert cycle is DAILY or local.weekday() == 0
        lengths.add((schedule.end_ns(number) - schedule.start_ns(number)) / HOUR_NS)
    change = {"UTC": 0, "Australia/Lord_Howe": 0.5}.get(zone, 1)
    nominal = cycle.length_s / 3_600
    assert lengths == {nominal - change, nominal, nominal + change}


def test_a_day_in_london_has_23_hours_in_march_and_25_in_october() -> None:
    schedule = RollSchedule(DAILY, 0, "Europe/London")
    for day, hours in (("2026-03-29", 23), ("2026-10-25", 25), ("2026-11-21", 24)):
        cycle = schedule.cycle_at(ns(f"{day}T12:00", "Europe/London"))
        assert schedule.end_ns(cycle) - schedule.start_ns(cycle) == hours * HOUR_NS
        assert schedule.label(cycle) == day.replace("-", "")


def test_a_trading_day_begins_at_17_00_in_new_york_all_year() -> None:
    schedule = RollSchedule(DAILY, -7 * 3_600, "America/New_York")
    for day in ("2026-03-07", "2026-03-08", "2026-03-09", "2026-07-01", "2026-11-01", "2026-11-02"):
        evening = ns(f"{day}T17:00", "America/New_York")
        tomorrow = (datetime.fromisoformat(day) + timedelta(days=1)).strftime("%Y%m%d")
        assert schedule.label(schedule.cycle_at(evening)) == tomorrow
        assert schedule.label(schedule.cycle_at(evening - 1)) == day.replace("-", "")


def test_a_start_that_the_clock_shows_twice_is_the_first_one_and_a_skipped_start_is_computed() -> None:
    schedule = RollSchedule(DAILY, 5_400, "Europe/London")  # 01:30, repeated in October and skipped in March
    first, second = (ns("2026-10-25T01:30", "Europe/London", fold) for fold in (0, 1))
    assert second - first == HOUR_NS
    assert schedule.start_ns(schedule.cycle_at(second)) == first
    assert schedule.cycle_at(first - 1) + 1 == schedule.cycle_at(first)
    march = schedule.cycle_at(ns("2026-03-29T12:00", "Europe/London"))
    assert schedule.start_ns(march) == ns("2026-03-29T02:30", "Europe/London")


def test_the_day_that_samoa_skipped_is_an_empty_cycle() -> None:
    schedule = RollSchedule(DAILY, 0, "Pacific/Apia")
    thursday = schedule.cycle_at(ns("2011-12-29T12:00", "Pacific/Apia"))
    saturday = schedule.cycle_at(ns("2011-12-31T12:00", "Pacific/Apia"))
    assert saturday == thursday + 2
    assert schedule.start_ns(thursday + 1) == schedule.end_ns(thursday + 1) == schedule.end_ns(thursday)
    assert schedule.cycle_at(schedule.end_ns(thursday)) == saturday


def test_the_repeated_hour_of_autumn_is_two_hourly_cycles_with_two_labels() -> None:
    schedule = RollSchedule(HOURLY, 0, "America/New_York")
    cycles = [schedule.cycle_at(ns("2026-11-01T01:30", "America/New_York", fold)) for fold in (0, 1)]
    assert cycles[1] == cycles[0] + 1
    assert [schedule.label(cycle) for cycle in cycles] == ["20261101-00", "20261101-01"]  # standard time


def test_short_cycles_begin_on_the_full_hour_of_standard_time_in_their_zone() -> None:
    kolkata = RollSchedule(HOURLY, 0, "Asia/Kolkata")
    assert kolkata.start_ns(kolkata.cycle_at(ns("2026-11-21T07:15", "Asia/Kolkata"))) == ns(
        "2026-11-21T07:00", "Asia/Kolkata"
    )
    tokyo = RollSchedule(FOUR_HOURLY, 0, "Asia/Tokyo")
    assert tokyo.label(tokyo.cycle_at(ns("2026-11-21T07:15", "Asia/Tokyo"))) == "20261121-04"
    dublin = RollSchedule(FOUR_HOURLY, 0, "Europe/Dublin")  # where winter time is legally the exception
    assert dublin.start_ns(dublin.cycle_at(ns("2026-11-21T07:15"))) == ns("2026-11-21T04:00")


def test_labels_show_the_time_of_a_cycle() -> None:
    now = ns("2026-11-21T07:34:56")
    labels = {name: RollSchedule.named(name).label(RollSchedule.named(name).cycle_at(now)) for name in ROLL_CYCLES}
    assert labels == {
        "SECONDLY": "20261121-073456",
        "MINUTELY": "20261121-0734",
        "FIVE_MINUTELY": "20261121-0730",
        "TEN_MINUTELY": "20261121-0730",
        "TWENTY_MINUTELY": "20261121-0720",
        "HALF_HOURLY": "20261121-0730",
        "HOURLY": "20261121-07",
        "TWO_HOURLY": "20261121-06",
        "FOUR_HOURLY": "20261121-04",
        "SIX_HOURLY": "20261121-06",
        "DAILY": "20261121",
        "WEEKLY": "2026W47",
    }


def test_cycle_numbers_never_change() -> None:
    """Golden: files and indices on disk depend on them."""
    now = ns("2026-11-21T07:34:56")
    cycles = {name: RollSchedule.named(name).cycle_at(now) for name in ("SECONDLY", "HOURLY", "DAILY", "WEEKLY")}
    assert cycles == {"SECONDLY": 1_795_246_496, "HOURLY": 498_679, "DAILY": 20_778, "WEEKLY": 2_968}
    assert format_index(HOURLY.index_of(498_679, 5)) == "0x079bf70000000005"
    assert {name: cycle.sequence_bits for name, cycle in ROLL_CYCLES.items()} == {
        "SECONDLY": 30,
        "MINUTELY": 36,
        "FIVE_MINUTELY": 37,
        "TEN_MINUTELY": 38,
        "TWENTY_MINUTELY": 39,
        "HALF_HOURLY": 39,
        "HOURLY": 40,
        "TWO_HOURLY": 41,
        "FOUR_HOURLY": 42,
        "SIX_HOURLY": 43,
        "DAILY": 44,
        "WEEKLY": 44,
    }


@pytest.mark.parametrize("cycle", ROLL_CYCLES.values(), ids=lambda cycle: cycle.name)
def test_an_index_has_room_for_every_cycle_until_2200_and_ten_million_records_per_second(cycle: RollCycle) -> None:
    schedule = RollSchedule(cycle)
    last = schedule.cycle_at(ns("2200-12-31T23:59:59"))
    assert cycle.index_of(last, cycle.sequence_max) < 1 << INDEX_BITS
    assert cycle.sequence_max >= 10_000_000 * cycle.length_s
    with pytest.raises(ValueError, match="is the clock right"):
        schedule.start_ns(cycle.cycle_max + 1)
    assert schedule.end_ns(cycle.cycle_max) > schedule.start_ns(cycle.cycle_max)
    assert schedule.label(cycle.cycle_max)


@given(st.sampled_from(list(ROLL_CYCLES.values())), st.data())
def test_an_index_gives_back_its_cycle_and_sequence(cycle: RollCycle, data: st.DataObject) -> None:
    number = data.draw(st.integers(0, cycle.cycle_max))
    sequence = data.draw(st.integers(0, cycle.sequence_max))
    index = cycle.index_of(number, sequence)
    assert (cycle.cycle_of(index), cycle.sequence_of(index)) == (number, sequence)
    assert parse_index(format_index(index)) == parse_index(str(index)) == index
    assert len(format_index(index)) == 18


def test_a_cycle_or_sequence_that_does_not_fit_an_index_is_refused() -> None:
    for number, sequence in ((-1, 0), (0, -1), (DAILY.cycle_max + 1, 0), (0, 1 << 44)):
        with pytest.raises(ValueError, match="DAILY has"):
            DAILY.index_of(number, sequence)
    for index in (-1, 1 << 63):
        with pytest.raises(ValueError, match="is not an index"):
            DAILY.cycle_of(index)
        with pytest.raises(ValueError, match="is not an index"):
            format_index(index)


@pytest.mark.parametrize("text", ["", "0x", "12ab", "-1", "0x1ffffffffffffffff", "0xffffffffffffffff", "1_000", "٣"])
def test_text_that_is_not_an_index_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not an index"):
        parse_index(text)


@pytest.mark.parametrize(
    ("name", "hint"),
    [("Europe/Lodnon", "Europe/London"), ("Europe", "use a name|did you mean"), ("", "UTC"), ("../etc", "time zone")],
)
def test_an_unknown_zone_is_refused_with_a_hint(name: str, hint: str) -> None:
    with pytest.raises(ValueError, match=hint):
        RollSchedule(DAILY, 0, name)


def test_times_and_offsets_outside_the_schedule_are_refused() -> None:
    with pytest.raises(ValueError, match="is the clock right"):
        RollSchedule(HOURLY).cycle_at(-1)
    with pytest.raises(ValueError, match="is the clock right"):
        RollSchedule(DAILY).cycle_at(-1)
    with pytest.raises(ValueError, match="64 bits"):
        RollSchedule(DAILY).cycle_at(1 << 63)
    for cycle, offset in ((DAILY, DAY_S), (MINUTELY, -DAY_S), (WEEKLY, 7 * DAY_S)):
        with pytest.raises(ValueError, match="epoch_offset_s"):
            RollSchedule(cycle, offset)


def test_a_roll_cycle_is_found_by_its_name_in_any_case() -> None:
    assert RollCycle.named("secondly") is SECONDLY
    with pytest.raises(ValueError, match="FIVE_MINUTELY"):
        RollCycle.named("fortnightly")
