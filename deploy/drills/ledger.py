"""The ledger: what a client received in each round. Deliveries are matched to rounds by time alone. Pure.

All times are of this machine's monotonic clock, which every process reads. A stall is the longest time between two
deliveries of one channel in a round's window, including the last delivery before the window and the first one after it.
Four columns locate a stall: the deliveries; the transmissions of the delivered packets (the time in each packet's
header), which continue if only the client paused; the source's sending (the stamp on each source packet), which pauses
if the source paused; and the hiccups of the machine, which delay every process.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandemfeed.client_lib.recording.record import ChannelRecord, DeliveryRecord
from tandemfeed.deploy.hiccups.record import Hiccups

MS = 1_000_000
SETTLED_NS = 300 * MS  # how long after the cluster is healthy again the stream counts as undisturbed


@dataclass(frozen=True, slots=True)
class Round:
    """What was done in a round, and when (monotonic clock, ns).

    Attributes:
        number: from 1.
        feed_id: the feed that got the fault.
        what: what was done, in words.
        fault_at_ns, repair_at_ns, healthy_at_ns: when the fault began, its repair began, the cluster was healthy again.
        takeovers: epochs that began during the round.
        disturbed_at_ns: when the stream was first disturbed, if that was before the fault; otherwise 0.
    """

    number: int
    feed_id: int
    what: str
    fault_at_ns: int
    repair_at_ns: int
    healthy_at_ns: int
    takeovers: int = 0
    disturbed_at_ns: int = 0


@dataclass(frozen=True, slots=True)
class FeedDeliveries:
    """What the client of one feed received.

    Attributes:
        sent: source messages sent, per source stream.
        streams, source_seqs, received_ns: of each delivered message, in order of delivery.
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
    """The figures of one round.

    Attributes:
        stall_ms, transmit_stall_ms, source_stall_ms: longest pause of deliveries, of transmissions and of the source,
            during the fault.
        hiccup_ms: longest hiccup of the machine during the fault.
        return_stall_ms, return_source_stall_ms, return_hiccup_ms: the same from the repair until the cluster was
            healthy.
        served_by: by adapter_id, the share of the batches delivered during the fault whose copy came from it.
    """

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
    hiccup_ms: float
    return_stall_ms: float
    return_source_stall_ms: float
    return_hiccup_ms: float
    served_by: dict[int, float]


@dataclass(frozen=True, slots=True)
class Anomalies:
    """When each lost, repeated or late source message was noticed (ns); a lost one at the delivery after its gap."""

    lost: NDArray[np.int64]
    duplicated: NDArray[np.int64]
    out_of_order: NDArray[np.int64]


def anomalies(deliveries: FeedDeliveries) -> Anomalies:
    """Find the lost, repeated and late messages."""
    lost: list[NDArray[np.int64]] = []
    duplicated: list[NDArray[np.int64]] = []
    late: list[NDArray[np.int64]] = []
    end_ns = int(deliveries.received_ns[-1]) if len(deliveries.received_ns) else 0
    for stream, count in deliveries.sent.items():
        chosen = deliveries.streams == stream
        seqs = deliveries.source_seqs[chosen].astype(np.int64)
        times = deliveries.received_ns[chosen]
        unique, firsts = np.unique(seqs, return_index=True)
        is_first = np.zeros(len(seqs), bool)
        is_first[firsts] = True
        duplicated.append(times[~is_first])
        highest_before = np.maximum.accumulate(np.concatenate(([0], seqs)))[:-1]
        late.append(times[is_first & (seqs < highest_before)])
        missing = np.setdiff1d(np.arange(1, count + 1), unique, assume_unique=True)
        after_gap = np.searchsorted(unique, missing)
        noticed = np.append(times[firsts], end_ns)
        lost.append(noticed[after_gap])
    empty = [np.empty(0, np.int64)]
    return Anomalies(*(np.sort(np.concatenate(empty + parts)) for parts in (lost, duplicated, late)))


