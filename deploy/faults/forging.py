"""A subscriber with a valid key sends forged packets in the name of every adapter. No link or process is touched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from prometheus_client.parser import text_string_to_metric_families

from tandemfeed.deploy.cluster.cluster import START_TIMEOUT_S
from tandemfeed.deploy.cluster.processes import ProcessFailed
from tandemfeed.deploy.drills.forger import HUGE_EPOCH
from tandemfeed.deploy.faults.context import FaultContext
from tandemfeed.v1 import admin_pb2

FORGED_SECONDS = 60.0
METRIC = "tandemfeed_forged_packets_total"
LABEL = "impersonated_adapter_id"
LATE = "term_passed"


def forge_at(rate: float, seconds: float) -> Callable[[FaultContext], str]:
    """A fault that forges packets for some seconds.

    Args:
        rate: forged packets per second.
    """

    def forge(context: FaultContext) -> str:
        """A subscriber forges heartbeats, decisions, counters and signatures: no adapter may act on them, and status
        must name the sender."""
        context.await_healthy()
        cluster, feed = context.cluster, context.feed
        context.mark_disturbance()
        before = cluster.status(feed)
        forger = cluster.start_forger(feed, seconds, rate)
        forger.await_event("ready", START_TIMEOUT_S)
        context.mark_fault(f"forging {rate:,.0f} packets per second in the name of every adapter, for {seconds:g} s")
        forger.send_line("start")
        context.run_for(seconds)
        forged = forger.await_event("forged", START_TIMEOUT_S)
        context.mark_repair()
        cluster.stop(feed.forger)
        context.await_healthy()
        after = cluster.status(feed)
        roles = check_roles(before, after)
        count = _count_in_metrics(context)
        addresses = _addresses_in_status(context, after)
        return (
            f"forged {forged['packets']:,} packets in {forged['seconds']:g} s from {' and '.join(sorted(addresses))}; "
            f"{roles}; the adapters refused {count:,} as untagged and named the sender"
        )

    return forge


def check_roles(before: admin_pb2.FeedStatus, after: admin_pb2.FeedStatus) -> str:
    """Check that forged packets changed no role, and describe the roles in a few words.

    On a busy machine the active may renew its lease too late. The admin server recognises this, because it hears from
    the holder after the term, and counts the takeover as needless.

    Raises:
        ProcessFailed: the active or the epoch has changed for another reason.
    """
    taken_over = _takeovers(after) - _takeovers(before)
    needless = after.needless_takeover_count - before.needless_takeover_count
    other_reasons = sorted(reason for reason in taken_over if reason != LATE)
    is_forged = after.epoch >= HUGE_EPOCH or any(
        channel.position.epoch >= HUGE_EPOCH for row in after.adapters for channel in row.state.channels
    )
    is_same = (after.active_adapter_id, after.epoch) == (before.active_adapter_id, before.epoch)
    if other_reasons or taken_over[LATE] > needless or is_forged or not (is_same or taken_over):
        raise ProcessFailed(
            f"adapter {before.active_adapter_id} was active in epoch {before.epoch} before packets were forged; now "
            f"adapter {after.active_adapter_id} is active in epoch {after.epoch}; takeovers meanwhile: "
            f"{dict(taken_over)}, {needless} of them needless, because a live holder renewed too late"
        )
    if taken_over:
        return f"{taken_over.total()} takeovers, all because this machine was too busy to renew the lease in time"
    return "active and epoch did not change"


def _takeovers(status: admin_pb2.FeedStatus) -> Counter[str]:
    return Counter({counted.reason: counted.count for counted in status.takeover_counts})


def _count_in_metrics(context: FaultContext) -> int:
    """The packets that the adapters counted as forged; each must have counted some in the name of each other one."""
    total = 0
    numbers = {name: str(number) for number, name in enumerate(context.cluster.shape.adapter_names, 1)}
    for name in numbers:
        counts = {
            sample.labels[LABEL]: int(sample.value)
            for family in text_string_to_metric_families(context.cluster.metrics(context.feed, name))
            for sample in family.samples
            if sample.name == METRIC
        }
        missing = [other for other, number in numbers.items() if other != name and not counts.get(number)]
        if missing:
            raise ProcessFailed(
                f"the metrics of adapter {name} count no packets forged in the name of adapter {', '.join(missing)}: "
                f"{counts}"
            )
        total += sum(counts.values())
    return total


def _addresses_in_status(context: FaultContext, status: admin_pb2.FeedStatus) -> set[str]:
    """The addresses that the admin server reports as senders of forged packets; all must be on the forger's host."""
    expected = context.cluster.address_of(context.feed.client)
    reported = {
        (row.adapter.name, forged.adapter_id): forged.address
        for row in status.adapters
        for forged in row.state.forged_packets
    }
    numbers = range(1, len(context.cluster.shape.adapter_names) + 1)
    missing = set(numbers) - {adapter_id for _, adapter_id in reported}
    if missing:
        names = ", ".join(map(str, missing))
        raise ProcessFailed(f"status reports no sender of packets forged in the name of adapter {names}")
    wrong = [address for address in reported.values() if address.rpartition(":")[0] != expected]
    if wrong:
        raise ProcessFailed(f"forged packets came from {expected}, but status reports {', '.join(wrong)}")
    return set(reported.values())
