"""Processes that stand still and go on: the zombie, and the slow backup."""

from __future__ import annotations

import time

from deploy.faults.scene import AFTERMATH_S, Scene

SLOW_S = 3.0
SLOW_STANDS_S, SLOW_RUNS_S = 0.045, 0.005  # a tenth of the processor, in pieces that outlast every gap timer


def pause_active(scene: Scene) -> str:
    """SIGSTOP the active beyond its lease, until another is active, then SIGCONT: the zombie must do no harm."""
    scene.await_whole()
    watch = scene.watch
    victim, epoch = watch.active, watch.epoch
    zombie = scene.adapter(victim)
    scene.strike(f"stopping the active, adapter {victim} (SIGSTOP)")
    zombie.pause()
    try:
        heir = scene.await_takeover(victim, epoch)
        scene.hold(AFTERMATH_S)
    finally:
        scene.mend()
        zombie.resume()
    scene.await_back(victim)
    return f"stopped adapter {victim} (SIGSTOP) beyond its lease; {heir} took over; SIGCONT: {victim} is a backup"


def slow_backup(scene: Scene) -> str:
    """A backup gets a tenth of the time: 45 ms stopped, 5 ms running, for 3 s. Nobody else may notice."""
    scene.await_whole()
    victim = scene.any_backup()
    process = scene.adapter(victim)
    scene.strike(f"slowing a backup, adapter {victim}")
    until = time.monotonic() + SLOW_S
    try:
        while time.monotonic() < until:
            process.pause()
            scene.hold(SLOW_STANDS_S)
            process.resume()
            scene.hold(SLOW_RUNS_S)
    finally:
        scene.mend()
        process.resume()
    scene.await_whole()
    return f"slowed adapter {victim} to a tenth (SIGSTOP and SIGCONT in turn) for {SLOW_S:g} s"
