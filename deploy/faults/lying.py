"""An adapter lies with its own valid keys: it names wrong epochs, sessions, positions, digests, starts and health."""

from __future__ import annotations

from tandemfeed.deploy.cluster.cluster import START_TIMEOUT_S
from tandemfeed.deploy.cluster.processes import ProcessFailed
from tandemfeed.deploy.faults.context import FaultContext
from tandemfeed.deploy.faults.forging import check_roles
from tandemfeed.v1 import admin_pb2

LYING_S = 10.0
REPLACED = ("records restored", "keys replaced", "token keys dropped")


def lie(context: FaultContext) -> str:
    """A backup is replaced by one that lies; the feed continues under the honest active, no key of any feed is
    replaced, and `status` names the liar."""
    context.await_healthy()
    cluster, feed, watch = context.cluster, context.feed, context.watch
    liar = context.any_backup()
    before, replaced = cluster.status(feed), cluster.count_audited(REPLACED)
    context.mark_fault(f"replacing the backup adapter {liar} by one that lies")
    cluster.stop(feed.adapter(liar))
    cluster.start_adapter(feed, liar, is_lying=True).await_event("ready", START_TIMEOUT_S)
    context.run_for(LYING_S)
    told = cluster.status(feed)
    context.mark_repair()
    cluster.kill(feed.adapter(liar))
    watch.wait_for(lambda: watch.states.get(liar) == "away", START_TIMEOUT_S, f"adapter {liar} away")
    context.restart_adapter(liar)
    context.await_back(liar)
    roles = check_roles(before, told)
    if cluster.count_audited(REPLACED) != replaced:
        raise ProcessFailed(f"adapter {liar} named wrong numbers, and keys were replaced for that")
    return f"adapter {liar} lied for {LYING_S:g} s with its own keys; {roles}; {check_named(told, liar)}"


def check_named(status: admin_pb2.FeedStatus, liar: str) -> str:
    """Check that the status names the liar, and no other adapter, and say what it says.

    Raises:
        ProcessFailed: it does not.
    """
    doubts = {row.adapter.name: [each.what for each in row.doubts] for row in status.adapters if row.doubts}
    if set(doubts) != {liar}:
        raise ProcessFailed(f"adapter {liar} lied; status does not believe {', '.join(sorted(doubts)) or 'no adapter'}")
    return f"status says that it {'; '.join(doubts[liar])}"