def judge_rounds(
    rounds: Sequence[Round], deliveries: Mapping[int, FeedDeliveries], hiccups: Hiccups
) -> list[RoundFigures]:
    """The figures of each round: losses in all feeds until the next fault, and stalls of the feed that got the fault.

    Args:
        deliveries: by feed_id.
    """
    found = [anomalies(each) for each in deliveries.values()]
    starts = [each.fault_at_ns for each in rounds]
    judged = []
    for place, each in enumerate(rounds):
        record = deliveries[each.feed_id].record
        counts = [
            sum(
                int(np.count_nonzero(np.searchsorted(starts, times, "right") == place + 1))
                for times in (getattr(one, name) for one in found)
            )
            for name in ("lost", "duplicated", "out_of_order")
        ]
        fault, recovery = (each.fault_at_ns, each.repair_at_ns), (each.repair_at_ns, each.healthy_at_ns)
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
                hiccup_ms=hiccups.longest_ms(*fault),
                return_stall_ms=_stall_ms(record, delivery_times, *recovery),
                return_source_stall_ms=_stall_ms(record, source_times, *recovery),
                return_hiccup_ms=hiccups.longest_ms(*recovery),
                served_by=_served_by(record, *fault),
            )
        )
    return judged


def delivery_times(channel: ChannelRecord) -> NDArray[np.int64]:
    """When batches were delivered."""
    times: NDArray[np.int64] = channel.rows["received_monotonic_ns"]
    return times


def transmit_times(channel: ChannelRecord) -> NDArray[np.int64]:
    """When adapters transmitted the copies that were delivered live."""
    rows = channel.rows[~channel.rows["is_replayed"]]
    return np.sort(rows["adapter_sent_at_ns"] + _to_monotonic_ns(channel))


def source_times(channel: ChannelRecord) -> NDArray[np.int64]:
    """When the source sent what was delivered."""
    rows = channel.rows[channel.rows["source_sent_at_ns"] > 0]
    return np.sort(rows["source_sent_at_ns"] + _to_monotonic_ns(channel))


def _to_monotonic_ns(channel: ChannelRecord) -> int:
    rows = channel.rows
    return int(np.median(rows["received_monotonic_ns"] - rows["received_at_ns"])) if len(rows) else 0


def longest_pause_ms(times: NDArray[np.int64], from_ns: int, until_ns: int) -> float:
    """The longest pause between consecutive times that overlaps the window."""
    first = max(0, int(np.searchsorted(times, from_ns)) - 1)
    end = int(np.searchsorted(times, until_ns, "right")) + 1
    around = times[first:end]
    return float(np.diff(around).max()) / MS if len(around) > 1 else 0.0


def undisturbed_windows(rounds: Sequence[Round], began_ns: int, ended_ns: int) -> list[tuple[int, int]]:
    """The windows without a fault, as (from, until): before each round and after the last, about a second each.

    Args:
        began_ns, ended_ns: limits of the first and the last window.
    """
    quiet_from = [began_ns, *(each.healthy_at_ns + SETTLED_NS for each in rounds)]
    quiet_until = [*(each.disturbed_at_ns or each.fault_at_ns for each in rounds), ended_ns]
    return list(zip(quiet_from, quiet_until, strict=True))


def longest_pauses_ms(windows: Sequence[tuple[int, int]], deliveries: Mapping[int, FeedDeliveries]) -> list[float]:
    """The longest pause between deliveries of a channel within each window."""
    channels = [delivery_times(channel) for each in deliveries.values() for channel in each.record.channels.values()]
    return [max((_longest_pause_within_ms(times, *window) for times in channels), default=0.0) for window in windows]


def _longest_pause_within_ms(times: NDArray[np.int64], from_ns: int, until_ns: int) -> float:
    inside = times[np.searchsorted(times, from_ns) : np.searchsorted(times, until_ns, "right")]
    return float(np.diff(inside).max()) / MS if len(inside) > 1 else 0.0


