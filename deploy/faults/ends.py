"""Processes that end: killed, or restarted one after another."""

from __future__ import annotations

from client_lib.record import DeliveryRecord
from deploy.cluster import START_TIMEOUT_S
from deploy.faults.scene import AFTERMATH_S, TAKEOVER_TIMEOUT_S, WHOLE_TIMEOUT_S, Scene
from deploy.topology import ADMIN

ADMIN_OUTAGE_S = 3.0  # several terms of a lease
DRIVER_TIMEOUT_S = 120.0
OBSERVE_S = 1.0
AHEAD_AMONG_OTHERS_S = 40.0  # of play: a driver that ends in order and starts takes up to 33 s of two busy processors
SETTLED_S = 1.0  # just started, a backup may have promised an active to abstain from grants: for 0.4 s at most


def kill_active(scene: Scene) -> str:
    """SIGKILL the active; a backup takes over; the killed one comes back as backup."""
    scene.await_whole()
    watch = scene.watch
    victim, epoch = watch.active, watch.epoch
    scene.strike(f"killing the active, adapter {victim}")
    scene.cluster.kill(scene.feed.adapter(victim))
    heir = scene.await_takeover(victim, epoch)
    scene.hold(AFTERMATH_S)
    scene.mend()
    scene.restart_adapter(victim)
    scene.await_back(victim)
    return f"killed adapter {victim} (SIGKILL); adapter {heir} took over; {victim} is back as backup"


def kill_backup(scene: Scene) -> str:
    """SIGKILL a backup; it comes back."""
    scene.await_whole()
    watch = scene.watch
    victim = scene.any_backup()
    scene.strike(f"killing a backup, adapter {victim}")
    scene.cluster.kill(scene.feed.adapter(victim))
    watch.wait_for(lambda: watch.states.get(victim) == "away", TAKEOVER_TIMEOUT_S, f"the absence of adapter {victim}")
    scene.hold(AFTERMATH_S)
    scene.mend()
    scene.restart_adapter(victim)
    scene.await_back(victim)
    return f"killed the backup, adapter {victim} (SIGKILL); it is back"


def kill_driver(scene: Scene) -> str:
    """SIGKILL Spark's driver, wherever in a batch it is; it goes on from its checkpoint."""
    scene.await_ahead()
    if not scene.cluster.processes[scene.feed.job].is_running:
        scene.strike("Spark's driver has finished already")
        scene.mend()
        return "Spark's driver had finished already: nothing to kill"
    scene.strike("killing Spark's driver")
    scene.cluster.kill(scene.feed.job)
    scene.hold(AFTERMATH_S)
    scene.mend()
    scene.cluster.restart_job(scene.feed).await_event("ready", DRIVER_TIMEOUT_S)
    return "killed Spark's driver (SIGKILL) and started it again from its checkpoint"


def kill_admin(scene: Scene) -> str:
    """SIGKILL the admin server and leave it away for several terms of a lease; data is to flow on meanwhile."""
    scene.await_whole()
    watch = scene.watch
    active = watch.active
    scene.strike("killing the admin server")
    scene.cluster.kill(ADMIN)
    watch.wait_for(lambda: not watch.is_connected, TAKEOVER_TIMEOUT_S, "the admin server's absence")
    scene.hold(ADMIN_OUTAGE_S)
    scene.mend()
    scene.cluster.start_admin()
    for each in scene.cluster.watches.values():
        each.await_whole(WHOLE_TIMEOUT_S)
    roles = "roles stayed" if watch.active == active else f"adapter {watch.active} is active after {active}"
    return f"killed the admin server (SIGKILL), started it again after {ADMIN_OUTAGE_S:g} s; {roles}"


def restart_all(scene: Scene) -> str:
    """Stop (SIGTERM) and start every process of a feed, one after another: gateway, Spark's driver, backups, active,
    admin server, and a client, which is a second one: the feed's own goes on judging.

    The gateway comes before the strike is marked: its restart is a pause of the source itself, no stall of the feed."""
    scene.await_whole()
    cluster, feed, watch = scene.cluster, scene.feed, scene.watch
    scene.await_ahead(at_best_s=AHEAD_AMONG_OTHERS_S)
    scene.touch()
    _restart_gateway(scene)
    scene.strike("restarting every process, one after another; the gateway is back")
    cluster.stop(feed.job)
    cluster.restart_job(feed).await_event("ready", DRIVER_TIMEOUT_S)
    scene.await_ahead()
    observer = _start_observer(scene)
    for name in watch.backups:
        cluster.stop(feed.adapter(name))
        scene.restart_adapter(name)
        scene.await_back(name)
    scene.hold(SETTLED_S)
    active, epoch = watch.active, watch.epoch
    cluster.stop(feed.adapter(active))
    scene.await_takeover(active, epoch)
    scene.restart_adapter(active)
    scene.await_back(active)
    cluster.stop(ADMIN)
    cluster.start_admin()
    for each in cluster.watches.values():
        each.await_whole(WHOLE_TIMEOUT_S)
    _judge_observer(scene, observer)
    observer = _start_observer(scene)
    scene.hold(OBSERVE_S)
    _judge_observer(scene, observer)
    scene.mend()
    return "restarted gateway, Spark's driver, backups, active, admin server and a second client, one after another"


def _restart_gateway(scene: Scene) -> None:
    cluster, feed = scene.cluster, scene.feed
    scene.say(f"feed {feed.name}: restarting the gateway")
    cluster.stop(feed.gateway)
    gateway = cluster.start_gateway(feed, scene.rate)
    gateway.await_event("ready", START_TIMEOUT_S)
    gateway.say("start")
    scene.hold(AFTERMATH_S)


def _start_observer(scene: Scene) -> str:
    """Start the second client, from now on; its process's name."""
    name = f"{scene.feed.client}-second"
    process = scene.cluster.start_client(scene.feed, scene.folder / "second", start="live", name=name)
    process.await_event("ready", START_TIMEOUT_S)
    return name


def _judge_observer(scene: Scene, observer: str) -> None:
    """Stop the second client; what it was delivered must be without seam from its first to its last message."""
    process = scene.cluster.processes[observer]
    scene.cluster.stop(observer)
    process.await_event("recorded", START_TIMEOUT_S)
    figures = DeliveryRecord.load(scene.folder / "second").figures()
    scene.observed.lost += figures.missing
    scene.observed.duplicated += figures.duplicated
    scene.observed.out_of_order += figures.out_of_order
