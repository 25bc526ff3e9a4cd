"""The history of a record: each process that passes it on adds a hop, so that the journal shows latencies.

A history precedes the record's bytes. Layout (little-endian)::

    0    magic C1 'T' 'H', version u8 = 1, hop_count u8 (0 to 15)
    5    hops of 28 bytes: source_id u32, source_index u64, received_at_ns u64, sent_at_ns u64

No MessagePack value begins with the byte C1, so a typed record without a history is never mistaken for one with. Pure:
times come from the caller. Invariant: at most HOPS_MAX hops; `encode` restores what `decode` read, byte for byte.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass
from typing import NamedTuple, Self

import numpy as np

from tandemfeed.journal.errors import JournalError

MAGIC = b"\xc1TH"
VERSION = 1
HEADER = struct.Struct("<3sBB")
HOP = struct.Struct("<IQQQ")
# A record with more hops is probably going round in a circle. A history has at most 425 bytes.
HOPS_MAX = 15
SOURCE_ID_END = 1 << 32
U64_END = 1 << 64


class MalformedHistory(JournalError):
    """Bytes that begin like a history but are malformed, or of a later version."""


@dataclass(frozen=True, slots=True)
class Hop:
    """One process that passed a record on.

    Attributes:
        source_id: the process's number, assigned by its operator; 32 bits.
        source_index: index of the record that it answers, in the journal that it read; 0 if it answers none.
        received_at_ns: when it read that record, in nanoseconds since 1970 by its clock.
        sent_at_ns: when it appended its record, by the same clock.

    Raises:
        ValueError: a field is negative or too large.
    """

    source_id: int
    source_index: int
    received_at_ns: int
    sent_at_ns: int

    def __post_init__(self) -> None:
        if not 0 <= self.source_id < SOURCE_ID_END:
            raise ValueError(f"source_id is {self.source_id}; it must be an unsigned 32-bit integer")
        for name, value in (
            ("source_index", self.source_index),
            ("received_at_ns", self.received_at_ns),
            ("sent_at_ns", self.sent_at_ns),
        ):
            if not 0 <= value < U64_END:
                raise ValueError(f"{name} is {value}; it must be an unsigned 64-bit integer")


@dataclass(frozen=True, slots=True)
class MessageHistory:
    """The hops of a record, in order.

    Raises:
        ValueError: more than HOPS_MAX hops.
    """

    hops: tuple[Hop, ...] = ()

    def __post_init__(self) -> None:
        if len(self.hops) > HOPS_MAX:
            raise ValueError(
                f"the history has {len(self.hops)} hops; the maximum is {HOPS_MAX}: "
                f"do the sources {sorted({hop.source_id for hop in self.hops})} answer each other in a circle?"
            )

    def with_hop(self, hop: Hop) -> MessageHistory:
        """This history with one more hop.

        Raises:
            ValueError: it has HOPS_MAX hops already.
        """
        return MessageHistory((*self.hops, hop))

    def encode(self) -> bytes:
        """The encoded history, which precedes the record's bytes."""
        packed = (HOP.pack(h.source_id, h.source_index, h.received_at_ns, h.sent_at_ns) for h in self.hops)
        return HEADER.pack(MAGIC, VERSION, len(self.hops)) + b"".join(packed)

    @classmethod
    def decode(cls, data: bytes | memoryview) -> Self:
        """Decode a history that fills these bytes exactly.

        Raises:
            MalformedHistory: they are not a history, or more bytes follow.
        """
        end = _encoded_size(data)
        if end != len(data):
            raise MalformedHistory(f"{len(data) - end} bytes follow the history")
        return cls(tuple(Hop(*fields) for fields in HOP.iter_unpack(data[HEADER.size : end])))


def split_history(record: bytes | memoryview) -> tuple[MessageHistory | None, memoryview]:
    """A record's history, None if it has none, and a view of the bytes after it.

    Raises:
        MalformedHistory: the record begins like a history, but is malformed.
    """
    view = memoryview(record)
    if view[: len(MAGIC)] != MAGIC:
        return None, view
    end = _encoded_size(view)
    return MessageHistory.decode(view[:end]), view[end:]