def _stall_ms(
    record: DeliveryRecord, times_of: Callable[[ChannelRecord], NDArray[np.int64]], from_ns: int, until_ns: int
) -> float:
    """The longest pause of any channel."""
    return max((longest_pause_ms(times_of(each), from_ns, until_ns) for each in record.channels.values()), default=0.0)


def longest_source_pause_ms(record: DeliveryRecord, from_ns: int, until_ns: int) -> float:
    """The longest pause of the source in any channel."""
    return _stall_ms(record, source_times, from_ns, until_ns)


def _served_by(record: DeliveryRecord, from_ns: int, until_ns: int) -> dict[int, float]:
    counts: Counter[int] = Counter()
    for channel in record.channels.values():
        times = delivery_times(channel)
        inside = channel.rows[np.searchsorted(times, from_ns) : np.searchsorted(times, until_ns, "right")]
        counts.update(inside["adapter_id"].tolist())
    return {adapter_id: round(count / counts.total(), 3) for adapter_id, count in sorted(counts.items())}


def summary(values: Iterable[float]) -> dict[str, float] | None:
    """p50, p99 and maximum, or None if there are no values. With fewer than a hundred values p99 is the maximum."""
    ordered = sorted(values)
    if not ordered:
        return None
    p99 = ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
    return {"p50": round(statistics.median(ordered), 3), "p99": round(p99, 3), "max": round(ordered[-1], 3)}


def ledger_row(
    fault: str,
    judged: Sequence[RoundFigures],
    deliveries: Mapping[int, FeedDeliveries],
    observed: Mapping[str, int],
    undisturbed: Sequence[tuple[int, int]],
    hiccups: Hiccups,
) -> dict[str, Any]:
    """The row of one fault, by the names in the JSON report.

    Args:
        observed: `lost`, `duplicated` and `out_of_order` at the second clients of the drill.
        undisturbed: from `undisturbed_windows`.
    """
    undisturbed_ms = longest_pauses_ms(undisturbed, deliveries)
    totals = [each.record.figures(each.sent) for each in deliveries.values()]
    return {
        "fault": fault,
        "rounds": len(judged),
        "sent": sum(sum(each.sent.values()) for each in deliveries.values()),
        "delivered": sum(each.delivered for each in totals),
        "lost": sum(each.missing for each in totals) + observed["lost"],
        "duplicated": sum(each.duplicated for each in totals) + observed["duplicated"],
        "out_of_order": sum(each.out_of_order for each in totals) + observed["out_of_order"],
        "content_wrong": sum(each.content_wrong for each in deliveries.values()),
        "takeovers": sum(each.takeovers for each in judged),
        "stall_ms": summary(each.stall_ms for each in judged),
        "transmit_stall_ms": summary(each.transmit_stall_ms for each in judged),
        "source_stall_ms": summary(each.source_stall_ms for each in judged),
        "hiccup_ms": summary(each.hiccup_ms for each in judged),
        "stall_above_hiccup_ms": summary(each.stall_ms - each.hiccup_ms for each in judged),
        "return_stall_ms": summary(each.return_stall_ms for each in judged),
        "return_source_stall_ms": summary(each.return_source_stall_ms for each in judged),
        "return_hiccup_ms": summary(each.return_hiccup_ms for each in judged),
        "undisturbed_stall_ms": summary(undisturbed_ms),
        "undisturbed_hiccup_ms": summary(hiccups.longest_ms(*window) for window in undisturbed),
        "normal_interarrival_max_ms": round(max(undisturbed_ms, default=0.0), 3),
        "detail": [asdict(each) for each in judged],
    }


def is_clean(row: Mapping[str, Any]) -> bool:
    """True if nothing was lost, repeated, reordered or changed, by the record of what the library delivered and by the
    application's own count."""
    counts = [row[name] for name in ("lost", "duplicated", "out_of_order", "content_wrong")]
    application = row.get("application", {})
    observer = row.get("observer", {})
    counts += [observer.get(name) for name in ("missing", "repeated", "distrusted")]
    return not any([*counts, application.get("missing"), application.get("repeated")])
