"""Faults that end processes: killed, or restarted one after another."""

from __future__ import annotations

from tandemfeed.client_lib.recording.record import DeliveryRecord
from tandemfeed.deploy.cluster.cluster import START_TIMEOUT_S
from tandemfeed.deploy.cluster.topology import ADMIN
from tandemfeed.deploy.faults.context import AFTERMATH_S, HEALTHY_TIMEOUT_S, TAKEOVER_TIMEOUT_S, FaultContext

ADMIN_OUTAGE_S = 3.0  # several terms of a lease
DRIVER_TIMEOUT_S = 120.0
OBSERVE_S = 1.0
AHEAD_FOR_RESTART_S = 40.0  # of play: stopping and starting the driver takes up to 33 s on two busy processors
SETTLED_S = 1.0  # a new backup may have promised the active, for up to 0.4 s, not to accept a lease


def kill_active(context: FaultContext) -> str:
    """SIGKILL the active adapter; a backup takes over; the killed adapter restarts as a backup."""
    context.await_healthy()
    watch = context.watch
    victim, epoch = watch.active, watch.epoch
    context.mark_fault(f"killing the active adapter, {victim}")
    context.cluster.kill(context.feed.adapter(victim))
    successor = context.await_takeover(victim, epoch)
    context.run_for(AFTERMATH_S)
    context.mark_repair()
    context.restart_adapter(victim)
    context.await_back(victim)
    return f"killed adapter {victim} (SIGKILL); adapter {successor} took over; {victim} restarted as a backup"


def kill_backup(context: FaultContext) -> str:
    """SIGKILL a backup, then restart it."""
    context.await_healthy()
    watch = context.watch
    victim = context.any_backup()
    context.mark_fault(f"killing a backup adapter, {victim}")
    context.cluster.kill(context.feed.adapter(victim))
    watch.wait_for(lambda: watch.states.get(victim) == "away", TAKEOVER_TIMEOUT_S, f"adapter {victim} away")
    context.run_for(AFTERMATH_S)
    context.mark_repair()
    context.restart_adapter(victim)
    context.await_back(victim)
    return f"killed the backup adapter {victim} (SIGKILL) and restarted it"


def kill_driver(context: FaultContext) -> str:
    """SIGKILL the Spark driver at any point of a batch; it resumes from its checkpoint."""
    context.await_ahead()
    if not context.cluster.processes[context.feed.job].is_running:
        context.mark_fault("the Spark driver has already finished")
        context.mark_repair()
        return "the Spark driver had already finished; nothing was killed"
    context.mark_fault("killing the Spark driver")
    context.cluster.kill(context.feed.job)
    context.run_for(AFTERMATH_S)
    context.mark_repair()
    context.cluster.restart_job(context.feed).await_event("ready", DRIVER_TIMEOUT_S)
    return "killed the Spark driver (SIGKILL) and restarted it from its checkpoint"


def kill_admin(context: FaultContext) -> str:
    """SIGKILL the admin server and restart it several lease terms later; data must keep flowing."""
    context.await_healthy()
    watch = context.watch
    active = watch.active
    context.mark_fault("killing the admin server")
    context.cluster.kill(ADMIN)
    watch.wait_for(lambda: not watch.is_connected, TAKEOVER_TIMEOUT_S, "admin server away")
    context.run_for(ADMIN_OUTAGE_S)
    context.mark_repair()
    context.cluster.start_admin()
    for each in context.cluster.watches.values():
        each.await_healthy(HEALTHY_TIMEOUT_S)
    same = f"adapter {active} stayed active"
    roles = same if watch.active == active else f"adapter {watch.active} is active instead of {active}"
    return f"killed the admin server (SIGKILL) and restarted it after {ADMIN_OUTAGE_S:g} s; {roles}"


def restart_all(context: FaultContext) -> str:
    """Stop (SIGTERM) and start every process of a feed, one after another: gateway, Spark driver, backups, active,
    admin server, and a second client; the feed's own client keeps recording.

    The gateway restarts before the fault is colored, because that pauses the source itself and is not a stall."""
    context.await_healthy()
    cluster, feed, watch = context.cluster, context.feed, context.watch
    context.await_ahead(at_best_s=AHEAD_FOR_RESTART_S)
    context.mark_disturbance()
    _restart_gateway(context)
    context.mark_fault("restarting every other process, one after another")
    cluster.stop(feed.job)
    cluster.restart_job(feed).await_event("ready", DRIVER_TIMEOUT_S)
    context.await_ahead()
    observer = _start_observer(context)
    for name in watch.backups:
        cluster.stop(feed.adapter(name))
        context.restart_adapter(name)
        context.await_back(name)
    context.run_for(SETTLED_S)
    active, epoch = watch.active, watch.epoch
    cluster.stop(feed.adapter(active))
    context.await_takeover(active, epoch)
    context.restart_adapter(active)
    context.await_back(active)
    cluster.stop(ADMIN)
    cluster.start_admin()
    for each in cluster.watches.values():
        each.await_healthy(HEALTHY_TIMEOUT_S)
    _judge_observer(context, observer)
    observer = _start_observer(context)
    context.run_for(OBSERVE_S)
    _judge_observer(context, observer)
    context.mark_repair()
    return "restarted the gateway, Spark driver, backups, active, admin server and a second client, one after another"


def _restart_gateway(context: FaultContext) -> None:
    cluster, feed = context.cluster, context.feed
    context.say(f"feed {feed.name}: restarting the gateway")
    cluster.stop(feed.gateway)
    gateway = cluster.start_gateway(feed, context.rate)
    gateway.await_event("ready", START_TIMEOUT_S)
    gateway.send_line("start")
    context.run_for(AFTERMATH_S)


def _start_observer(context: FaultContext) -> str:
    """Start the second client, which subscribes from now on, by unicast; returns the name of its process."""
    name = f"{context.feed.client}-second"
    record = context.folder / "second"
    process = context.cluster.start_client(context.feed, record, start="live", name=name, transport="unicast")
    process.await_event("ready", START_TIMEOUT_S)
    return name


def _judge_observer(context: FaultContext, observer: str) -> None:
    """Stop the second client and add to `observed` what went wrong between its first and its last message."""
    process = context.cluster.processes[observer]
    context.cluster.stop(observer)
    process.await_event("recorded", START_TIMEOUT_S)
    figures = DeliveryRecord.load(context.folder / "second").figures()
    context.observed.lost += figures.missing
    context.observed.duplicated += figures.duplicated
    context.observed.out_of_order += figures.out_of_order
