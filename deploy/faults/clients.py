"""A fault that ends an application: it is killed at random, and continues from its durable cursor."""

from __future__ import annotations

import numpy as np

from tandemfeed.deploy.cluster.cluster import START_TIMEOUT_S
from tandemfeed.deploy.drills.durable_reader import handled
from tandemfeed.deploy.faults.context import AFTERMATH_S, FaultContext, Observed

KILLS = 4  # while it reads; every other time it is killed once more, as it starts
READ_S_MAX = 1.5  # of reading before a kill: several stores of the position
START_S_MAX = 1.5  # of a start before a kill


def kill_client(context: FaultContext) -> str:
    """SIGKILL a second application, which has a durable cursor: while it reads and, every other time, as it starts.

    The active adapter is killed in between, so a position must also be found again in a new epoch.
    """
    context.await_healthy()
    cluster, feed, watch, chance = context.cluster, context.feed, context.watch, context.chance
    name = f"{feed.client}-durable"
    cursor, output = context.folder / "durable-cursor.json", context.folder / "durable-output"
    for old in (cursor, output):
        old.unlink(missing_ok=True)
    cluster.start_durable_reader(feed, name, cursor, output).await_event("ready", START_TIMEOUT_S)
    context.run_for(READ_S_MAX)
    context.mark_fault("killing an application with a durable cursor again and again, and the active adapter")
    for number in range(KILLS):
        context.run_for(chance.uniform(0, READ_S_MAX))
        cluster.kill(name)
        if number == KILLS // 2:
            victim, epoch = watch.active, watch.epoch
            cluster.kill(feed.adapter(victim))
            context.await_takeover(victim, epoch)
        if number % 2:
            cluster.start_durable_reader(feed, name, cursor, output)
            context.run_for(chance.uniform(0, START_S_MAX))
            cluster.kill(name)
        cluster.start_durable_reader(feed, name, cursor, output).await_event("ready", START_TIMEOUT_S)
    context.run_for(AFTERMATH_S)
    context.mark_repair()
    context.restart_adapter(victim)
    context.await_back(victim)
    cluster.stop(name)
    count = judge(handled(output), context.observed)
    return (
        f"killed an application {KILLS + KILLS // 2} times (SIGKILL), and the active adapter {victim}; it handled "
        f"{count:,} messages"
    )


def judge(found: np.ndarray[tuple[int], np.dtype[np.void]], observed: Observed) -> int:
    """Add to `observed` what is missing, repeated or out of order between the first and the last message of each source
    stream. Return how many were handled.

    Args:
        found: the messages in the order in which they were handled, with `stream` and `source_seq`.
    """
    for stream in np.unique(found["stream"]):
        seqs = found["source_seq"][found["stream"] == stream].astype(np.int64)
        different = np.unique(seqs)
        observed.lost += int(different[-1] - different[0] + 1 - different.size)
        observed.duplicated += int(seqs.size - different.size)
        observed.out_of_order += int(np.count_nonzero(np.diff(seqs) < 0))
    if not found.size:
        observed.lost += 1  # nothing was handled at all
    return int(found.size)
