"""Where a record has been: each process that passes it on adds a hop, so that latencies can be read off the journal.

A history stands before a record's own bytes. Layout (little-endian)::

    0    magic C1 'T' 'H', version u8 = 1, hop_count u8 (0 to 15)
    5    hops of 28 bytes: source_id u32, source_index u64, received_at_ns u64, sent_at_ns u64

The byte C1 begins no MessagePack value, so a typed record without a history is never taken for one with. Pure: times
come from the caller. Invariant: at most HOPS_MAX hops; what `decode` takes, `encode` gives back byte for byte.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass
from typing import NamedTuple, Self

import numpy as np

from journal.errors import JournalError

MAGIC = b"\xc1TH"
VERSION = 1
HEADER = struct.Struct("<3sBB")
HOP = struct.Struct("<IQQQ")
# A record on its fifteenth hop goes round in a circle more likely than anywhere; 425 bytes is the most a record grows.
HOPS_MAX = 15
SOURCE_ID_END = 1 << 32
U64_END = 1 << 64


class MalformedHistory(JournalError):
    """Bytes that begin as a history and are none, or are of a later version."""


@dataclass(frozen=True, slots=True)
class Hop:
    """One process that passed a record on.

    Attributes:
        source_id: which process, by a number that the system gives it; 32 bits.
        source_index: index, in the journal this process read, of the record it answers; 0 if it answers none.
        received_at_ns: when it read that record, in nanoseconds since 1970 by its own clock.
        sent_at_ns: when it appended its own record, by the same clock.

    Raises:
        ValueError: a field is negative or too large.
    """

    source_id: int
    source_index: int
    received_at_ns: int
    sent_at_ns: int

    def __post_init__(self) -> None:
        if not 0 <= self.source_id < SOURCE_ID_END:
            raise ValueError(f"source_id {self.source_id}: a hop holds 32 bits, unsigned")
        for name, value in (
            ("source_index", self.source_index),
            ("received_at_ns", self.received_at_ns),
            ("sent_at_ns", self.sent_at_ns),
        ):
            if not 0 <= value < U64_END:
                raise ValueError(f"{name} {value}: a hop holds 64 bits, unsigned")


@dataclass(frozen=True, slots=True)
class MessageHistory:
    """The hops of a record, the first one first.

    Raises:
        ValueError: more than HOPS_MAX hops.
    """

    hops: tuple[Hop, ...] = ()

    def __post_init__(self) -> None:
        if len(self.hops) > HOPS_MAX:
            raise ValueError(
                f"{len(self.hops)} hops: a history holds {HOPS_MAX}; "
                f"do the sources {sorted({hop.source_id for hop in self.hops})} answer each other in a circle?"
            )

    def with_hop(self, hop: Hop) -> MessageHistory:
        """This history and one more hop.

        Raises:
            ValueError: it is full.
        """
        return MessageHistory((*self.hops, hop))

    def encode(self) -> bytes:
        """The bytes that stand before a record."""
        packed = (HOP.pack(h.source_id, h.source_index, h.received_at_ns, h.sent_at_ns) for h in self.hops)
        return HEADER.pack(MAGIC, VERSION, len(self.hops)) + b"".join(packed)

    @classmethod
    def decode(cls, data: bytes | memoryview) -> Self:
        """The history that these bytes are, all of them.

        Raises:
            MalformedHistory: they are none, or more follows.
        """
        end = _encoded_size(data)
        if end != len(data):
            raise MalformedHistory(f"{len(data) - end} bytes follow the history")
        return cls(tuple(Hop(*fields) for fields in HOP.iter_unpack(data[HEADER.size : end])))


def split_history(record: bytes | memoryview) -> tuple[MessageHistory | None, memoryview]:
    """A record's history, None if it carries none, and a view of its own bytes.

    Raises:
        MalformedHistory: the record begins as a history and does not go on as one.
    """
    view = memoryview(record)
    if view[: len(MAGIC)] != MAGIC:
        return None, view
    end = _encoded_size(view)
    return MessageHistory.decode(view[:end]), view[end:]


def _encoded_size(data: bytes | memoryview) -> int:
    """How many bytes the history at the beginning of `data` takes."""
    if data[: len(MAGIC)] != MAGIC:
        raise MalformedHistory(f"no history: it begins with {bytes(data[:4]).hex(' ') or 'nothing'}")
    if len(data) < HEADER.size:
        raise MalformedHistory(f"the history is cut off after {len(data)} bytes")
    _, version, hop_count = HEADER.unpack_from(data)
    if version != VERSION:
        raise MalformedHistory(f"history version {version}: this release reads version {VERSION}")
    if hop_count > HOPS_MAX:
        raise MalformedHistory(f"{hop_count} hops: a history holds {HOPS_MAX}")
    end: int = HEADER.size + hop_count * HOP.size
    if len(data) < end:
        raise MalformedHistory(f"the history is cut off: {hop_count} hops take {end} bytes, there are {len(data)}")
    return end


class HopStamper:
    """Gives what a process writes the history of what it read last, and a hop of its own. For one thread.

    `on_read` goes to the reader, `next_history` to the writer (`journal.typed`).

    Args:
        source_id: this process.
        clock_ns: nanoseconds since 1970; read once for a record read and once for a record written.
    """

    def __init__(self, source_id: int, clock_ns: Callable[[], int]) -> None:
        self._source_id = source_id
        self._clock_ns = clock_ns
        self._incoming: tuple[int, int, MessageHistory] | None = None

    def on_read(self, index: int, history: MessageHistory | None) -> None:
        """From now on, what is written answers the record at this index."""
        self._incoming = (index, self._clock_ns(), history or MessageHistory())

    def next_history(self) -> MessageHistory:
        """The history of a record that is appended now.

        Raises:
            ValueError: it is full.
        """
        now_ns = self._clock_ns()
        index, received_at_ns, history = self._incoming or (0, now_ns, MessageHistory())
        return history.with_hop(Hop(self._source_id, index, received_at_ns, now_ns))


# --- latencies -------------------------------------------------------------------------------------------------------

PRECISION_BITS = 8  # a percentile is at most 1/256 (0.4 %) too high; below 512 ns it is exact
VALUE_BITS = 44  # 4.9 hours; longer times share the last bucket, and only their maximum is exact
BUCKET_COUNT = (VALUE_BITS - PRECISION_BITS + 1) << PRECISION_BITS
STAGES_MAX = 128  # four paths of fifteen hops that share nothing; 76 kB each, so 10 MB at most
PERMILLES = (500, 900, 990, 999)


@dataclass(frozen=True, slots=True)
class LatencySummary:
    """What was measured of one stage, in nanoseconds; zeros if nothing was."""

    name: str
    count: int
    min_ns: int
    p50_ns: int
    p90_ns: int
    p99_ns: int
    p99_9_ns: int
    max_ns: int


class LatencyHistogram:
    """Counts of times in buckets that widen with the time: each power of two is cut in 256. Memory never grows."""

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
        """The smallest time that at least `permille` thousandths of all do not exceed, or up to 1/256 more.

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
        """All of it."""
        p50, p90, p99, p99_9 = (self.percentile_ns(permille) for permille in PERMILLES)
        return LatencySummary(name, self.count, self.min_ns, p50, p90, p99, p99_9, self.max_ns)


