"""A subscriber with a valid key that sends forged packets as every adapter. No link is cut and no process hurt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from prometheus_client.parser import text_string_to_metric_families

from deploy.cluster import START_TIMEOUT_S
from deploy.faults.scene import Scene
from deploy.forger import HUGE_EPOCH
from deploy.processes import ProcessFailed
from tandemfeed.v1 import admin_pb2

FORGED_SECONDS = 60.0
METRIC = "tandemfeed_forged_packets_total"
LABEL = "impersonated_adapter_id"
LATE = "term_passed"


def forge_at(rate: float, seconds: float) -> Callable[[Scene], str]:
    """A fault that lasts so long.

    Args:
        rate: forged packets a second.
    """

    def forge(scene: Scene) -> str:
        """A subscriber forges heartbeats, decisions, counters and signatures: nothing may move, and it is named."""
        scene.await_whole()
        cluster, feed = scene.cluster, scene.feed
        scene.touch()
        before = cluster.status(feed)
        forger = cluster.start_forger(feed, seconds, rate)
        forger.await_event("ready", START_TIMEOUT_S)
        scene.strike(f"forging {rate:,.0f} packets a second as all adapters, for {seconds:g} s")
        forger.say("start")
        scene.hold(seconds)
        forged = forger.await_event("forged", START_TIMEOUT_S)
        scene.mend()
        cluster.stop(feed.forger)
        scene.await_whole()
        after = cluster.status(feed)
        roles = what_became_of_roles(before, after)
        count = _count_in_metrics(scene)
        addresses = _addresses_in_status(scene, after)
        return (
            f"forged {forged['packets']:,} packets in {forged['seconds']:g} s from {' and '.join(sorted(addresses))}; "
            f"{roles}; adapters refused {count:,} as untagged and named the forger"
        )

    return forge


def what_became_of_roles(before: admin_pb2.FeedStatus, after: admin_pb2.FeedStatus) -> str:
    """In a few words. A machine that is too busy may make an active late for its lease, which the admin server can
    tell: the holder lives, and is heard after the term.

    Raises:
        ProcessFailed: the active or the epoch has changed, for another reason.
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
            f"adapter {before.active_adapter_id} was active in epoch {before.epoch} before packets were forged, now "
            f"adapter {after.active_adapter_id} in epoch {after.epoch}; takeovers meanwhile: {dict(taken_over)}, "
            f"{needless} of them because a holder that lived was late"
        )
    if taken_over:
        return f"{taken_over.total()} takeovers, all because the machine was too busy for the lease's term"
    return "roles and epoch stayed"


def _takeovers(status: admin_pb2.FeedStatus) -> Counter[str]:
    return Counter({counted.reason: counted.count for counted in status.takeover_counts})


def _count_in_metrics(scene: Scene) -> int:
    """Packets that the adapters have counted as forged; each adapter must have counted some as of every other."""
    total = 0
    numbers = {name: str(number) for number, name in enumerate(scene.cluster.shape.adapter_names, 1)}
    for name in numbers:
        counts = {
            sample.labels[LABEL]: int(sample.value)
            for family in text_string_to_metric_families(scene.cluster.metrics(scene.feed, name))
            for sample in family.samples
            if sample.name == METRIC
        }
        missing = [other for other, number in numbers.items() if other != name and not counts.get(number)]
        if missing:
            raise ProcessFailed(
                f"the metrics of adapter {name} count no packets forged as adapter {', '.join(missing)}: {counts}"
            )
        total += sum(counts.values())
    return total


def _addresses_in_status(scene: Scene, status: admin_pb2.FeedStatus) -> set[str]:
    """Where the admin server says that forged packets came from: the forger, and no other sender."""
    expected = scene.cluster.address_of(scene.feed.client)
    told = {
        (row.adapter.name, forged.adapter_id): forged.address
        for row in status.adapters
        for forged in row.state.forged_packets
    }
    numbers = range(1, len(scene.cluster.shape.adapter_names) + 1)
    missing = set(numbers) - {adapter_id for _, adapter_id in told}
    if missing:
        raise ProcessFailed(f"status names no sender of forged packets as adapter {', '.join(map(str, missing))}")
    wrong = [address for address in told.values() if address.rpartition(":")[0] != expected]
    if wrong:
        raise ProcessFailed(f"forged packets came from {expected}; status says from {', '.join(wrong)}")
    return set(told.values())
