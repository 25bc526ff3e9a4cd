"""A subscriber with a valid key that sends forged packets as every adapter. No link is cut and no process hurt."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client.parser import text_string_to_metric_families

from deploy.cluster import START_TIMEOUT_S
from deploy.faults.scene import Scene
from deploy.processes import ProcessFailed

FORGED_SECONDS = 60.0
METRIC = "tandemfeed_forged_packets_total"
LABEL = "impersonated_adapter_id"


def forge_at(rate: float, seconds: float) -> Callable[[Scene], str]:
    """A fault that lasts so long.

    Args:
        rate: forged packets a second.
    """

    def forge(scene: Scene) -> str:
        """A subscriber forges heartbeats, decisions, counters and signatures: nothing may move, and it is named."""
        scene.await_whole()
        cluster, feed, watch = scene.cluster, scene.feed, scene.watch
        before = watch.active, watch.epoch
        scene.touch()
        forger = cluster.start_forger(feed, seconds, rate)
        forger.await_event("ready", START_TIMEOUT_S)
        scene.strike(f"forging {rate:,.0f} packets a second as all adapters, for {seconds:g} s")
        forger.say("start")
        scene.hold(seconds)
        forged = forger.await_event("forged", START_TIMEOUT_S)
        scene.mend()
        cluster.stop(feed.forger)
        scene.await_whole()
        if (watch.active, watch.epoch) != before:
            raise ProcessFailed(f"active and epoch were {before} before packets were forged; now: {watch}")
        count = _count_in_metrics(scene)
        addresses = _addresses_in_status(scene)
        return (
            f"forged {forged['packets']:,} packets in {forged['seconds']:g} s from {' and '.join(sorted(addresses))}; "
            f"roles and epoch stayed; adapters refused {count:,} as untagged and named the forger"
        )

    return forge


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


def _addresses_in_status(scene: Scene) -> set[str]:
    """Where the admin server says that forged packets came from: from the forger, and from nobody else."""
    expected = scene.cluster.address_of(scene.feed.client)
    told = {
        (row.adapter.name, forged.adapter_id): forged.address
        for row in scene.cluster.status(scene.feed).adapters
        for forged in row.state.forged_packets
    }
    numbers = range(1, len(scene.cluster.shape.adapter_names) + 1)
    missing = set(numbers) - {adapter_id for _, adapter_id in told}
    if missing:
        raise ProcessFailed(f"status names nobody who forges packets as adapter {', '.join(map(str, missing))}")
    wrong = [address for address in told.values() if address.rpartition(":")[0] != expected]
    if wrong:
        raise ProcessFailed(f"forged packets came from {expected}; status says from {', '.join(wrong)}")
    return set(told.values())