class _Stage(NamedTuple):
    """A part of a path. Sorts along the path: at each hop first the way to it, then its own work."""

    hop: int
    is_work: bool
    from_id: int
    to_id: int

    @property
    def name(self) -> str:
        return f"{self.from_id}" if self.is_work else f"{self.from_id} to {self.to_id}"


class LatencyStatistics:
    """Latencies of many histories: of each hop, of each way between two hops, and end to end.

    A hop's own is from received to sent; a way's is from one hop's sent to the next one's received; end to end is from
    the first hop's received to the last one's sent. Ways between machines are as true as their clocks agree: a time
    below zero is counted as 0, and in `negative_count`.

    Attributes:
        history_count: how many histories were taken in.
        negative_count: how many times were below zero.
        unmeasured_count: how many times were left out because there were STAGES_MAX different stages already.
    """

    def __init__(self) -> None:
        self.history_count = 0
        self.negative_count = 0
        self.unmeasured_count = 0
        self._stages: dict[_Stage, LatencyHistogram] = {}
        self._end_to_end = LatencyHistogram()

    def add(self, history: MessageHistory) -> None:
        """Take one record's history in; one without hops says nothing."""
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
        """Hops (named by their source, "3") and ways ("3 to 5") in the order of the path."""
        return [self._stages[stage].summary(stage.name) for stage in sorted(self._stages)]

    def end_to_end(self) -> LatencySummary:
        """From the first hop's received to the last hop's sent."""
        return self._end_to_end.summary("end to end")

    def __str__(self) -> str:
        """A table in nanoseconds, a line for each stage."""
        rows: list[tuple[str, ...]] = [("ns", "count", "min", "p50", "p90", "p99", "p99.9", "max")]
        for summary in (*self.stages(), self.end_to_end()):
            name, *values = astuple(summary)
            rows.append((name, *(f"{value:,}" for value in values)))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join((row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:]))).rstrip() for row in rows]
        if self.negative_count:
            lines.append(f"{self.negative_count:,} times below zero counted as 0: the clocks of the hops disagree")
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
