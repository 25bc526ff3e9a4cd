"""The source ends its day and begins the next one, numbered from 1, while everything else keeps running."""

from __future__ import annotations

from collections.abc import Callable

from tandemfeed.deploy.cluster.cluster import START_TIMEOUT_S
from tandemfeed.deploy.faults.context import AFTERMATH_S, TAKEOVER_TIMEOUT_S, FaultContext

DAY_S = 6.0  # of play: the length of a day; the last one lasts as long as the drill
DAY_TIMEOUT_S = 60.0  # for the rest of a day, on a busy machine
CHANGED = "the session has changed"


def new_day(*, is_active_killed: bool) -> Callable[[FaultContext], str]:
    """The gateway sends a day to its end, and another gateway sends the next one.

    Args:
        is_active_killed: kill the active adapter as the next day begins.
    """

    def inject(context: FaultContext) -> str:
        """The source ends its day and begins the next one."""
        context.await_healthy()
        cluster, feed, watch = context.cluster, context.feed, context.watch
        cluster.processes[feed.gateway].await_event("sent", DAY_TIMEOUT_S)
        context.mark_disturbance()
        cluster.stop(feed.gateway)
        cluster.begin_day(feed)
        gateway = cluster.start_gateway(feed, context.rate)
        gateway.await_event("ready", START_TIMEOUT_S)
        active, epoch = watch.active, watch.epoch
        staying = watch.backups[0] if is_active_killed else active
        since = context.adapter(staying).logged_count
        if is_active_killed:
            context.mark_fault(
                f"beginning day {cluster.days[feed.feed_id] + 1} and killing the active adapter, {active}"
            )
            gateway.send_line("start")
            cluster.kill(feed.adapter(active))
            context.await_takeover(active, epoch)
        else:
            context.mark_fault(f"beginning day {cluster.days[feed.feed_id] + 1}")
            gateway.send_line("start")
        context.adapter(staying).await_log(CHANGED, TAKEOVER_TIMEOUT_S, since=since)
        context.run_for(AFTERMATH_S)
        context.mark_repair()
        if not is_active_killed:
            return "the source ended its day and began the next one"
        context.restart_adapter(active)
        context.await_back(active)
        return f"the source began its next day; killed adapter {active} (SIGKILL); adapter {staying} took over"

    return inject