def _encoded_size(data: bytes | memoryview) -> int:
    """The size of the history at the beginning of `data`."""
    if data[: len(MAGIC)] != MAGIC:
        raise MalformedHistory(f"not a history: it begins with {bytes(data[:4]).hex(' ') or 'nothing'}")
    if len(data) < HEADER.size:
        raise MalformedHistory(f"the history is cut off after {len(data)} bytes")
    _, version, hop_count = HEADER.unpack_from(data)
    if version != VERSION:
        raise MalformedHistory(f"history version {version}: this release reads version {VERSION}")
    if hop_count > HOPS_MAX:
        raise MalformedHistory(f"the history has {hop_count} hops; the maximum is {HOPS_MAX}")
    end: int = HEADER.size + hop_count * HOP.size
    if len(data) < end:
        raise MalformedHistory(f"the history is cut off: {hop_count} hops take {end} bytes, but there are {len(data)}")
    return end


class HopStamper:
    """Makes histories for a process's records: the history of the record it last read, plus a hop. Not thread-safe.

    Pass `on_read` to the reader, and `next_history` to the writer (`journal.typed_records.typed`).

    Args:
        source_id: of this process.
        clock_ns: nanoseconds since 1970; called once per record read and once per record written.
    """

    def __init__(self, source_id: int, clock_ns: Callable[[], int]) -> None:
        self._source_id = source_id
        self._clock_ns = clock_ns
        self._incoming: tuple[int, int, MessageHistory] | None = None

    def on_read(self, index: int, history: MessageHistory | None) -> None:
        """Note that the following records answer the record at this index."""
        self._incoming = (index, self._clock_ns(), history or MessageHistory())

    def next_history(self) -> MessageHistory:
        """The history of a record to append now.

        Raises:
            ValueError: it has HOPS_MAX hops already.
        """
        now_ns = self._clock_ns()
        index, received_at_ns, history = self._incoming or (0, now_ns, MessageHistory())
        return history.with_hop(Hop(self._source_id, index, received_at_ns, now_ns))


# --- latencies -------------------------------------------------------------------------------------------------------

PRECISION_BITS = 8  # a percentile is at most 1/256 (0.4 %) too high; below 512 ns it is exact
VALUE_BITS = 44  # 4.9 hours; longer times share the last bucket, of which only the maximum is exact
BUCKET_COUNT = (VALUE_BITS - PRECISION_BITS + 1) << PRECISION_BITS
STAGES_MAX = 128  # four separate paths of fifteen hops; 76 kB per stage, so 10 MB at most
PERMILLES = (500, 900, 990, 999)


@dataclass(frozen=True, slots=True)
class LatencySummary:
    """Measurements of one stage, in nanoseconds; zeros if there are none."""

    name: str
    count: int
    min_ns: int
    p50_ns: int
    p90_ns: int
    p99_ns: int
    p99_9_ns: int
    max_ns: int


