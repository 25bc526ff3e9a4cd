"""The source's day ends and the next one follows, numbered from 1, while every process keeps running."""

from __future__ import annotations

from collections.abc import Callable

from tandemfeed.deploy.faults.context import AFTERMATH_S, TAKEOVER_TIMEOUT_S, FaultContext

DAY_TIMEOUT_S = 60.0  # for the rest of a day, on a busy machine
CHANGED = "the session has changed"


def new_day(*, is_active_killed: bool) -> Callable[[FaultContext], str]:
    """The next day's journal appears while the gateway sends a day; it sends that day to its end, then the next one.

    Args:
        is_active_killed: kill the active adapter as the next day begins.
    """

    def inject(context: FaultContext) -> str:
        """The source ends its day and begins the next one."""
        context.await_healthy()
        cluster, feed, watch = context.cluster, context.feed, context.watch
        gateway = cluster.processes[feed.gateway]
        active, epoch = watch.active, watch.epoch
        staying = watch.backups[0] if is_active_killed else active
        logged, reported = context.adapter(staying).logged_count, gateway.reported_count
        day = cluster.days[feed.feed_id] + 2
        killing = f", and killing the active adapter, {active}, then" if is_active_killed else ""
        context.mark_fault(f"day {day} follows when day {day - 1} ends{killing}")
        cluster.begin_day(feed)
        gateway.await_event("session", DAY_TIMEOUT_S, since=reported)
        if is_active_killed:
            cluster.kill(feed.adapter(active))
            context.await_takeover(active, epoch)
        context.adapter(staying).await_log(CHANGED, TAKEOVER_TIMEOUT_S, since=logged)
        context.run_for(AFTERMATH_S)
        context.mark_repair()
        if not is_active_killed:
            return "the source ended its day and began the next one"
        context.restart_adapter(active)
        context.await_back(active)
        return f"the source began its next day; killed adapter {active} (SIGKILL); adapter {staying} took over"

    return inject
