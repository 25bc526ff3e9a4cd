"""The ledger: what a client saw, round by round, paired with what was done by time alone. Pure.

All times are of this machine's monotonic clock, which every process and the drill read alike. A stall is the longest
time between two deliveries of one channel in a round's window; it begins with the last delivery before the window and
ends with the first one behind it. Three columns tell whose stall it was: the client's deliveries; the transmissions of
what was delivered (by the time in each packet's header), which go on while only the client stands still; and the
source's sending (by the stamp on each packet), which stands still when the source itself does.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client_lib.record import ChannelRecord, DeliveryRecord

MS = 1_000_000
SETTLED_NS = 300 * MS  # after a cluster is whole again the stream counts as undisturbed from here on


@dataclass(frozen=True, slots=True)
class Round:
    """What was done, and when (monotonic clock, ns).

    Attributes:
        number: from 1.
        feed_id: which feed was struck.
        struck_ns, mended_ns, whole_ns: the fault began; its mending began; the cluster was whole again.
        takeovers: epochs that began meanwhile.
        touched_ns: something was done to the stream from here on already, before the strike; 0: it was not.
    """

    number: int
    feed_id: int
    what: str
    struck_ns: int
    mended_ns: int
    whole_ns: int
    takeovers: int = 0
    touched_ns: int = 0


@dataclass(frozen=True, slots=True)
class Seen:
    """What the client of one feed was delivered.

    Attributes:
        sent: source messages per source stream.
        streams, source_seqs, received_ns: of each message delivered, in order of delivery; one array each.
        content_wrong: delivered messages that differ from the recording.
    """

    record: DeliveryRecord
    sent: Mapping[int, int]
    streams: NDArray[Any]
    source_seqs: NDArray[Any]
    received_ns: NDArray[np.int64]
    content_wrong: int


@dataclass(frozen=True, slots=True)
class RoundFigures:
    """One round. Stalls are in milliseconds: of deliveries, transmissions and source while the fault lasted, and of
    deliveries from the mending until the cluster was whole. `served_by`: by adapter_id, the share of batches delivered
    while the fault lasted of which its copy came first."""

    number: int
    feed_id: int
    what: str
    takeovers: int
    lost: int
    duplicated: int
    out_of_order: int
    stall_ms: float
    transmit_stall_ms: float
    source_stall_ms: float
    return_stall_ms: float
    served_by: dict[int, float]


@dataclass(frozen=True, slots=True)
class Anomalies:
    """When each lost, repeated or late source message was noticed (ns); a lost one at the delivery behind its hole."""

    lost: NDArray[np.int64]
    duplicated: NDArray[np.int64]
    out_of_order: NDArray[np.int64]


def anomalies(seen: Seen) -> Anomalies:
    """Find them, message by message."""
    lost: list[NDArray[np.int64]] = []
    duplicated: list[NDArray[np.int64]] = []
    late: list[NDArray[np.int64]] = []
    end_ns = int(seen.received_ns[-1]) if len(seen.received_ns) else 0
    for stream, count in seen.sent.items():
        chosen = seen.streams == stream
        seqs = seen.source_seqs[chosen].astype(np.int64)
        times = seen.received_ns[chosen]
        unique, firsts = np.unique(seqs, return_index=True)
        is_first = np.zeros(len(seqs), bool)
        is_first[firsts] = True
        duplicated.append(times[~is_first])
        highest_before = np.maximum.accumulate(np.concatenate(([0], seqs)))[:-1]
        late.append(times[is_first & (seqs < highest_before)])
        missing = np.setdiff1d(np.arange(1, count + 1), unique, assume_unique=True)
        behind = np.searchsorted(unique, missing)
        noticed = np.append(times[firsts], end_ns)
        lost.append(noticed[behind])
    empty = [np.empty(0, np.int64)]
    return Anomalies(*(np.sort(np.concatenate(empty + parts)) for parts in (lost, duplicated, late)))


def judge_rounds(rounds: Sequence[Round], seen: Mapping[int, Seen]) -> list[RoundFigures]:
    """Each round's figures: losses over all feeds, from its strike to the next one's; stalls of the feed struck.

    Args:
        seen: by feed_id.
    """
    found = [anomalies(each) for each in seen.values()]
    starts = [each.struck_ns for each in rounds]
    judged = []
    for place, each in enumerate(rounds):
        record = seen[each.feed_id].record
        counts = [
            sum(
                int(np.count_nonzero(np.searchsorted(starts, times, "right") == place + 1))
                for times in (getattr(one, name) for one in found)
            )
            for name in ("lost", "duplicated", "out_of_order")
        ]
        fault = (each.struck_ns, each.mended_ns)
        judged.append(
            RoundFigures(
                each.number,
                each.feed_id,
                each.what,
                each.takeovers,
                lost=counts[0],
                duplicated=counts[1],
                out_of_order=counts[2],
                stall_ms=_stall_ms(record, delivery_times, *fault),
                transmit_stall_ms=_stall_ms(record, transmit_times, *fault),
                source_stall_ms=_stall_ms(record, source_times, *fault),
                return_stall_ms=_stall_ms(record, delivery_times, each.mended_ns, each.whole_ns),
                served_by=_served_by(record, *fault),
            )
        )
    return judged


def delivery_times(channel: ChannelRecord) -> NDArray[np.int64]:
    """When batches were delivered."""
    times: NDArray[np.int64] = channel.rows["received_monotonic_ns"]
    return times


def transmit_times(channel: ChannelRecord) -> NDArray[np.int64]:
    """When the copies that were delivered live had been transmitted."""
    rows = channel.rows[~channel.rows["is_replayed"]]
    return np.sort(rows["adapter_sent_at_ns"] + _to_monotonic_ns(channel))


def source_times(channel: ChannelRecord) -> NDArray[np.int64]:
    """When the source had sent what was delivered."""
    rows = channel.rows[channel.rows["source_sent_at_ns"] > 0]
    return np.sort(rows["source_sent_at_ns"] + _to_monotonic_ns(channel))


def _to_monotonic_ns(channel: ChannelRecord) -> int:
    rows = channel.rows
    return int(np.median(rows["received_monotonic_ns"] - rows["received_at_ns"])) if len(rows) else 0


def longest_pause_ms(times: NDArray[np.int64], from_ns: int, until_ns: int) -> float:
    """The longest time between consecutive times of which at least a part lies in the window."""
    first = max(0, int(np.searchsorted(times, from_ns)) - 1)
    end = int(np.searchsorted(times, until_ns, "right")) + 1
    around = times[first:end]
    return float(np.diff(around).max()) / MS if len(around) > 1 else 0.0


def undisturbed_stalls_ms(
    rounds: Sequence[Round], seen: Mapping[int, Seen], began_ns: int, ended_ns: int
) -> list[float]:
    """The longest time between deliveries of a channel, wholly within each of the windows in which nothing was done.

    They lie before each round and behind the last, about a second each: what the rounds' stalls compare with.

    Args:
        began_ns, ended_ns: what is before and behind does not count.
    """
    quiet_from = [began_ns, *(each.whole_ns + SETTLED_NS for each in rounds)]
    quiet_until = [*(each.touched_ns or each.struck_ns for each in rounds), ended_ns]
    channels = [delivery_times(channel) for each in seen.values() for channel in each.record.channels.values()]
    return [
        max((_longest_pause_within_ms(times, *window) for times in channels), default=0.0)
        for window in zip(quiet_from, quiet_until, strict=True)
    ]


def _longest_pause_within_ms(times: NDArray[np.int64], from_ns: int, until_ns: int) -> float:
    inside = times[np.searchsorted(times, from_ns) : np.searchsorted(times, until_ns, "right")]
    return float(np.diff(inside).max()) / MS if len(inside) > 1 else 0.0


def _stall_ms(
    record: DeliveryRecord, times_of: Callable[[ChannelRecord], NDArray[np.int64]], from_ns: int, until_ns: int
) -> float:
    """Of the channel that stood still the longest."""
    return max((longest_pause_ms(times_of(each), from_ns, until_ns) for each in record.channels.values()), default=0.0)


def _served_by(record: DeliveryRecord, from_ns: int, until_ns: int) -> dict[int, float]:
    counts: Counter[int] = Counter()
    for channel in record.channels.values():
        times = delivery_times(channel)
        inside = channel.rows[np.searchsorted(times, from_ns) : np.searchsorted(times, until_ns, "right")]
        counts.update(inside["adapter_id"].tolist())
    return {adapter_id: round(count / counts.total(), 3) for adapter_id, count in sorted(counts.items())}


def summary(values: Iterable[float]) -> dict[str, float] | None:
    """p50, p99 and maximum; None of nothing. With fewer than a hundred values p99 is the maximum."""
    ordered = sorted(values)
    if not ordered:
        return None
    p99 = ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
    return {"p50": round(statistics.median(ordered), 3), "p99": round(p99, 3), "max": round(ordered[-1], 3)}


def ledger_row(
    fault: str,
    judged: Sequence[RoundFigures],
    seen: Mapping[int, Seen],
    observed: Mapping[str, int],
    undisturbed_ms: Sequence[float],
) -> dict[str, Any]:
    """One fault's row, with the names of the JSON report.

    Args:
        observed: `lost`, `duplicated` and `out_of_order` at other clients of the drill.
        undisturbed_ms: of `undisturbed_stalls_ms`.
    """
    totals = [each.record.figures(each.sent) for each in seen.values()]
    return {
        "fault": fault,
        "rounds": len(judged),
        "sent": sum(sum(each.sent.values()) for each in seen.values()),
        "delivered": sum(each.delivered for each in totals),
        "lost": sum(each.missing for each in totals) + observed["lost"],
        "duplicated": sum(each.duplicated for each in totals) + observed["duplicated"],
        "out_of_order": sum(each.out_of_order for each in totals) + observed["out_of_order"],
        "content_wrong": sum(each.content_wrong for each in seen.values()),
        "takeovers": sum(each.takeovers for each in judged),
        "stall_ms": summary(each.stall_ms for each in judged),
        "transmit_stall_ms": summary(each.transmit_stall_ms for each in judged),
        "source_stall_ms": summary(each.source_stall_ms for each in judged),
        "return_stall_ms": summary(each.return_stall_ms for each in judged),
        "undisturbed_stall_ms": summary(undisturbed_ms),
        "normal_interarrival_max_ms": round(max(undisturbed_ms, default=0.0), 3),
        "detail": [asdict(each) for each in judged],
    }


def is_clean(row: Mapping[str, Any]) -> bool:
    """True if nothing was lost, repeated, reordered or changed."""
    return not any(row[name] for name in ("lost", "duplicated", "out_of_order", "content_wrong"))