class LatencyHistogram:
    """A histogram with bucket widths that grow with the time: 256 buckets per power of two. Its memory is constant."""

    def __init__(self) -> None:
        self._counts = np.zeros(BUCKET_COUNT, np.int64)
        self.count = 0
        self.min_ns = 0
        self.max_ns = 0

    def add(self, value_ns: int) -> None:
        """Count one time, 0 or more."""
        assert value_ns >= 0
        self.min_ns = min(self.min_ns, value_ns) if self.count else value_ns
        self.max_ns = max(self.max_ns, value_ns)
        self.count += 1
        shift = max(value_ns.bit_length() - PRECISION_BITS - 1, 0)
        self._counts[min((shift << PRECISION_BITS) + (value_ns >> shift), BUCKET_COUNT - 1)] += 1

    def percentile_ns(self, permille: int) -> int:
        """The smallest time that at least `permille` thousandths of all times do not exceed, or up to 1/256 more.

        It is never above the maximum. 0 if nothing was counted.
        """
        if self.count == 0:
            return 0
        rank = max(-(-self.count * permille // 1_000), 1)
        bucket = int(np.searchsorted(np.cumsum(self._counts), rank))
        if bucket == BUCKET_COUNT - 1:
            return self.max_ns
        shift = max((bucket >> PRECISION_BITS) - 1, 0)
        return min(((bucket - (shift << PRECISION_BITS) + 1) << shift) - 1, self.max_ns)

    def summary(self, name: str) -> LatencySummary:
        """The summary of all times."""
        p50, p90, p99, p99_9 = (self.percentile_ns(permille) for permille in PERMILLES)
        return LatencySummary(name, self.count, self.min_ns, p50, p90, p99, p99_9, self.max_ns)


class _Stage(NamedTuple):
    """A part of a path. Sorts along the path: for each hop, first the way to it, then the hop itself."""

    hop: int
    is_work: bool
    from_id: int
    to_id: int

    @property
    def name(self) -> str:
        return f"{self.from_id}" if self.is_work else f"{self.from_id} to {self.to_id}"


def _brief_time(time_ns: int) -> str:
    """A time with three digits, in the unit that suits it; the histogram is not more accurate."""
    for unit, size_ns in (("s", 1_000_000_000), ("ms", 1_000_000), ("µs", 1_000)):
        if time_ns >= size_ns:
            value = time_ns / size_ns
            return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} {unit}"
    return f"{time_ns} ns"


class LatencyStatistics:
    """Latencies of many histories: of each hop, of each way between two hops, and end to end.

    A hop's latency is from its `received` to its `sent`; a way's from one hop's `sent` to the next one's `received`;
    end to end from the first hop's `received` to the last one's `sent`. Ways between machines are only as accurate as
    their clocks: a negative time counts as 0, and in `negative_count`.

    Attributes:
        history_count: number of histories added.
        negative_count: number of negative times.
        unmeasured_count: number of times ignored because there were already STAGES_MAX different stages.
    """

    def __init__(self) -> None:
        self.history_count = 0
        self.negative_count = 0
        self.unmeasured_count = 0
        self._stages: dict[_Stage, LatencyHistogram] = {}
        self._end_to_end = LatencyHistogram()

    def add(self, history: MessageHistory) -> None:
        """Add one record's history."""
        self.history_count += 1
        for stage, value_ns in _latencies(history):
            histogram = self._stages.get(stage)
            if histogram is None:
                if len(self._stages) >= STAGES_MAX:
                    self.unmeasured_count += 1
                    continue
                histogram = self._stages[stage] = LatencyHistogram()
            self._count(histogram, value_ns)
        if history.hops:
            self._count(self._end_to_end, history.hops[-1].sent_at_ns - history.hops[0].received_at_ns)

    def stages(self) -> list[LatencySummary]:
        """Summaries of hops (named by their source, "3") and ways ("3 to 5"), in the order of the path."""
        return [self._stages[stage].summary(stage.name) for stage in sorted(self._stages)]

    def end_to_end(self) -> LatencySummary:
        """The summary from the first hop's `received` to the last hop's `sent`."""
        return self._end_to_end.summary("end to end")

    def __str__(self) -> str:
        """A table with one line per stage; it fits 80 columns."""
        rows: list[tuple[str, ...]] = [("", "count", "min", "p50", "p90", "p99", "p99.9", "max")]
        for summary in (*self.stages(), self.end_to_end()):
            name, count, *times = astuple(summary)
            rows.append((name, f"{count:,}", *map(_brief_time, times)))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join((row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:]))).rstrip() for row in rows]
        if self.negative_count:
            lines.append(f"{self.negative_count:,} negative times counted as 0: the clocks of the hops disagree")
        if self.unmeasured_count:
            lines.append(f"{self.unmeasured_count:,} times left out: more than {STAGES_MAX} different stages")
        return "\n".join(lines)

    def _count(self, histogram: LatencyHistogram, value_ns: int) -> None:
        if value_ns < 0:
            self.negative_count += 1
        histogram.add(max(value_ns, 0))


def _latencies(history: MessageHistory) -> Iterator[tuple[_Stage, int]]:
    for place, hop in enumerate(history.hops):
        if place:
            before = history.hops[place - 1]
            way_ns = hop.received_at_ns - before.sent_at_ns
            yield _Stage(place, False, before.source_id, hop.source_id), way_ns
        yield _Stage(place, True, hop.source_id, hop.source_id), hop.sent_at_ns - hop.received_at_ns
