"""The source ends its day and begins the next one, with numbers from 1, while everything else runs on."""

from __future__ import annotations

from collections.abc import Callable

from deploy.cluster import START_TIMEOUT_S
from deploy.faults.scene import AFTERMATH_S, TAKEOVER_TIMEOUT_S, Scene

DAY_S = 6.0  # of play: a day but the last one, which lasts as long as the drill
DAY_TIMEOUT_S = 60.0  # its rest, on a busy machine
CHANGED = "the session has changed"


def new_day(*, is_active_killed: bool) -> Callable[[Scene], str]:
    """A day is sent to its end; another gateway sends the next one. `is_active_killed`: just as it begins."""

    def strike(scene: Scene) -> str:
        """End the source's day, and let it begin the next one."""
        scene.await_whole()
        cluster, feed, watch = scene.cluster, scene.feed, scene.watch
        cluster.processes[feed.gateway].await_event("sent", DAY_TIMEOUT_S)
        scene.touch()
        cluster.stop(feed.gateway)
        cluster.begin_day(feed)
        gateway = cluster.start_gateway(feed, scene.rate)
        gateway.await_event("ready", START_TIMEOUT_S)
        active, epoch = watch.active, watch.epoch
        staying = watch.backups[0] if is_active_killed else active
        since = scene.adapter(staying).logged_count
        if is_active_killed:
            scene.strike(f"beginning day {cluster.days[feed.feed_id] + 1} and killing the active, adapter {active}")
            gateway.say("start")
            cluster.kill(feed.adapter(active))
            scene.await_takeover(active, epoch)
        else:
            scene.strike(f"beginning day {cluster.days[feed.feed_id] + 1}")
            gateway.say("start")
        scene.adapter(staying).await_log(CHANGED, TAKEOVER_TIMEOUT_S, since=since)
        scene.hold(AFTERMATH_S)
        scene.mend()
        if not is_active_killed:
            return "the source ended its day and began the next one"
        scene.restart_adapter(active)
        scene.await_back(active)
        return f"the source began its next day, adapter {active} was killed (SIGKILL); adapter {staying} took over"

    return strike
